//! The names and directories of a tree that could not be read: questions carry a warning while there are any.
//!
//! A directory counts until it is read, or leaves the tree. A single name counts until the tree is read anew: a later
//! look at it may have another outcome, but the index does not remember which names these were. The table's writer
//! changes this, readers read it, under the lock that the table is under.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use rustix::io::Errno;

use crate::table::{HostHandle, NameTable};

/// Directories that may be remembered before those that left the tree are looked for.
const FEW: usize = 16;

/// See the module's head.
#[derive(Default)]
pub(super) struct Unread {
    dirs: HashMap<HostHandle, Errno, RandomState>,
    /// Directories at which those that left the tree are forgotten.
    sweep_at: usize,
    names: u64,
    last_name: Option<String>,
}

impl Unread {
    /// A name or a file could not be read, for this reason.
    pub(super) fn name(&mut self, what: String) {
        self.names += 1;
        self.last_name = Some(what);
    }

    /// A directory could not be read.
    pub(super) fn dir(&mut self, dir: HostHandle, errno: Errno, table: &NameTable) {
        if self.dirs.len() >= self.sweep_at.max(FEW) {
            self.dirs.retain(|dir, _| table.dir_of(dir.as_bytes()).is_some());
            self.sweep_at = 2 * self.dirs.len();
        }
        self.dirs.insert(dir, errno);
    }

    /// Those that could not be read.
    pub(super) fn dirs(&self) -> Vec<HostHandle> {
        self.dirs.keys().cloned().collect()
    }

    /// A directory was read.
    pub(super) fn was_read(&mut self, dir: &HostHandle) {
        self.dirs.remove(dir);
    }

    /// Their number, and the last of them.
    pub(super) fn shown(&self, table: &NameTable) -> (u64, Option<String>) {
        let known = |(dir, _): &(&HostHandle, &Errno)| table.dir_of(dir.as_bytes()).is_some();
        let mut dirs = self.dirs.iter().filter(known);
        let a_dir = dirs.next().map(|(_, errno)| format!("a directory: {errno}"));
        let count = self.names + u64::from(a_dir.is_some()) + dirs.count() as u64;
        (count, self.last_name.clone().or(a_dir))
    }
}
