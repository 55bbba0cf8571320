//! `open-same`: opening one file and closing it again, by every thread.
//!
//! A table's part of an open is taking and putting a reference: `stock` and `patched`. `uvfs` is the library's own
//! `open` and drop of the handle. Through a target it is `open(2)` and `close(2)`.

use anyhow::Result;
use clap::{Arg, ArgMatches};

use crate::workloads::context::Call;
use crate::workloads::files::{FileArms, case};
use crate::workloads::{Prepare, Workload, options};

/// The workload.
pub struct OpenSame;

impl Workload for OpenSame {
    fn name(&self) -> &'static str {
        "open-same"
    }

    fn about(&self) -> &'static str {
        "open(path) and close: every thread the same file"
    }

    fn arms(&self) -> Vec<&'static str> {
        vec!["null", "stock", "patched", "uvfs"]
    }

    fn args(&self) -> Vec<Arg> {
        vec![options::depth("1")]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let depths = options::numbers(matches, "depth")?;
        Ok(depths.into_iter().map(|depth| case(FileArms { call: Call::Open, depth })).collect())
    }
}
