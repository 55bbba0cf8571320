//! Targets of symbolic links, cached to be read without a reference.
//!
//! A driver may promise that a link's target never changes while its inode lives. Its targets are then
//! cached here when they are first read. The target stands in a type-stable slot. The inode's private half
//! has the slot's index, set once in a generation by a compare-exchange. A reader copies between two looks
//! at the inode's sequence, as for attributes. An inode's end moves the sequence before the slot is freed,
//! and a writer that fills a slot puts a release fence before its stores. So a copy with a byte of the next
//! owner's target sees the sequence moved.
//!
//! Targets longer than [`TARGET_MAX`] are not cached; their driver is asked each time. Costs 128 bytes per
//! link that was read.

use uvfs_sync::primitives::Ordering;

use crate::cache::Cache;
use crate::inodes::attr::{Attr, Time, mode};
use crate::inodes::inode_ref::InodeRef;
use crate::inodes::symlink_targets::{CHUNK_BYTES, Copied, TARGET_MAX, UNKEPT};
use crate::walk::passed_links::PassedLink;
use crate::walk::position::Pos;
use crate::walk::step::{Child, Retry};

/// A link whose target was copied.
#[derive(Clone, Copy, Debug)]
pub struct CopiedTarget {
    /// Its attributes.
    pub attr: Attr,
    /// Length of the target.
    pub len: usize,
    /// The link, for a prefix entry.
    pub link: PassedLink,
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Attributes and target of the symbolic link that `at` leads to, both of one moment (rule 7), with the
    /// target in `out`. `None`: the driver must be asked, because the target is not cached, or because a
    /// read at `now` moves the access time.
    ///
    /// # Errors
    /// [`Retry`] says what moved.
    pub fn child_target(
        &self,
        at: Pos,
        child: &Child,
        now: impl FnOnce() -> Time,
        out: &mut [u8; TARGET_MAX],
    ) -> Result<Option<CopiedTarget>, Retry> {
        let (published, private) = (self.inodes.get(child.inode), self.inodes.private(child.inode));
        let seq = published.seq.begin().ok_or(Retry::Inode)?;
        let attr = published.copy(|| private);
        // Pairs with the release in `keep_target`: a reader that sees the slot sees its content.
        let slot = if attr.is_symlink() { private.alias.load(Ordering::Acquire) } else { 0 };
        let Copied { len, timeless } = match slot {
            0 | UNKEPT => Copied { len: 0, timeless: true },
            slot => self.inodes.targets().copy(slot, out),
        };
        if !published.seq.check(seq) {
            return Err(Retry::Inode);
        }
        if !self.still(child) {
            return Err(Retry::Dentry);
        }
        if !self.check(at) {
            return Err(Retry::Parent);
        }
        self.used(child.dentry);
        // A time that fits no entry is due at once there, and the walk decides.
        let due = if timeless { u32::MAX } else { u32::try_from(attr.atime_due_at()).unwrap_or(0) };
        let kept = !matches!(slot, 0 | UNKEPT) && (timeless || !attr.atime_is_due(now()));
        let link = PassedLink {
            dentry: child.dentry,
            dentry_seq: child.seq,
            inode: child.inode,
            inode_seq: seq,
            due,
        };
        Ok(kept.then_some(CopiedTarget { attr, len, link }))
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl InodeRef<'_> {
    /// Cache a symbolic link's target, which will not change while the inode lives or until
    /// [`Self::forget_target`]. If it is longer than
    /// [`TARGET_MAX`] or there is no memory, it is not cached, and the driver is asked again next time. `timeless`: no
    /// read of it moves the access time.
    pub fn keep_target(&self, target: &[u8], timeless: bool) {
        let (word, targets) = (&self.private_half().alias, self.cache().inodes.targets());
        if self.fmt() != mode::S_IFLNK || word.load(Ordering::Relaxed) != 0 {
            return;
        }
        let may_grow = || self.cache().may_grow(CHUNK_BYTES);
        let Some(slot) = targets.fill(target, timeless, &may_grow) else { return };
        // A thread that comes second finds the same target there, and has not published its own slot.
        if word.compare_exchange(0, slot, Ordering::Release, Ordering::Relaxed).is_err() {
            targets.free(slot);
        }
    }
}

impl InodeRef<'_> {
    /// The symbolic link's target has changed: forget the cached one, and cache no other while the inode lives. An
    /// answer that is on its way is not cached either.
    pub fn forget_target(&self) {
        if self.fmt() != mode::S_IFLNK {
            return;
        }
        let cache = self.cache();
        let slot = {
            let _lock = self.lock();
            let (published, private) = (self.published(), self.private_half());
            // The sequence moves before the slot is free, as at the inode's end.
            published.seq.write(|| {
                cache.prefixes.changes.before_change(private);
                private.alias.swap(UNKEPT, Ordering::Relaxed)
            })
        };
        cache.inodes.targets().free(slot);
    }
}
