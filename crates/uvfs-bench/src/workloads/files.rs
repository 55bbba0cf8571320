//! Arms on a tree of files, for `stat-*` and `open-*`.

use anyhow::Result;
use serde_json::json;

use crate::arms::registry;
use crate::harness::Arm;
use crate::harness::schedule::Params;
use crate::names::tree::{LazyTree, Shape};
use crate::workloads::context::{ContextCall, Contexts};
use crate::workloads::lookups::{Setup, WholeStat};
use crate::workloads::target::{RunTarget, SystemCalls};
use crate::workloads::visit::{Which, variants};
use crate::workloads::{Maker, Prepare};

/// Trees in which each worker has a file of its own are made for this many workers.
const SEATS: u64 = 64;

/// The parameters of a case.
#[derive(Clone, Copy, Debug)]
pub struct FileArms {
    /// Which paths are visited.
    pub which: Which,
    /// The measured call.
    pub call: ContextCall,
    /// Names in each path.
    pub depth: u64,
    /// Number of files; `None`: as many as `which` needs.
    pub files: Option<u64>,
    /// Files of a directory.
    pub per_dir: Option<u64>,
    /// Bytes of a file's name; 0: as they come.
    pub name_bytes: u64,
    /// Whether files were removed and created before ([`aging`](crate::names::aging)).
    pub aged: bool,
}

/// Every table, with uvfs's cache as `uvfs-table` and with its prefix cache, and the library itself.
pub fn arms_of_tables() -> Vec<&'static str> {
    let tables = registry::TABLES.into_iter().filter(|name| *name != "uvfs");
    tables.chain(["uvfs-table", "uvfs"]).collect()
}

/// The case of these arms.
pub fn case<'w>(arms: FileArms) -> Prepare<'w> {
    let files = match arms.which {
        Which::Same => 1,
        Which::Separate => SEATS,
        Which::All => arms.files.unwrap_or(1),
    };
    let mut params = Params::new();
    if let Some(files) = arms.files {
        params.insert("files".to_owned(), json!(files));
    }
    params.insert("depth".to_owned(), json!(arms.depth));
    if arms.name_bytes != 0 {
        params.insert("name_bytes".to_owned(), json!(arms.name_bytes));
    }
    if arms.aged {
        params.insert("aged".to_owned(), json!(true));
    }
    let shape = Shape {
        files,
        depth: arms.depth as usize,
        per_dir: arms.per_dir,
        own: arms.which == Which::Separate,
        negative: false,
        name_bytes: arms.name_bytes as usize,
        seed: 1,
    };
    Prepare { params, variants: variants(), maker: Box::new(Files { arms, tree: LazyTree::new(shape) }) }
}

struct Files {
    arms: FileArms,
    tree: LazyTree,
}

impl Files {
    fn setup(&self, threads: usize) -> Result<Setup> {
        Ok(Setup { tree: self.tree.get()?, which: self.arms.which, threads, aged: self.arms.aged })
    }
}

impl Maker for Files {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let setup = self.setup(threads)?;
        match name {
            "uvfs" => Ok(Box::new(Contexts::on_tmpfs(&setup, self.arms.call)?)),
            table => registry::table::<WholeStat>(table, &setup),
        }
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        Ok(Box::new(SystemCalls::new(target, self.tree.shape(), &self.setup(1)?, self.arms.call)?))
    }
}
