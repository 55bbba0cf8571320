//! Lookups with references: for embedders, and for a walk that falls back.
//!
//! A hit takes no lock; a miss takes the name lock. A hit takes a reference by index with a
//! compare-exchange that expects the generation. Then it checks the name again: if the name still leads to
//! that inode, the inode was alive and is now held.

use uvfs_sync::primitives::{Ordering, spin_loop};

use crate::cache::Cache;
use crate::inodes::attr::Attr;
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::name_locks::Pending;
use crate::lookup::ticket::NameGuard;
use crate::walk::lock_free_lookup::Step;

/// Result of [`Cache::lookup`].
#[derive(Debug)]
pub enum Lookup<'c> {
    /// The inode and its attributes.
    Hit(InodeRef<'c>, Attr),
    /// There is certainly no such name.
    Negative,
    /// Not known: the caller asks the driver and completes the guard with the answer ([`NameGuard::found`],
    /// [`NameGuard::absent`], [`NameGuard::fail`]). The guard is the lookup ticket. The caller can keep it
    /// and complete it from any thread that may use the cache.
    Miss(NameGuard<'c>),
    /// Another thread is asking the driver or changing the name: wait and look again.
    Busy(Pending),
}

/// The cache's knowledge of a name whose lock the caller holds.
#[derive(Debug)]
pub enum Known<'c> {
    /// The name leads to this inode.
    Hit(InodeRef<'c>),
    /// There is no such name.
    Negative,
    /// The driver must be asked.
    Unknown,
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Look a name up below a directory.
    pub fn lookup<'c>(&'c self, dir: &InodeRef<'c>, name: &[u8]) -> Lookup<'c> {
        match self.find(dir, name) {
            Known::Hit(inode) => {
                let attr = inode.attr();
                return Lookup::Hit(inode, attr);
            }
            Known::Negative => return Lookup::Negative,
            Known::Unknown => {}
        }
        let guard = match self.try_lock_name(dir, name) {
            Ok(guard) => guard,
            Err(pending) => return Lookup::Busy(pending),
        };
        // The previous holder of the name lock may have stored an answer before we got the lock.
        match guard.find() {
            Known::Hit(inode) => {
                let attr = inode.attr();
                Lookup::Hit(inode, attr)
            }
            Known::Negative => Lookup::Negative,
            Known::Unknown => Lookup::Miss(guard),
        }
    }

    /// The cache's knowledge of a name. Waits for nobody, but looks again while something moves: each
    /// repetition is another thread's progress.
    pub(crate) fn find<'c>(&'c self, dir: &InodeRef<'c>, name: &[u8]) -> Known<'c> {
        loop {
            // The directory is held, so no position means only that it is being renamed right now.
            if let Some(at) = self.pos(dir.id()) {
                match self.step(at, name) {
                    Step::Found(child) => {
                        if let Ok(inode) = self.hold_child(&child) {
                            return Known::Hit(inode);
                        }
                    }
                    Step::Absent => return Known::Negative,
                    Step::Unknown => return Known::Unknown,
                    Step::Retry(_) => {}
                }
            }
            spin_loop();
        }
    }

    /// Whether a directory has lost its name without being removed (the name was invalidated, or never
    /// cached).
    pub(crate) fn is_nameless(&self, dir: &InodeRef<'_>) -> bool {
        // A writer that gives it another name keeps its walk sequence odd from before the dentry changes
        // until the alias leads to the new one. A look at both in between would find it nameless.
        let Some(at) = self.pos(dir.id()) else { return false };
        let word = &self.inodes.private(dir.index()).alias;
        let alias = word.load(Ordering::Acquire);
        let d = self.dentries.get(alias);
        match d.seq.begin() {
            Some(seq) => {
                let other = alias == 0 || d.inode.load(Ordering::Relaxed) != dir.index();
                // Check again: it may have got another name in between (exchanged, or found elsewhere).
                let still = d.seq.check(seq) && word.load(Ordering::Relaxed) == alias && self.check(at);
                still && other && !dir.is_root()
            }
            None => false,
        }
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Whether `dir` is `ancestor` or lies below it. Stable while the superblock's rename mutex is held;
    /// otherwise true of one moment. O(depth).
    ///
    /// If directories are moved behind the cache, two answers that are stored at the same time can each be
    /// right for its moment and together form a loop. The loop lasts until the cache is notified of the
    /// move. A directory in a loop counts as below everything, so nothing is moved there.
    pub fn is_below(&self, dir: &InodeRef<'_>, ancestor: &InodeRef<'_>) -> bool {
        let Some(mut at) = self.get(dir.id()) else { return false };
        // Brent's algorithm: `mark` is set anew after 1, 2, 4, … steps, and in a loop the walk meets it
        // again.
        let (mut mark, mut steps, mut next_mark) = (None, 0u64, 1u64);
        loop {
            if at.id() == ancestor.id() || mark == Some(at.id()) {
                return true;
            }
            if at.is_root() {
                return false;
            }
            if steps == next_mark {
                (mark, next_mark) = (Some(at.id()), next_mark * 2);
            }
            steps += 1;
            match self.parent_of(&at) {
                Some(up) => at = up,
                None => return false,
            }
        }
    }

    /// `..` of a directory: the root itself for a root, `None` for a removed directory.
    pub fn parent_of<'c>(&'c self, dir: &InodeRef<'c>) -> Option<InodeRef<'c>> {
        loop {
            if dir.is_dead() {
                return None;
            }
            if let Some(at) = self.pos(dir.id())
                && let Ok(parent) = self.parent(at)
                && let Ok(held) = self.hold(parent)
                && self.check(at)
            {
                return Some(held);
            }
            if self.is_nameless(dir) {
                return None;
            }
            spin_loop();
        }
    }
}

impl<'c> NameGuard<'c> {
    /// The cache's knowledge of the name. No other thread changes it while the guard is held, but it may be
    /// evicted or expire.
    pub fn find(&self) -> Known<'c> {
        self.find_resident().unwrap_or_else(|| self.cache.find(&self.dir, self.name()))
    }

    /// The inode that the name's entry leads to, even if the entry has expired or is stale.
    pub(crate) fn find_previous(&self) -> Option<InodeRef<'c>> {
        loop {
            let child = self.cache.find_guarded(self.dir.index(), &self.words())?;
            if let Ok(inode) = self.cache.hold_child(&child) {
                return Some(inode);
            }
            // It is being evicted, or its directory renamed: another thread's progress.
            spin_loop();
        }
    }

    /// [`NameGuard::find`] in a resident directory. Nothing there expires or is evicted, and the holder of
    /// a name lock sees the name as it is, wherever its directory is moved meanwhile. `None`: use the
    /// general path.
    fn find_resident(&self) -> Option<Known<'c>> {
        if !self.dir.private_half().is_resident() {
            return None;
        }
        let Some(child) = self.cache.find_guarded(self.dir.index(), &self.words()) else {
            return self.state?.is_complete(&self.cache.clock).then_some(Known::Negative);
        };
        if self.cache.inodes.get(child.inode).is_stale() {
            return None;
        }
        let inode = self.cache.hold_child(&child).ok()?;
        self.found.set(child.dentry);
        Some(Known::Hit(inode))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::inodes::attr::{Attr, mode};
    use crate::types::{Config, Fresh, Room, SbOptions, Ttl};

    /// Two answers that were stored at the same time, each right for its moment: a in b, and b in a.
    #[test]
    fn a_directory_in_a_loop_is_below_everything() {
        let cache = Cache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
        let sb = cache
            .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
            .unwrap();
        let directory = |ino| Fresh {
            attr: Attr { ino, mode: mode::S_IFDIR | 0o755, nlink: 2, ..Attr::default() },
            private: 0,
            ttl: Ttl::Forever,
        };
        let root = cache.make_root(sb, &directory(1)).unwrap();
        let publish = |dir: &InodeRef<'_>, name: &[u8], inode: &InodeRef<'_>| {
            let guard = cache.lock_name(dir, name);
            let room = guard.reserve(Room::Name).unwrap();
            cache.publish(&guard, room, inode, 0, None);
        };
        let found = |name: &[u8], ino| match cache.lookup(&root, name) {
            Lookup::Miss(guard) => guard.found(&directory(ino)).unwrap(),
            other => panic!("{other:?}"),
        };
        let (a, b, other) = (found(b"a", 5), found(b"b", 6), found(b"other", 7));
        assert!(!cache.is_below(&a, &other));
        for (name, inode) in [(&b"a"[..], &a), (b"b", &b)] {
            cache.invalidate(&root, name);
            assert!(!cache.is_below(inode, &other), "nameless");
        }
        publish(&b, b"a", &a);
        publish(&a, b"b", &b);
        assert!(cache.is_below(&a, &b) && cache.is_below(&b, &a));
        assert!(cache.is_below(&a, &other) && cache.is_below(&b, &root));
        assert!(!cache.is_below(&other, &a));
    }
}
