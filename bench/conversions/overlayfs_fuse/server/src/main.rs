//! Serves an overlay of a lower and an upper directory with overlayfs_fuse, until it is unmounted.
//!
//! ```text
//! overlay-server LOWER UPPER MOUNTPOINT [--ttl S] [--memory MIB]
//! ```

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use overlayfs_fuse::OverlayFS;
use rustix::event::{PollFd, PollFlags, poll};

#[cfg(feature = "converted")]
fn configure(overlay: &mut OverlayFS, ttl: u64, memory: u64) {
    use overlayfs_fuse::{NodesOptions, Ttl};

    let [name_ttl, absent_ttl, attr_ttl] = [Ttl::For(Duration::from_secs(ttl)); 3];
    let kernel_ttl = Duration::ZERO;
    let limit = memory << 20;
    let own = NodesOptions { limit, name_ttl, absent_ttl, attr_ttl, kernel_ttl, ..NodesOptions::default() };
    overlay.set_nodes(own);
}

#[cfg(not(feature = "converted"))]
fn configure(_: &mut OverlayFS, _: u64, _: u64) {}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut path = || args.next().and_then(|path| Path::new(&path).canonicalize().ok());
    let (lower, upper, mountpoint) = (path(), path(), path());
    let (mut ttl, mut memory) = (0, 0);
    while let Some(option) = args.next() {
        let value = args.next().and_then(|value| value.parse().ok()).ok_or("a number")?;
        match option.as_str() {
            "--ttl" if cfg!(feature = "converted") => ttl = value,
            "--memory" if cfg!(feature = "converted") => memory = value,
            _ => return Err(format!("{option}?").into()),
        }
    }
    let mut overlay = OverlayFS::new(lower.ok_or("LOWER")?);
    let mountpoint = mountpoint.ok_or("MOUNTPOINT")?;
    overlay.set_upper(upper.ok_or("UPPER")?).set_mount(mountpoint.clone());
    configure(&mut overlay, ttl, memory);
    overlay.mount()?;
    let of = format!(" {} ", mountpoint.display());
    // A change between reading and polling ends the poll: the kernel compares with the mounts at the last poll.
    let mounts = File::open("/proc/self/mounts")?;
    while std::fs::read_to_string("/proc/self/mounts")?.contains(&of) {
        poll(&mut [PollFd::new(&mounts, PollFlags::PRI)], None)?;
    }
    Ok(())
}
