//! `uvfs mount --list`: what of ours is mounted, by `/proc/self/mountinfo`, which asks no server anything.

use anyhow::{Context, Result};

/// Prints a line for each mount: what is mounted, and where.
pub fn run() -> Result<()> {
    let mounts = uvfs_fuse::listed().context("cannot read /proc/self/mountinfo")?;
    for mount in mounts {
        println!("{} on {}", mount.source.display(), mount.dir.display());
    }
    Ok(())
}
