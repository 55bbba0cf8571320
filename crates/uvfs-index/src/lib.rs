//! Every name of a directory tree in memory, never stale, and what changed since a moment.
//!
//! [`IndexedTree`] reads a tree once, and then follows it through a file-system-wide fanotify mark.
//!
//! | file | content |
//! |---|---|
//! | `tree` | a tree that is followed; why no change is missed, and why an answer is complete |
//! | `table` | names, attributes, and the order of changes |
//! | `host` | looks at the host: names, attributes, handles |
//! | `scan` | reading a tree by several threads |
//! | `snapshot` | a tree in a file; why it makes no answer wrong |
//! | `queue` | reports that wait for the worker |
//! | `clock` | a moment of a tree |
//! | `find` | find's expressions, over any tree of names |
//! | `protocol`, `server`, `client` | trees behind a Unix socket |
//! | `watchman` | watchman's protocol, behind a second socket |

mod client;
mod clock;
pub mod find;
mod host;
pub mod protocol;
mod queue;
mod scan;
mod server;
mod snapshot;
mod table;
mod tree;
mod watchman;

pub use client::{IndexClient, usual_socket};
pub use clock::ChangeClock;
pub use server::{IndexServer, IndexSocket};
pub use snapshot::{SnapshotDir, SnapshotFile, usual_snapshots};
pub use table::changes::{ChangeKind, ChangedName};
pub use table::{FileFacts, HostHandle};
pub use tree::{
    ChangesSince, FindOutcome, FindStart, IndexPhase, IndexedName, IndexedTree, TreeFigures, TreeLimits,
};
pub use watchman::{WATCHMAN_VERSION, WatchmanServer, watchman_command, watchman_socket};

/// The size of a test: the second one if the environment has `UVFS_FULL`, as in `ci/test.sh --full`.
#[cfg(test)]
fn usual_or_full(usual: usize, full: usize) -> usize {
    if std::env::var_os("UVFS_FULL").is_some() { full } else { usual }
}

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
