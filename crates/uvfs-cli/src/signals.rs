//! SIGINT, SIGTERM and SIGHUP as something to wait for.
//!
//! SIGHUP has a mount of what can be reloaded do that, and ends every other.
//! They are blocked before the first thread is started, so that every thread inherits that and
//! none is interrupted; one thread waits for them.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// The signals that end a mount, or reload it.
pub struct Ending(SigSet);

impl Ending {
    /// Blocks them in this thread and all that it starts.
    pub fn block() -> Result<Self> {
        let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        set.thread_block().context("cannot block signals")?;
        Ok(Self(set))
    }

    /// Waits for the next one.
    pub fn wait(&self) -> Result<Signal> {
        loop {
            match self.0.wait() {
                Ok(signal) => return Ok(signal),
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error).context("cannot wait for signals"),
            }
        }
    }
}
