//! Inodes by number, and enumeration of a superblock's inodes: every access that is not by name.
//!
//! A superblock that is not resident has its inodes hashed by number and type. [`Cache::ipeek`] copies the
//! attributes and stores nothing. [`Cache::ilookup`] takes a reference. [`Cache::iget`] makes the inode if
//! there is none. A hit takes no lock; insert and remove take the bit lock of one bucket.
//!
//! There is no list of a superblock's inodes: [`Cache::inodes_of`] goes through its chunks in arena order,
//! concurrently with threads that make and end inodes.
//!
//! The kernel's rules (docs/locking.md). *NEW*: an inode is filled before its index stands in a bucket. Its
//! count is 0 until it is found to be the only one of its number, and with a count of 0 nobody gets a
//! reference. *FREEING*: the count that fell to 0 stays there for this generation. So a thread that finds
//! the number still hashed gets no reference, and a thread that inserts the number again does not take it
//! for a live one.
//!
//! The race of a lookup by number against the end of its inode: if the reference comes first, the other put
//! was not the last. If the end comes first, there is no reference, and the number is absent. Everything
//! that was read of the slot before the reference was taken is read again after it. Only then is it known
//! to be of that generation.

use uvfs_sync::blhash::{BlHash, Scan};
use uvfs_sync::primitives::{Ordering, spin_loop};

use super::inode_slots::number_hash;
use crate::cache::{Cache, is_dir};
use crate::coherence::expiry::SUSPECT;
use crate::coherence::late_attributes::Asked;
use crate::inodes::attr::{Attr, mode};
use crate::inodes::inode::LIVE;
use crate::inodes::inode_ref::InodeRef;
use crate::types::{CacheError, Fresh, InodeId, SbId};
use crate::walk::lock_free_lookup::TRIES;

/// Result of a look at a slot whose number fits.
pub(crate) enum Look {
    /// This is the inode, and its attributes were copied.
    Is(InodeId),
    /// Its TTL has passed, or its generation is over, or it is another inode.
    Not,
    /// It was being changed.
    Moving,
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// The same wherever the number may be hashed, and while something moves.
    #[cold]
    #[inline(never)]
    fn ipeek_slowly(&self, sb: SbId, ino: u64, fmt: u32, attr: &mut Attr) -> Option<InodeId> {
        for _ in 0..TRIES {
            let hashes = self.inodes.numbers.hashes(|key| number_hash(sb, ino, key));
            let mut moving = false;
            let accept = |index| match self.look_at(index, (sb, ino, fmt), attr) {
                Look::Is(id) => Some(id),
                Look::Not => None,
                Look::Moving => {
                    moving = true;
                    None
                }
            };
            match self.inodes.numbers.scan(&hashes, accept, || ()) {
                Scan::Hit(id) => return Some(id),
                Scan::Miss(()) if !moving => return None,
                Scan::Miss(()) | Scan::Moved => spin_loop(),
            }
        }
        // A reader with a reference can wait for the attributes.
        let inode = self.find_number(sb, ino, fmt)?;
        if inode.expired() {
            return None;
        }
        *attr = inode.attr();
        Some(inode.id())
    }

    /// One moment's truth about a slot that may have the number.
    #[inline(always)]
    pub(crate) fn look_at(&self, index: u32, (sb, ino, fmt): (SbId, u64, u32), attr: &mut Attr) -> Look {
        let (published, private) = (self.inodes.get(index), self.inodes.private(index));
        let Some(seq) = published.seq.begin() else { return Look::Moving };
        *attr = published.copy(|| private);
        let (word, generation, stale) =
            (published.mode_and_flags(), published.generation(), published.is_stale());
        // Stored before a generation begins, and after the last one ended, which moves the sequence.
        let of = private.sb_id();
        let deadline = private.deadline.load(Ordering::Relaxed);
        if !published.seq.check(seq) {
            return Look::Moving;
        }
        let is = !stale && attr.ino == ino && word & (LIVE | mode::S_IFMT) == LIVE | fmt && of == sb;
        if is && !self.clock.passed(deadline) { Look::Is(InodeId::new(index, generation)) } else { Look::Not }
    }

    /// A reference to the inode `ino` of type `fmt`, if it is cached, trusted or not
    /// ([`InodeRef::expired`]). A resident superblock's inodes are not found by number.
    #[inline]
    pub fn ilookup(&self, sb: SbId, ino: u64, fmt: u32) -> Option<InodeRef<'_>> {
        let view = self.inodes.numbers.view();
        let hash = number_hash(sb, ino, view.key());
        let glance = view.glance(hash);
        let (seen, mut fits) = (glance.seen(), false);
        for index in glance {
            // Likely needed: its line arrives together with the published one.
            self.inodes.prefetch_private(index);
            let published = self.inodes.get(index);
            if published.ino() != ino {
                continue;
            }
            fits = true;
            // Generation and number may belong to two generations here. With the reference they belong to
            // one.
            if let Some(inode) = self.get(InodeId::new(index, published.generation()))
                && self.has_number(index, sb, ino, fmt)
            {
                return Some(inode);
            }
        }
        if !fits && self.inodes.numbers.rules_out(view.epoch(), hash, seen) {
            return None;
        }
        self.find_number(sb, ino, fmt)
    }

    /// The same wherever the number may be hashed, and while something moves.
    #[cold]
    #[inline(never)]
    pub(crate) fn find_number(&self, sb: SbId, ino: u64, fmt: u32) -> Option<InodeRef<'_>> {
        loop {
            let hashes = self.inodes.numbers.hashes(|key| number_hash(sb, ino, key));
            match self.inodes.numbers.scan(&hashes, |index| self.is_number(index, sb, ino, fmt), || ()) {
                Scan::Hit(inode) => return Some(inode),
                Scan::Miss(()) => return None,
                Scan::Moved => spin_loop(),
            }
        }
    }

    /// A reference to the inode in a slot, if it is the right one.
    pub(crate) fn is_number(&self, index: u32, sb: SbId, ino: u64, fmt: u32) -> Option<InodeRef<'_>> {
        // A reference first, so that all later reads are of this generation.
        self.hold_slot(index).filter(|_| self.has_number(index, sb, ino, fmt))
    }

    /// Whether a slot has this number. The answer is of one generation only if the caller holds the slot,
    /// or holds the lock of the bucket in which it is hashed under the number.
    #[inline(always)]
    pub(crate) fn has_number(&self, index: u32, sb: SbId, ino: u64, fmt: u32) -> bool {
        let (published, private) = (self.inodes.get(index), self.inodes.private(index));
        published.ino() == ino && private.sb_id() == sb && published.mode_and_flags() & mode::S_IFMT == fmt
    }

    /// A reference to whatever inode lives in a slot ([`hold_any`](super::inode_slots::Inodes::hold_any)).
    fn hold_slot(&self, index: u32) -> Option<InodeRef<'_>> {
        self.inodes.hold_any(index).map(|generation| InodeRef::new(self, index, generation))
    }

    /// Call this before asking a driver about an inode for [`Cache::iget`].
    pub fn ask(&self, sb: SbId) -> Asked {
        Asked { changes: self.superblock(sb).changes().count(), epoch: self.clock.asked() }
    }

    /// [`Cache::ask`] about the contents of a directory. For a resident superblock no driver is asked.
    #[inline]
    pub(crate) fn ask_below(&self, dir: &InodeRef<'_>) -> Asked {
        if dir.private_half().is_resident() {
            return Asked { changes: 0, epoch: self.clock.epoch() };
        }
        self.ask(dir.sb())
    }

    /// The inode that `fresh` describes, known or new, with the answer of a driver that was asked after
    /// `asked`. Also returns whether `fresh` is still current. If not, the inode was changed meanwhile, and
    /// the cached attributes stand (a new inode has expired). A known inode keeps its driver's value; the
    /// one in `fresh` is not kept. The inode leaves the cache with its last reference, unless it has a
    /// name. For superblocks that are not resident: in others every inode is new.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn iget(&self, sb: SbId, asked: Asked, fresh: &Fresh) -> Result<(InodeRef<'_>, bool), CacheError> {
        self.known_or_new(sb, asked, || false, fresh)
    }

    /// [`Cache::iget`] for a caller that may know already that the answer is late.
    pub(crate) fn known_or_new(
        &self,
        sb: SbId,
        asked: Asked,
        is_late: impl Fn() -> bool,
        fresh: &Fresh,
    ) -> Result<(InodeRef<'_>, bool), CacheError> {
        let attr = &fresh.attr;
        if let Some(inode) = self.ilookup(sb, attr.ino, attr.fmt()) {
            let current = !is_late() && inode.refresh_unless_late(asked, attr, fresh.ttl);
            return Ok((inode, current));
        }
        let (index, dir) = self.alloc_node(sb, is_dir(attr.fmt()))?;
        // Not trusted until it is known not to be late.
        let generation = self.fill_slot(sb, index, dir, fresh, 0, SUSPECT);
        // Not started before it is known to be the only one. A thread with a stale index may look at this
        // very slot, and must not come to hold an inode that is thrown away.
        Ok(match self.hash_number(sb, index, attr, || self.start_inode(index, generation)) {
            Ok(inode) => {
                // Known under another name, changed and evicted while the driver was asked? We check once
                // it can be found by its number: later writers change this inode.
                let current = inode.believe_unless_late(asked, fresh.ttl);
                (inode, current)
            }
            // Another name of it was looked up at the same time, and its driver was perhaps asked earlier.
            Err(other) => {
                self.discard_slot(index);
                let current = !is_late() && other.refresh_unless_late(asked, attr, fresh.ttl);
                (other, current)
            }
        })
    }

    /// Let an inode be found by number (not on resident superblocks, which never look), and `start` it once
    /// that is settled. The error is an inode with that number that is already there.
    pub(crate) fn hash_number<'c>(
        &'c self,
        sb: SbId,
        index: u32,
        attr: &Attr,
        start: impl FnOnce() -> InodeRef<'c>,
    ) -> Result<InodeRef<'c>, InodeRef<'c>> {
        if self.superblock(sb).is_resident() {
            return Ok(start());
        }
        let mut spare = false;
        let result = loop {
            let h = self.inodes.numbers.hashes(|key| number_hash(sb, attr.ino, key));
            let Some(mut locked) = self.inodes.numbers.lock([&h], spare) else {
                spin_loop();
                continue;
            };
            let mut other = None;
            locked.for_each_candidate(0, |i| {
                // Check before taking a reference: an inode in the bucket cannot end its generation while
                // the bucket is locked. Dropping the last reference to some other inode here would need
                // this very lock to end that inode.
                if other.is_none() && self.has_number(i, sb, attr.ino, attr.fmt()) {
                    other = self.is_number(i, sb, attr.ino, attr.fmt());
                }
            });
            if let Some(other) = other {
                break Err(other);
            }
            self.inodes.private(index).hash.store(BlHash::to_store(&h), Ordering::Relaxed);
            if locked.insert(0, &h, index).is_ok() {
                // A reader that finds it before this line finds it dead, and the bucket locked.
                break Ok(start());
            }
            spare = true;
        };
        self.inodes.maintain();
        result
    }

    /// The inode with this number, of whatever type. Costs up to seven looks.
    pub(crate) fn ilookup_any(&self, sb: SbId, ino: u64) -> Option<InodeRef<'_>> {
        use mode::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK};
        let types = [S_IFREG, S_IFDIR, S_IFLNK, S_IFCHR, S_IFBLK, S_IFIFO, S_IFSOCK];
        types.into_iter().find_map(|fmt| self.ilookup(sb, ino, fmt))
    }

    /// Another inode has this one's number from now on, or none has: it is no longer found by number. Its names
    /// lead nowhere before the driver was asked again, and its holders keep it.
    pub(crate) fn forget_number(&self, inode: &InodeRef<'_>) {
        // Under the bucket's lock. If a maker of the number comes first, it finds this inode. Otherwise it finds
        // none, and its new inode is the number's. The end of this one looks for its own index only.
        self.unhash_number(inode.sb(), inode.index(), inode.ino());
        inode.mark_stale();
    }

    /// Let a root be found by its number. [`NameGuard::keep_name`] caches no name of a root.
    ///
    /// [`NameGuard::keep_name`]: crate::lookup::ticket::NameGuard::keep_name
    pub(crate) fn hash_root(&self, root: &InodeRef<'_>) {
        drop(self.hash_number(root.sb(), root.index(), &root.attr(), || root.clone()));
    }

    /// Called from `end_inode`: from now on the number leads nowhere.
    pub(crate) fn unhash_number(&self, sb: SbId, index: u32, ino: u64) {
        loop {
            let h = self.inodes.numbers.hashes(|key| number_hash(sb, ino, key));
            if let Some(mut locked) = self.inodes.numbers.lock([&h], false) {
                locked.remove(0, index);
                break;
            }
        }
        self.inodes.maintain();
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// The id of the cached inode `ino` of type `fmt`, with its attributes copied to `attr`. Stores nothing
    /// shared. `None`: not cached, or no longer trusted; then the contents of `attr` mean nothing. A
    /// resident superblock's inodes are not found by number.
    #[inline]
    pub fn ipeek(&self, sb: SbId, ino: u64, fmt: u32, attr: &mut Attr) -> Option<InodeId> {
        let view = self.inodes.numbers.view();
        let hash = number_hash(sb, ino, view.key());
        let glance = view.glance(hash);
        let (seen, mut fits) = (glance.seen(), false);
        for index in glance {
            if self.inodes.get(index).ino() == ino {
                fits = true;
                if let Look::Is(id) = self.look_at(index, (sb, ino, fmt), attr) {
                    return Some(id);
                }
            }
        }
        if !fits && self.inodes.numbers.rules_out(view.epoch(), hash, seen) {
            return None;
        }
        self.ipeek_slowly(sb, ino, fmt, attr)
    }

    /// Inodes of `sb` that a front end's kernel holds, each with whether it is a directory. They come in
    /// arena order from `from` (0: the start), at most `max`. Also returns where to continue, if that was
    /// not all. An inode that the kernel learns of meanwhile may be missing.
    pub fn held_nodes(&self, sb: SbId, from: u32, max: usize) -> (Vec<(InodeId, bool)>, Option<u32>) {
        let mut held = Vec::new();
        for (first, end) in self.superblock(sb).inodes().chunks() {
            for index in (first.max(from)..end).take_while(|index| self.inodes.is_slot(*index)) {
                let (published, private) = (self.inodes.get(index), self.inodes.private(index));
                if private.nlookup.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                if held.len() == max {
                    return (held, Some(index));
                }
                let is_dir = published.mode_and_flags() & mode::S_IFMT == mode::S_IFDIR;
                held.push((InodeId::new(index, published.generation()), is_dir));
            }
        }
        (held, None)
    }

    /// Show `f` every inode of a superblock, each with a reference, in arena order, until it returns false.
    /// Returns how many it was shown. Other threads may make and end inodes meanwhile. An inode that lives
    /// all the while is shown once. Of those that begin or end meanwhile some are shown, finished and held,
    /// and none twice in one generation. `f` may keep a clone of the reference, and may use the cache.
    /// O(slots of the superblock's chunks).
    pub fn inodes_of(&self, sb: SbId, f: &mut dyn FnMut(&InodeRef<'_>) -> bool) -> u64 {
        let mut shown = 0;
        for (from, to) in self.superblock(sb).inodes().chunks() {
            for index in (from.max(1)..to).take_while(|index| self.inodes.is_slot(*index)) {
                // Most slots are in use; a free one costs no read-modify-write.
                if !self.inodes.private(index).refs.is_live() {
                    continue;
                }
                // The chunk may have gone to another superblock since. Once it is held, the slot keeps its
                // inode and superblock.
                let Some(inode) = self.hold_slot(index).filter(|inode| inode.sb() == sb) else { continue };
                shown += 1;
                if !f(&inode) {
                    return shown;
                }
            }
        }
        shown
    }
}
