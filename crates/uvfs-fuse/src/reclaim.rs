//! Having the kernel forget: what it knows of a mount cannot be evicted from the cache until it does.
//!
//! One thread of its own, that holds nothing, waits for the cache to come near its limit. While few names
//! could be evicted beside those that the kernel holds, it names leaves to the kernel in arena order, a
//! batch at a time. FUSE_NOTIFY_PRUNE (Linux 6.18, protocol 7.45) drops those of them that nobody uses; what
//! the kernel answers from its own dentries looks unused here, so this is no LRU. What comes of it
//! is seen by the FORGETs that come back. A kernel that does not know the notification says so once; then
//! nothing can be done, and the front end's answers get fewer nodes.
//!
//! The thread ends with the front end, within a second.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use crate::frontend::Frontend;

/// Nodes named at once.
const BATCH: usize = 512;
/// Names that should be free to be evicted for each that the kernel holds: one in so many.
const FREE_SHARE: usize = 8;
/// How often the thread looks whether the mount is still there.
const LOOK: Duration = Duration::from_secs(1);
/// How long the kernel may take to forget a batch before the next one is named.
const BREATH: Duration = Duration::from_millis(2);
/// `enum fuse_notify_code`, as linux/fuse.h has it.
const NOTIFY_PRUNE: i32 = 9;

/// Starts the thread. `device` is the mount's, or a duplicate.
pub(crate) fn start(device: OwnedFd, frontend: &Arc<Frontend>) -> io::Result<()> {
    let frontend = Arc::downgrade(frontend);
    thread::Builder::new().name("uvfs-reclaim".into()).spawn(move || run(File::from(device), &frontend))?;
    Ok(())
}

fn run(device: File, frontend: &Weak<Frontend>) {
    while let Some(frontend) = frontend.upgrade() {
        if !frontend.wait_for_pressure(LOOK) {
            continue;
        }
        let held = frontend.held_by_kernel(BATCH);
        if held.leaves.is_empty() || held.evictable * FREE_SHARE >= held.leaves.len() {
            continue;
        }
        let nodes: Vec<u64> = held.leaves.iter().map(|id| id.as_u64()).collect();
        match prune(&device, &nodes) {
            Ok(()) => frontend.count_pruned(nodes.len()),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                tracing::warn!(
                    "this kernel cannot be asked to forget nodes (Linux 6.18 can): the memory limit is kept by refusing"
                );
                return;
            }
            // ENODEV: the mount is gone.
            Err(error) => {
                tracing::debug!(%error, "cannot notify");
                return;
            }
        }
        thread::sleep(BREATH);
    }
}

/// One message: `fuse_out_header`, `fuse_notify_prune_out`, the node ids.
fn prune(mut device: &File, nodes: &[u64]) -> io::Result<()> {
    let ids: Vec<u8> = nodes.iter().flat_map(|node| node.to_ne_bytes()).collect();
    let mut head = Vec::with_capacity(32);
    head.extend_from_slice(&(32 + ids.len() as u32).to_ne_bytes());
    head.extend_from_slice(&NOTIFY_PRUNE.to_ne_bytes());
    head.extend_from_slice(&0u64.to_ne_bytes());
    head.extend_from_slice(&(nodes.len() as u32).to_ne_bytes());
    head.extend_from_slice(&[0; 12]);
    // The kernel takes a message whole or not at all.
    device.write_vectored(&[IoSlice::new(&head), IoSlice::new(&ids)]).map(drop)
}
