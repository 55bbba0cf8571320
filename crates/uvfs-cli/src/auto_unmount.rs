//! `-o auto_unmount`: a second process that unmounts when the server has ended without doing so.
//!
//! It is this program again, as `uvfs umount --after-server DIR`, in a session of its own. The server holds the other
//! end of its standard input, so its end is the end of that file, whatever ended it. A clean unmount leaves nothing
//! to do.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use uvfs_fuse::ServerState;

use crate::daemon;

/// Looks at the mount after the server's end. The kernel closes the server's files one by one, so the device may be
/// the last.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// For as long as this lives, the server lives.
pub struct Watched(#[allow(dead_code, reason = "closed at the end of the process")] ChildStdin);

/// Starts the other process. `dir` is absolute.
pub fn start(dir: &Path) -> Result<Watched> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("uvfs").args(["umount", "--after-server", "--"]).arg(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().context("auto_unmount: cannot start a process from /proc/self/exe")?;
    child.stdin.take().map(Watched).context("auto_unmount: the process has no standard input")
}

/// In that process: waits for the server's end, and unmounts what it has left.
pub fn after_server(dir: &Path) -> Result<()> {
    daemon::leave_terminal()?;
    rustix::process::chdir("/").context("cannot leave the working directory")?;
    until_closed()?;
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

fn until_closed() -> io::Result<()> {
    let mut input = File::from(rustix::io::dup(io::stdin())?);
    while input.read(&mut [0; 16])? > 0 {}
    Ok(())
}
