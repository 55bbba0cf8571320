//! Counts of changes on the way of prefix entries ([`crate::walk::prefix_cache`]).
//!
//! Each directory or link belongs to a *group* by its inode's index, and each group has a count. A change of a passed
//! directory or link moves its group's count. An entry has the numbers of the groups that its path passes, and the
//! sum of their counts. If the counts now have another sum, something may have changed on the way.
//!
//! **One moment.** A reader loads the counts one after another, relaxed, after an acquire load of the entry. So no
//! count that it loads is below the value that went into the entry's sum. Counts only grow, so an equal sum means
//! that every count is equal. Thus each group was unchanged when the reader loaded the first count. The counts and
//! the sum have 64 bits and wrap. A wrap does no harm: two sums differ by the number of changes or a small multiple
//! of it, and a cache never sees 2^60 changes.
//!
//! **Costs.** The counts take 2 KiB for each cache. A hit loads eight counts, and eight more if its path passes more
//! directories. An entry that passes more than sixteen directories and links has the group of all instead, whose
//! count moves whenever any other count does. Unused places of an entry name group 0. Its count never moves and
//! stands on a line that no writer stores to.

use crossbeam_utils::CachePadded;
use uvfs_sync::primitives::{AtomicU64, Ordering, fence};

use crate::inodes::inode::Private;

/// Groups.
const COUNTS: usize = if cfg!(loom) { 4 } else { 256 };
/// Every directory and link belongs to it too. Group 0 stands for none.
const ALL: u8 = if cfg!(loom) { 1 } else { 8 };
/// The first group of single directories. Groups before it have lines of their own.
const FIRST: u8 = if cfg!(loom) { 2 } else { 16 };
/// Most groups of an entry, but for the group of all.
pub(crate) const PLACES: usize = if cfg!(loom) { 2 } else { 16 };
/// Groups in a word.
const IN_WORD: usize = PLACES / 2;

/// The group of the directory or link with this inode index. Neighbours have different ones.
pub(crate) fn group_of(index: u32) -> u8 {
    let spread = u64::from(index.wrapping_mul(0x9e37_79b9));
    FIRST + ((spread * (COUNTS as u64 - u64::from(FIRST))) >> 32) as u8
}

/// The groups that a path passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Groups(pub(crate) [u64; 2]);

impl Groups {
    /// Those of a path's directories and links.
    pub(crate) fn of(passed: impl Iterator<Item = u8>) -> Self {
        let (mut words, mut count) = ([0; 2], 0);
        for group in passed {
            if count == PLACES {
                return Self([u64::from(ALL), 0]);
            }
            words[count / IN_WORD] |= u64::from(group) << (count % IN_WORD * 8);
            count += 1;
        }
        Self(words)
    }
}

/// The counts of all groups.
#[derive(Debug)]
pub(crate) struct ChangeCounts(CachePadded<[AtomicU64; COUNTS]>);

impl ChangeCounts {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// To be called inside a write section of a directory's walk sequence, before anything else is changed. `private`
    /// is that directory's. See the head of `prefix_cache.rs`.
    pub(crate) fn before_change(&self, private: &Private) {
        if self.before_link_change(private) {
            // All entries that pass this are older now, so the next change here may cost nothing. A thread that notes
            // a new one meanwhile finds the sequence odd.
            private.clear_passed();
        }
    }

    /// The same for a link, inside a write section of one of its names, or of its attributes. Returns whether a path
    /// passes it. The flag stays: a thread that came by another name of the link finds no odd sequence, takes the flag
    /// for its own, and would lose it here.
    pub(crate) fn before_link_change(&self, private: &Private) -> bool {
        // Pairs with the fence in `note_prefix`: either that thread sees the odd sequence, or we see its flag. And a
        // thread that loads the new count sees the odd sequence afterwards.
        fence(Ordering::SeqCst);
        self.end_entries(private)
    }

    /// No older entry leads over this directory or link. Returns whether a path passes it.
    pub(crate) fn end_entries(&self, private: &Private) -> bool {
        let Some(group) = private.passed_group() else { return false };
        self.0[usize::from(group)].fetch_add(1, Ordering::Relaxed);
        self.0[usize::from(ALL)].fetch_add(1, Ordering::Relaxed);
        true
    }

    /// One more than the sum of these groups' counts, so that an empty entry has another one.
    #[inline(always)]
    pub(crate) fn sum(&self, groups: Groups) -> u64 {
        let [first, more] = groups.0;
        let sum = self.add(1, first);
        if more == 0 { sum } else { self.add(sum, more) }
    }

    #[inline(always)]
    fn add(&self, sum: u64, word: u64) -> u64 {
        let groups = word.to_le_bytes();
        let count = |group: u8| self.0[usize::from(group)].load(Ordering::Relaxed);
        groups[..IN_WORD].iter().fold(sum, |sum, group| sum.wrapping_add(count(*group)))
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn of_group(&self, index: u32) -> &AtomicU64 {
        &self.0[usize::from(group_of(index))]
    }
}
