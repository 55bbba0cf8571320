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
use crate::inodes::link_target_slots::{CHUNK_BYTES, Copied, TARGET_MAX, UNKEPT};
use crate::walk::lock_free_lookup::{Child, Retry};
use crate::walk::position::Pos;
use crate::walk::prefix_passed_links::PassedLink;

/// The second at which a read of the target moves the access time, as an entry has it: after 1970, and early enough.
fn due_in_entry(attr: &Attr) -> Option<u32> {
    u32::try_from(attr.atime_due_at()).ok().filter(|due| *due != u32::MAX)
}

/// A link whose target was copied.
#[derive(Clone, Copy, Debug)]
pub struct CopiedTarget {
    /// Its attributes.
    pub attr: Attr,
    /// Length of the target.
    pub len: usize,
    /// The link, for a prefix entry. `None`: no entry may lead over it, because its time fits none.
    pub link: Option<PassedLink>,
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
        let has_slot = attr.is_symlink() && !private.is_named();
        let slot = if has_slot { private.alias.load(Ordering::Acquire) } else { 0 };
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
        let marked = self.used(child.dentry);
        let due = if timeless { Some(u32::MAX) } else { due_in_entry(&attr) };
        let kept = !matches!(slot, 0 | UNKEPT) && (timeless || !attr.atime_is_due(now()));
        let link = due.map(|due| PassedLink {
            dentry: child.dentry,
            dentry_seq: child.seq,
            inode: child.inode,
            inode_seq: seq,
            marked,
            due,
        });
        Ok(kept.then_some(CopiedTarget { attr, len, link }))
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl InodeRef<'_> {
    /// Cache a symbolic link's target, which will not change while the inode lives or until
    /// [`Self::forget_target`]. If it is longer than
    /// [`TARGET_MAX`] or there is no memory, it is not cached, and the driver is asked again next time. A
    /// [`NodeCache`](crate::NodeCache) caches none. `timeless`: no read of it moves the access time.
    pub fn keep_target(&self, target: &[u8], timeless: bool) {
        let (word, targets) = (&self.private_half().alias, self.cache().inodes.targets());
        if !self.has_target_slot() || word.load(Ordering::Relaxed) != 0 {
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
    /// Whether this is a link with room for a slot. In a superblock whose inodes are found by name, a dentry's index
    /// stands there.
    fn has_target_slot(&self) -> bool {
        self.fmt() == mode::S_IFLNK && !self.private_half().is_named()
    }

    /// The symbolic link's target has changed: forget the cached one, and cache no other while the inode lives. An
    /// answer that is on its way is not cached either.
    pub fn forget_target(&self) {
        if !self.has_target_slot() {
            return;
        }
        let cache = self.cache();
        let slot = {
            let _lock = self.lock();
            let (published, private) = (self.published(), self.private_half());
            // The sequence moves before the slot is free, as at the inode's end.
            published.seq.write(|| {
                cache.prefixes.changes.before_link_change(private);
                private.alias.swap(UNKEPT, Ordering::Relaxed)
            })
        };
        cache.inodes.targets().free(slot);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::types::{Config, Fresh, Room, SbId, SbOptions, Ttl};
    use crate::walk::lock_free_lookup::Step;

    /// A superblock whose inodes are found by name, or another one.
    fn world(named: bool) -> (Arc<Cache>, SbId) {
        let cache = Cache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
        let options = SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) };
        let sb =
            if named { cache.add_named_superblock(options) } else { cache.add_superblock(options) }.unwrap();
        let attr = Attr { ino: 1, mode: mode::S_IFDIR | 0o755, nlink: 2, ..Attr::default() };
        drop(cache.make_root(sb, &Fresh { attr, private: 0, ttl: Ttl::Forever }).unwrap());
        (cache, sb)
    }

    /// Makes a link in the root, whose last read was at this second.
    fn link<'c>(cache: &'c Cache, sb: SbId, name: &[u8], atime: i64) -> InodeRef<'c> {
        let root = cache.root(sb).unwrap();
        let guard = cache.lock_name(&root, name);
        let mode = mode::S_IFLNK | 0o777;
        let attr = Attr { ino: 2, mode, nlink: 1, atime: Time::new(atime, 0), ..Attr::default() };
        let room = guard.reserve(Room::Node).unwrap();
        guard.create(room, &Fresh { attr, private: 0, ttl: Ttl::Forever })
    }

    /// The cached target, read in 1970.
    fn read(cache: &Cache, sb: SbId, name: &[u8]) -> Option<(CopiedTarget, Vec<u8>)> {
        let at = cache.pos(cache.root(sb).unwrap().id()).unwrap();
        let Step::Found(child) = cache.step(at, name) else { panic!("no link") };
        let mut out = [0; TARGET_MAX];
        let copied = cache.child_target(at, &child, || Time::new(0, 0), &mut out).unwrap()?;
        Some((copied, out[..copied.len].to_vec()))
    }

    /// An entry has 32 bits for the second at which a read moves the time again. Planted bugs:
    /// links-of-a-late-time-are-noted, links-of-the-last-second-never-move-their-time.
    #[test]
    fn a_link_whose_time_fits_no_entry_is_in_none() {
        const DAY: i64 = 24 * 60 * 60;
        let (last, (cache, sb)) = (i64::from(u32::MAX) - 1, world(false));
        let cases = [
            (1, true, false),
            (last - DAY, true, false),
            (last - DAY + 1, false, false),
            (last, false, false),
        ];
        for (atime, fits, timeless) in cases.into_iter().chain([(last, true, true)]) {
            let name = format!("{atime} {timeless}");
            link(&cache, sb, name.as_bytes(), atime).keep_target(b"target", timeless);
            let (copied, target) = read(&cache, sb, name.as_bytes()).unwrap();
            assert_eq!(target, b"target");
            let due = if timeless { i64::from(u32::MAX) } else { atime + DAY };
            let noted = copied.link.map(|link| i64::from(link.due));
            assert_eq!(noted, fits.then_some(due), "{name}");
        }
    }

    /// Where a link without a name of its own has its target's slot, one that leads to its name has a dentry. Planted
    /// bugs: targets-take-the-place-of-names, names-are-read-as-targets, names-are-forgotten-as-targets.
    #[test]
    fn a_links_name_is_no_target() {
        let (cache, sb) = world(true);
        let link = link(&cache, sb, b"l", 1);
        let alias = || link.private_half().alias.load(Ordering::Relaxed);
        let dentry = alias();
        assert_ne!(dentry, 0);
        assert!(read(&cache, sb, b"l").is_none());
        link.forget_target();
        assert_eq!(alias(), dentry);
        // As if it had lost its name.
        link.private_half().alias.store(0, Ordering::Relaxed);
        link.keep_target(b"target", true);
        assert_eq!(alias(), 0);
        link.private_half().alias.store(dentry, Ordering::Relaxed);
    }
}
