//! Growth and re-keys of the table: one bucket at a time, by one thread at a time.
//!
//! The grower's mutex is only ever tried: a thread that does not get it leaves the work to the next one.
//! An insert that makes a chain too long asks for a re-key ([`locked_bucket`](super::locked_bucket)).

use super::bucket_line::{Line, SLOTS};
use super::split_level::with_level;
use super::table::{Table, current_of, is_moving, tag_of};
use super::{BlHash, LOAD, Objects, random_key};
use crate::arena::Arena;
use crate::primitives::{Ordering, fence, shard};

/// Buckets of the old table that an insert or remove moves during a re-key.
const MOVE_STEP: u32 = 2;

/// Buckets of an ended table that an insert or remove retires.
const RETIRE_STEP: u32 = 64;
/// Bytes of a table from which on it grows by huge pages: lookups go anywhere in it, and the objects of its
/// entries take twenty times as much memory.
const HUGE_FROM: usize = 4 << 20;
/// A table with a quarter of its intended load is moved into a smaller one, if it has more than this many
/// buckets.
const SHRINK: u64 = if cfg!(loom) { u64::MAX } else { 4096 };

/// Buckets that one insert splits at most: some microseconds.
const CATCH_UP: usize = if cfg!(loom) { 2 } else { 32 };

/// State of the one thread that splits or moves buckets.
#[derive(Debug, Default)]
pub(super) struct Grower {
    /// Next bucket of the old table to move.
    cursor: u32,
    /// Range of buckets of the unused table that are still to be retired.
    retire: std::ops::Range<u32>,
    /// Kept between splits, so that none of them allocates under a lock.
    entries: Vec<(u32, u8)>,
    lines: Vec<u32>,
}

impl Grower {
    fn reserve_more(&mut self) {
        self.entries.reserve(self.entries.capacity().max(4 * SLOTS));
        self.lines.reserve(self.lines.capacity().max(4));
    }
}

impl BlHash {
    /// Call this after an insert or remove, with nothing locked. If it is due, this splits a bucket or
    /// moves some; more of them, up to a fixed number, if the table has fallen behind. O(1) buckets.
    pub fn maintain(&self, objects: &impl Objects) {
        let moving = is_moving(self.epoch.load(Ordering::Relaxed));
        // An ended table keeps this going until its memory is returned.
        let wanted = self.want_rekey.load(Ordering::Relaxed) || self.left.load(Ordering::Relaxed) != 0;
        if !moving && !wanted && !self.counts[shard()].is_due() {
            return;
        }
        if let Some(mut grower) = self.grow.try_lock() {
            self.work(&mut grower, objects);
        } else {
            self.note_owed();
        }
    }

    /// Note how far the table is behind its entries. The thread that holds the mutex may note at the same time. Then
    /// either value may stay, and both were true a moment ago; the next insert that finds growth due corrects it.
    fn note_owed(&self) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let needed = self.len() / LOAD;
        let behind = needed.saturating_sub(self.tables[current_of(epoch)].buckets());
        let owed = if is_moving(epoch) { 0 } else { u32::try_from(behind).unwrap_or(u32::MAX) };
        // Nearly always 0 and 0: nothing shared is stored.
        if self.owed.load(Ordering::Relaxed) != owed {
            self.owed.store(owed, Ordering::Relaxed);
        }
    }

    /// Finish a re-key under way, and the end of the table that it leaves behind. For a caller that has
    /// made the table much smaller and wants the memory back. If another thread works on it, the work is
    /// left to that thread. O(entries).
    pub fn settle(&self, objects: &impl Objects) {
        while let Some(mut grower) = self.grow.try_lock() {
            let state = |grower: &Grower| (self.is_moving_now(), grower.cursor, grower.retire.start);
            let before = state(&grower);
            self.work(&mut grower, objects);
            if state(&grower) == before {
                break;
            }
        }
    }

    fn is_moving_now(&self) -> bool {
        is_moving(self.epoch.load(Ordering::Relaxed))
    }

    /// One step of the work that is due.
    fn work(&self, grower: &mut Grower, objects: &impl Objects) {
        // The mutex has ordered us behind the thread that moved the epoch.
        let epoch = self.epoch.load(Ordering::Relaxed);
        if is_moving(epoch) {
            self.move_step(grower, epoch, objects);
        } else if !grower.retire.is_empty() {
            self.retire_step(grower, epoch);
        } else if self.want_rekey.load(Ordering::Relaxed) || self.is_too_large(epoch) {
            self.start_rekey(grower, epoch);
        }
        let epoch = self.epoch.load(Ordering::Relaxed);
        let target = (current_of(epoch) + usize::from(is_moving(epoch))) & 1;
        // A table falls behind while the thread that holds the mutex is not running, by thousands of buckets if there
        // are more threads than processors. Then it has overflow lines beside the buckets that it still has to get.
        for _ in 0..CATCH_UP {
            if self.len() <= self.tables[target].buckets() * LOAD
                || !self.split(grower, &self.tables[target], objects)
            {
                break;
            }
        }
        if self.owed.load(Ordering::Relaxed) != 0 {
            self.note_owed();
        }
    }

    fn is_too_large(&self, epoch: u32) -> bool {
        let buckets = self.tables[current_of(epoch)].buckets();
        buckets > SHRINK && self.len() < buckets * LOAD / 4
    }

    /// End some buckets of the table that the last re-key left behind.
    fn retire_step(&self, grower: &mut Grower, epoch: u32) {
        let from = grower.retire.start;
        let to = grower.retire.end.min(from + RETIRE_STEP);
        self.tables[1 - current_of(epoch)].retire(from, to);
        grower.retire.start = to;
        self.left.store(grower.retire.end - to, Ordering::Relaxed);
    }

    /// Split a bucket, whether or not it is due.
    #[cfg(all(test, loom))]
    pub(super) fn split_now(&self, objects: &impl Objects) -> bool {
        let table = &self.tables[current_of(self.epoch.load(Ordering::Relaxed))];
        self.split(&mut self.grow.lock(), table, objects)
    }

    /// Split the next bucket in turn. False when the reservation is used up.
    fn split(&self, grower: &mut Grower, table: &Table, objects: &impl Objects) -> bool {
        let (level, split) = table.level_and_split();
        let old = split;
        let new = split + (1u32 << level);
        if new >= table.heads.capacity() || level >= 30 {
            return false;
        }
        table.heads.reached(new, HUGE_FROM);
        // First touch of the new bucket's page, before anything is locked.
        table.heads.get(new).header.fetch_or(0, Ordering::Relaxed);
        let head = table.heads.get(old);
        // Before the lock, and all at once: the hash of each entry stands in a line of its own.
        Self::prefetch_entries(head, objects);
        loop {
            table.lock_own(old, false);
            if self.gather(head, grower) {
                break;
            }
            table.unlock_with(old, |w| w);
            grower.reserve_more();
        }
        let new_head = table.heads.get(new);
        // Nobody locks a bucket of level 0 for longer than it takes to see that.
        table.lock_own(new, false);
        // One fence for both locks: nothing is stored before it.
        fence(Ordering::Release);
        let mut lines = std::mem::take(&mut grower.lines);
        let high = 1u32 << level;
        let goes = |e: &(u32, u8)| objects.stored_hash(e.0) & high != 0;
        self.refill(head, grower.entries.iter().filter(|e| !goes(e)), &mut lines);
        self.refill(new_head, grower.entries.iter().filter(|e| goes(e)), &mut lines);
        // New before old: a thread that the old bucket's level sends on finds the new bucket in order.
        table.unlock_with(new, |w| with_level(w, level + 2));
        table.unlock_with(old, |w| with_level(w, level + 2));
        if split + 1 == 1 << level {
            table.set_size(level + 1, 0);
        } else {
            table.set_size(level, split + 1);
        }
        // The next bucket in turn is split a few inserts later.
        let next = if split + 1 == 1 << level { 0 } else { split + 1 };
        Self::prefetch_entries(table.heads.get(next), objects);
        for line in lines.drain(..) {
            self.free_line(line);
        }
        grower.lines = lines;
        true
    }

    /// Prefetch the entries of a line that nobody locks: a hint.
    fn prefetch_entries(line: &Line, objects: &impl Objects) {
        if cfg!(not(loom)) {
            line.slots.iter().for_each(|slot| objects.prefetch(slot.load(Ordering::Relaxed)));
        }
    }

    /// Read a locked chain into `grower`. False if its vectors are too small (they may not grow under a
    /// lock).
    fn gather(&self, head: &Line, grower: &mut Grower) -> bool {
        grower.entries.clear();
        grower.lines.clear();
        let mut line = head;
        loop {
            if grower.entries.capacity() - grower.entries.len() < SLOTS
                || grower.lines.capacity() == grower.lines.len()
            {
                return false;
            }
            for i in 0..SLOTS {
                let index = line.slots[i].load(Ordering::Relaxed);
                if index != 0 {
                    grower.entries.push((index, line.tag(i)));
                }
            }
            let next = line.next.load(Ordering::Relaxed);
            if next == 0 {
                return true;
            }
            grower.lines.push(next);
            line = self.overflow.get(next);
        }
    }

    /// Rewrite a locked chain with these entries, taking overflow lines from `lines`. A chain of k lines
    /// split in two needs at most k - 1 overflow lines in all, so they suffice.
    fn refill<'e>(&self, head: &Line, entries: impl Iterator<Item = &'e (u32, u8)>, lines: &mut Vec<u32>) {
        let mut line = head;
        let mut at = 0;
        head.next.store(0, Ordering::Relaxed);
        for &(index, tag) in entries {
            if at == SLOTS {
                let Some(next) = lines.pop() else {
                    debug_assert!(false, "a split chain needs no more lines than it had");
                    return;
                };
                let fresh = self.overflow.get(next);
                fresh.next.store(0, Ordering::Relaxed);
                fresh.clear_from(0);
                line.next.store(next, Ordering::Release);
                line = fresh;
                at = 0;
            }
            line.set_tag(at, tag);
            line.slots[at].store(index, Ordering::Release);
            at += 1;
        }
        line.clear_from(at);
    }

    /// Begin to move all entries under a new key.
    #[cold]
    fn start_rekey(&self, grower: &mut Grower, epoch: u32) {
        self.want_rekey.store(false, Ordering::Relaxed);
        // Without a new key the old one must do: chains are long, not wrong.
        let Ok(key) = random_key(self.rekeys.get() + 1) else { return };
        grower.cursor = 0;
        self.tables[1 - current_of(epoch)].start(key);
        self.rekeys.add(1);
        // Release: a thread that sees the epoch sees its key.
        self.epoch.store(epoch + 1, Ordering::Release);
    }

    /// Move a few buckets from the old table to the new one; end the re-key after the last.
    fn move_step(&self, grower: &mut Grower, epoch: u32, objects: &impl Objects) {
        let from = &self.tables[current_of(epoch)];
        let to = &self.tables[1 - current_of(epoch)];
        for _ in 0..MOVE_STEP {
            if u64::from(grower.cursor) >= from.buckets() {
                // Every bucket was emptied under its lock after the epoch became odd, and inserts since
                // then went to the new table. So nothing is left in the old one. A reader that still looks
                // there finds that the epoch has moved.
                grower.retire = 0..grower.cursor;
                self.left.store(grower.cursor, Ordering::Relaxed);
                self.epoch.store(epoch.wrapping_add(1), Ordering::Release);
                return;
            }
            if !self.move_bucket(from, grower.cursor, to, objects) {
                return;
            }
            grower.cursor += 1;
        }
        // The next buckets in turn are moved with the next insert or remove: each entry is hashed anew,
        // from a line of its own.
        let end = from.buckets().min(u64::from(grower.cursor + MOVE_STEP)) as u32;
        for bucket in grower.cursor..end {
            Self::prefetch_entries(from.heads.get(bucket), objects);
        }
    }

    /// Move all entries of one bucket; false if there is no memory for it now.
    fn move_bucket(&self, from: &Table, bucket: u32, to: &Table, objects: &impl Objects) -> bool {
        let head = from.heads.get(bucket);
        let mut spare = 0;
        loop {
            if spare == 0 {
                match self.new_line() {
                    Some(line) => spare = line,
                    None => return false,
                }
            }
            from.lock_own(bucket, true);
            let entry = first_entry(head, &self.overflow);
            let mut freed = 0;
            if let Some((index, tag)) = entry {
                let hash = objects.rehash(index, to.key());
                let mut target = [0];
                // The new table stays valid: only this thread, holding the grower, ends a re-key. The fence
                // of this lock serves the old bucket's lock too: nothing is stored before it.
                to.lock(&[hash], &mut target, false, || true);
                if self.put(to.heads.get(target[0]), index, tag_of(hash), &mut spare) {
                    self.take(head, index, tag, |line| freed = line);
                    objects.store_hash(index, hash as u32);
                }
                to.unlock(target[0]);
            }
            if entry.is_some() {
                from.unlock(bucket);
            } else {
                from.unlock_with(bucket, |w| with_level(w, 0));
            }
            if freed != 0 {
                self.free_line(freed);
            }
            if entry.is_none() {
                self.free_line(spare);
                return true;
            }
        }
    }
}

/// An entry of a locked chain, and its tag.
fn first_entry(head: &Line, overflow: &Arena<Line>) -> Option<(u32, u8)> {
    let mut line = head;
    loop {
        let index = |slot: usize| line.slots[slot].load(Ordering::Relaxed);
        if let Some(slot) = (0..SLOTS).find(|slot| index(*slot) != 0) {
            return Some((index(slot), line.tag(slot)));
        }
        match line.next.load(Ordering::Relaxed) {
            0 => return None,
            next => line = overflow.get(next),
        }
    }
}
