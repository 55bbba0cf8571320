//! Every name of a directory tree in memory, never stale, and what changed since a moment.

mod host;
mod queue;
mod scan;
mod table;
pub use table::changes::{ChangeKind, ChangedName};
pub use table::{FileFacts, HostHandle};
