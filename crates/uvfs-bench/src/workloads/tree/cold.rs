//! The generated driver with a kernel's inode cache below it: an inode enters it when the walk looks its name up, and
//! becomes unused when uvfs evicts it.
//!
//! The model's part of a looked-up inode is that of [`links`](crate::arms::inodes::links): a search, a second hold to
//! insert, the list. Of an evicted one it is the LRU list, the shrinker, the list and the hash. All arms make the same
//! calls of uvfs, and those of the models pay for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uvfs::driver::{Driver, Inode};
use uvfs::types::{Answer, Attr, DirEntry, Errno, Features, NewInode, Op, Result, StatFs, Ttl};
use uvfs_drivers::generated::Generated;
use uvfs_sync::slab::{Pool, Slab};

use crate::arms::inodes::links::{HashHeads, InodeLinks, form};

/// Slots besides those of the inodes that uvfs may cache.
const SPARE: u64 = 1 << 17;
/// uvfs's bytes for an inode and its name, at the least.
const LEAST: u64 = 128;
/// The same, about: a hash that fits has so many heads.
const ABOUT: u64 = 256;

/// The driver.
pub struct ColdDriver {
    tree: Arc<Generated>,
    kernel: Option<KernelCache>,
}

/// A kernel's inodes.
struct KernelCache {
    links: Box<dyn InodeLinks>,
    pool: Pool,
    slab: Slab,
    /// Whether uvfs has the inode of a slot.
    cached: Box<[AtomicBool]>,
    made: AtomicU64,
    ended: AtomicU64,
}

impl ColdDriver {
    /// With the arm's model below a cache that is limited to so many bytes.
    ///
    /// # Errors
    /// If there is no address space.
    pub fn new(
        arm: &str,
        tree: Arc<Generated>,
        inodes: u64,
        limit: u64,
        heads: HashHeads,
    ) -> anyhow::Result<Self> {
        let kernel = match arm {
            "null" | "uvfs" => None,
            arm => Some(KernelCache::new(arm, inodes, limit, heads)?),
        };
        Ok(Self { tree, kernel })
    }

    /// The tree that is shown.
    pub fn tree(&self) -> &Generated {
        &self.tree
    }

    /// Inodes that the model made and ended, if there is one.
    pub fn passed(&self) -> Option<[u64; 2]> {
        self.kernel.as_ref().map(|kernel| [&kernel.made, &kernel.ended].map(|n| n.load(Ordering::Relaxed)))
    }
}

impl KernelCache {
    fn new(arm: &str, inodes: u64, limit: u64, heads: HashHeads) -> anyhow::Result<Self> {
        let slots = u32::try_from((inodes.min(limit / LEAST) + SPARE).next_power_of_two())?;
        Ok(Self {
            links: form(arm, inodes.min(limit / ABOUT), slots, heads)?,
            pool: Pool::new(slots),
            slab: Slab::new(0),
            cached: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            made: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        })
    }

    /// The inode of a number, made if there is none. uvfs has one reference to it, however often it asks.
    fn inode(&self, ino: u64) -> Result<u32> {
        loop {
            if let Some(slot) = self.links.find(ino) {
                if self.cached[slot as usize].swap(true, Ordering::AcqRel) {
                    self.unused(slot);
                }
                return Ok(slot);
            }
            let slot = self.slab.alloc(&self.pool).ok_or(Errno::NOMEM)?;
            self.cached[slot as usize].store(true, Ordering::Release);
            if self.links.began(slot, ino).is_ok() {
                self.made.fetch_add(1, Ordering::Relaxed);
                return Ok(slot);
            }
            // Another thread was first.
            self.pool.free(slot, |_| &self.slab);
        }
    }

    fn unused(&self, slot: u32) {
        self.links.unused(slot, &mut |slot| {
            self.ended.fetch_add(1, Ordering::Relaxed);
            self.pool.free(slot, |_| &self.slab);
        });
    }
}

impl Driver for ColdDriver {
    fn name(&self) -> &'static str {
        "cold"
    }

    fn features(&self) -> Features {
        self.tree.features()
    }

    fn root(&self, op: &Op) -> Result<NewInode> {
        self.tree.root(op)
    }

    /// Computed here: the generated driver also counts its calls, in a line that threads share.
    fn lookup(&self, _op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        let (tree, dir) = (self.tree.tree(), dir.ino());
        let Some(ino) = tree.find(dir, name).and_then(|index| tree.child(dir, index)) else {
            return Ok(Answer::Absent(tree.spec().negative_ttl));
        };
        let attr = tree.attr(ino).ok_or(Errno::STALE)?;
        let private = self.kernel.as_ref().map_or(Ok(0), |kernel| kernel.inode(ino))?;
        Ok(Answer::Found(NewInode { attr, private: private.into(), ttl: tree.spec().ttl }))
    }

    fn getattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        self.tree.getattr(op, inode)
    }

    fn ttl(&self) -> Ttl {
        self.tree.ttl()
    }

    fn readdir(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.tree.readdir(op, dir, cookie, sink)
    }

    fn statfs(&self, op: &Op) -> Result<StatFs> {
        self.tree.statfs(op)
    }

    /// The root has no slot.
    fn evict(&self, _attr: &Attr, private: u64) {
        let Some(kernel) = self.kernel.as_ref().filter(|_| private != 0) else { return };
        if kernel.cached[private as usize].swap(false, Ordering::AcqRel) {
            kernel.unused(private as u32);
        }
    }
}
