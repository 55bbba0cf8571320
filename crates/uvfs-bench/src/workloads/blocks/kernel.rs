//! `slow`, `stock`, `stock-8`: the kernel's steps to find a buffer, without and with its lookaside.
//!
//! `slow` has the steps of the lookup that the thread calls slow:
//!
//! | kernel's step | step here |
//! |---|---|
//! | page cache: a tree of 64 slots a node, by page | the same ([`Radix`]) |
//! | a reference on the folio unless it has none left; the slot again | the same: compare-exchange, load |
//! | mark the folio accessed: a look at its flags | the same |
//! | the mapping's private lock, one for the device | the same: [`QueuedLock`] |
//! | the ring of the folio's buffers, from the first to the right one | the same; 8 of 512 bytes, 1 of 4096 |
//! | a reference on the buffer, in the lock | the same: an atomic addition |
//! | unlock, put the folio | the same: a store, an atomic subtraction |
//! | the caller puts the buffer | the same: an atomic subtraction |
//!
//! `stock` asks a list of 16 buffers first, one list for each thread, and `stock-8` a list of 8:
//!
//! | kernel's step | step here |
//! |---|---|
//! | disable interrupts, 15 ns in the thread; check preemption, 6 ns | nothing like it in user space |
//! | compare block, device and size of each buffer of the list, in order | block and size; there is one device |
//! | found: move it to the front, one entry at a time; a reference; mark accessed | the same |
//! | not found: the slow way; then put it in front, shift the others; two counts change | the same |
//! | found the slow way though it is in the list (the size differs): move it to the front, no counts | the same |
//! | a list for each processor | for each measured thread, which is pinned |
//!
//! As in the kernel, each lookup takes a reference and puts it. So `find`, `copy` and `pin` differ only in whether the
//! block is read.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

use super::radix::Radix;
use super::{Blocks, Local, Table, Tally, contents, number};
use crate::arms::lockref::QueuedLock;

/// Bytes of a page. A larger block has a folio for itself.
const PAGE: usize = 4096;
/// The folio's flags say that it was used lately.
const ACCESSED: u32 = 1;

/// A buffer head. The block's bytes are elsewhere.
#[repr(align(64))]
struct Buffer {
    number: u64,
    size: usize,
    /// Place of the next one of the ring.
    next: u32,
    /// Place of the folio.
    folio: u32,
    references: AtomicU32,
    bytes: Box<[u8]>,
}

impl Buffer {
    #[inline]
    fn get(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn put(&self) {
        // Release: a thread that freed the buffer would see that it was read before. Here none does.
        self.references.fetch_sub(1, Ordering::Release);
    }
}

#[repr(align(64))]
struct Folio {
    flags: AtomicU32,
    references: AtomicU32,
    /// Place of the first buffer.
    first: u32,
}

/// A device's page cache.
pub(super) struct Mapping {
    /// Places of folios.
    pages: Radix<AtomicU32>,
    folios: Vec<Folio>,
    buffers: Vec<Buffer>,
    private_lock: Line<QueuedLock>,
    /// Bits of a block's number within its page.
    shift: u32,
    /// The size that lookups ask for.
    asked: usize,
}

/// A cache line and its adjacent line, not shared with anything else.
#[repr(align(128))]
struct Line<T>(T);

impl Mapping {
    /// Adds a folio with a buffer for each of its blocks.
    fn add(&mut self, page: u64, size: usize) {
        let (folio, first, n) = (self.folios.len() as u32, self.buffers.len() as u32, 1 << self.shift);
        for i in 0..n {
            let number = (page << self.shift) + u64::from(i);
            let next = if i + 1 == n { first } else { first + i + 1 };
            let bytes = contents(number, size).into();
            self.buffers.push(Buffer { number, size, next, folio, references: AtomicU32::new(0), bytes });
        }
        // The page cache holds a reference, and the buffers hold one.
        self.folios.push(Folio { flags: AtomicU32::new(ACCESSED), references: AtomicU32::new(2), first });
        self.pages.insert(page, AtomicU32::new(folio));
    }

    /// The folio of a page, with a reference.
    #[inline]
    fn folio(&self, page: u64) -> Option<&Folio> {
        let slot = self.pages.get(page)?;
        loop {
            let at = slot.load(Ordering::Acquire);
            let folio = &self.folios[at as usize];
            let mut old = folio.references.load(Ordering::Relaxed);
            loop {
                if old == 0 {
                    return None;
                }
                let more = old + 1;
                match folio.references.compare_exchange_weak(old, more, Ordering::Acquire, Ordering::Relaxed)
                {
                    Ok(_) => break,
                    Err(now) => old = now,
                }
            }
            // Another folio may have come to the slot before the reference was there. Here none does.
            if slot.load(Ordering::Relaxed) == at {
                folio.touch();
                return Some(folio);
            }
            folio.put();
        }
    }

    /// The buffer of a block, with a reference.
    #[inline]
    fn slow(&self, block: u64) -> Option<&Buffer> {
        let folio = self.folio(block >> self.shift)?;
        self.private_lock.0.lock();
        let mut at = folio.first;
        let found = loop {
            let buffer = &self.buffers[at as usize];
            if buffer.number == block {
                buffer.get();
                break Some(buffer);
            }
            at = buffer.next;
            if at == folio.first {
                break None;
            }
        };
        self.private_lock.0.unlock();
        folio.put();
        found
    }
}

impl Folio {
    #[inline]
    fn touch(&self) {
        if self.flags.load(Ordering::Relaxed) & ACCESSED == 0 {
            self.flags.fetch_or(ACCESSED, Ordering::Relaxed);
        }
    }

    #[inline]
    fn put(&self) {
        self.references.fetch_sub(1, Ordering::Release);
    }
}

/// The address of a buffer that is put.
#[inline(always)]
fn place_of(buffer: &Buffer) -> u64 {
    buffer.put();
    ptr::from_ref(buffer).addr() as u64
}

/// Reads the number in a block, then puts the buffer.
#[inline(always)]
fn read(buffer: &Buffer, block: u64) -> Option<u64> {
    let read = number(&std::hint::black_box(buffer).bytes, block);
    buffer.put();
    read
}

impl Table for Mapping {
    type Local<'t> = &'t Self;

    fn build(blocks: &Blocks) -> Result<Self> {
        let shift = (PAGE / blocks.size).max(1).ilog2();
        let mut pages: Vec<u64> = blocks.numbers.iter().map(|number| number >> shift).collect();
        pages.sort_unstable();
        pages.dedup();
        let mut mapping = Self {
            pages: Radix::new(pages.last().copied().unwrap_or(0)),
            folios: Vec::with_capacity(pages.len()),
            buffers: Vec::with_capacity(pages.len() << shift),
            private_lock: Line(QueuedLock::new()),
            shift,
            asked: blocks.asked,
        };
        pages.into_iter().for_each(|page| mapping.add(page, blocks.size));
        Ok(mapping)
    }

    fn local(&self) -> &Self {
        self
    }
}

impl Local for &Mapping {
    #[inline(always)]
    fn find(&mut self, block: u64) -> Option<u64> {
        self.slow(block).map(place_of)
    }

    #[inline(always)]
    fn copy(&mut self, block: u64) -> Option<u64> {
        read(self.slow(block)?, block)
    }

    #[inline(always)]
    fn pin(&mut self, block: u64) -> Option<u64> {
        read(self.slow(block)?, block)
    }
}

/// The page cache with a list of `N` buffers for each thread in front of it.
pub(super) struct WithList<const N: usize>(Mapping);

/// A thread's list, most recently used first. Each entry is a reference.
pub(super) struct List<'t, const N: usize> {
    mapping: &'t Mapping,
    entries: [Option<&'t Buffer>; N],
    /// By position.
    hits: [u64; N],
    misses: u64,
}

impl<'t, const N: usize> List<'t, N> {
    /// The buffer of a block, with a reference.
    #[inline]
    fn get(&mut self, block: u64) -> Option<&'t Buffer> {
        let size = self.mapping.asked;
        let is = |buffer: &&Buffer| buffer.number == block && buffer.size == size;
        for at in 0..N {
            let Some(buffer) = self.entries[at].filter(is) else { continue };
            for i in (0..at).rev() {
                self.entries[i + 1] = self.entries[i];
            }
            self.entries[0] = Some(buffer);
            self.hits[at] += 1;
            buffer.get();
            self.mapping.folios[buffer.folio as usize].touch();
            return Some(buffer);
        }
        self.misses += 1;
        let buffer = self.mapping.slow(block)?;
        self.install(buffer);
        Some(buffer)
    }

    #[inline]
    fn install(&mut self, buffer: &'t Buffer) {
        let mut out = Some(buffer);
        for entry in &mut self.entries {
            std::mem::swap(entry, &mut out);
            if out.is_some_and(|out| ptr::eq(out, buffer)) {
                return;
            }
        }
        buffer.get();
        if let Some(out) = out {
            out.put();
        }
    }
}

impl<const N: usize> Drop for List<'_, N> {
    fn drop(&mut self) {
        self.entries.iter().flatten().for_each(|buffer| buffer.put());
    }
}

impl<const N: usize> Table for WithList<N> {
    type Local<'t> = List<'t, N>;

    fn build(blocks: &Blocks) -> Result<Self> {
        Ok(Self(Mapping::build(blocks)?))
    }

    fn local(&self) -> List<'_, N> {
        List { mapping: &self.0, entries: [None; N], hits: [0; N], misses: 0 }
    }
}

impl<const N: usize> Local for List<'_, N> {
    #[inline(always)]
    fn find(&mut self, block: u64) -> Option<u64> {
        self.get(block).map(place_of)
    }

    #[inline(always)]
    fn copy(&mut self, block: u64) -> Option<u64> {
        read(self.get(block)?, block)
    }

    #[inline(always)]
    fn pin(&mut self, block: u64) -> Option<u64> {
        read(self.get(block)?, block)
    }

    fn tally(&self) -> Tally {
        let hits = self.hits.iter().enumerate().map(|(at, n)| (format!("idx{}", at + 1), *n));
        Tally(hits.chain([("misses".to_owned(), self.misses)]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(size: usize, asked: usize) -> Blocks {
        Blocks { numbers: vec![0, 1, 2, 3, 7, 8, 20, 64, 1000], size, asked }
    }

    /// No reference is left but those of the page cache.
    fn is_at_rest(mapping: &Mapping) -> bool {
        let count = |references: &AtomicU32| references.load(Ordering::Relaxed);
        mapping.buffers.iter().all(|buffer| count(&buffer.references) == 0)
            && mapping.folios.iter().all(|folio| count(&folio.references) == 2)
    }

    #[test]
    fn every_block_is_found_by_several_threads_and_put() {
        for size in [512, 1024, 4096, 65_536] {
            let blocks = blocks(size, size);
            let table = WithList::<8>::build(&blocks).unwrap();
            std::thread::scope(|s| {
                for _ in 0..3 {
                    s.spawn(|| {
                        let (mut list, mut slow) = (table.local(), &table.0);
                        for i in 0..2_000 {
                            // Nine blocks round and round miss the list, the first three hit it.
                            let block = blocks.numbers[i % if i < 1_000 { 9 } else { 3 }];
                            assert_eq!(list.pin(block), Some(block));
                            assert_eq!(slow.copy(block), Some(block));
                            assert_eq!(list.find(block), slow.find(block));
                        }
                    });
                }
            });
            assert!(is_at_rest(&table.0), "{size}");
            assert!((&table.0).find(999_999).is_none() && is_at_rest(&table.0));
        }
    }

    #[test]
    fn the_list_is_in_order_of_use() {
        let table = WithList::<16>::build(&blocks(512, 512)).unwrap();
        let mut list = table.local();
        for block in [0, 1, 2, 0, 0, 1] {
            list.pin(block);
        }
        assert_eq!((list.misses, &list.hits[..4]), (3, &[1, 0, 2, 0][..]));
        let held: Vec<_> = list.entries.iter().flatten().map(|buffer| buffer.number).collect();
        assert_eq!(held, [1, 0, 2]);
    }

    #[test]
    fn seventeen_blocks_in_turn_never_hit_sixteen_places() {
        let numbers: Vec<u64> = (0..17).collect();
        let of = |n: usize| {
            let table =
                WithList::<16>::build(&Blocks { numbers: numbers.clone(), size: 512, asked: 512 }).unwrap();
            let mut list = table.local();
            (0..10).for_each(|_| numbers[..n].iter().for_each(|block| assert!(list.find(*block).is_some())));
            (list.hits[15], list.misses)
        };
        assert_eq!(of(16), (9 * 16, 16));
        assert_eq!(of(17), (0, 10 * 17));
    }

    #[test]
    fn the_wrong_size_always_misses_and_holds_one_reference() {
        let table = WithList::<16>::build(&blocks(512, 1024)).unwrap();
        let mut list = table.local();
        (0..10).for_each(|_| assert_eq!(list.pin(1), Some(1)));
        assert_eq!((list.misses, list.hits), (10, [0; 16]));
        assert_eq!(table.0.buffers[1].references.load(Ordering::Relaxed), 1);
        drop(list);
        assert!(is_at_rest(&table.0));
    }
}
