//! The kernel's forms for `icache`: inodes with the kernel's links.
//!
//! Slots come from uvfs's slab, as the cache's do. Each permanent inode is held once, as a dentry would hold it, so a
//! lookup's own reference is never the last.

use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, bail, ensure};
use uvfs_cache::{Attr, Time};
use uvfs_sync::slab::{Pool, Slab};

use crate::arms::inodes::links::{BATCH, HashHeads, InodeChanges, LinkNode, Links};
use crate::arms::inodes::{FIRST, Inodes, attr_of};

/// Slots besides those of the permanent inodes.
const SPARE: u64 = 1 << 16;
/// Unused inodes that stay.
const RESTING: usize = 1024;

/// A form of the kernel's inode cache.
pub struct KernelInodes<C> {
    links: Links<C>,
    pool: Pool,
    slab: Slab,
}

fn fill(node: &LinkNode, attr: &Attr) {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let words = [
        attr.ino,
        pair(attr.mode, attr.nlink),
        pair(attr.uid, attr.gid),
        u64::from(attr.rdev),
        attr.size,
        attr.blocks,
        attr.atime.pack(),
        attr.mtime.pack(),
        attr.ctime.pack(),
    ];
    node.attr.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
}

fn copy(node: &LinkNode) -> Attr {
    let word = |i: usize| node.attr[i].load(Ordering::Relaxed);
    Attr {
        ino: word(0),
        mode: word(1) as u32,
        nlink: (word(1) >> 32) as u32,
        uid: word(2) as u32,
        gid: (word(2) >> 32) as u32,
        rdev: word(3) as u32,
        size: word(4),
        blocks: word(5),
        atime: Time::unpack(word(6)),
        mtime: Time::unpack(word(7)),
        ctime: Time::unpack(word(8)),
        acl: false,
    }
}

impl<C: InodeChanges> KernelInodes<C> {
    fn make(&self, ino: u64) -> Result<u32> {
        if let Some(known) = self.links.get(ino) {
            self.put(known);
            bail!("inode {ino} is known");
        }
        let slot = self.slab.alloc(&self.pool).context("no slot is left")?;
        ensure!(self.links.insert(slot, ino, |node| fill(node, &attr_of(ino))), "inode {ino} is known");
        Ok(slot)
    }

    fn put(&self, slot: u32) {
        if self.links.put(slot) {
            self.free(slot);
        }
    }

    fn free(&self, slot: u32) {
        self.pool.free(slot, |_| &self.slab);
    }
}

impl<C: InodeChanges> Inodes for KernelInodes<C> {
    fn new(files: u64, heads: HashHeads) -> Result<Self> {
        let slots = u32::try_from((files + SPARE).next_power_of_two()).context("too many files")?;
        let this =
            Self { links: Links::new(files, slots, heads)?, pool: Pool::new(slots), slab: Slab::new(0) };
        (FIRST..FIRST + files).try_for_each(|ino| this.make(ino).map(|_| ()))?;
        Ok(this)
    }

    #[inline]
    fn stat(&self, ino: u64, attr: &mut Attr) -> bool {
        let Some(slot) = self.links.get(ino) else { return false };
        *attr = copy(self.links.node(slot));
        self.put(slot);
        true
    }

    #[inline]
    fn get(&self, ino: u64) -> bool {
        let Some(slot) = self.links.get(ino) else { return false };
        self.put(slot);
        true
    }

    fn make_and_end(&self, ino: u64) -> Result<()> {
        self.put(self.make(ino)?);
        Ok(())
    }

    fn pass_through(&self, ino: u64) -> Result<()> {
        self.links.rest(self.make(ino)?);
        if self.links.resting() as usize >= RESTING + BATCH {
            self.links.prune(|slot| self.free(slot));
        }
        Ok(())
    }

    fn each(&self, f: &mut dyn FnMut(u64)) {
        self.links.each(f, &mut |slot| {
            self.free(slot);
        });
    }
}
