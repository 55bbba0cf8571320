//! `lookup-miss`: `stat` of absent names that have negative entries.
//!
//! uvfs runs on the generated driver, which is asked once for each absent name; afterwards the negative entry answers.
//! The tables hold an equivalent entry, as any program must that does not want to ask its back
//! end again.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use clap::{Arg, ArgMatches};
use serde_json::json;
use uvfs_drivers::generated::{Generated, ROOT_INO, Spec};

use crate::arms::registry;
use crate::harness::Arm;
use crate::harness::schedule::Params;
use crate::names::paths::Paths;
use crate::names::tree::{NameTree, Shape, TreeEntry, attr_of};
use crate::workloads::context::{ContextCall, Contexts};
use crate::workloads::files::arms_of_tables;
use crate::workloads::lookups::{Setup, WholeStat};
use crate::workloads::target::{RunTarget, SystemCalls};
use crate::workloads::visit::{Which, variants};
use crate::workloads::{Maker, Prepare, Workload, options};

/// The workload.
pub struct LookupMiss;

impl Workload for LookupMiss {
    fn name(&self) -> &'static str {
        "lookup-miss"
    }

    fn about(&self) -> &'static str {
        "stat(path) of names that do not exist (ENOENT), answered by negative entries"
    }

    fn arms(&self) -> Vec<&'static str> {
        arms_of_tables().into_iter().filter(|name| !matches!(*name, "stock" | "patched")).collect()
    }

    fn args(&self) -> Vec<Arg> {
        vec![options::depth("1,6"), options::files("1").help("Absent names; each number is a case")]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let mut cases = Vec::new();
        for files in options::numbers(matches, "files")? {
            for depth in options::numbers(matches, "depth")? {
                let params = Params::from_iter([
                    ("files".to_owned(), json!(files)),
                    ("depth".to_owned(), json!(depth)),
                ]);
                cases.push(Prepare {
                    params,
                    variants: variants(),
                    maker: Box::new(Misses { files, depth: depth as usize }),
                });
            }
        }
        Ok(cases)
    }
}

struct Misses {
    files: u64,
    depth: usize,
}

impl Misses {
    /// Directories in a chain, two entries in each, names of nine bytes.
    fn driver(&self) -> Result<Arc<Generated>> {
        let spec = Spec { depth: self.depth as u32 - 1, dirs: 1, files: 1, name: (9, 9), ..Spec::default() };
        Ok(Arc::new(Generated::new(spec)?))
    }

    /// The driver's directories with their names, and absent names in the last of them.
    fn tree(&self, driver: &Generated) -> Result<NameTree> {
        let generated = driver.tree();
        let (mut dir, mut above, mut entries) = (ROOT_INO, Vec::new(), Vec::new());
        for _ in 1..self.depth {
            let name = generated.name(dir, 0).context("the generated tree has too few levels")?.to_vec();
            let ino = generated.child(dir, 0).context("the generated tree has too few levels")?;
            entries.push(TreeEntry { parent: dir, name: name.clone(), attr: attr_of(ino, true) });
            above.push(name);
            dir = ino;
        }
        let mut paths = Paths::default();
        for i in 0..self.files {
            let name = format!("none{i:05}").into_bytes();
            ensure!(generated.find(dir, &name).is_none(), "a name that should be absent exists");
            let names: Vec<&[u8]> = above.iter().map(Vec::as_slice).chain([&name[..]]).collect();
            paths.push(&names).context("the paths of this tree are too long")?;
            entries.push(TreeEntry { parent: dir, name, attr: Default::default() });
        }
        let inos = vec![0; paths.len()];
        Ok(NameTree { entries, paths, inos })
    }

    fn setup(&self, threads: usize) -> Result<(Arc<Generated>, Setup)> {
        let driver = self.driver()?;
        let tree = Arc::new(self.tree(&driver)?);
        Ok((driver, Setup { tree, which: Which::All, threads, aged: false }))
    }
}

impl Maker for Misses {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let (driver, setup) = self.setup(threads)?;
        match name {
            "uvfs" => Ok(Box::new(Contexts::over(driver, &setup, ContextCall::Absent)?)),
            table => registry::table::<WholeStat>(table, &setup),
        }
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        let shape = Shape {
            files: self.files,
            depth: self.depth,
            per_dir: Some(self.files),
            own: false,
            negative: true,
            name_bytes: 0,
            seed: 1,
        };
        let setup =
            Setup { tree: Arc::new(NameTree::new(shape)?), which: Which::All, threads: 1, aged: false };
        Ok(Box::new(SystemCalls::new(target, shape, &setup, ContextCall::Absent)?))
    }
}
