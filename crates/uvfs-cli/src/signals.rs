//! Waiting for signals.
//!
//! SIGINT, SIGTERM and SIGQUIT end a mount, SIGHUP reloads it. Every other signal that would end the process by
//! default, and so lose its data in memory, is ignored; the first of each kind is logged. Faults (SIGSEGV, SIGABRT …)
//! and the signals of job control keep their meaning, and the standard library ignores SIGPIPE. Signals are blocked
//! before the first thread is started, so that every thread inherits that and none is interrupted; one thread waits
//! for them. Commands that a tree runs start with none blocked.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// Signals that keep their meaning: faults of this program, job control, and those that do nothing by default.
const LEFT: [Signal; 17] = [
    Signal::SIGABRT,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGSEGV,
    Signal::SIGSYS,
    Signal::SIGTRAP,
    Signal::SIGKILL,
    Signal::SIGSTOP,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGCONT,
    Signal::SIGCHLD,
    Signal::SIGURG,
    Signal::SIGWINCH,
    Signal::SIGPIPE,
];

/// The request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// SIGHUP.
    Reload,
    /// To end the mount.
    End(Signal),
}

/// The signals that a mount waits for.
pub struct Signals {
    waited: SigSet,
    /// Those that were ignored and logged.
    told: SigSet,
}

impl Signals {
    /// Blocks them in this thread and all that it starts.
    pub fn block() -> Result<Self> {
        // Real-time signals too. They have no name here, so nothing waits for them and they stay pending.
        let mut blocked = SigSet::all();
        LEFT.iter().for_each(|&signal| blocked.remove(signal));
        blocked.thread_block().context("cannot block signals")?;
        let waited = Signal::iterator().filter(|signal| !LEFT.contains(signal)).collect();
        Ok(Self { waited, told: SigSet::empty() })
    }

    /// Waits for the next one that asks for something.
    pub fn wait(&mut self) -> Result<SignalRequest> {
        loop {
            match self.waited.wait() {
                Ok(Signal::SIGHUP) => return Ok(SignalRequest::Reload),
                Ok(signal @ (Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT)) => {
                    return Ok(SignalRequest::End(signal));
                }
                Ok(signal) => self.ignore(signal),
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error).context("cannot wait for signals"),
            }
        }
    }

    fn ignore(&mut self, signal: Signal) {
        // Once: SIGXFSZ comes with every write beyond a limit.
        if !self.told.contains(signal) {
            self.told.add(signal);
            tracing::warn!("{signal} is ignored: to end the mount use uvfs umount, SIGTERM or SIGINT");
        }
    }
}
