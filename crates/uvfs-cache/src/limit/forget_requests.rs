//! Asking a holder of nodes to forget some: inodes that a kernel knows cannot be evicted before that.
//!
//! A server gives three callbacks ([`NodeHolder`]). Leaves are named in batches. FUSE_NOTIFY_PRUNE (Linux 6.18,
//! protocol 7.45) drops those of them that are unused. A kernel without it gets an invalidation for each name
//! (FUSE_NOTIFY_INVAL_ENTRY): it drops the dentry, and an unused inode with it. That has disadvantages. It may wait
//! for a lookup in the same directory, and it costs a system call per name. Mounts on a file go, and a file that is
//! open only with O_PATH, which the server does not know, shows as deleted in /proc. So directories are spared, and
//! the batch is tried first.
//!
//! Names that the kernel answers from its own dentries look unused here, so neither way is an LRU. The FORGETs that
//! come back show the effect. The calling thread holds no lock of the cache: a callback may wait.

use rustix::io::Errno;

use crate::cache::Cache;
use crate::limit::held_by_kernel::Leaf;
use crate::types::InodeId;

/// Nodes named in one batch.
pub(crate) const BATCH: usize = 512;
/// Names invalidated in one call: each is a system call.
const BATCH_BY_NAME: usize = 128;

/// The client that holds a server's nodes, mostly a kernel, as the thread that keeps the memory limit sees it:
/// see [`Balancer`](crate::Balancer).
///
/// The thread holds no lock of the cache and no reference to a node during a call, so a call may wait. The cache lives
/// until the call returns. A panic counts as a call without effect.
pub trait NodeHolder {
    /// Ask for these nodes to be forgotten if they are unused: FUSE_NOTIFY_PRUNE.
    ///
    /// # Errors
    /// `INVAL` or `NOSYS`: not supported, so names are invalidated from now on. Any other: the client is gone.
    fn prune(&mut self, nodes: &[InodeId]) -> Result<(), Errno>;

    /// Have a name looked up again, and so its node forgotten if it is unused: FUSE_NOTIFY_INVAL_ENTRY.
    ///
    /// # Errors
    /// `NOENT` and `NOTDIR` (the client does not know it) and `BUSY`, `NOTEMPTY`, `AGAIN` and `INTR` (it is in use)
    /// are passed over. After any other error the client is not asked again.
    fn invalidate(&mut self, dir: InodeId, name: &[u8]) -> Result<(), Errno>;

    /// Whether requests are pending in `dir`. A kernel locks a directory for a lookup until it is answered, and an
    /// invalidation waits for that lock. With `for_ever`, whether one may wait for ever.
    fn is_waited_in(&self, dir: InodeId, for_ever: bool) -> bool;
}

/// The way to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Prune,
    ByName,
    /// Not possible: the client is gone, or supports neither.
    Not,
}

/// The way to ask one client.
#[derive(Debug)]
pub struct NodeReclaim(Way);

impl NodeReclaim {
    /// `prune`: batches may be tried.
    pub fn new(prune: bool) -> Self {
        Self(if prune { Way::Prune } else { Way::ByName })
    }

    /// Ask for these leaves to be forgotten; returns whether the client accepted some. By name, this skips
    /// directories in which requests wait; with `anywhere`, only those in which they may wait for ever.
    pub fn forget(
        &mut self,
        cache: &Cache,
        leaves: &[Leaf],
        holder: &mut impl NodeHolder,
        anywhere: bool,
    ) -> bool {
        if leaves.is_empty() {
            return false;
        }
        if self.0 == Way::Prune {
            let nodes: Vec<InodeId> = leaves.iter().map(|leaf| leaf.id).collect();
            match holder.prune(&nodes) {
                Ok(()) => return true,
                Err(Errno::INVAL | Errno::NOSYS) => self.0 = Way::ByName,
                Err(_) => self.0 = Way::Not,
            }
        }
        self.0 == Way::ByName && self.forget_by_name(cache, leaves, holder, anywhere)
    }

    /// The kernel locks a directory while it changes a name in it, and a lookup that waits for memory already
    /// holds that lock. They wait for each other until the lookup is given memory beyond the limit. This
    /// happens if the wait is noticed too late, or, with `anywhere`, if only that directory has names. A lookup
    /// that waits for a back end may wait for ever. All other lookups there would then wait behind this thread,
    /// which everyone short of memory needs.
    fn forget_by_name(
        &mut self,
        cache: &Cache,
        leaves: &[Leaf],
        holder: &mut impl NodeHolder,
        anywhere: bool,
    ) -> bool {
        let (mut named, mut told) = (0, 0);
        for leaf in leaves {
            let Some((dir, name)) = cache.name_of(leaf) else { continue };
            if holder.is_waited_in(dir, anywhere) {
                continue;
            }
            match holder.invalidate(dir, &name) {
                Ok(()) => told += 1,
                // It does not know the directory or the name: forgotten already.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // A process has a mount below it, or is using it.
                Err(Errno::BUSY | Errno::NOTEMPTY | Errno::AGAIN | Errno::INTR) => {}
                Err(_) => {
                    self.0 = Way::Not;
                    break;
                }
            }
            named += 1;
            if named == BATCH_BY_NAME {
                break;
            }
        }
        told > 0
    }
}
