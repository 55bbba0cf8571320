//! Model checks of the buffer cache, named after the rules of docs/locking.md. (Pins and copies:
//! `uvfs_sync::pinned_blocks`.)
//!
//! Devices of two blocks, two threads, one operation each.

use std::io;
use std::sync::Arc;

use uvfs_sync::pinned_blocks::{Blocks, MIN_SIZE};
use uvfs_sync::primitives::Statistic;

use super::block_tree::Index;
use super::lookaside::{Lookaside, tag};
use super::{BlockSource, Device};
use crate::loom_tests::{model, roomy};

/// A block's bytes all equal its number; the first reads may fail.
#[derive(Default)]
struct Source {
    reads: Statistic,
    failing: u64,
}

impl BlockSource for Source {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.reads.add(1);
        if self.reads.get() <= self.failing {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        out.fill((offset / MIN_SIZE as u64) as u8);
        Ok(out.len())
    }
}

fn device(failing: u64, slots: u32) -> (Arc<Device>, Arc<Source>) {
    let source = Arc::new(Source { reads: Statistic::new(), failing });
    (Arc::new(Device::with(source.clone(), MIN_SIZE, slots).unwrap()), source)
}

/// The block's byte, after a check that all its bytes are equal.
fn get(device: &Device, block: u64) -> Result<u8, Option<i32>> {
    let mut out = [0; MIN_SIZE];
    device.get(block).map_err(|error| error.raw_os_error())?.copy(0, &mut out);
    assert_eq!(out, [out[0]; MIN_SIZE], "half a block");
    Ok(out[0])
}

/// Rule 13: concurrent misses of one block make one read.
#[test]
fn loom_buffers_misses_of_one_block_make_one_read() {
    model(|| {
        let (device, source) = device(0, 2);
        let other = device.clone();
        let t = roomy(move || get(&other, 1));
        assert_eq!(get(&device, 1), Ok(1));
        assert_eq!(t.join().unwrap(), Ok(1));
        assert_eq!(source.reads.get(), 1);
    });
}

/// Rule 13: a thread that waits for a failing read gets the error, and nobody waits for ever; nothing of
/// the read stays.
#[test]
fn loom_buffers_an_error_reaches_all_waiters_and_is_not_kept() {
    model(|| {
        let (device, source) = device(1, 2);
        let other = device.clone();
        let t = roomy(move || get(&other, 1));
        let results = [get(&device, 1), t.join().unwrap()];
        let failed = results.iter().filter(|result| **result == Err(Some(libc::EIO))).count() as u64;
        // One read for both, or the second came after the first was over.
        assert_eq!(failed + source.reads.get(), 3, "{results:?}");
        assert!(device.state.lock().flights.is_empty());
        assert_eq!(get(&device, 1), Ok(1), "the error was kept");
    });
}

/// Rule 2: a lookup of an evicted block does not return its successor, and a block that is returned stays.
#[test]
fn loom_buffers_a_hit_beside_an_eviction_is_the_block() {
    model(|| {
        let (device, _) = device(0, 1);
        assert_eq!(get(&device, 0), Ok(0));
        let other = device.clone();
        // The only slot: the other thread can take it, or its block is pinned.
        let t = roomy(move || assert!(matches!(get(&other, 1), Ok(1) | Err(Some(libc::ENOMEM)))));
        if let Some(id) = device.find(0) {
            let mut out = [9; MIN_SIZE];
            if let Some(buffer) = device.blocks.pin(id) {
                buffer.copy(0, &mut out);
                assert_eq!(out, [0; MIN_SIZE], "another block");
            }
            if device.blocks.read(id, 0, &mut out) {
                assert_eq!(out, [0; MIN_SIZE], "another block's copy");
            }
        }
        t.join().unwrap();
        // A block that was evicted can be read again.
        assert_eq!(get(&device, 0), Ok(0));
    });
}

/// Rule 1: a remembered leaf that has become another one is recognised.
#[test]
fn loom_buffers_a_stale_leaf_is_recognised() {
    model(|| {
        let (index, blocks) = (Index::reserve(4).unwrap(), Blocks::reserve(MIN_SIZE, 3).unwrap());
        let ids = [1, 2].map(|slot| blocks.fill(slot, &[]).unwrap().id());
        // Far away, so that the leaf of 0 is not the root.
        index.insert(6, ids[1]).unwrap();
        index.insert(0, ids[0]).unwrap();
        let mine = Lookaside::new();
        assert_eq!(mine.find(&index, tag(1), 0), Some(ids[0]));
        let world = Arc::new((index, blocks));
        let other = world.clone();
        let t = roomy(move || {
            let (index, _) = &*other;
            index.remove(0);
            // The node is the leaf of 2 and 3 from now on.
            index.insert(2, ids[1]).unwrap();
        });
        let found = mine.find(&world.0, tag(1), 0);
        assert!(found.is_none() || found == Some(ids[0]), "another leaf's block");
        t.join().unwrap();
        assert_eq!(mine.find(&world.0, tag(1), 0), None);
        assert_eq!(mine.find(&world.0, tag(1), 2), Some(ids[1]));
    });
}
