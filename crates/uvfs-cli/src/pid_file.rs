//! `--pid-file`: the number of the process that serves a mount, in a file for as long as the mount is there.
//!
//! The file is opened before the mount, because that may fail, written when the mount answers, and removed at its end. The server
//! holds a lock on it (flock(2)) meanwhile. So a second server that names the same file is refused, and takes nothing away from the
//! first. A file that was there before a mount that fails stays as it was. A server that is killed leaves its file behind; the next
//! one writes over it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The file of this process.
static MINE: OnceLock<Mine> = OnceLock::new();

struct Mine {
    /// Absolute.
    path: PathBuf,
    /// Holds the lock.
    file: File,
    /// It was made here.
    is_new: bool,
    written: OnceLock<()>,
}

/// The file, without a number yet.
pub struct PidFile(());

impl PidFile {
    /// Opens it, or makes it.
    ///
    /// # Errors
    /// It cannot be written, or a server that runs has it.
    pub fn make(path: &Path) -> Result<Self> {
        let failed = || format!("--pid-file {}: cannot be written", path.display());
        let absolute = std::path::absolute(path).with_context(failed)?;
        let mut options = OpenOptions::new();
        options.write(true);
        let (file, is_new) = match options.clone().create_new(true).open(&absolute) {
            Ok(file) => (file, true),
            Err(_) => (options.create(true).truncate(false).open(&absolute).with_context(failed)?, false),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => bail!(
                "--pid-file {}: another server has it; name another file, or unmount that one",
                path.display()
            ),
            Err(error) => return Err(error).with_context(failed),
        }
        let _ = MINE.set(Mine { path: absolute, file, is_new, written: OnceLock::new() });
        Ok(Self(()))
    }

    /// Writes the number: the mount answers.
    pub fn write(self) -> Result<()> {
        let Some(mine) = MINE.get() else { return Ok(()) };
        let _ = mine.written.set(());
        let written = mine.file.set_len(0).and_then(|()| writeln!(&mine.file, "{}", std::process::id()));
        written.context("--pid-file: the number cannot be written")
    }
}

/// Removes it, if it is this process's: the mount has ended, or was not made.
pub fn remove() {
    let Some(mine) = MINE.get() else { return };
    let is_ours = mine.is_new || mine.written.get().is_some();
    // The name may be another file's by now.
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    let same =
        || Some(identity(fs::symlink_metadata(&mine.path).ok()?) == identity(mine.file.metadata().ok()?));
    if is_ours && same() == Some(true) {
        let _ = fs::remove_file(&mine.path);
    }
}
