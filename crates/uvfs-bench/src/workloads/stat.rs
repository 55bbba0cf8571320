//! `stat-same`, `stat-many`: one `stat` by path, entirely through namei.
//!
//! The tables run under one namei ([`crate::names::namei`]). `uvfs-table` is uvfs's cache under that same
//! namei, and `uvfs-prefix` the same with its prefix cache in front.
//! `uvfs` is the library as a program calls it, on its tmpfs.

use anyhow::Result;
use clap::{Arg, ArgMatches};

use crate::workloads::context::ContextCall;
use crate::workloads::files::{FileArms, arms_of_tables, case};
use crate::workloads::visit::Which;
use crate::workloads::{Prepare, Workload, options};

/// One of the two.
pub struct StatFiles {
    name: &'static str,
    about: &'static str,
    which: Which,
    depths: &'static str,
}

/// Every thread looks up the same path.
pub const SAME: StatFiles = StatFiles {
    name: "stat-same",
    about: "stat(path): every thread the same file",
    which: Which::Same,
    depths: "1,6",
};
/// Many files.
pub const MANY: StatFiles = StatFiles {
    name: "stat-many",
    about: "stat(path): all files of a tree in random order",
    which: Which::All,
    depths: "6",
};

impl Workload for StatFiles {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn arms(&self) -> Vec<&'static str> {
        arms_of_tables()
    }

    fn args(&self) -> Vec<Arg> {
        let mut args = vec![options::depth(self.depths)];
        if self.which == Which::Same {
            args.push(options::name_bytes());
        }
        if self.which == Which::All {
            args.extend([options::files("10000"), options::per_dir(), options::aged()]);
        }
        args
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let (which, call) = (self.which, ContextCall::Stat);
        let files = match which {
            Which::All => options::numbers(matches, "files")?.into_iter().map(Some).collect(),
            Which::Same | Which::Separate => vec![None],
        };
        let per_dir = matches.try_get_one::<u64>("per-dir").ok().flatten().copied();
        let (aged, name_bytes) = (options::is_aged(matches), options::bytes_of_names(matches));
        let mut cases = Vec::new();
        for files in files {
            for depth in options::numbers(matches, "depth")? {
                cases.push(case(FileArms { which, call, depth, files, per_dir, name_bytes, aged }));
            }
        }
        Ok(cases)
    }
}
