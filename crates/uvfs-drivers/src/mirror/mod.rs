//! A directory of the host, shown as a file system.

pub mod watch;
