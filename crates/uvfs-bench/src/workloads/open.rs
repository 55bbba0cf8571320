//! `open-same`, `open-separate`: opening a file and closing it again.
//!
//! A table's part of an open is taking and putting a reference: `stock`, `patched`, and both with `spin`. `uvfs` is the library's
//! own `open` and drop of the handle. Through a target it is `open(2)` and `close(2)`.

use anyhow::Result;
use clap::{Arg, ArgMatches};

use crate::workloads::context::ContextCall;
use crate::workloads::files::{FileArms, case};
use crate::workloads::visit::Which;
use crate::workloads::{Prepare, Workload, options};

/// One of the two.
pub struct OpenFiles {
    name: &'static str,
    about: &'static str,
    which: Which,
    depths: &'static str,
}

/// Every thread opens the same path.
pub const SAME: OpenFiles = OpenFiles {
    name: "open-same",
    about: "open(path) and close: every thread the same file",
    which: Which::Same,
    depths: "1",
};
/// Each thread opens a file of its own.
pub const SEPARATE: OpenFiles = OpenFiles {
    name: "open-separate",
    about: "open(path) and close: each thread a file of its own, in directories of its own",
    which: Which::Separate,
    depths: "2",
};

impl Workload for OpenFiles {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn arms(&self) -> Vec<&'static str> {
        vec!["null", "stock", "spin", "patched", "patched-spin", "uvfs"]
    }

    fn args(&self) -> Vec<Arg> {
        vec![options::depth(self.depths), options::name_bytes()]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let depths = options::numbers(matches, "depth")?;
        let (which, call) = (self.which, ContextCall::Open);
        let name_bytes = options::bytes_of_names(matches);
        let arms =
            |depth| FileArms { which, call, depth, files: None, per_dir: None, name_bytes, aged: false };
        Ok(depths.into_iter().map(|depth| case(arms(depth))).collect())
    }
}
