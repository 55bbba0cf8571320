//! Renames: a name moves, or two names swap their inodes.
//!
//! The caller holds both name locks and has asked the driver, as the module [`publish`](super::publish) describes. Both
//! buckets are held while both change (rule 12). A directory that moves has an odd walk sequence meanwhile, and the
//! change counts of the prefix cache move, so no noted path leads through its old place. Nothing here checks that a
//! directory does not move below itself: the VFS does, and holds the rename mutex ([`Cache::lock_renames`]).

use uvfs_sync::blhash::{BlHash, Locked};
use uvfs_sync::lock_order::{Class, Held};
use uvfs_sync::primitives::{MutexGuard, Ordering};

use crate::cache::{Cache, is_dir};
use crate::dirs::cookies::DirIndex;
use crate::dirs::dir_state::{DirState, Entries};
use crate::inodes::attr::mode;
use crate::inodes::inode_ref::Death;
use crate::lookup::ticket::NameGuard;
use crate::names::dentry::{NameWords, Published};
use crate::names::publish::Aftermath;
use crate::names::reservation::Reserved;
use crate::types::SbId;

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

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// The superblock's rename mutex. A thread that moves a directory to another parent holds it, so that
    /// no loop can arise. Taken before the name locks.
    pub fn lock_renames(&self, sb: SbId) -> RenameLock<'_> {
        let order = Held::new(Class::Rename);
        RenameLock { _held: self.superblock(sb).lock_renames(), _order: order }
    }

    /// Give the name of `from` to `to`, replacing the inode that `to` led to (`death`: an empty directory).
    /// `room` was reserved from `to` as [`Room::Name`](crate::Room::Name). The caller has checked types and loops. If
    /// both names lead to one inode, both stay, as rename(2) has it.
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
            state.children.leave();
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
    /// pass that (`walk/prefix_passed_links.rs`).
    pub(super) fn before_link_change(&self, d: &Published) {
        if d.fmt() == mode::S_IFLNK {
            let inode = d.inode.load(Ordering::Relaxed);
            self.prefixes.changes.before_link_change(self.inodes.private(inode));
        }
    }

    /// Run `f` while the walk sequences of these directories are odd. Their attribute locks are taken in
    /// the order of their indices. Their names' buckets are locked, so they are alive.
    pub(super) fn while_moving(&self, dirs: &[u32], f: impl FnOnce()) {
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
}
