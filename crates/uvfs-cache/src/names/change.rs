//! Publishing changes of names: create, link, remove, rename, exchange, and drivers' answers.
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
use uvfs_sync::order::{Class, Held};
use uvfs_sync::primitives::{MutexGuard, Ordering, spin_loop};

use crate::cache::{Cache, is_dir};
use crate::coherence::changed_numbers::Asked;
use crate::coherence::clock::{NEVER, SUSPECT};
use crate::dirs::children::{DirState, Entries};
use crate::dirs::cookies::DirIndex;
use crate::inodes::attr::mode;
use crate::inodes::inode_ref::{Death, InodeRef};
use crate::lookup::ticket::NameGuard;
use crate::names::dentry::{NameWords, Published};
use crate::types::{CacheError, Fresh, InodeId, Room, SbId, Ttl};
use crate::walk::step::Child;

/// A reservation for a change, made before the driver is asked; dropping it releases it.
#[derive(Debug)]
pub struct Reserved<'c> {
    cache: &'c Cache,
    sb: SbId,
    /// The directory that counted the child in.
    dir: Option<InodeRef<'c>>,
    /// Length of the name: any name of that length in that directory needs the same.
    len: usize,
    dentry: u32,
    tail: u32,
    inode: u32,
    state: u32,
}

impl Reserved<'_> {
    pub(crate) fn sb(&self) -> SbId {
        self.sb
    }
}

/// A reservation that does not borrow the cache. Its owner gives it back with [`ParkedRoom::resume`]; if it is
/// dropped, what it reserved is lost.
#[must_use = "dropped, it keeps what it reserved for good"]
pub(crate) struct ParkedRoom {
    sb: SbId,
    dir: Option<InodeId>,
    len: usize,
    dentry: u32,
    tail: u32,
    inode: u32,
    state: u32,
}

impl Reserved<'_> {
    pub(crate) fn park(mut self) -> ParkedRoom {
        let take = std::mem::take::<u32>;
        ParkedRoom {
            sb: self.sb,
            dir: self.dir.take().map(InodeRef::into_id),
            len: self.len,
            dentry: take(&mut self.dentry),
            tail: take(&mut self.tail),
            inode: take(&mut self.inode),
            state: take(&mut self.state),
        }
    }
}

impl ParkedRoom {
    /// Whether it was reserved as this.
    pub(crate) fn is(&self, room: Room) -> bool {
        let (inode, state) = (self.inode != 0, self.state != 0);
        match room {
            Room::Name => !inode,
            Room::Node => inode && !state,
            Room::Dir => inode && state,
        }
    }

    pub(crate) fn resume(self, cache: &Cache) -> Reserved<'_> {
        let Self { sb, dir, len, dentry, tail, inode, state } = self;
        let dir = dir.map(|id| InodeRef::new(cache, id.index(), id.generation()));
        Reserved { cache, sb, dir, len, dentry, tail, inode, state }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.dir.as_ref().and_then(|d| d.dir_state()) {
            state.leave();
        }
        if self.dentry != 0 {
            self.cache.free_dentry(self.dentry, self.tail);
        } else {
            self.cache.dentries.free_tail(self.tail);
        }
        if self.inode != 0 {
            self.cache.free_inode_slot(self.inode, self.state);
        }
    }
}

/// A superblock's rename mutex, held.
pub struct RenameLock<'c> {
    _held: MutexGuard<'c, ()>,
    _order: Held,
}

impl std::fmt::Debug for RenameLock<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RenameLock")
    }
}

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
    tail: u32,
}

impl Aftermath {
    /// The inode of the one dentry that was killed, for a caller that has spent its reference already.
    pub(crate) fn take_inode(&mut self) -> u32 {
        std::mem::take(&mut self.dead[0].inode)
    }
}

/// The places of a rename's two names in the lists of resident directories; none if the lists stay as they
/// are.
///
/// The list of the new name is held from before the names change until the list shows the change. So a
/// listing sees the target or its replacement, never both or neither. The list of the old name in another
/// directory still leads to the moved dentry until it is updated. A reader that finds the dentry there sees
/// that it has another parent. (The dentry stays in use meanwhile, because no other thread holds its name
/// lock.)
struct Relisting {
    same_dir: bool,
    source: Option<u64>,
    target: Option<u64>,
}

impl Relisting {
    fn lock<'a>(&self, to: &'a NameGuard<'_>) -> Option<Entries<'a>> {
        (self.source.is_some() || self.target.is_some()).then(|| to.state.map(DirState::entries))?
    }

    /// The name has left this directory's list for another directory's.
    fn leave(&self, from: &NameGuard<'_>) {
        if let Some(source) = self.source.filter(|_| !self.same_dir)
            && let Some(state) = from.state
        {
            state.entries().remove(source);
        }
    }
}

impl<'c> NameGuard<'c> {
    /// Reserve for a change of this name: a counted place in the directory (rule 11), a dentry, and the
    /// parts that `room` names.
    ///
    /// # Errors
    /// `Dying`: the directory is being removed. `NoMemory`. `Name`: the guard's name is invalid.
    pub fn reserve(&self, room: Room) -> Result<Reserved<'c>, CacheError> {
        let cache = self.cache;
        let sb = self.dir.sb();
        let state = self.state.ok_or(CacheError::Stale)?;
        state.enter()?;
        let (dir, len) = (Some(self.dir.clone()), self.name().len());
        let mut r = Reserved { cache, sb, dir, len, dentry: 0, tail: 0, inode: 0, state: 0 };
        r.tail = cache.alloc_tail(sb, &self.words())?;
        // A rename reuses the moved dentry, but it may need the tail.
        r.dentry = cache.alloc_dentry(sb)?;
        if room != Room::Name {
            r.inode = cache.alloc_inode(sb)?;
        }
        if room == Room::Dir {
            r.state = cache.alloc_dir(sb)?;
        }
        Ok(r)
    }

    /// A reservation counts in its directory, which the published dentry holds from then on.
    ///
    /// # Panics
    /// If `room` was reserved for another directory, or for a name of another length.
    fn require(&self, room: &Reserved<'_>) {
        let same_dir = |dir: &InodeRef<'_>| dir.id() == self.dir.id() && self.cache.owns(dir);
        let fits = room.dir.as_ref().is_some_and(same_dir) && room.len == self.name().len();
        assert!(fits, "reserved for another name");
    }

    /// Publish a new node under this name, reserved as `Node` or `Dir`. It replaces a cached negative entry
    /// of the name.
    ///
    /// # Panics
    /// If `room` was not reserved for this name, or is of [`Room::Name`].
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
    /// The superblock's rename mutex. A thread that moves a directory to another parent holds it, so that
    /// no loop can arise. Taken before the name locks.
    pub fn lock_renames(&self, sb: SbId) -> RenameLock<'_> {
        let order = Held::new(Class::Rename);
        RenameLock { _held: self.superblock(sb).lock_renames(), _order: order }
    }

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
    fn listed_as(&self, guard: &NameGuard<'_>, words: &NameWords<'_>) -> Option<u32> {
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
    fn cookie(&self, dentry: u32) -> u64 {
        self.dentries.private(dentry).cookie.load(Ordering::Relaxed)
    }

    /// Take an entry out of a resident directory's list, before its dentry changes. So a listing under the
    /// index's mutex finds only dentries that are in use. See [`Cache::listed_as`].
    fn unlist(&self, guard: &NameGuard<'_>, words: &NameWords<'_>) -> Option<u32> {
        let dentry = self.listed_as(guard, words)?;
        guard.state?.entries().remove(self.cookie(dentry));
        Some(dentry)
    }

    /// Put an entry at the end of a resident directory's list, after its dentry was published.
    fn list(&self, guard: &NameGuard<'_>, dentry: u32) {
        if guard.dir.private_half().is_resident()
            && let Some(state) = guard.state
        {
            self.list_last(&mut state.entries(), dentry);
        }
    }

    fn list_last(&self, index: &mut DirIndex, dentry: u32) {
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
            // so no cached path passes it (`walk/prefix.rs`).
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
                state.leave();
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

    /// Give the name of `from` to `to`, replacing the inode that `to` led to (`death`: an empty directory).
    /// `room` was reserved from `to` as [`Room::Name`]. The caller has checked types and loops. If both names lead
    /// to one inode, both stay, as rename(2) has it.
    ///
    /// # Panics
    /// If `room` was not reserved from `to`, or the directories belong to two superblocks: the name's slot
    /// would be in the chunk of one and below the other (design rule 18).
    pub fn rename<'c>(
        &'c self,
        from: &NameGuard<'c>,
        to: &NameGuard<'c>,
        mut room: Reserved<'c>,
        mut death: Option<Death<'c>>,
    ) {
        self.require_one_superblock(from, to);
        to.require(&room);
        let (from_words, to_words) = (from.words(), to.words());
        let lists = self.relisting(from, &from_words, to, &to_words);
        for guard in [from, to] {
            if let Some(state) = guard.dir.dir_state() {
                state.moved();
            }
        }
        let mut after = Aftermath::default();
        let names = [(from.dir.index(), &from_words), (to.dir.index(), &to_words)];
        let moved = loop {
            let mut entries = lists.lock(to);
            let (mut locked, [_, to_hash]) = self.lock_names_bucket(names, true);
            let moved = self.find_locked(&locked, 0, from.dir.index(), &from_words);
            let target = self.find_locked(&locked, 1, to.dir.index(), &to_words);
            let leads = |dentry: u32| self.dentries.get(dentry).inode.load(Ordering::Relaxed);
            let moved = moved.filter(|d| leads(*d) != 0);
            if moved.is_some_and(|moved| target.is_some_and(|target| leads(moved) == leads(target))) {
                drop((locked, entries));
                from.mark_stale_if_late(None);
                return to.mark_stale_if_late(None);
            }
            match moved {
                Some(moved) if locked.relocate(0, 1, &to_hash, moved).is_err() => {
                    // No overflow line was available: everything is as it was.
                    drop((locked, entries));
                    self.dentries.maintain();
                    continue;
                }
                Some(_) => {}
                // Invalidated meanwhile. Only the target goes, and a later lookup must ask the driver.
                None => to.dir.dir_state().into_iter().for_each(DirState::moved_incomplete),
            }
            if let Some(death) = &mut death {
                death.commit();
            }
            if let Some(target) = target {
                self.kill(&mut locked, 1, target, &mut after);
            }
            if let Some(moved) = moved {
                self.rewrite(moved, to.dir.index(), &to_words, std::mem::take(&mut room.tail), &mut after);
                self.dentries.get(moved).hash.store(BlHash::to_store(&to_hash), Ordering::Relaxed);
            }
            drop(locked);
            if let Some(entries) = &mut entries {
                self.relist(entries, &lists, moved);
            }
            break moved;
        };
        lists.leave(from);
        if moved.is_some() {
            self.change_parent(from, &mut room);
        }
        drop(room);
        self.finish(after);
        drop(death);
        from.mark_stale_if_late(None);
        to.mark_stale_if_late(None);
    }

    /// A moved dentry holds the parent that `room` reserved. It is no longer counted in the old one, nor holds it.
    fn change_parent<'c>(&'c self, from: &NameGuard<'c>, room: &mut Reserved<'c>) {
        if let Some(parent) = room.dir.take() {
            parent.into_id();
        }
        if let Some(state) = from.dir.dir_state() {
            state.leave();
        }
        self.put_inode(from.dir.index());
    }

    fn require_one_superblock(&self, a: &NameGuard<'_>, b: &NameGuard<'_>) {
        let ours = self.owns(&a.dir) && self.owns(&b.dir);
        assert!(ours && a.dir.sb() == b.dir.sb(), "a name stays in its superblock");
    }

    /// The changes that a rename will make to the lists of its directories.
    fn relisting(
        &self,
        from: &NameGuard<'_>,
        from_words: &NameWords<'_>,
        to: &NameGuard<'_>,
        to_words: &NameWords<'_>,
    ) -> Relisting {
        let same_dir = from.dir.id() == to.dir.id();
        let target = self.listed_as(to, to_words).map(|dentry| self.cookie(dentry));
        // A name that changes within its directory, and replaces no other, keeps its place.
        let stays = same_dir && target.is_none();
        let source = if stays { None } else { self.listed_as(from, from_words) };
        Relisting { same_dir, source: source.map(|dentry| self.cookie(dentry)), target }
    }

    /// Called in the hold of the list of `to` in which the names changed. The moved entry gets the place of
    /// the one that it replaced, or else becomes the latest in its new directory.
    fn relist(&self, index: &mut DirIndex, lists: &Relisting, moved: Option<u32>) {
        if let Some(source) = lists.source.filter(|_| lists.same_dir) {
            index.remove(source);
        }
        match (moved, lists.target) {
            (Some(moved), Some(cookie)) => {
                index.replace(cookie, moved);
                self.dentries.private(moved).cookie.store(cookie, Ordering::Relaxed);
            }
            (Some(moved), None) => self.list_last(index, moved),
            (None, Some(cookie)) => index.remove(cookie),
            (None, None) => {}
        }
    }

    /// Give a dentry its new parent and name, under the locks of a rename. A directory's walk sequence is
    /// odd meanwhile.
    fn rewrite(&self, dentry: u32, dir: u32, words: &NameWords<'_>, tail: u32, after: &mut Aftermath) {
        let d = self.dentries.get(dentry);
        let inode = d.inode.load(Ordering::Relaxed);
        let mut change = || {
            after.tail = d.seq.write(|| {
                self.before_link_change(d);
                d.set_name(dir, words, tail)
            });
        };
        if is_dir(d.fmt()) {
            self.while_moving(&[inode], change);
        } else {
            change();
        }
    }

    fn invalidate_both(
        &self,
        mut locked: Locked<'_, 2>,
        names: [(u32, &NameWords<'_>); 2],
        mut after: [Aftermath; 2],
    ) {
        for (i, after) in after.iter_mut().enumerate() {
            self.kill_any(&mut locked, i, names[i].0, names[i].1, after);
        }
        drop(locked);
        after.into_iter().for_each(|after| self.finish(after));
    }

    /// Swap the targets of two dentries, under the locks of their buckets.
    fn swap_targets(&self, first: u32, second: u32) {
        let (a, b) = (self.dentries.get(first), self.dentries.get(second));
        let of = |d: &Published| (d.inode.load(Ordering::Relaxed), is_dir(d.fmt()));
        let lead = |inode: u32, dentry: u32| {
            self.inodes.private(inode).alias.store(dentry, Ordering::Release);
        };
        // Inside both sequences: a reader of a file's name that finds another inode then finds the other dentry.
        let led = [(of(a).0, second), (of(b).0, first)];
        let led = led.into_iter().filter(|(inode, _)| self.inodes.private(*inode).is_named());
        let targets = || {
            self.before_link_change(a);
            self.before_link_change(b);
            a.swap_targets(b);
            led.for_each(|(inode, dentry)| lead(inode, dentry));
        };
        let swap = || a.seq.write(|| b.seq.write(targets));
        match (of(a), of(b)) {
            ((x, true), (y, true)) => self.while_moving(&[x, y], || {
                swap();
                lead(x, second);
                lead(y, first);
            }),
            ((x, true), _) => self.while_moving(&[x], || {
                swap();
                lead(x, second);
            }),
            (_, (y, true)) => self.while_moving(&[y], || {
                swap();
                lead(y, first);
            }),
            _ => swap(),
        }
    }

    /// Called while the sequence of a name is odd, before it changes. If it leads to a symbolic link, cached paths may
    /// pass that (`walk/passed_links.rs`).
    fn before_link_change(&self, d: &Published) {
        if d.fmt() == mode::S_IFLNK {
            let inode = d.inode.load(Ordering::Relaxed);
            self.prefixes.changes.before_link_change(self.inodes.private(inode));
        }
    }

    /// Run `f` while the walk sequences of these directories are odd. Their attribute locks are taken in
    /// the order of their indices. Their names' buckets are locked, so they are alive.
    fn while_moving(&self, dirs: &[u32], f: impl FnOnce()) {
        let lock = |i: u32| self.inodes.private(i).refs.lock();
        let unlock = |i: u32| self.inodes.private(i).refs.unlock();
        let walk = |i: u32| self.inodes.get(i).stamp();
        let moves = |i: u32| self.prefixes.changes.before_change(self.inodes.private(i));
        let f = || {
            dirs.iter().for_each(|dir| moves(*dir));
            f();
        };
        match *dirs {
            [a, b] => {
                let (low, high) = (a.min(b), a.max(b));
                lock(low);
                lock(high);
                walk(low).write(|| walk(high).write(f));
                unlock(high);
                unlock(low);
            }
            [a] => {
                lock(a);
                walk(a).write(f);
                unlock(a);
            }
            _ => f(),
        }
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Swap the inodes of two names (RENAME_EXCHANGE). The dentries keep their names, and their places in
    /// hash and lists. So nothing is absent meanwhile, and nothing can fail.
    ///
    /// # Panics
    /// If the directories belong to two superblocks.
    pub fn exchange<'c>(&'c self, a: &NameGuard<'c>, b: &NameGuard<'c>) {
        self.require_one_superblock(a, b);
        let (a_words, b_words) = (a.words(), b.words());
        for guard in [a, b] {
            if let Some(state) = guard.dir.dir_state() {
                state.moved();
            }
        }
        let names = [(a.dir.index(), &a_words), (b.dir.index(), &b_words)];
        let (locked, _) = self.lock_names_bucket(names, false);
        let found = [0, 1].map(|i| {
            self.find_locked(&locked, i, names[i].0, names[i].1)
                .filter(|d| self.dentries.get(*d).inode.load(Ordering::Relaxed) != 0)
        });
        match found {
            [Some(first), Some(second)] if first == second => {}
            [Some(first), Some(second)] => self.swap_targets(first, second),
            _ => {
                // One was invalidated meanwhile. So the other leads to the wrong inode now, and the
                // directories' cached entries are not the whole truth.
                let after = [a, b].map(|guard| {
                    if let Some(state) = guard.dir.dir_state() {
                        state.moved_incomplete();
                    }
                    Aftermath::default()
                });
                return self.invalidate_both(locked, names, after);
            }
        }
        drop(locked);
        a.mark_stale_if_late(None);
        b.mark_stale_if_late(None);
    }

    /// Reserve an inode without a name ([`Cache::create_nameless`]), before the driver is asked.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn reserve_nameless(&self, sb: SbId) -> Result<Reserved<'_>, CacheError> {
        let inode = self.alloc_inode(sb)?;
        Ok(Reserved { cache: self, sb, dir: None, len: 0, dentry: 0, tail: 0, inode, state: 0 })
    }

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
