//! The command that serves the tree, in its own process. Dropping this unmounts the tree and ends the process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::WalksPlan;
use crate::process::{end_of, until_mounted};

/// How long a mount may take to be there, and to go.
const SOON: Duration = Duration::from_secs(30);

/// See the module.
pub struct Server {
    child: Child,
    dir: tempfile::TempDir,
}

impl Server {
    /// Mounts the tree.
    ///
    /// # Errors
    /// If the command cannot be run, or does not mount.
    pub fn start(plan: &WalksPlan) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("walks").tempdir()?;
        let more = if plan.options.is_empty() { String::new() } else { format!(",{}", plan.options) };
        let child = Command::new(&plan.uvfs)
            .args(["mount", &format!("generated:{}", plan.spec)])
            .arg(dir.path())
            .args(["-o", &format!("memory={}{more}", plan.memory)])
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", plan.uvfs.display()))?;
        let mut server = Self { child, dir };
        let control = server.dir.path().join(".uvfs/stats");
        until_mounted(&mut server.child, SOON, || std::fs::read(&control).is_ok())?;
        Ok(server)
    }

    /// Where it is mounted.
    pub fn mount(&self) -> &Path {
        self.dir.path()
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn control(&self, name: &str) -> PathBuf {
        self.dir.path().join(".uvfs").join(name)
    }

    /// A file of `.uvfs`.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, name: &str) -> Result<String> {
        let path = self.control(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Sets the limit.
    ///
    /// # Errors
    /// The system's.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        std::fs::write(self.control("bytes_limit"), bytes.to_string()).context("cannot set the limit")
    }

    /// Unmounts, and waits for its end.
    ///
    /// # Errors
    /// If it does not end, or ends with an error: leftover references are an error of the command.
    pub fn end(mut self) -> Result<()> {
        self.signal(Signal::INT);
        let status = end_of(&mut self.child, SOON)?.context("the command does not end")?;
        ensure!(status.success(), "the command ended with {status}");
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
            let _ = end_of(&mut self.child, SOON);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
