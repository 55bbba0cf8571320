//! Invalidation of names, and the end of a superblock. (Eviction is [`crate::limit::name_eviction`].)
//!
//! To invalidate a name, the code removes its dentry, moves the directory's revision and clears *complete*,
//! in this order and in one hold of the bucket. No miss is proven while the bucket is locked, so a reader
//! that misses the name sees the flag gone (rule 9). An answer that is published after the hold sees the
//! revision moved (rule 10). A listing that still saw the name began before the move, so it cannot make the
//! directory complete. An inode that has a holder besides its name stays; a directory with children stays
//! (they hold it).
//!
//! Of the cache's locks, callers hold at most name locks and the rename mutex. A dentry is read from its
//! slot without a lock, so the code looks for it again by its name, under its bucket's lock.

use uvfs_sync::blhash::Locked;
use uvfs_sync::primitives::Ordering;

use crate::cache::Cache;
use crate::inodes::inode_ref::InodeRef;
use crate::names::dentry::NameWords;
use crate::names::publish::Aftermath;
use crate::types::{InodeId, SbId};

/// A dentry as read from its slot without a lock.
pub(crate) struct Seen {
    slot: u32,
    pub(crate) parent: u32,
    pub(crate) inode: u32,
    pub(crate) name: [u8; 256],
    pub(crate) len: usize,
}

impl Cache {
    /// Drop the cached entry of a name, because it may be wrong: the driver is asked again. Answers on their
    /// way are late from now on. The inode lives on without this name if another holder has it. A client's
    /// lookups stay counted: see [`Cache::forget_lookups`].
    pub fn invalidate(&self, dir: &InodeRef<'_>, name: &[u8]) {
        let words = NameWords::new(name);
        if words.is_none() {
            return;
        }
        let mut after = Aftermath::default();
        let (mut locked, _) = self.lock_names_bucket([(dir.index(), &words)], false);
        self.kill_any(&mut locked, 0, dir.index(), &words, &mut after);
        if let Some(state) = dir.dir_state() {
            state.moved_incomplete();
        }
        drop(locked);
        self.finish(after);
    }

    /// Invalidate the cached name of a directory, unless it is the one to keep.
    pub(crate) fn invalidate_other_name(&self, inode: &InodeRef<'_>, keep: Option<(&InodeRef<'_>, &[u8])>) {
        let alias = self.inodes.private(inode.index()).alias.load(Ordering::Acquire);
        let Some(seen) = self.see(alias) else { return };
        let same =
            keep.is_some_and(|(dir, name)| seen.parent == dir.index() && &seen.name[..seen.len] == name);
        if seen.inode == inode.index()
            && !same
            && let Some(parent) = self.get_index(seen.parent)
        {
            self.invalidate(&parent, &seen.name[..seen.len]);
        }
    }

    pub(crate) fn get_index(&self, inode: u32) -> Option<InodeRef<'_>> {
        self.get(InodeId::new(inode, self.inodes.private(inode).refs.generation()))
    }

    pub(crate) fn see(&self, dentry: u32) -> Option<Seen> {
        let d = self.dentries.get(dentry);
        let mut s = Seen { slot: dentry, parent: 0, inode: 0, name: [0; 256], len: 0 };
        let seq = d.seq.begin()?;
        s.parent = d.parent.load(Ordering::Relaxed);
        s.inode = d.inode.load(Ordering::Relaxed);
        s.len = d.copy_name(&mut s.name, self.dentries.tails());
        (d.seq.check(seq) && s.len != 0).then_some(s)
    }

    pub(crate) fn dentries_of(&self, sb: SbId) -> impl Iterator<Item = u32> {
        self.superblock(sb).dentries().chunks().into_iter().flat_map(|(from, to)| from.max(1)..to)
    }

    /// The slot, if it is still as it was seen; under the bucket's lock. Meanwhile its chunk, and the
    /// parent's, may have been returned and taken by other superblocks. Then the same name may exist in the
    /// directory that has the parent's index now. A slot that is found is in use, so its superblock does
    /// not change.
    pub(crate) fn find_seen(
        &self,
        locked: &Locked<'_, 1>,
        sb: SbId,
        seen: &Seen,
        words: &NameWords<'_>,
    ) -> Option<u32> {
        let found = self.find_locked(locked, 0, seen.parent, words);
        let owned = |dentry| self.dentries.owner(dentry) == Some(u32::from(sb.0));
        found.filter(|dentry| *dentry == seen.slot && owned(*dentry))
    }

    /// End a superblock: every name goes, the root reference is dropped, memory returns to the system.
    /// Returns the number of inodes that are held at that moment: 0 unless references leaked, files are open, or
    /// a thread that goes through another superblock's names holds a directory for a moment. (It read the directory's
    /// index from a slot that has changed hands, and lets go when it finds that out.) An inode that is held ends with its last
    /// reference. Nobody else may use the superblock meanwhile.
    #[doc(hidden)]
    pub fn drop_superblock(&self, sb: SbId) -> usize {
        let superblock = self.superblock(sb);
        for dentry in self.dentries_of(sb) {
            let Some(seen) = self.see(dentry) else { continue };
            let words = NameWords::new(&seen.name[..seen.len]);
            let (mut locked, _) = self.lock_names_bucket([(seen.parent, &words)], false);
            let mut after = Aftermath::default();
            if let Some(dentry) = self.find_seen(&locked, sb, &seen, &words) {
                self.kill(&mut locked, 0, dentry, &mut after);
            }
            drop(locked);
            self.finish(after);
        }
        if let Some(root) = superblock.take_root() {
            self.put_name(root.index());
        }
        self.dentries.maintain();
        // Slots that are freed after this trim return their chunk at once: of inodes that are still held, and of
        // negative entries that another superblock is killing now.
        self.return_chunks_of(sb, true);
        superblock.inodes().in_use() as usize
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// [`Cache::invalidate`] of all names in a directory. O(names of the superblock).
    pub fn invalidate_children(&self, dir: &InodeRef<'_>) {
        for dentry in self.dentries_of(dir.sb()) {
            if let Some(seen) = self.see(dentry).filter(|seen| seen.parent == dir.index()) {
                self.invalidate(dir, &seen.name[..seen.len]);
            }
        }
    }

    /// [`Cache::invalidate`] of all names of a superblock. O(names).
    pub fn invalidate_all(&self, sb: SbId) {
        for dentry in self.dentries_of(sb) {
            let Some(seen) = self.see(dentry) else { continue };
            if let Some(dir) = self.get_index(seen.parent).filter(|dir| dir.sb() == sb) {
                self.invalidate(&dir, &seen.name[..seen.len]);
            }
        }
    }
}
