//! `rename-storm`: `stat` of one file while a thread renames the file beside it back and forth.
//!
//! A table without a rename removes one name and inserts the other, and for a moment neither exists. That
//! is less than a file system must guarantee, and favours the table.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{Arg, ArgMatches, value_parser};
use serde_json::json;

use crate::arms::registry;
use crate::harness::Arm;
use crate::harness::schedule::Params;
use crate::names::tree::{Shape, Tree};
use crate::workloads::context::{Call, Contexts};
use crate::workloads::files::arms_of_tables;
use crate::workloads::lookups::{Setup, Stat, Storm};
use crate::workloads::target::{SystemCalls, Target};
use crate::workloads::visit::{Which, variants};
use crate::workloads::{Maker, Prepare, Workload, options};

/// The workload.
pub struct RenameStorm;

impl Workload for RenameStorm {
    fn name(&self) -> &'static str {
        "rename-storm"
    }

    fn about(&self) -> &'static str {
        "stat(path) of one file while another thread renames the file beside it"
    }

    /// Without the tables that cannot change while they are read. `null` is there for the scale.
    fn arms(&self) -> Vec<&'static str> {
        arms_of_tables().into_iter().filter(|name| *name != "hashbrown").collect()
    }

    fn args(&self) -> Vec<Arg> {
        let rate = Arg::new("renames")
            .long("renames")
            .value_name("N")
            .value_parser(value_parser!(u32).range(1000..=10_000_000))
            .default_value("10000")
            .help("Pairs of renames a second, there and back");
        vec![options::depth("1,6"), rate]
    }

    fn companions(&self, _matches: &ArgMatches) -> usize {
        1
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let per_second = *matches.get_one::<u32>("renames").context("--renames is needed")?;
        let depths = options::numbers(matches, "depth")?;
        Ok(depths.into_iter().map(|depth| case(depth, per_second)).collect())
    }
}

fn case<'w>(depth: u64, per_second: u32) -> Prepare<'w> {
    let params =
        Params::from_iter([("depth".to_owned(), json!(depth)), ("renames".to_owned(), json!(per_second))]);
    Prepare { params, variants: variants(), maker: Box::new(Storms { depth: depth as usize, per_second }) }
}

struct Storms {
    depth: usize,
    per_second: u32,
}

impl Storms {
    fn shape(&self) -> Shape {
        Shape { files: 2, depth: self.depth, per_dir: Some(2), own: false, negative: false, seed: 1 }
    }

    /// Two files in one directory: the first path is looked up, the second file is renamed.
    fn setup(&self, name: &str, threads: usize) -> Result<Setup> {
        let tree = Tree::new(self.shape())?;
        let path = tree.paths.get(1);
        let (_, last) = path.split();
        let entry =
            tree.entries.iter().find(|e| e.attr.ino == tree.inos[1]).context("a path without an entry")?;
        let storm = Storm {
            dir: entry.parent,
            dir_path: path.whole[..path.whole.len() - last.len() - 1].to_vec(),
            name: last.to_vec(),
            other: b"elsewhere".to_vec(),
            per_second: self.per_second,
        };
        let storm = (name != "null").then_some(storm);
        Ok(Setup { tree: Arc::new(tree), which: Which::Same, threads, storm })
    }
}

impl Maker for Storms {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let setup = self.setup(name, threads)?;
        match name {
            "uvfs" => Ok(Box::new(Contexts::on_tmpfs(&setup, Call::Stat)?)),
            table => registry::table::<Stat>(table, &setup),
        }
    }

    fn target(&self, target: &Target) -> Result<Box<dyn Arm>> {
        Ok(Box::new(SystemCalls::new(target, self.shape(), &self.setup("", 1)?, Call::Stat)?))
    }
}
