//! Which page holds which part of a file: a radix tree that is read without locks.
//!
//! A [`Mapping`] is one object's tree (page index to page) and its mutex; a [`Memory`] holds the pages and
//! tree nodes of many mappings. Entries are single words: level, generation and index of a node or page.
//! The tree is as high as its largest index needs; a lone page 0 needs no node.
//!
//! Protection: the mutex ([`Mapping::lock`]) protects the tree's shape, and the pages' bytes among writers. Readers
//! take no lock. They load an entry, then check that the node which held it has not been recycled. They copy from a
//! page, then check the page's generation. A node or page that leaves the tree is freed at once, which moves its
//! generation. So a reader under way sees the file as it was or looks again, and never gets another file's bytes.
//! After [`TRIES`] failures it takes the mutex; [`Memory::locked_reads`] counts those.
//!
//! A mapping is used with one `Memory` only. Nothing here calls out or sleeps. The mutex comes after any
//! lock that the owner holds. Cost of a hit: a node visit (two loads) for each six bits of the index, and
//! the copy.

mod tree_entry;
mod tree_writer;

use std::io;

use uvfs_sync::lock_order::{Class, Ordered};
use uvfs_sync::page_frames::{FrameId, Frames, Pages};
use uvfs_sync::primitives::{AtomicU64, Ordering};

pub use tree_entry::MAX_INDEX;
use tree_entry::{Entry, FAN};
pub use tree_writer::{Full, Writer};
pub use uvfs_sync::page_frames::PAGE_SIZE;

/// How often a reader looks again before it takes the mutex.
const TRIES: usize = if cfg!(loom) { 1 } else { 8 };

/// Pages and tree nodes, shared by any number of mappings.
#[derive(Debug)]
pub struct Memory {
    pages: Pages,
    nodes: Frames<FAN>,
    locked_reads: AtomicU64,
}

impl Memory {
    /// Address space for `pages` pages, or as many as fit ([`Memory::capacity`]), and for as many nodes:
    /// one node per page, so that even sparse files can fill most of it.
    ///
    /// # Errors
    /// ENOMEM if next to nothing can be reserved.
    pub fn reserve(pages: u32) -> io::Result<Self> {
        let pages = Pages::reserve(pages)?;
        let nodes = Frames::reserve(pages.capacity().max(1024))?;
        Ok(Self { pages, nodes, locked_reads: AtomicU64::new(0) })
    }

    /// Pages that can be in use at a time.
    pub fn capacity(&self) -> u32 {
        self.pages.capacity()
    }

    /// Bytes of memory that pages and nodes have touched and not given back.
    pub fn committed_bytes(&self) -> u64 {
        self.pages.committed_bytes() + self.nodes.committed_bytes()
    }

    /// How often the system refused to take memory back.
    pub fn give_back_failures(&self) -> u64 {
        self.pages.give_back_failures() + self.nodes.give_back_failures()
    }

    /// Reads that took a mapping's mutex because its pages kept changing.
    pub fn locked_reads(&self) -> u64 {
        self.locked_reads.load(Ordering::Relaxed)
    }
}

/// The node or page was recycled while a reader looked at it.
struct Recycled;

/// One object's pages. The owner empties it ([`Writer::clear`]) before it drops it: dropping a mapping
/// returns no memory.
#[derive(Debug)]
pub struct Mapping {
    root: AtomicU64,
    /// Number of pages.
    lock: Ordered<u64, { Class::File as u8 }>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Mapping>() == 24);

impl Default for Mapping {
    fn default() -> Self {
        Self::new()
    }
}

impl Mapping {
    /// A mapping without pages.
    pub fn new() -> Self {
        Self { root: AtomicU64::new(0), lock: Ordered::new(0) }
    }

    /// Copy from page `index`, from `offset` bytes into it; the read must not reach past the page's end. If
    /// there is no page, `out` is zeroed and the result is `false`.
    pub fn read(&self, memory: &Memory, index: u64, offset: usize, out: &mut [u8]) -> bool {
        for _ in 0..TRIES {
            if let Ok(found) = self.try_read(memory, index, offset, out) {
                return found;
            }
        }
        memory.locked_reads.fetch_add(1, Ordering::Relaxed);
        self.lock(memory).read(index, offset, out)
    }

    /// Take the mutex, to change the mapping or to look at it as a whole.
    pub fn lock<'m>(&'m self, memory: &'m Memory) -> Writer<'m> {
        Writer::new(self, memory)
    }

    fn try_read(&self, memory: &Memory, index: u64, offset: usize, out: &mut [u8]) -> Result<bool, Recycled> {
        let Some(page) = self.find(memory, index)? else {
            out.fill(0);
            return Ok(false);
        };
        if memory.pages.read(page, offset, out) { Ok(true) } else { Err(Recycled) }
    }

    /// Walk down. Every entry is loaded once: that one word gives index, generation and level of the next
    /// node or page.
    fn find(&self, memory: &Memory, index: u64) -> Result<Option<FrameId>, Recycled> {
        // Acquire: pairs with the release store that published the root, so the node is filled.
        let mut entry = Entry::from_word(self.root.load(Ordering::Acquire));
        if !entry.covers(index) {
            return Ok(None);
        }
        while entry.is_node() {
            let word = memory.nodes.load(entry.frame(), entry.slot(index)).ok_or(Recycled)?;
            entry = Entry::from_word(word);
        }
        Ok(entry.page())
    }
}

#[cfg(test)]
mod tests;
