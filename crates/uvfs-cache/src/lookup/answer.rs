//! Drivers' answers: inodes that were found, names that do not exist, late answers.
//!
//! Only superblocks that are not resident ask drivers. If the cache already has the inode (under another
//! name, or held by a front end), the code finds it by its number. The answer's attributes then replace the
//! cached ones.
//!
//! Rule 10: an answer is late if a child of the directory was removed, renamed or invalidated after the
//! driver was asked. Evictions do not count. A late answer is returned to the caller, but neither its name
//! nor the attributes of a known inode are cached.

use std::ops::RangeInclusive;

use uvfs_sync::blhash::BlHash;
use uvfs_sync::primitives::Ordering;

use crate::cache::{Cache, is_dir};
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::ticket::NameGuard;
use crate::names::change::Aftermath;
use crate::types::{CacheError, Fresh, Room, SbId, Ttl};

/// Bounds on the number of negative entries, if none is configured: as many as other names, within these
/// bounds.
const NEGATIVES: RangeInclusive<u64> = 1 << 13..=1 << 16;
/// Bytes of one negative entry: both halves, and a place in the hash.
const NEGATIVE_BYTES: u64 = 96;

impl<'c> NameGuard<'c> {
    pub(crate) fn is_late(&self) -> bool {
        self.state.is_none_or(|d| d.revision() != self.revision)
    }

    /// The driver's answer: the name leads to this inode. The driver was asked while this name lock was
    /// held. Cached unless late; always returned. Frees the name. An answer requested earlier, such as a
    /// listing's entry, goes to [`crate::DirScan::found`] instead.
    ///
    /// # Errors
    /// `NoMemory`: there is none for the inode. It was not made, and the driver's value in `fresh` is not
    /// kept. (If there is none for the name, or the directory is dying, the answer still counts.)
    pub fn found(self, fresh: &Fresh) -> Result<InodeRef<'c>, CacheError> {
        self.note_found(fresh)
    }

    /// The driver's answer: there is no such name. Cached as a negative entry unless it is late, has a TTL
    /// of zero, is superfluous (the directory is complete), or exceeds the bound (rule 9). Frees the name.
    pub fn absent(self, ttl: Ttl) {
        self.note_absent(ttl);
    }

    /// Takes an answer for which the driver was asked after `self.revision` and `self.asked`. Returns its
    /// inode, and whether the name is cached. The name is not cached if the answer or its attributes are
    /// late (the next lookup asks again), or if its TTL is zero. Nor if it cannot be right (a directory in
    /// itself), there is no memory for the name, or the directory is being removed.
    #[inline(always)]
    pub(crate) fn keep(&self, fresh: &Fresh) -> Result<(InodeRef<'c>, bool), CacheError> {
        let (inode, current) = self.cache.inode_by_number(self, fresh)?;
        let kept = self.keep_name(&inode, current, fresh.ttl);
        Ok((inode, kept))
    }

    /// [`NameGuard::keep`] of the name alone, if the inode and whether its attributes are current are known.
    #[inline(always)]
    pub(crate) fn keep_name(&self, inode: &InodeRef<'c>, current: bool, ttl: Ttl) -> bool {
        let cache = self.cache;
        if self.is_late() || !current || ttl == Ttl::ZERO || inode.id() == self.dir.id() || inode.is_root() {
            return false;
        }
        if is_dir(inode.fmt()) {
            // A directory has one name. If the cache knows another one, the directory was moved behind the
            // cache, and the old name goes.
            cache.invalidate_other_name(inode, Some((&self.dir, self.name())));
            if cache.is_below(&self.dir, inode) {
                // Nothing lies below itself: this directory was moved, behind the cache, out of the one
                // that was found in it.
                cache.invalidate_other_name(&self.dir, None);
            }
        }
        let Ok(room) = self.reserve(Room::Name) else { return false };
        let deadline = cache.deadline(room.sb(), ttl, self.asked.epoch);
        cache.publish(self, room, inode, deadline, Some(self.revision))
    }

    /// The answer was taken. If the name exists and is not cached, the cached state is wrong, and a listing
    /// under way must not make the directory complete without it.
    pub(crate) fn note_kept(&self, kept: bool) {
        if !kept && !self.is_late() {
            self.cache.invalidate(&self.dir, self.name());
        }
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl<'c> NameGuard<'c> {
    /// [`NameGuard::found`] for a caller that goes on to change the name.
    pub fn note_found(&self, fresh: &Fresh) -> Result<InodeRef<'c>, CacheError> {
        let (inode, kept) = self.keep(fresh)?;
        self.note_kept(kept);
        Ok(inode)
    }

    /// [`NameGuard::absent`] for a caller that goes on to change the name.
    pub fn note_absent(&self, ttl: Ttl) {
        let cache = self.cache;
        let complete = self.state.is_none_or(|d| d.is_complete(&cache.clock));
        let cached = !complete
            && ttl != Ttl::ZERO
            && !self.is_late()
            && cache.room_for_negative(self.dir.sb())
            && cache.publish_negative(self, ttl);
        if !cached && !self.is_late() {
            // The cached state of the name was wrong.
            cache.invalidate(&self.dir, self.name());
        }
    }
}

impl Cache {
    /// The inode with the number in `fresh`, known or new; and whether the answer is still current.
    fn inode_by_number(
        &self,
        guard: &NameGuard<'_>,
        fresh: &Fresh,
    ) -> Result<(InodeRef<'_>, bool), CacheError> {
        self.known_or_new(guard.dir.sb(), guard.asked, || guard.is_late(), fresh)
    }

    /// Whether one more negative entry may be kept. Makes room by sweeping a few old ones, from another
    /// superblock if this one has none at hand.
    fn room_for_negative(&self, sb: SbId) -> bool {
        let now = self.dentries.negatives();
        let most = self.most_negatives(now);
        if now < most {
            return true;
        }
        let others =
            self.superblocks().filter(|other| *other != sb && !self.superblock(*other).is_resident());
        let _ = std::iter::once(sb).chain(others).any(|sb| self.sweep_negatives(sb, 8) > 0);
        self.dentries.negatives() < most
    }

    /// The bound on negative entries while there are `now`. It sums over all superblocks only if there are
    /// more than a few.
    fn most_negatives(&self, now: u64) -> u64 {
        let fit = match self.memory_limit() {
            0 => u64::MAX,
            limit => limit / 10 / NEGATIVE_BYTES,
        };
        let most = match self.dentries.max_negative() {
            0 if now < *NEGATIVES.start() => *NEGATIVES.start(),
            0 => {
                let names: u64 = self.superblocks().map(|sb| self.superblock(sb).dentries().in_use()).sum();
                names.saturating_sub(now).clamp(*NEGATIVES.start(), *NEGATIVES.end())
            }
            most => most,
        };
        most.min(fit)
    }

    /// Cache that a name does not exist. False: the directory's revision moved, or no slot is left.
    fn publish_negative(&self, guard: &NameGuard<'_>, ttl: Ttl) -> bool {
        let sb = guard.dir.sb();
        let words = guard.words();
        let Ok(tail) = self.alloc_tail(sb, &words) else { return false };
        let Ok(dentry) = self.alloc_dentry(sb) else {
            self.dentries.free_tail(tail);
            return false;
        };
        let d = self.dentries.get(dentry);
        let deadline = self.deadline(sb, ttl, guard.asked.epoch);
        let mut after = Aftermath::default();
        let mut spare = false;
        // Counted before it can be found: a thread that finds it may count it out.
        self.dentries.count_negative();
        let published = loop {
            let (mut locked, [h]) = self.lock_names_bucket([(guard.dir.index(), &words)], spare);
            if guard.is_late() {
                break false;
            }
            let old = self.find_locked(&locked, 0, guard.dir.index(), &words);
            d.seq.write(|| {
                d.set_name(guard.dir.index(), &words, tail);
                d.set_target(0, 0, deadline);
                // Inside the sequence: a reader of the slot's last use must not take this entry for its
                // own.
                let parent_generation = &self.dentries.private(dentry).parent_generation;
                parent_generation.store(guard.dir.id().generation(), Ordering::Relaxed);
            });
            d.hash.store(BlHash::to_store(&h), Ordering::Relaxed);
            if locked.insert(0, &h, dentry).is_ok() {
                if let Some(old) = old {
                    self.kill(&mut locked, 0, old, &mut after);
                }
                break true;
            }
            d.seq.write(|| d.clear());
            spare = true;
        };
        if !published {
            self.dentries.uncount_negative();
            self.free_dentry(dentry, tail);
        }
        self.finish(after);
        self.dentries.maintain();
        published
    }
}
