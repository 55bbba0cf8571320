//! uvfs's buffer cache, with and without the threads' lookasides.

use std::sync::Arc;

use anyhow::{Result, ensure};
use uvfs_cache::machinery::buffers::Device;
use uvfs_cache::machinery::buffers::lookaside::{self, LookasideCounters};
use uvfs_cache::{Cache, Config};

use super::{Blocks, Local, Table, Tally, number, place, source};

/// A device whose looked-up blocks are all in memory. `ISOLATED`: the threads have no lookaside.
pub(super) struct Cached<const ISOLATED: bool>(Arc<Device>);

impl<const ISOLATED: bool> Table for Cached<ISOLATED> {
    type Local<'t> = Looking<'t>;

    fn build(blocks: &Blocks) -> Result<Self> {
        let cache = Cache::new(Config { max_inodes: 1 << 10, ..Config::default() })?;
        let device = Device::new(&cache, source(blocks.size), blocks.size)?;
        for block in &blocks.numbers {
            let buffer = device.get(*block)?;
            ensure!(number(&buffer, *block) == Some(*block), "block {block} is another one");
        }
        let read = device.counters();
        ensure!(read.evicted == 0, "there is no memory for the blocks");
        Ok(Self(device))
    }

    fn local(&self) -> Looking<'_> {
        lookaside::isolate(ISOLATED);
        Looking { device: &self.0, before: lookaside::counters_of_this_thread() }
    }
}

/// A thread's part. While it lives, the thread is isolated if `ISOLATED` says so.
pub(super) struct Looking<'t> {
    device: &'t Device,
    before: LookasideCounters,
}

impl Local for Looking<'_> {
    #[inline(always)]
    fn find(&mut self, block: u64) -> Option<u64> {
        // Returns the block's id, as other tables return its place: the next lookup depends on it.
        self.device.which(block).map(|id| id.to_word())
    }

    #[inline(always)]
    fn copy(&mut self, block: u64) -> Option<u64> {
        self.device.read_array(block, place(block, self.device.block_size())).ok().map(u64::from_le_bytes)
    }

    #[inline(always)]
    fn pin(&mut self, block: u64) -> Option<u64> {
        number(&self.device.get(block).ok()?, block)
    }

    fn tally(&self) -> Tally {
        let (now, before) = (lookaside::counters_of_this_thread(), self.before);
        let since = [
            ("last leaf", now.last - before.last),
            ("other leaves", now.table - before.table),
            ("not remembered", now.misses - before.misses),
            ("stale", now.stale - before.stale),
            ("bypassed", now.bypassed - before.bypassed),
        ];
        Tally(since.map(|(name, n)| (name.to_owned(), n)).into())
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        lookaside::isolate(false);
    }
}
