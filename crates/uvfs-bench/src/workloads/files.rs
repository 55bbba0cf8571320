//! Arms on one file, for `stat-same` and `open-same`.

use anyhow::Result;
use serde_json::json;

use crate::arms::registry;
use crate::harness::Arm;
use crate::harness::schedule::Params;
use crate::names::tree::{LazyTree, Shape};
use crate::workloads::context::{Call, Contexts};
use crate::workloads::lookups::{Setup, Stat};
use crate::workloads::target::{SystemCalls, Target};
use crate::workloads::visit::{Which, variants};
use crate::workloads::{Maker, Prepare};

/// The parameters of a case.
#[derive(Clone, Copy, Debug)]
pub struct FileArms {
    /// The measured call.
    pub call: Call,
    /// Names in the path.
    pub depth: u64,
}

/// Every table, with uvfs's cache as `uvfs-table`, and the library itself.
pub fn arms_of_tables() -> Vec<&'static str> {
    let tables = registry::TABLES.into_iter().filter(|name| !matches!(*name, "uvfs" | "uvfs-prefix"));
    tables.chain(["uvfs-table", "uvfs"]).collect()
}

/// The case of these arms: one file.
pub fn case<'w>(arms: FileArms) -> Prepare<'w> {
    let params = Params::from_iter([("depth".to_owned(), json!(arms.depth))]);
    let shape = Shape { files: 1, depth: arms.depth as usize, per_dir: None, negative: false, seed: 1 };
    Prepare { params, variants: variants(), maker: Box::new(Files { arms, tree: LazyTree::new(shape) }) }
}

struct Files {
    arms: FileArms,
    tree: LazyTree,
}

impl Files {
    fn setup(&self, threads: usize) -> Result<Setup> {
        Ok(Setup { tree: self.tree.get()?, which: Which::Same, threads })
    }
}

impl Maker for Files {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let setup = self.setup(threads)?;
        match name {
            "uvfs" => Ok(Box::new(Contexts::on_tmpfs(&setup, self.arms.call)?)),
            table => registry::table::<Stat>(table, &setup),
        }
    }

    fn target(&self, target: &Target) -> Result<Box<dyn Arm>> {
        Ok(Box::new(SystemCalls::new(target, self.tree.shape(), &self.setup(1)?, self.arms.call)?))
    }
}
