//! Waits for other processes, with a time limit and without polling: for their end, and for their mounts.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Waits until `child` has ended, for `limit` at most. `None` if it has not ended by then.
///
/// # Errors
/// The error of pidfd_open(2) or waitpid(2).
pub fn end_of(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    wait(&mut [PollFd::new(&process, PollFlags::IN)], Instant::now() + limit)?;
    child.try_wait()
}

/// Waits until `is_there` reports the mount of `server`, for `limit` at most.
///
/// # Errors
/// If the server ends before that, or the time runs out.
pub fn until_mounted(server: &mut Child, limit: Duration, mut is_there: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + limit;
    // poll(2) reports each change of the mounts since this file was opened or last reported one.
    let mounts = File::open("/proc/self/mountinfo")?;
    let process = pidfd_open(Pid::from_child(server), PidfdFlags::empty())?;
    while !is_there() {
        if let Some(status) = server.try_wait()? {
            bail!("it has ended: {status}");
        }
        ensure!(Instant::now() < deadline, "nothing is mounted after {limit:?}");
        let (ends, mounted) =
            (PollFd::new(&process, PollFlags::IN), PollFd::from_borrowed_fd(mounts.as_fd(), PollFlags::PRI));
        wait(&mut [ends, mounted], deadline)?;
    }
    Ok(())
}

/// Waits until one of them is ready, or until `deadline`.
fn wait(whom: &mut [PollFd<'_>], deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(whom, Some(&left)) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_end_is_waited_for_and_not_longer_than_told() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        assert!(end_of(&mut child, Duration::from_millis(1)).expect("wait").is_none());
        child.kill().expect("kill");
        for _ in 0..2 {
            let ended = end_of(&mut child, Duration::from_secs(60)).expect("wait");
            assert!(ended.is_some_and(|status| !status.success()));
        }
    }

    #[test]
    fn who_ends_mounts_nothing() {
        let mut child = Command::new("false").spawn().expect("false");
        let said =
            until_mounted(&mut child, Duration::from_secs(60), || false).expect_err("nothing is there");
        assert!(said.to_string().contains("it has ended"), "{said}");
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        assert!(until_mounted(&mut child, Duration::from_secs(60), || true).is_ok());
        let said = until_mounted(&mut child, Duration::ZERO, || false).expect_err("nothing is there");
        assert!(said.to_string().contains("nothing is mounted"), "{said}");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}
