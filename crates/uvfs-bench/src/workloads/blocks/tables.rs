//! The alternatives to uvfs's cache that look blocks up directly: a tree, and hash maps.
//!
//! All use the same buffers: a header, and the bytes elsewhere. A reference is an `Arc`'s. Nothing is inserted during the
//! measurement.

use std::sync::Arc;

use anyhow::Result;
use foldhash::fast::FixedState;

use super::radix::Radix;
use super::{Blocks, Local, Table, contents, number};

/// A buffer and its header.
struct Head {
    bytes: Box<[u8]>,
}

impl Head {
    fn new(number: u64, size: usize) -> Arc<Self> {
        Arc::new(Self { bytes: contents(number, size).into() })
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

/// The tree straight to the buffers: less than a kernel does ([`super::kernel`]).
pub(super) struct BlockTree(Radix<Arc<Head>>);

impl Table for BlockTree {
    type Local<'t> = &'t Self;

    fn build(blocks: &Blocks) -> Result<Self> {
        let mut tree = Radix::new(blocks.numbers.iter().copied().max().unwrap_or(0));
        blocks.numbers.iter().for_each(|number| tree.insert(*number, Head::new(*number, blocks.size)));
        Ok(Self(tree))
    }

    fn local(&self) -> &Self {
        self
    }
}

impl Local for &BlockTree {
    #[inline(always)]
    fn find(&mut self, block: u64) -> Option<u64> {
        self.0.get(block).map(address)
    }

    #[inline(always)]
    fn copy(&mut self, block: u64) -> Option<u64> {
        read(self.0.get(block)?, block, false)
    }

    #[inline(always)]
    fn pin(&mut self, block: u64) -> Option<u64> {
        read(self.0.get(block)?, block, true)
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
        let map =
            papaya::HashMap::builder().capacity(blocks.numbers.len()).hasher(FixedState::default()).build();
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
