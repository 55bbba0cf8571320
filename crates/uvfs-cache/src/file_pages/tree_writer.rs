//! The tree for its writer: the mutex is held, and nothing moves.
//!
//! A page or node is filled before it is published: the entry that leads to it is stored last, with
//! release. An entry is cleared before its page or node is freed. That order is for progress only: in the
//! other order a reader would find a moved generation again and again until the entry is gone.
//!
//! An insertion first takes all the nodes it needs. If there is no room it gives them back, and the tree is
//! as it was.

use std::ops::RangeInclusive;

use uvfs_sync::lock_order::Noted;
use uvfs_sync::page_frames::PAGE_SIZE;
use uvfs_sync::primitives::{MutexGuard, Ordering};

use super::tree_entry::{Entry, FAN, MAX_INDEX, level_for, slot_at};
use super::{Mapping, Memory};

/// There is no room for another page or node (or the index is above [`MAX_INDEX`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Exclusive access to a mapping; dropping it releases the mutex.
#[derive(Debug)]
pub struct Writer<'m> {
    mapping: &'m Mapping,
    memory: &'m Memory,
    pages: Noted<MutexGuard<'m, u64>>,
}

impl<'m> Writer<'m> {
    pub(super) fn new(mapping: &'m Mapping, memory: &'m Memory) -> Self {
        Self { mapping, memory, pages: mapping.lock.lock() }
    }

    /// Pages in the mapping. Constant time.
    pub fn count(&self) -> u64 {
        *self.pages
    }

    /// As [`Mapping::read`].
    pub fn read(&self, index: u64, offset: usize, out: &mut [u8]) -> bool {
        // Under the mutex no page of this mapping is freed, so the read cannot be refused.
        let found = self.get(index).page().is_some_and(|page| self.memory.pages.read(page, offset, out));
        if !found {
            out.fill(0);
        }
        found
    }

    /// Store `bytes` into page `index`, from `offset` bytes into it; they must not reach past its end. If
    /// there is no page, one is added, zero but for `bytes`, and the result is `true`.
    ///
    /// # Errors
    /// [`Full`]: a page had to be added and could not be; nothing changed.
    pub fn write(&mut self, index: u64, offset: usize, bytes: &[u8]) -> Result<bool, Full> {
        debug_assert!(offset + bytes.len() <= PAGE_SIZE);
        if self.overwrite(index, offset, bytes) {
            return Ok(false);
        }
        let page = self.memory.pages.allocate(offset, bytes).ok_or(Full)?;
        if self.insert(index, Entry::new(0, page)).is_err() {
            self.memory.pages.free(page);
            return Err(Full);
        }
        *self.pages += 1;
        Ok(true)
    }

    /// As [`Writer::write`], but adds no page; returns whether there is one.
    pub fn overwrite(&mut self, index: u64, offset: usize, bytes: &[u8]) -> bool {
        let page = self.get(index).page();
        page.inspect(|page| self.memory.pages.write(*page, offset, bytes)).is_some()
    }

    /// Zero `len` bytes of page `index` if there is one; returns whether there is.
    pub fn zero(&mut self, index: u64, offset: usize, len: usize) -> bool {
        let page = self.get(index).page();
        page.inspect(|page| self.memory.pages.zero(*page, offset, len)).is_some()
    }

    /// Remove one page; returns whether there was one.
    pub fn remove(&mut self, index: u64) -> bool {
        self.remove_range(index..=index) != 0
    }

    /// Remove all pages of a range; returns how many there were. Visits the nodes and pages in it.
    pub fn remove_range(&mut self, range: RangeInclusive<u64>) -> u64 {
        let root = self.root();
        if root.is_empty() || range.is_empty() {
            return 0;
        }
        let mut removed = 0;
        if root.is_node() {
            self.remove_below(root, 0, &range, &mut removed);
            self.shrink();
        } else if range.contains(&0) {
            self.set_root(Entry::EMPTY);
            self.free(root);
            removed = 1;
        }
        *self.pages -= removed;
        removed
    }

    /// Remove all pages; returns how many there were.
    pub fn clear(&mut self) -> u64 {
        self.remove_range(0..=MAX_INDEX)
    }

    /// The first index from `from` on that has a page. Visits the nodes in between.
    pub fn next_present(&self, from: u64) -> Option<u64> {
        let root = self.root();
        if root.covers(from) { self.present_below(root, 0, from) } else { None }
    }

    /// The first index from `from` on that has no page. Visits the pages in between.
    pub fn next_absent(&self, from: u64) -> u64 {
        let root = self.root();
        if !root.covers(from) {
            return from;
        }
        let end = if root.is_node() { root.span().saturating_mul(FAN as u64) } else { 1 };
        self.absent_below(root, 0, from).unwrap_or(end)
    }

    /// The number of pages in a range. Visits the nodes in it.
    pub fn count_range(&self, range: RangeInclusive<u64>) -> u64 {
        if range.is_empty() { 0 } else { self.count_below(self.root(), 0, &range) }
    }

    fn root(&self) -> Entry {
        Entry::from_word(self.mapping.root.load(Ordering::Relaxed))
    }

    fn set_root(&mut self, root: Entry) {
        // Release: a reader that loads the entry with acquire finds its page or node filled.
        self.mapping.root.store(root.word(), Ordering::Release);
    }

    fn slot(&self, node: Entry, slot: usize) -> Entry {
        Entry::from_word(self.memory.nodes.own_word(node.frame(), slot))
    }

    fn set_slot(&mut self, node: Entry, slot: usize, entry: Entry) {
        self.memory.nodes.store(node.frame(), slot, entry.word());
    }

    fn free(&self, entry: Entry) {
        if entry.is_node() {
            self.memory.nodes.free(entry.frame());
        } else {
            self.memory.pages.free(entry.frame());
        }
    }

    /// The page's entry, or an empty one.
    fn get(&self, index: u64) -> Entry {
        let mut entry = self.root();
        if !entry.covers(index) {
            return Entry::EMPTY;
        }
        while entry.is_node() {
            entry = self.slot(entry, entry.slot(index));
        }
        entry
    }

    /// Insert a page where there is none.
    fn insert(&mut self, index: u64, page: Entry) -> Result<(), Full> {
        if index > MAX_INDEX {
            return Err(Full);
        }
        let (root, top) = (self.root(), level_for(index));
        if root.is_empty() {
            let root = self.tower(page, top, index)?;
            self.set_root(root);
            return Ok(());
        }
        if top > root.level() {
            return self.insert_above(root, top, index, page);
        }
        let mut node = root;
        loop {
            let slot = node.slot(index);
            let below = self.slot(node, slot);
            if below.is_empty() {
                let branch = self.tower(page, node.level() - 1, index)?;
                self.set_slot(node, slot, branch);
                return Ok(());
            }
            node = below;
        }
    }

    /// Grow the tree to level `top`, with the old root in its first slot and the page elsewhere.
    fn insert_above(&mut self, root: Entry, top: u32, index: u64, page: Entry) -> Result<(), Full> {
        let branch = self.tower(page, top - 1, index)?;
        let Ok(new_root) = self.tower(root, top, 0) else {
            self.raze(branch, page);
            return Err(Full);
        };
        // Not published yet. The slot is not the first one, which has the old root: `top` is the lowest
        // level that covers `index`, so its highest digit is not 0.
        self.set_slot(new_root, slot_at(top, index), branch);
        self.set_root(new_root);
        Ok(())
    }

    /// Nodes above `base` up to `level`, each with one entry, on the path to `index`.
    fn tower(&mut self, base: Entry, level: u32, index: u64) -> Result<Entry, Full> {
        let mut top = base;
        for level in base.level() + 1..=level {
            let at = slot_at(level, index) * size_of::<u64>();
            let Some(node) = self.memory.nodes.allocate(at, &top.word().to_ne_bytes()) else {
                self.raze(top, base);
                return Err(Full);
            };
            top = Entry::new(level, node);
        }
        Ok(top)
    }

    /// Give back the nodes of an unpublished tower.
    fn raze(&mut self, top: Entry, base: Entry) {
        let mut entry = top;
        while entry != base {
            let below = (0..FAN).map(|slot| self.slot(entry, slot)).find(|below| !below.is_empty());
            self.free(entry);
            entry = below.unwrap_or(base);
        }
    }

    /// Remove the part of `range` in a node whose first index is `first`. Returns whether the node is empty
    /// now; then the caller unhooks and frees it.
    fn remove_below(
        &mut self,
        node: Entry,
        first: u64,
        range: &RangeInclusive<u64>,
        removed: &mut u64,
    ) -> bool {
        let mut empty = true;
        for (slot, first) in slots(node, first, first) {
            let below = self.slot(node, slot);
            if below.is_empty() {
                continue;
            }
            let last = first + (node.span() - 1);
            let in_range = first <= *range.end() && last >= *range.start();
            if in_range && (!below.is_node() || self.remove_below(below, first, range, removed)) {
                self.set_slot(node, slot, Entry::EMPTY);
                self.free(below);
                *removed += u64::from(!below.is_node());
            } else {
                empty = false;
            }
        }
        empty
    }

    /// Drop root nodes that are empty or lead to their first slot only.
    fn shrink(&mut self) {
        loop {
            let root = self.root();
            if !root.is_node() || (1..FAN).any(|slot| !self.slot(root, slot).is_empty()) {
                return;
            }
            let only = self.slot(root, 0);
            self.set_root(only);
            self.free(root);
        }
    }

    fn present_below(&self, entry: Entry, first: u64, from: u64) -> Option<u64> {
        if !entry.is_node() {
            return (!entry.is_empty() && first >= from).then_some(first);
        }
        slots(entry, first, from)
            .find_map(|(slot, first)| self.present_below(self.slot(entry, slot), first, from))
    }

    fn absent_below(&self, entry: Entry, first: u64, from: u64) -> Option<u64> {
        if !entry.is_node() {
            return entry.is_empty().then_some(first.max(from));
        }
        slots(entry, first, from)
            .find_map(|(slot, first)| self.absent_below(self.slot(entry, slot), first, from))
    }

    fn count_below(&self, entry: Entry, first: u64, range: &RangeInclusive<u64>) -> u64 {
        if !entry.is_node() {
            return u64::from(!entry.is_empty() && range.contains(&first));
        }
        slots(entry, first, *range.start())
            .take_while(|(_, first)| first <= range.end())
            .map(|(slot, first)| self.count_below(self.slot(entry, slot), first, range))
            .sum()
    }
}

/// The slots of a node from the one that leads to `from` on (from the first one, if `from` lies before the
/// node), and the first index of each.
fn slots(node: Entry, first: u64, from: u64) -> impl Iterator<Item = (usize, u64)> {
    let span = node.span();
    let start = (from.saturating_sub(first) / span) as usize;
    (start..FAN).map(move |slot| (slot, first + slot as u64 * span))
}
