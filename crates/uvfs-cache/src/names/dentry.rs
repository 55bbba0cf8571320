//! A dentry: a name in a directory, and what it leads to.
//!
//! A dentry exists only while it is hashed. It has no reference count: code that needs a reference takes
//! one to the inode. A dentry holds a reference to its inode and one to its parent's inode, so an index
//! read from a live dentry leads to a live inode. A *negative* dentry leads to nothing and holds nothing.
//! It names its parent by index and generation, and is worthless once that generation is over.
//!
//! **Published** (64 bytes): the writer holds the lock of the bucket that the dentry is in, or will be in,
//! and keeps `seq` odd while it stores. `hash` belongs to the hash table: it is read and written only under
//! bucket locks, outside `seq`.
//!
//! **Private** (16 bytes): the readdir cookie, and a negative entry's parent generation.
//!
//! The published half holds names of up to [`INLINE`] bytes. Of a longer name it holds the first [`HEAD`]
//! bytes and the index of a *tail* slot with the rest. Tails are type-stable too. A dentry's tail is freed
//! only after the dentry's sequence moved.

use uvfs_sync::arena::Arena;
use uvfs_sync::blhash::HashKey;
use uvfs_sync::primitives::{AtomicU32, AtomicU64, Ordering};
use uvfs_sync::seqcount::SeqCount;
use uvfs_sync::slab::{Pool, Slab};
use uvfs_sync::slot;

/// Longest name. Its length is stored in eight bits.
pub(crate) const NAME_MAX: usize = 255;
/// Longest name that needs no tail.
pub(crate) const INLINE: usize = 40;
/// Bytes of a longer name that stand in the line.
pub(crate) const HEAD: usize = 32;
const WORDS: usize = INLINE / 8;
const SHORT_TAIL: usize = 64;

slot! {
    /// The half that a hit reads.
    #[derive(Debug)]
    #[repr(C, align(64))]
    pub(crate) struct Published {
        pub seq: SeqCount,
        /// Index of the parent's inode.
        pub parent: AtomicU32,
        /// Index of the inode; 0: negative.
        pub inode: AtomicU32,
        /// Low 32 bits of the hash, for the table.
        pub hash: AtomicU32,
        /// Until when the entry is trusted.
        pub deadline: AtomicU32,
        /// Length of the name (0: not in use), type bits above.
        meta: AtomicU32,
        name: [AtomicU64; WORDS],
    }
}

slot! {
    /// The half that changes without the name changing.
    #[derive(Debug)]
    #[repr(C)]
    pub(crate) struct Private {
        /// The readdir cookie, in a resident directory.
        pub cookie: AtomicU64,
        /// Generation of the parent; for a negative dentry.
        pub parent_generation: AtomicU32,
        spare: AtomicU32,
    }
}

slot! {
    #[derive(Debug)]
    #[repr(C)]
    struct ShortTail { words: [AtomicU64; SHORT_TAIL / 8] }
}

slot! {
    #[derive(Debug)]
    #[repr(C)]
    struct LongTail { words: [AtomicU64; (256 - HEAD) / 8] }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Published>() == 64 && size_of::<Private>() == 16);

/// A name, and its first two words, for comparing and hashing. Most names have no more; longer names'
/// further words are made from the bytes where they are needed. An invalid name (empty, or longer than
/// [`NAME_MAX`]) has no bytes here. No dentry in use has an empty name, so nothing matches it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameWords<'n> {
    name: &'n [u8],
    first: [u64; 2],
}

/// Whether a name of this length is allowed.
#[inline(always)]
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
}

/// Up to 8 bytes as a little-endian word, zero-padded, without a call to copy them.
#[inline(always)]
pub(crate) fn word(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.first_chunk::<8>() {
        u64::from_le_bytes(*whole)
    } else if let (Some(low), Some(high)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // Two overlapping halves.
        let shift = 8 * (bytes.len() - 4);
        u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << shift
    } else if let [first, .., last] = bytes {
        let n = bytes.len();
        // First, middle and last byte; with two bytes, the last two coincide.
        u64::from(*first) | u64::from(bytes[n / 2]) << (8 * (n / 2)) | u64::from(*last) << (8 * (n - 1))
    } else {
        bytes.first().map_or(0, |b| u64::from(*b))
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Kept out of the path of valid names: a branch instead of two selections.
#[cold]
fn no_name() -> &'static [u8] {
    &[]
}

impl<'n> NameWords<'n> {
    #[inline(always)]
    pub(crate) fn new(name: &'n [u8]) -> Self {
        // (An empty name has no bytes anyway.)
        let name = if name.len() > NAME_MAX { no_name() } else { name };
        let first = match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
            (Some(head), Some(_)) if name.len() > 16 => [u64::from_le_bytes(*head), word(&name[8..])],
            // The last eight bytes overlap the first ones, so the overlap is shifted out.
            (Some(head), Some(end)) => {
                let overlap = 8 * (16 - name.len()) as u32;
                [u64::from_le_bytes(*head), u64::from_le_bytes(*end).checked_shr(overlap).unwrap_or(0)]
            }
            _ => [word(name), 0],
        };
        Self { name, first }
    }

    /// Whether no file can have this name.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.name.is_empty()
    }

    #[inline(always)]
    pub(crate) fn name(&self) -> &'n [u8] {
        self.name
    }

    #[inline]
    fn tail(&self) -> &'n [u8] {
        if self.name.len() > INLINE { &self.name[HEAD..] } else { &[] }
    }

    /// The words in the line.
    fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let end = if self.name.len() > INLINE { HEAD } else { self.name.len() };
        for (w, bytes) in words.iter_mut().zip(self.name[..end].chunks(8)) {
            *w = word(bytes);
        }
        words
    }

    /// Keyed hash of the name. Folded multiplication with secret words, as in wyhash and foldhash: one
    /// multiplication for names of up to 16 bytes, and no data-dependent branch but the one on the length.
    /// The caller mixes the parent in with an exclusive or, so that a walk can hash all components before
    /// it knows any parent. An attacker who makes names collide without the key has guessed a word of it.
    /// If chains grow long nevertheless, the key changes.
    #[inline(always)]
    pub(crate) fn hash(&self, key: HashKey) -> u64 {
        let h = fold(self.first[0] ^ key.0, self.first[1] ^ key.1 ^ self.name.len() as u64);
        if self.name.len() > 16 { hash_rest(&self.name[16..], h, key) } else { h }
    }
}

/// The hash of the bytes after the first 16.
#[cold]
fn hash_rest(bytes: &[u8], mut h: u64, key: HashKey) -> u64 {
    for pair in bytes.chunks(16) {
        let (low, high) = pair.split_at(pair.len().min(8));
        h = fold(h ^ word(low), word(high) ^ key.1).wrapping_add(h);
    }
    h
}

/// Tails of long names.
#[derive(Debug)]
pub(crate) struct Tails {
    short: Arena<ShortTail>,
    short_pool: Pool,
    short_slab: Slab,
    long: Arena<LongTail>,
    long_pool: Pool,
    long_slab: Slab,
}

/// A name's tail slot: 0 none, else index << 1 | long.
type Tail = u32;

impl Tails {
    pub(crate) fn new(capacity: u32) -> std::io::Result<Self> {
        let short = Arena::reserve(capacity.min(1 << 30))?;
        // No model's test needs one.
        let long = Arena::reserve(capacity.min(if cfg!(loom) { 1 } else { 1 << 30 }))?;
        Ok(Self {
            short_pool: Pool::new(short.capacity()),
            short,
            short_slab: Slab::new(0),
            long_pool: Pool::new(long.capacity()),
            long,
            long_slab: Slab::new(0),
        })
    }

    #[inline]
    fn words(&self, tail: Tail) -> &[AtomicU64] {
        if tail & 1 == 0 { &self.short.get(tail >> 1).words } else { &self.long.get(tail >> 1).words }
    }

    /// Keep the tail of a name; 0 if it needs none. `None`: no slot is left, and `may_grow` refuses another
    /// chunk of that many bytes.
    pub(crate) fn alloc(&self, name: &NameWords<'_>, may_grow: &dyn Fn(u64) -> bool) -> Option<Tail> {
        let bytes = name.tail();
        if bytes.is_empty() {
            return Some(0);
        }
        let chunk = |slot: usize| u64::from(uvfs_sync::slab::CHUNK) * slot as u64;
        let tail = if bytes.len() <= SHORT_TAIL {
            let may_grow = || may_grow(chunk(size_of::<ShortTail>()));
            self.short_slab.alloc_within(&self.short_pool, &may_grow)? << 1
        } else {
            let may_grow = || may_grow(chunk(size_of::<LongTail>()));
            self.long_slab.alloc_within(&self.long_pool, &may_grow)? << 1 | 1
        };
        // A reader of the slot's last name may still be looking here: rule 3.
        uvfs_sync::primitives::fence(Ordering::Release);
        for (slot, bytes) in self.words(tail).iter().zip(bytes.chunks(8)) {
            slot.store(word(bytes), Ordering::Relaxed);
        }
        Some(tail)
    }

    /// Free a tail whose dentry's sequence has moved.
    #[inline]
    pub(crate) fn free(&self, tail: Tail) {
        // These slabs never end.
        let _ = match tail {
            0 => false,
            t if t & 1 == 0 => self.short_pool.free(t >> 1, |_| &self.short_slab),
            t => self.long_pool.free(t >> 1, |_| &self.long_slab),
        };
    }

    #[inline]
    fn matches(&self, tail: Tail, bytes: &[u8]) -> bool {
        let words = self.words(tail);
        // A stale index may lead to the smaller kind of slot; then the lengths do not fit.
        bytes.len().div_ceil(8) <= words.len()
            && bytes.chunks(8).zip(words).all(|(b, w)| w.load(Ordering::Relaxed) == word(b))
    }

    pub(crate) fn bytes(&self) -> u64 {
        let chunk = u64::from(uvfs_sync::slab::CHUNK);
        chunk
            * (u64::from(self.short_pool.chunks_out()) * size_of::<ShortTail>() as u64
                + u64::from(self.long_pool.chunks_out()) * size_of::<LongTail>() as u64)
    }

    /// Return chunks without a tail in use to the system. A reader of such a slot finds zeroes, and a
    /// dentry whose sequence has moved.
    pub(crate) fn trim(&self) {
        self.short_slab.trim(&self.short_pool, |_, _| Some(0), |from, to| self.short.give_back(from, to));
        self.long_slab.trim(&self.long_pool, |_, _| Some(0), |from, to| self.long.give_back(from, to));
    }
}

/// Type bits of the inode that a dentry leads to.
#[inline(always)]
pub(crate) fn fmt_of(meta: u32) -> u32 {
    meta >> 8 & 0xf000
}

impl Published {
    /// Length of the name; 0: not in use. Clamped, because the word may be torn.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        (self.meta.load(Ordering::Relaxed) & 0xff) as usize
    }

    /// Length and type bits, as they stand in the line; see [`fmt_of`].
    #[inline(always)]
    pub(crate) fn meta(&self) -> u32 {
        self.meta.load(Ordering::Relaxed)
    }

    /// Type bits of the inode that it leads to.
    pub(crate) fn fmt(&self) -> u32 {
        fmt_of(self.meta())
    }

    #[inline]
    fn tail(&self) -> Tail {
        if self.len() > INLINE { self.name[WORDS - 1].load(Ordering::Relaxed) as u32 } else { 0 }
    }

    /// Whether this is (parent, name). The result counts only between `seq.begin` and `seq.check`.
    #[inline(always)]
    pub(crate) fn is(&self, parent: u32, name: &NameWords<'_>, tails: &Tails) -> bool {
        if self.parent.load(Ordering::Relaxed) != parent || self.len() != name.name.len() {
            return false;
        }
        // Zero-padded on both sides, so that the first two words are compared at any length.
        let differ = |i: usize| self.name[i].load(Ordering::Relaxed) ^ name.first[i];
        differ(0) | differ(1) == 0 && (name.name.len() <= 16 || self.is_longer(name.name, tails))
    }

    /// The same for the bytes after the first 16.
    #[cold]
    fn is_longer(&self, name: &[u8], tails: &Tails) -> bool {
        let (name, tail) = if name.len() > INLINE { name.split_at(HEAD) } else { (name, &[][..]) };
        let mut middle = self.name[2..].iter().zip(name[16..].chunks(8));
        middle.all(|(w, bytes)| w.load(Ordering::Relaxed) == word(bytes))
            && (tail.is_empty() || tails.matches(self.tail(), tail))
    }

    /// Copy the name out; returns its length. The copy counts only between `seq.begin` and `seq.check`.
    pub(crate) fn copy_name(&self, out: &mut [u8; 256], tails: &Tails) -> usize {
        let len = self.len();
        let mut put = |at: usize, w: &AtomicU64| {
            out[at..at + 8].copy_from_slice(&w.load(Ordering::Relaxed).to_le_bytes());
        };
        if len <= INLINE {
            (0..WORDS).for_each(|i| put(i * 8, &self.name[i]));
        } else {
            (0..HEAD / 8).for_each(|i| put(i * 8, &self.name[i]));
            let words = self.tail();
            for (i, w) in tails.words(words).iter().enumerate() {
                put(HEAD + i * 8, w);
            }
        }
        len
    }

    /// Give the dentry a name, inside `seq.write`. Returns the tail of its old name, which the caller frees
    /// after the write section.
    pub(crate) fn set_name(&self, parent: u32, name: &NameWords<'_>, tail: Tail) -> Tail {
        let old = self.tail();
        self.parent.store(parent, Ordering::Relaxed);
        let mut words = name.words();
        if tail != 0 {
            words[WORDS - 1] = u64::from(tail);
        }
        for (slot, w) in self.name.iter().zip(words) {
            if slot.load(Ordering::Relaxed) != w {
                slot.store(w, Ordering::Relaxed);
            }
        }
        let fmt = self.meta.load(Ordering::Relaxed) & !0xff;
        self.meta.store(fmt | name.name.len() as u32, Ordering::Relaxed);
        old
    }

    /// Swap the inodes that two dentries lead to, inside both sequences.
    pub(crate) fn swap_targets(&self, other: &Self) {
        let swap = |a: &AtomicU32, b: &AtomicU32, mask: u32| {
            let (x, y) = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
            a.store(x & !mask | y & mask, Ordering::Relaxed);
            b.store(y & !mask | x & mask, Ordering::Relaxed);
        };
        swap(&self.inode, &other.inode, u32::MAX);
        swap(&self.deadline, &other.deadline, u32::MAX);
        swap(&self.meta, &other.meta, !0xff);
    }

    /// Set the inode that the dentry leads to, inside `seq.write`.
    pub(crate) fn set_target(&self, inode: u32, fmt: u32, deadline: u32) {
        self.inode.store(inode, Ordering::Relaxed);
        self.deadline.store(deadline, Ordering::Relaxed);
        let len = self.meta.load(Ordering::Relaxed) & 0xff;
        self.meta.store(len | fmt << 8, Ordering::Relaxed);
    }

    /// Empty the slot, inside `seq.write`; returns the tail to be freed.
    pub(crate) fn clear(&self) -> Tail {
        let tail = self.tail();
        self.parent.store(0, Ordering::Relaxed);
        self.inode.store(0, Ordering::Relaxed);
        self.meta.store(0, Ordering::Relaxed);
        tail
    }

    /// The name's hash under a key; under the bucket's lock.
    pub(crate) fn hash_again(&self, key: HashKey, tails: &Tails) -> u64 {
        let mut buffer = [0; 256];
        let len = self.copy_name(&mut buffer, tails);
        NameWords::new(&buffer[..len]).hash(key) ^ u64::from(self.parent.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_its_bytes_zero_padded() {
        let bytes = [0x81, 0x92, 0xa3, 0xb4, 0xc5, 0xd6, 0xe7, 0xf8];
        for n in 0..=8 {
            let mut padded = [0; 8];
            padded[..n].copy_from_slice(&bytes[..n]);
            assert_eq!(word(&bytes[..n]), u64::from_le_bytes(padded), "{n} bytes");
        }
    }

    /// Names that anybody can choose so that all have one hash without a key. With a key they differ.
    #[test]
    fn the_key_parts_names_that_collide_without_it() {
        let names: Vec<_> = (0..10_000).map(|i| format!("{i:08}\t").into_bytes()).collect();
        let hashes = |key: HashKey| {
            let hashes = names.iter().map(|name| NameWords::new(name).hash(key));
            hashes.collect::<std::collections::HashSet<_>>().len()
        };
        assert_eq!(hashes(HashKey(0, 0)), 1);
        assert_eq!(hashes(HashKey(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344)), names.len());
    }
}
