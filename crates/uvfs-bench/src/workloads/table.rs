//! `table`: the bare table. One lookup per name and a copy of the attributes; no namei.

use anyhow::{Result, bail};
use clap::{Arg, ArgMatches};
use serde_json::json;

use crate::arms::registry;
use crate::harness::Arm;
use crate::harness::schedule::Params;
use crate::names::tree::{LazyTree, Shape};
use crate::workloads::lookups::{Bare, Setup};
use crate::workloads::target::RunTarget;
use crate::workloads::visit::{Which, variants};
use crate::workloads::{Maker, Prepare, Workload, options};

/// The workload.
pub struct BareTable;

impl Workload for BareTable {
    fn name(&self) -> &'static str {
        "table"
    }

    fn about(&self) -> &'static str {
        "the bare table: look up each name of a path, copy the attributes; random order"
    }

    fn arms(&self) -> Vec<&'static str> {
        registry::TABLES.to_vec()
    }

    fn args(&self) -> Vec<Arg> {
        vec![options::depth("1,6"), options::files("1,10000"), options::per_dir(), options::aged()]
    }

    fn has_targets(&self) -> bool {
        false
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let per_dir = matches.get_one::<u64>("per-dir").copied();
        let aged = options::is_aged(matches);
        let mut cases = Vec::new();
        for files in options::numbers(matches, "files")? {
            for depth in options::numbers(matches, "depth")? {
                let mut params = Params::from_iter([
                    ("files".to_owned(), json!(files)),
                    ("depth".to_owned(), json!(depth)),
                ]);
                if aged {
                    params.insert("aged".to_owned(), json!(true));
                }
                let depth = depth as usize;
                let shape =
                    Shape { files, depth, per_dir, own: false, negative: false, name_bytes: 0, seed: 1 };
                cases.push(Prepare {
                    params,
                    variants: variants(),
                    maker: Box::new(Tables { tree: LazyTree::new(shape), aged }),
                });
            }
        }
        Ok(cases)
    }
}

struct Tables {
    tree: LazyTree,
    aged: bool,
}

impl Maker for Tables {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let setup = Setup { tree: self.tree.get()?, which: Which::All, threads, aged: self.aged };
        registry::table::<Bare>(name, &setup)
    }

    fn target(&self, _target: &RunTarget) -> Result<Box<dyn Arm>> {
        bail!("the bare table has no system calls")
    }
}
