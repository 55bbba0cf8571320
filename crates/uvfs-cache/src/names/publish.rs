//! Publishing changes of names: create, link, remove, and drivers' answers. [`rename`](super::rename) moves names.
//!
//! A caller of create, link, remove, rename or exchange holds the name locks ([`crate::lookup::ticket`]),
//! has asked the driver, and has reserved the memory that the change needs ([`NameGuard::reserve`]). So
//! these calls cannot fail. A reservation may find no memory, and a driver's answer may come too late to be
//! published.
//!
//! The writer locks the name's bucket once to fill and insert a dentry, or to mark it dead and remove it
//! (rule 16). A reader that finds the entry checks the dentry. A reader that does not find it sees that the
//! bucket moved. Rename holds both buckets while both change (rule 12), so a scan of either proves no miss.
//! The replaced target is therefore never absent, and the moved name is never in both places.

use uvfs_sync::blhash::{BlHash, Hashes, Locked, Scan};
use uvfs_sync::primitives::{Ordering, spin_loop};

use crate::cache::{Cache, is_dir};
use crate::coherence::expiry::{NEVER, SUSPECT};
use crate::coherence::late_attributes::Asked;
use crate::dirs::cookies::DirIndex;
use crate::inodes::inode_ref::{Death, InodeRef};
use crate::lookup::ticket::NameGuard;
use crate::names::dentry::NameWords;
use crate::names::reservation::Reserved;
use crate::types::{Fresh, Ttl};
use crate::walk::lock_free_lookup::Child;

/// A dentry that was taken out, and the references that it held.
#[derive(Clone, Copy, Default)]
pub(crate) struct Killed {
    dentry: u32,
    tail: u32,
    /// The inode that it held. 0: a negative entry, or the reference is gone already.
    inode: u32,
    /// The parent that it held and that counts it. 0: a negative entry, whose parent may be gone.
    parent: u32,
}

/// Work for after the locks: nothing is freed or called under them.
#[derive(Default)]
pub(crate) struct Aftermath {
    dead: [Killed; 2],
    /// Tail of a name that was changed in place.
    pub(super) tail: u32,
}

impl Aftermath {
    /// The inode of the one dentry that was killed, for a caller that has spent its reference already.
    pub(crate) fn take_inode(&mut self) -> u32 {
        std::mem::take(&mut self.dead[0].inode)
    }
}

impl<'c> NameGuard<'c> {
    /// Publish a new node under this name, reserved as `Node` or `Dir`. It replaces a cached negative entry
    /// of the name.
    ///
    /// # Panics
    /// If `room` was not reserved for this name, or is of [`Room::Name`](crate::Room::Name).
    pub fn create(&self, room: Reserved<'c>, fresh: &Fresh) -> InodeRef<'c> {
        self.create_trusted(room, fresh, fresh.ttl)
    }

    /// [`NameGuard::create`]; the name is trusted for `name_ttl`.
    #[inline]
    pub(crate) fn create_trusted(
        &self,
        mut room: Reserved<'c>,
        fresh: &Fresh,
        name_ttl: Ttl,
    ) -> InodeRef<'c> {
        self.require(&room);
        let (index, state) = (std::mem::take(&mut room.inode), std::mem::take(&mut room.state));
        assert_ne!(index, 0, "create needs Room::Node or Room::Dir");
        let inode = self.cache.fill_inode(room.sb, index, state, fresh, 0, self.asked.epoch);
        // If another inode with that number is still cached (its file is gone), this one is not found by
        // number.
        if !self.dir.private_half().is_resident() {
            drop(self.cache.hash_number(room.sb, index, &fresh.attr, || inode.clone()));
        }
        let deadline = match self.dir.private_half().is_resident() {
            true => NEVER,
            false => self.cache.deadline(room.sb, name_ttl, self.asked.epoch),
        };
        self.found.set(0);
        self.cache.publish_held(self, room, &inode, deadline, None);
        self.mark_stale_if_late(Some(&inode));
        inode
    }

    /// Publish another name of an inode.
    ///
    /// # Panics
    /// If `room` was not reserved for this name, or the inode is of another superblock.
    pub fn link(&self, room: Reserved<'c>, inode: &InodeRef<'c>, ttl: Ttl) {
        self.require(&room);
        assert!(self.cache.owns(inode) && inode.sb() == room.sb, "a name stays in its superblock");
        // One more name does not make the known attributes of the inode any fresher.
        let deadline =
            if inode.expired() { SUSPECT } else { self.cache.deadline(room.sb, ttl, self.asked.epoch) };
        self.found.set(0);
        self.cache.publish(self, room, inode, deadline, None);
        self.mark_stale_if_late(None);
    }

    /// Take the name away: the driver has removed it. `death` is given for a directory.
    pub fn remove(&self, mut death: Option<Death<'c>>) {
        let cache = self.cache;
        let words = self.words();
        let listed = cache.unlist(self, &words);
        if let Some(state) = self.state {
            // Before the name goes: an answer on its way from now on is late (rule 10).
            state.moved();
        }
        let mut after = Aftermath::default();
        let (mut locked, _) = cache.lock_names_bucket([(self.dir.index(), &words)], false);
        if let Some(death) = &mut death {
            death.commit();
        }
        // Absence is fine: the name was invalidated meanwhile. That may happen to a listed dentry too.
        if let Some(dentry) = listed.or_else(|| cache.find_locked(&locked, 0, self.dir.index(), &words)) {
            cache.kill(&mut locked, 0, dentry, &mut after);
        }
        drop(locked);
        cache.finish(after);
        drop(death);
    }
}

impl Cache {
    /// Hash and lock the buckets of `N` names; hash again if the keys changed meanwhile.
    pub(crate) fn lock_names_bucket<'a, const N: usize>(
        &'a self,
        names: [(u32, &NameWords<'_>); N],
        spare: bool,
    ) -> (Locked<'a, N>, [Hashes; N]) {
        loop {
            let hashes: [Hashes; N] = std::array::from_fn(|i| self.hashes_at(names[i].1, names[i].0));
            let each: [&Hashes; N] = std::array::from_fn(|i| &hashes[i]);
            if let Some(locked) = self.dentries.names().lock(each, spare) {
                return (locked, hashes);
            }
            spin_loop();
        }
    }

    /// The dentry of a name, positive or negative; under the bucket's lock.
    pub(crate) fn find_locked<const N: usize>(
        &self,
        locked: &Locked<'_, N>,
        which: usize,
        dir: u32,
        words: &NameWords<'_>,
    ) -> Option<u32> {
        let mut found = None;
        locked.for_each_candidate(which, |dentry| {
            let d = self.dentries.get(dentry);
            let useful = d.inode.load(Ordering::Relaxed) != 0 || found.is_none();
            if useful && d.is(dir, words, self.dentries.tails()) {
                found = Some(dentry);
            }
        });
        found
    }

    /// The child of a name, whatever its deadline. The caller holds the name lock, so no other thread
    /// changes the name, and it is found without a lock. In a resident directory it is not evicted either.
    pub(crate) fn find_guarded(&self, dir: u32, words: &NameWords<'_>) -> Option<Child> {
        loop {
            let accept = |dentry| self.is_guarded(dentry, dir, words);
            match self.dentries.names().scan(&self.hashes_at(words, dir), accept, || ()) {
                Scan::Hit(child) => return Some(child),
                Scan::Miss(()) => return None,
                Scan::Moved => spin_loop(),
            }
        }
    }

    /// Whether a dentry is that of the name, for [`Cache::find_guarded`].
    fn is_guarded(&self, dentry: u32, dir: u32, words: &NameWords<'_>) -> Option<Child> {
        let d = self.dentries.get(dentry);
        let seq = d.seq.begin()?;
        if !d.is(dir, words, self.dentries.tails()) {
            return None;
        }
        // A negative entry would belong to another superblock's directory that had the index before.
        let child = Child::new(dentry, seq, d.inode.load(Ordering::Relaxed), d.meta());
        (child.inode != 0 && d.seq.check(seq)).then_some(child)
    }

    /// The dentry of a name of a resident directory. The caller holds the name lock, and nothing in a
    /// resident superblock goes away by itself. So the dentry stays the name's.
    pub(super) fn listed_as(&self, guard: &NameGuard<'_>, words: &NameWords<'_>) -> Option<u32> {
        if !guard.dir.private_half().is_resident() {
            return None;
        }
        let dir = guard.dir.index();
        // Most often it was found already.
        let child = match guard.found.get() {
            0 => None,
            found => self.is_guarded(found, dir, words),
        };
        Some(child.or_else(|| self.find_guarded(dir, words))?.dentry)
    }

    /// The dentry's cookie: its place in its directory's list.
    pub(super) fn cookie(&self, dentry: u32) -> u64 {
        self.dentries.private(dentry).cookie.load(Ordering::Relaxed)
    }

    /// Take an entry out of a resident directory's list, before its dentry changes. So a listing under the
    /// index's mutex finds only dentries that are in use. See [`Cache::listed_as`].
    pub(super) fn unlist(&self, guard: &NameGuard<'_>, words: &NameWords<'_>) -> Option<u32> {
        let dentry = self.listed_as(guard, words)?;
        guard.state?.entries().remove(self.cookie(dentry));
        Some(dentry)
    }

    /// Put an entry at the end of a resident directory's list, after its dentry was published.
    pub(super) fn list(&self, guard: &NameGuard<'_>, dentry: u32) {
        if guard.dir.private_half().is_resident()
            && let Some(state) = guard.state
        {
            self.list_last(&mut state.entries(), dentry);
        }
    }

    pub(super) fn list_last(&self, index: &mut DirIndex, dentry: u32) {
        let cookie = index.push(dentry);
        self.dentries.private(dentry).cookie.store(cookie, Ordering::Relaxed);
    }

    /// Take a dentry out, dead, under the bucket's lock. Its references are left in `after`. If it is not
    /// there, nothing happens.
    pub(crate) fn kill<const N: usize>(
        &self,
        locked: &mut Locked<'_, N>,
        which: usize,
        dentry: u32,
        after: &mut Aftermath,
    ) {
        if !locked.remove(which, dentry) {
            return;
        }
        let d = self.dentries.get(dentry);
        let inode = d.inode.load(Ordering::Relaxed);
        let parent = if inode == 0 { 0 } else { d.parent.load(Ordering::Relaxed) };
        let mut tail = 0;
        let mut clear = || {
            tail = d.seq.write(|| {
                self.before_link_change(d);
                d.clear()
            });
        };
        // A directory that lives on no longer has this name, so walks that came through it must look again.
        // (If it ends, its end moves the sequence too.)
        if is_dir(d.fmt()) && self.inodes.private(inode).refs.is_live() {
            self.while_moving(&[inode], clear);
        } else if is_dir(d.fmt()) {
            // Evicted: nobody has a reference, so nobody has its attribute lock either. No name below it is cached,
            // so no cached path passes it (`walk/prefix_cache.rs`).
            self.inodes.get(inode).stamp().write(clear);
        } else {
            clear();
        }
        let place = usize::from(after.dead[0].dentry != 0);
        after.dead[place] = Killed { dentry, tail, inode, parent };
    }

    /// Remove the cached entry of a name, under the bucket's lock. It is a negative entry, or before a
    /// driver's fresh answer perhaps a positive one that expired.
    pub(crate) fn kill_any<const N: usize>(
        &self,
        locked: &mut Locked<'_, N>,
        which: usize,
        dir: u32,
        words: &NameWords<'_>,
        after: &mut Aftermath,
    ) {
        if let Some(dentry) = self.find_locked(locked, which, dir, words) {
            self.kill(locked, which, dentry, after);
        }
    }

    /// Publish a dentry that leads to `inode`. With `revision`: only if the directory's revision did not
    /// move (rule 10). Otherwise nothing happens, and false is returned.
    pub(crate) fn publish(
        &self,
        guard: &NameGuard<'_>,
        room: Reserved<'_>,
        inode: &InodeRef<'_>,
        deadline: u32,
        revision: Option<u64>,
    ) -> bool {
        self.inodes.private(inode.index()).refs.get_anchor();
        self.publish_held(guard, room, inode, deadline, revision)
    }

    /// [`Cache::publish`] of an inode that has the name's reference already.
    ///
    /// The dentry holds its inode from before it can be found, because a thread that finds it may end it
    /// and then drops that reference. An inode with one reference is taken for one that only its name
    /// holds. So the caller needs a reference besides.
    fn publish_held(
        &self,
        guard: &NameGuard<'_>,
        mut room: Reserved<'_>,
        inode: &InodeRef<'_>,
        deadline: u32,
        revision: Option<u64>,
    ) -> bool {
        let (dentry, tail) = (room.dentry, room.tail);
        let words = guard.words();
        let d = self.dentries.get(dentry);
        let mut after = Aftermath::default();
        let mut spare = false;
        loop {
            let (mut locked, [h]) = self.lock_names_bucket([(guard.dir.index(), &words)], spare);
            // Checked under the lock, because an invalidation moves it there. If the invalidation comes
            // first, we see the revision moved. If we come first, the invalidation finds the new entry.
            if let (Some(expected), Some(state)) = (revision, guard.state)
                && state.revision() != expected
            {
                drop(locked);
                self.put_name(inode.index());
                self.finish(after);
                return false;
            }
            let old = self.find_locked(&locked, 0, guard.dir.index(), &words);
            d.seq.write(|| {
                d.set_name(guard.dir.index(), &words, tail);
                d.set_target(inode.index(), inode.fmt(), deadline);
            });
            d.hash.store(BlHash::to_store(&h), Ordering::Relaxed);
            let private = inode.private_half();
            if is_dir(inode.fmt()) || private.is_named() {
                private.alias.store(dentry, Ordering::Release);
            }
            if locked.insert(0, &h, dentry).is_ok() {
                // Only now: if the old entry went first and the new one found no room, the name would be
                // absent between two holds.
                if let Some(old) = old {
                    self.kill(&mut locked, 0, old, &mut after);
                }
                break;
            }
            // Not published: return it to a free slot, and try again with a spare line.
            d.seq.write(|| d.clear());
            spare = true;
        }
        (room.dentry, room.tail) = (0, 0);
        if let Some(parent) = room.dir.take() {
            // The dentry owns its reference from now on, and the count in `DirState`.
            parent.into_id();
        }
        drop(room);
        self.list(guard, dentry);
        self.finish(after);
        true
    }

    /// After the locks: free dentries, drop what they held, and maintain the table.
    pub(crate) fn finish(&self, after: Aftermath) {
        self.dentries.free_tail(after.tail);
        for dead in after.dead.iter().take_while(|dead| dead.dentry != 0) {
            self.free_dentry(dead.dentry, dead.tail);
            if dead.parent == 0 {
                self.dentries.uncount_negative();
                continue;
            }
            if let Some(state) = self.inodes.dir_state(dead.parent) {
                state.children.leave();
            }
            // The inode before its parent, whose last reference this may be: evict hooks are called for a
            // child first.
            if dead.inode != 0 {
                self.put_name(dead.inode);
            }
            self.put_inode(dead.parent);
        }
        self.dentries.maintain();
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// A new inode without a name, as O_TMPFILE makes one. Its driver was asked after `asked`. It leaves
    /// the cache with its last reference, unless it is linked before.
    ///
    /// # Panics
    /// If `room` is not of [`Cache::reserve_nameless`] of this cache.
    pub fn create_nameless(&self, mut room: Reserved<'_>, asked: Asked, fresh: &Fresh) -> InodeRef<'_> {
        let nameless = room.dir.is_none() && std::ptr::eq(self, room.cache);
        let (sb, index) = (room.sb, std::mem::take(&mut room.inode));
        assert!(nameless && index != 0, "not reserved as nameless");
        if self.superblock(sb).is_resident() {
            let generation = self.fill_slot(sb, index, 0, fresh, 0, NEVER);
            return self.start_inode(index, generation);
        }
        // Not trusted until it is known not to be late: a writer that changed the inode before it could be
        // found by number has noted the change.
        let generation = self.fill_slot(sb, index, 0, fresh, 0, SUSPECT);
        let inode = self.start_inode(index, generation);
        // As in `create`: if another inode with that number is still cached, this one is not found by
        // number.
        drop(self.hash_number(sb, index, &fresh.attr, || inode.clone()));
        inode.believe_unless_late(asked, fresh.ttl);
        inode
    }
}
