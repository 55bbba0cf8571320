//! The order in which kinds of cached memory go when bytes must be returned: prefix entries, blocks beyond their
//! share, names, the other blocks.
//!
//! A shrink ([`Cache::shrink_to`]) and a step of the balancing thread ([`Cache::balance`]) follow it. They differ only in
//! how they evict names. An allocation that finds no room ([`crate::limit::make_room`]) begins in the same order, and
//! stops at the first kind that gives it a slot. Which names go is decided in [`crate::limit::name_eviction`], and which
//! blocks in `buffers/block_eviction.rs`.
//!
//! Of the cache's locks, callers hold at most name locks and the rename mutex.

use crate::cache::Cache;

/// Outcome of the step that evicts names.
pub(super) struct NamesGone {
    /// Names that went.
    pub(super) evicted: usize,
    /// Whether the blocks within their share go too, if that was not enough.
    pub(super) then_blocks: bool,
}

impl Cache {
    /// Give up one kind after the other until no more than `bytes` are committed. `names` evicts names and returns
    /// their chunks. Returns how many names went.
    pub(super) fn give_in_order(&self, bytes: u64, names: impl FnOnce() -> NamesGone) -> usize {
        let over = || self.committed().saturating_sub(bytes);
        if over() == 0 {
            return 0;
        }
        // A path's directories are found by their names too.
        self.prefixes.give();
        // Blocks first, down to a quarter of the memory that may stay: names are asked for again one by one.
        self.limit.buffers_give(over().min(self.buffer_bytes().saturating_sub(bytes / 4)));
        if over() == 0 {
            return 0;
        }
        let gone = names();
        if gone.then_blocks {
            self.limit.buffers_give(over());
        }
        gone.evicted
    }
}
