//! Locked buckets, and the operations on them: insert an index, remove one.

use super::bucket_line::{Line, SLOTS};
use super::table::{Table, current_of, tag_of};
use super::{BlHash, Hashes, LONG_CHAIN};
use crate::primitives::{Ordering, shard};

/// Locked buckets of `N` hashes, in both tables during a re-key. Dropping it unlocks them and moves their
/// sequences.
#[derive(Debug)]
pub struct Locked<'a, const N: usize> {
    pub(super) hash: &'a BlHash,
    pub(super) epoch: u32,
    /// Number of tables that are locked (the old one first).
    pub(super) tables: usize,
    pub(super) buckets: [[u32; N]; 2],
    /// The hashes' tags in each of the tables.
    pub(super) tags: [[u8; N]; 2],
    /// Overflow lines at hand; freed ones end up here too, and go back after the unlock.
    pub(super) spare: [u32; N],
}

impl<'a, const N: usize> Locked<'a, N> {
    fn table(&self, step: usize) -> &'a Table {
        &self.hash.tables[(current_of(self.epoch) + step) & 1]
    }

    /// Insert an object under the `which`-th hash. The object was filled before; this publishes it.
    ///
    /// # Errors
    /// [`NeedsSpare`]: nothing was changed; lock again with a spare.
    pub fn insert(&mut self, which: usize, h: &Hashes, index: u32) -> Result<(), NeedsSpare> {
        let step = self.tables - 1;
        let head = self.table(step).heads.get(self.buckets[step][which]);
        let mut spare = self.spare[which];
        let done = self.hash.put(head, index, tag_of(h.hash[step]), &mut spare);
        self.spare[which] = spare;
        if !done {
            return Err(NeedsSpare);
        }
        self.hash.counts[shard()].entries.add(1);
        Ok(())
    }

    /// Remove an object under the `which`-th hash. False: it is not there.
    pub fn remove(&mut self, which: usize, index: u32) -> bool {
        for step in 0..self.tables {
            let head = self.table(step).heads.get(self.buckets[step][which]);
            let mut freed = 0;
            if self.hash.take(head, index, self.tags[step][which], |line| freed = line) {
                if freed != 0 {
                    self.keep(freed);
                }
                self.hash.counts[shard()].entries.sub(1);
                return true;
            }
        }
        false
    }

    /// Move an object from the `from`-th hash to the `to`-th, `h`. False: it is not there.
    ///
    /// # Errors
    /// [`NeedsSpare`]: nothing was changed; lock again with a spare.
    pub fn relocate(&mut self, from: usize, to: usize, h: &Hashes, index: u32) -> Result<bool, NeedsSpare> {
        let hash = self.hash;
        let holds = |step: &usize| {
            let head = self.table(*step).heads.get(self.buckets[*step][from]);
            hash.slot_of(head, index, self.tags[*step][from]).is_some()
        };
        let Some(step) = (0..self.tables).find(holds) else { return Ok(false) };
        let (target, tag) = (self.tables - 1, tag_of(h.hash[self.tables - 1]));
        let head = self.table(step).heads.get(self.buckets[step][from]);
        if step == target && self.buckets[step][from] == self.buckets[target][to] {
            if let Some((line, i)) = hash.slot_of(head, index, self.tags[step][from]) {
                line.set_tag(i, tag);
            }
            return Ok(true);
        }
        // First in, then out: two chains, both locked.
        let mut spare = self.spare[to];
        let put = hash.put(self.table(target).heads.get(self.buckets[target][to]), index, tag, &mut spare);
        self.spare[to] = spare;
        if !put {
            return Err(NeedsSpare);
        }
        let mut freed = 0;
        hash.take(head, index, self.tags[step][from], |line| freed = line);
        if freed != 0 {
            self.keep(freed);
        }
        Ok(true)
    }

    fn keep(&mut self, line: u32) {
        match self.spare.iter_mut().find(|s| **s == 0) {
            Some(s) => *s = line,
            // Taking the slab's locks under a bucket's is allowed (they are last in the order); it is only
            // avoided if possible.
            None => self.hash.free_line(line),
        }
    }

    /// The indices in the `which`-th bucket, of both tables, whose tag is (probably) that of the locked
    /// hash. These are all that may have this hash, and few others; each of the others would be a miss of
    /// the processor's cache.
    pub fn for_each_candidate(&self, which: usize, mut f: impl FnMut(u32)) {
        for step in 0..self.tables {
            let tag = self.tags[step][which];
            let mut line = self.table(step).heads.get(self.buckets[step][which]);
            loop {
                line.candidates(tag).for_each(|(_, index)| f(index));
                match line.next.load(Ordering::Relaxed) {
                    0 => break,
                    next => line = self.hash.overflow.get(next),
                }
            }
        }
    }
}

impl<const N: usize> Drop for Locked<'_, N> {
    fn drop(&mut self) {
        for step in (0..self.tables).rev() {
            let mut last = None;
            // At most two buckets; equal ones were locked once.
            for &bucket in &self.buckets[step] {
                if last != Some(bucket) {
                    self.table(step).unlock(bucket);
                }
                last = Some(bucket);
            }
        }
        for line in self.spare {
            if line != 0 {
                self.hash.free_line(line);
            }
        }
    }
}

/// There is no room in the chain: lock again with a spare line.
#[derive(Debug)]
pub struct NeedsSpare;

impl BlHash {
    /// Put an index into a locked chain. False: full, and `spare` is 0. A used spare is set to 0.
    pub(super) fn put(&self, head: &Line, index: u32, tag: u8, spare: &mut u32) -> bool {
        let mut line = head;
        let mut length = 1;
        loop {
            for i in 0..SLOTS {
                if line.slots[i].load(Ordering::Relaxed) == 0 {
                    line.set_tag(i, tag);
                    // Release: publishes the object; pairs with the acquire load in `Line::index`.
                    line.slots[i].store(index, Ordering::Release);
                    return true;
                }
            }
            let next = line.next.load(Ordering::Relaxed);
            if next == 0 {
                break;
            }
            line = self.overflow.get(next);
            length += 1;
        }
        if *spare == 0 {
            return false;
        }
        let fresh = self.overflow.get(*spare);
        fresh.set_tag(0, tag);
        fresh.slots[0].store(index, Ordering::Relaxed);
        line.next.store(*spare, Ordering::Release);
        *spare = 0;
        if length >= LONG_CHAIN {
            self.long_chains.add(1);
            self.want_rekey.store(true, Ordering::Relaxed);
        }
        true
    }

    /// The line and slot of an index with this tag in a locked chain.
    fn slot_of<'l>(&'l self, head: &'l Line, index: u32, tag: u8) -> Option<(&'l Line, usize)> {
        let mut line = head;
        loop {
            if let Some(i) = line.slot_of(tag, index) {
                return Some((line, i));
            }
            match line.next.load(Ordering::Relaxed) {
                0 => return None,
                next => line = self.overflow.get(next),
            }
        }
    }

    /// Take an index with this tag out of a locked chain. The chain's last entry fills the hole, so that
    /// chains stay as short as possible. An overflow line that becomes empty goes to `freed`.
    pub(super) fn take(&self, head: &Line, index: u32, tag: u8, freed: impl FnOnce(u32)) -> bool {
        let mut found = None;
        let (mut line, mut before) = (head, None);
        loop {
            if found.is_none() {
                found = line.slot_of(tag, index).map(|i| (line, i));
            }
            let next = line.next.load(Ordering::Relaxed);
            if next == 0 {
                break;
            }
            before = Some((line, next));
            line = self.overflow.get(next);
        }
        let Some((hole, i)) = found else { return false };
        // `line` is the last one now. Its last entry moves into the hole: it is stored there before it is
        // cleared here. Readers that miss it in between find the header locked.
        let Some(last) = (0..SLOTS).rev().find(|&j| line.slots[j].load(Ordering::Relaxed) != 0) else {
            return false;
        };
        let moved = line.slots[last].load(Ordering::Relaxed);
        if moved != index {
            hole.set_tag(i, line.tag(last));
            hole.slots[i].store(moved, Ordering::Release);
        }
        line.slots[last].store(0, Ordering::Relaxed);
        line.set_tag(last, 0);
        if last == 0
            && let Some((prev, this)) = before
        {
            prev.next.store(0, Ordering::Release);
            freed(this);
        }
        true
    }
}
