//! Drivers' answers: inodes that were found, names that do not exist, late answers.
//!
//! Only superblocks that are not resident ask drivers. If the cache already has the inode (under another
//! name, or held by a front end), the code finds it by its number. The answer's attributes then replace the
//! cached ones.
//!
//! Rule 10: an answer is late if a child of the directory was removed, renamed or invalidated after the
//! driver was asked. Evictions do not count. A late answer is returned to the caller, but neither its name
//! nor the attributes of a known inode are cached.

use crate::cache::{Cache, is_dir};
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::ticket::NameGuard;
use crate::types::{CacheError, Fresh, Room, Ttl};

impl<'c> NameGuard<'c> {
    /// Rule 10: see the module's head.
    pub(crate) fn is_late(&self) -> bool {
        self.state.is_none_or(|d| d.revision() != self.revision)
    }

    /// The driver's answer: the name leads to this inode. The driver was asked while this name lock was
    /// held. Cached unless late; always returned. Frees the name. An answer requested earlier, such as a
    /// listing's entry, goes to [`crate::machinery::DirScan::found`] instead.
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
}
