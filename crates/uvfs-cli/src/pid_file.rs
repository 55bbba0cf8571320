//! `--pid-file`: the number of the process that serves a mount, in a file for as long as the mount is there.
//!
//! The file is made before the mount, because that may fail, and removed at its end. A server that is killed leaves
//! it behind; the next one writes over it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};

/// The file of this process: its absolute path.
static MINE: OnceLock<PathBuf> = OnceLock::new();

/// The file, without a number yet.
pub struct PidFile(File);

impl PidFile {
    /// Makes it empty.
    pub fn make(path: &Path) -> Result<Self> {
        let failed = || format!("--pid-file {}: cannot be written", path.display());
        let path = std::path::absolute(path).with_context(failed)?;
        let file = File::create(&path).with_context(failed)?;
        let _ = MINE.set(path);
        Ok(Self(file))
    }

    /// Writes the number: the mount answers.
    pub fn write(mut self) -> Result<()> {
        writeln!(self.0, "{}", std::process::id()).context("--pid-file: the number cannot be written")
    }
}

/// Removes it, if there is one: the mount has ended, or was not made.
pub fn remove() {
    if let Some(path) = MINE.get() {
        let _ = fs::remove_file(path);
    }
}
