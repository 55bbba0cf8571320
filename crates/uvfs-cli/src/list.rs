//! `uvfs mount --list`: uvfs's mounts in `/proc/self/mountinfo`, and whether their servers live.
//!
//! Every server is asked at the same time. One that does not answer within a second is shown as mounted: it may be
//! slow.

use std::thread;

use anyhow::{Context, Result};
use uvfs_fuse::Listed;

use crate::print;

/// Prints a line for each mount: source and directory.
pub fn run() -> Result<()> {
    let mounts = uvfs_fuse::listed().context("cannot read /proc/self/mountinfo")?;
    let dead: Vec<bool> = thread::scope(|s| {
        let asked: Vec<_> = mounts.iter().map(|mount| s.spawn(|| mount.is_dead())).collect();
        asked.into_iter().map(|asked| asked.join().unwrap_or(false)).collect()
    });
    let lines = mounts.iter().zip(dead).map(|(mount, dead)| line(mount, dead));
    print::out(lines.collect::<String>())
}

fn line(Listed { source, dir, .. }: &Listed, dead: bool) -> String {
    let (source, dir) = (source.display(), dir.display());
    match dead {
        false => format!("{source} on {dir}\n"),
        true => format!("{source} on {dir} (its server has died; clear it with: uvfs umount {dir})\n"),
    }
}
