//! `uvfs umount`: unmounts, and waits for the end of the servers.
//!
//! A server notices the end of its mount a moment later, and gives up its source, its port and its files then. A script that
//! unmounts the source next would find it busy. So the command waits for the processes `uvfs` that have the mount's connection
//! open, as `/proc/PID/fdinfo` says. It looks for them there before it unmounts, and not in the mount, whose server may be silent.
//! On a kernel whose fdinfo does not name connections it does not wait.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{args, auto_unmount, print, servers};

/// Longer than a server takes to end when its users do not let go.
const PATIENCE: Duration = Duration::from_secs(6);

/// Unmounts each directory, the later ones also after an error.
pub fn run(args: &args::Umount) -> Result<()> {
    if let ([dir], true) = (&*args.dirs, args.after_server) {
        return auto_unmount::after_server(dir);
    }
    let mut outcome = Ok(());
    for dir in &args.dirs {
        // A detached mount may have users for long.
        let servers = if args.lazy { Vec::new() } else { servers_of(dir) };
        match uvfs_fuse::unmount(dir, args.lazy) {
            Ok(()) => wait_for(servers),
            Err(error) => {
                print::say(format_args!("{:#}", anyhow::Error::from(error)));
                outcome = Err(print::AlreadySaid.into());
            }
        }
    }
    outcome
}

/// The processes that serve the mount on `dir`.
fn servers_of(dir: &Path) -> Vec<OwnedFd> {
    let (Ok(dir), Ok(mounts)) = (std::path::absolute(dir), uvfs_fuse::listed()) else { return Vec::new() };
    let mount = mounts.into_iter().rfind(|mount| mount.dir == dir);
    let Some(connection) = mount.and_then(|mount| mount.connection()) else { return Vec::new() };
    // The number may become another process's later, but not a descriptor of it.
    let opened = |number| {
        let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        servers::serves(number, connection).then_some(process)
    };
    servers::numbers().filter_map(opened).collect()
}

fn wait_for(servers: Vec<OwnedFd>) {
    let deadline = Instant::now() + PATIENCE;
    for server in servers {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(left) = Timespec::try_from(left) else { break };
            match poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                _ => break,
            }
        }
    }
}
