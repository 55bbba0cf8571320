//! The files of `.uvfs` that take a command when they are written.
//!
//! A write parses its text and asks the cache. Another thread does the work, because the writing thread reads requests.

use std::sync::Arc;

use uvfs::{Errno, Result};
use uvfs_drivers::kernfs::{Node, read_write};
use uvfs_drivers::tmpfs::amount;

use crate::{ControlDir, line, own};

/// The least limit, in bytes. A lower one would not hold a mount's first needs, and the names in use at a time.
const MEMORY_MIN: u64 = 4 << 20;

impl ControlDir {
    /// Adds the files to the root of `.uvfs`.
    pub(super) fn add_commands(self: &Arc<Self>, root: &Node) -> Result<()> {
        let vfs = self.vfs.clone();
        let shrink = read_write(
            |_: &mut Vec<u8>| Err(Errno::ACCESS),
            move |_, data| {
                let bytes = number(data)?;
                // Not here: this thread reads requests.
                vfs.upgrade().ok_or(Errno::NODEV)?.cache().ask_shrink(bytes);
                Ok(())
            },
        );
        root.add_attr("shrink", own(0o200), shrink)?;
        let (shown, set) = (self.vfs.clone(), self.vfs.clone());
        let limit = read_write(
            move |out| line(out, shown.upgrade().ok_or(Errno::NODEV)?.cache().memory_limit()),
            move |_, data| {
                let bytes = memory_limit(word(data)?).map_err(|error| {
                    tracing::warn!(error, "bytes_limit is not set");
                    Errno::INVAL
                })?;
                set.upgrade().ok_or(Errno::NODEV)?.cache().ask_memory_limit(bytes);
                Ok(())
            },
        );
        root.add_attr("bytes_limit", own(0o644), limit)?;
        Ok(())
    }
}

/// A limit of the memory for names and inodes in bytes, as `bytes_limit` takes it: `64m`, or 0 for none.
///
/// # Errors
/// A clause that says what is wrong.
pub fn memory_limit(text: &str) -> std::result::Result<u64, &'static str> {
    match amount(text) {
        Some(bytes) if bytes == 0 || bytes >= MEMORY_MIN => Ok(bytes),
        Some(_) => Err("too little to work with; give at least 4m, or 0 for no limit"),
        None => Err("expected bytes, such as 64m, or 0 for no limit"),
    }
}

/// The text that was written, without the newline.
fn word(data: &[u8]) -> Result<&str> {
    str::from_utf8(data).map(str::trim).map_err(|_| Errno::INVAL)
}

fn number(data: &[u8]) -> Result<u64> {
    word(data)?.parse().map_err(|_| Errno::INVAL)
}
