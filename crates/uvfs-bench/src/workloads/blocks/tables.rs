//! The alternatives to uvfs's cache: the kernel's tree, the lookaside in front of it, and hash maps.
//!
//! All use the same buffers: a header with number, size and reference count, and the bytes elsewhere, as with the
//! kernel's buffer heads. A reference is an `Arc`'s. Nothing is inserted during the measurement.

use std::sync::Arc;

use anyhow::Result;
use foldhash::fast::FixedState;

use super::{Blocks, Local, Table, Tally, contents, number};

/// A buffer and its header.
struct Head {
    number: u64,
    size: usize,
    bytes: Box<[u8]>,
}

impl Head {
    fn new(number: u64, size: usize) -> Arc<Self> {
        Arc::new(Self { number, size, bytes: contents(number, size).into() })
    }
}

/// Reads the number in the block, with or without taking and dropping a reference.
#[inline(always)]
fn read(head: &Arc<Head>, block: u64, pin: bool) -> Option<u64> {
    if pin {
        number(&std::hint::black_box(Arc::clone(head)).bytes, block)
    } else {
        number(&head.bytes, block)
    }
}

/// The address of a buffer, as a number.
#[inline(always)]
fn address(head: &Arc<Head>) -> u64 {
    Arc::as_ptr(head).addr() as u64
}

const FAN_BITS: u32 = 6;
const FAN: usize = 1 << FAN_BITS;

/// A node holds its own level, as the XArray's nodes do: a walk does not know the height before it reads the node.
struct Node {
    shift: u32,
    slots: Slots,
}

enum Slots {
    Inner(Box<[Option<Box<Node>>; FAN]>),
    Leaf(Box<[Option<Arc<Head>>; FAN]>),
}

impl Node {
    fn new(shift: u32) -> Box<Self> {
        let slots = match shift {
            0 => Slots::Leaf(Box::new([const { None }; FAN])),
            _ => Slots::Inner(Box::new([const { None }; FAN])),
        };
        Box::new(Self { shift, slots })
    }

    #[inline]
    fn slot(&self, block: u64) -> usize {
        (block >> self.shift) as usize % FAN
    }

    fn insert(&mut self, head: Arc<Head>) {
        let (at, shift) = (self.slot(head.number), self.shift);
        match &mut self.slots {
            Slots::Inner(slots) => slots[at].get_or_insert_with(|| Node::new(shift - FAN_BITS)).insert(head),
            Slots::Leaf(slots) => slots[at] = Some(head),
        }
    }
}

/// A 64-way tree of any height.
pub(super) struct NameTree {
    root: Box<Node>,
    size: usize,
}

impl NameTree {
    #[inline]
    fn find(&self, block: u64) -> Option<&Arc<Head>> {
        let mut node = &self.root;
        if block >> node.shift >> FAN_BITS != 0 {
            return None;
        }
        loop {
            match &node.slots {
                Slots::Inner(slots) => node = slots[node.slot(block)].as_ref()?,
                Slots::Leaf(slots) => return slots[node.slot(block)].as_ref(),
            }
        }
    }
}

impl Table for NameTree {
    type Local<'t> = &'t Self;

    fn build(blocks: &Blocks) -> Result<Self> {
        let highest = blocks.numbers.iter().copied().max().unwrap_or(0);
        let mut shift = 0;
        while highest >> shift >> FAN_BITS != 0 {
            shift += FAN_BITS;
        }
        let mut root = Node::new(shift);
        blocks.numbers.iter().for_each(|number| root.insert(Head::new(*number, blocks.size)));
        Ok(Self { root, size: blocks.size })
    }

    fn local(&self) -> &Self {
        self
    }
}

impl Local for &NameTree {
    #[inline(always)]
    fn find(&mut self, block: u64) -> Option<u64> {
        NameTree::find(self, block).map(address)
    }

    #[inline(always)]
    fn copy(&mut self, block: u64) -> Option<u64> {
        read(NameTree::find(self, block)?, block, false)
    }

    #[inline(always)]
    fn pin(&mut self, block: u64) -> Option<u64> {
        read(NameTree::find(self, block)?, block, true)
    }
}

/// Entries of the kernel's lookaside.
const LRU: usize = 16;

/// The tree with the kernel's lookaside in front of it, one per thread: 16 buffers, most recently used first.
pub(super) struct Stock(NameTree);

/// A thread's lookaside. Its entries are references.
pub(super) struct Lru<'t> {
    tree: &'t NameTree,
    entries: [Option<Arc<Head>>; LRU],
    /// By position.
    hits: [u64; LRU],
    misses: u64,
}

impl Lru<'_> {
    #[inline]
    fn head(&mut self, block: u64) -> Option<&Arc<Head>> {
        let size = self.tree.size;
        let is = |entry: &Option<Arc<Head>>| {
            entry.as_ref().is_some_and(|head| head.number == block && head.size == size)
        };
        match self.entries.iter().position(is) {
            Some(at) => {
                self.hits[at] += 1;
                if at != 0 {
                    self.entries[..=at].rotate_right(1);
                }
            }
            None => {
                self.misses += 1;
                let head = self.tree.find(block)?.clone();
                self.entries.rotate_right(1);
                self.entries[0] = Some(head);
            }
        }
        self.entries[0].as_ref()
    }
}

impl Table for Stock {
    type Local<'t> = Lru<'t>;

    fn build(blocks: &Blocks) -> Result<Self> {
        Ok(Self(NameTree::build(blocks)?))
    }

    fn local(&self) -> Lru<'_> {
        Lru { tree: &self.0, entries: [const { None }; LRU], hits: [0; LRU], misses: 0 }
    }
}

impl Local for Lru<'_> {
    #[inline(always)]
    fn find(&mut self, block: u64) -> Option<u64> {
        self.head(block).map(address)
    }

    #[inline(always)]
    fn copy(&mut self, block: u64) -> Option<u64> {
        read(self.head(block)?, block, false)
    }

    #[inline(always)]
    fn pin(&mut self, block: u64) -> Option<u64> {
        read(self.head(block)?, block, true)
    }

    fn tally(&self) -> Tally {
        let hits = self.hits.iter().enumerate().map(|(at, n)| (format!("idx{}", at + 1), *n));
        Tally(hits.chain([("misses".to_owned(), self.misses)]).collect())
    }
}

/// A map without a lock, so it cannot change.
pub(super) struct Hashbrown(hashbrown::HashMap<u64, Arc<Head>, FixedState>);

impl Table for Hashbrown {
    type Local<'t> = &'t Self;

    fn build(blocks: &Blocks) -> Result<Self> {
        Ok(Self(blocks.numbers.iter().map(|number| (*number, Head::new(*number, blocks.size))).collect()))
    }

    fn local(&self) -> &Self {
        self
    }
}

impl Local for &Hashbrown {
    #[inline(always)]
    fn find(&mut self, block: u64) -> Option<u64> {
        self.0.get(&block).map(address)
    }

    #[inline(always)]
    fn copy(&mut self, block: u64) -> Option<u64> {
        read(self.0.get(&block)?, block, false)
    }

    #[inline(always)]
    fn pin(&mut self, block: u64) -> Option<u64> {
        read(self.0.get(&block)?, block, true)
    }
}

/// A concurrent map, pinned for each lookup.
pub(super) struct Papaya(papaya::HashMap<u64, Arc<Head>, FixedState>);

impl Table for Papaya {
    type Local<'t> = &'t Self;

    fn build(blocks: &Blocks) -> Result<Self> {
        let map = papaya::HashMap::with_hasher(FixedState::default());
        let pinned = map.pin();
        for number in &blocks.numbers {
            pinned.insert(*number, Head::new(*number, blocks.size));
        }
        drop(pinned);
        Ok(Self(map))
    }

    fn local(&self) -> &Self {
        self
    }
}

impl Local for &Papaya {
    #[inline(always)]
    fn find(&mut self, block: u64) -> Option<u64> {
        self.0.pin().get(&block).map(address)
    }

    #[inline(always)]
    fn copy(&mut self, block: u64) -> Option<u64> {
        read(self.0.pin().get(&block)?, block, false)
    }

    #[inline(always)]
    fn pin(&mut self, block: u64) -> Option<u64> {
        read(self.0.pin().get(&block)?, block, true)
    }
}
