//! `stat-same`: one `stat` of one path by every thread, entirely through namei.
//!
//! The tables run under one namei ([`crate::names::namei`]). `uvfs-table` is uvfs's cache under that same namei.
//! `uvfs` is the library as a program calls it, on its tmpfs.

use anyhow::Result;
use clap::{Arg, ArgMatches};

use crate::workloads::context::Call;
use crate::workloads::files::{FileArms, arms_of_tables, case};
use crate::workloads::{Prepare, Workload, options};

/// The workload.
pub struct StatSame;

impl Workload for StatSame {
    fn name(&self) -> &'static str {
        "stat-same"
    }

    fn about(&self) -> &'static str {
        "stat(path): every thread the same file"
    }

    fn arms(&self) -> Vec<&'static str> {
        arms_of_tables()
    }

    fn args(&self) -> Vec<Arg> {
        vec![options::depth("1,6")]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let depths = options::numbers(matches, "depth")?;
        Ok(depths.into_iter().map(|depth| case(FileArms { call: Call::Stat, depth })).collect())
    }
}
