//! `-o auto_unmount`: a second process that unmounts when the server has ended without doing so.
//!
//! It is this program again, as `uvfs umount --after-server DIR`, in a session of its own. Its standard input is a
//! pidfd of the server (pidfd_open(2), Linux 5.3), which becomes readable when the server's last thread has ended,
//! whatever ended it. The number of a process could be another one's by then. A clean unmount leaves nothing to do.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use uvfs_fuse::ServerState;

use crate::daemon;

/// Looks at the mount after the server's end. If it used io_uring, a thread of the kernel closes the device later, and
/// nothing tells of that.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Starts the other process, for the mount that this one serves. `dir` is absolute.
pub fn start(dir: &Path) -> Result<()> {
    let server = pidfd_open(getpid(), PidfdFlags::empty()).context("auto_unmount: pidfd_open(2)")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("uvfs").args(["umount", "--after-server", "--"]).arg(dir);
    command.stdin(server).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("auto_unmount: cannot start a process from /proc/self/exe")?;
    Ok(())
}

/// In that process: waits for the server's end, and unmounts what it has left.
pub fn after_server(dir: &Path) -> Result<()> {
    daemon::leave_terminal()?;
    rustix::process::chdir("/").context("cannot leave the working directory")?;
    until_ended()?;
    for _ in 0..LOOKS {
        let mount = uvfs_fuse::listed()?.into_iter().rfind(|mount| mount.dir == dir);
        match mount.map(|mount| mount.state()) {
            None => return Ok(()),
            Some(ServerState::Dead) => return Ok(uvfs_fuse::unmount(dir, true)?),
            Some(_) => thread::sleep(PAUSE),
        }
    }
    Ok(())
}

fn until_ended() -> rustix::io::Result<()> {
    let server = io::stdin();
    loop {
        match poll(&mut [PollFd::new(&server, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            ended => return ended.map(drop),
        }
    }
}
