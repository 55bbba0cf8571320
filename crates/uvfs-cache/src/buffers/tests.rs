//! The buffer cache over sources in memory: hits, misses, errors, read-ahead, the limit.

use std::collections::BTreeSet;
use std::sync::Barrier;

use uvfs_sync::primitives::Mutex;

use super::*;
use crate::types::Config;

const SIZE: usize = 512;

/// Each block begins with its number; its other bytes are the number's lowest byte.
fn block(number: u64) -> Vec<u8> {
    let mut bytes = vec![number as u8; SIZE];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A source of `blocks` blocks and a half, which records its reads.
#[derive(Default)]
struct Source {
    blocks: u64,
    reads: Mutex<Vec<(u64, usize)>>,
    bad: Mutex<BTreeSet<u64>>,
}

impl Source {
    fn of(blocks: u64) -> Arc<Self> {
        Arc::new(Self { blocks, ..Self::default() })
    }

    /// The recorded reads, as (block, blocks).
    fn reads(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut *self.reads.lock())
    }
}

impl BlockSource for Source {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let end = self.blocks * SIZE as u64 + SIZE as u64 / 2;
        let first = offset / SIZE as u64;
        self.reads.lock().push((first, out.len() / SIZE));
        let len = out.len().min(end.saturating_sub(offset) as usize);
        for (number, out) in (first..).zip(out[..len].chunks_mut(SIZE)) {
            if self.bad.lock().contains(&number) {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            out.copy_from_slice(&block(number)[..out.len()]);
        }
        Ok(len)
    }
}

/// A device whose only limit is its slots.
fn device(source: &Arc<Source>, slots: u32) -> Device {
    Device::with(source.clone(), SIZE, slots).unwrap()
}

fn limited(bytes: u64) -> Arc<Cache> {
    Cache::new(Config { max_inodes: 1 << 16, memory_limit: bytes, ..Config::default() }).unwrap()
}

#[test]
fn a_block_is_read_once_and_then_found() {
    let source = Source::of(100);
    let device = device(&source, 64);
    for number in [7, 50, 7, 99, 50, 7] {
        assert_eq!(device.get(number).unwrap()[..], block(number)[..]);
    }
    assert!(device.holds(7) && device.holds(99) && !device.holds(8) && !device.holds(u64::MAX));
    assert_eq!(source.reads(), [(7, 1), (50, 1), (99, 1)]);
    let mut out = [0; 10];
    device.read(50, SIZE - 10, &mut out).unwrap();
    assert_eq!(out, [50; 10]);
    device.read(20, 0, &mut out[..8]).unwrap();
    assert_eq!(out[..8], 20_u64.to_le_bytes());
    assert_eq!(source.reads(), [(20, 1)]);
}

#[test]
fn missing_blocks_and_bad_arguments_are_errors() {
    let source = Source::of(10);
    let device = device(&source, 64);
    let errno = |result: io::Result<Buffer<'_>>| result.unwrap_err().raw_os_error();
    assert_eq!(errno(device.get(MAX_BLOCK + 1)), Some(libc::EINVAL));
    for block in [10, 11, MAX_BLOCK] {
        let kind = device.get(block).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::UnexpectedEof, "{block}: in part, or not at all");
    }
    for (offset, len) in [(SIZE, 1), (0, SIZE + 1), (usize::MAX, 2)] {
        let error = device.read(1, offset, &mut vec![0; len]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
    device.read(1, SIZE, &mut []).unwrap();
    for size in [0, 100, 1 << 17] {
        assert!(Device::with(source.clone(), size, 64).is_err());
    }
}

#[test]
fn sequential_reads_are_read_ahead() {
    let source = Source::of(1000);
    let device = device(&source, 2000);
    for number in 0..1000 {
        assert_eq!(device.get(number).unwrap()[..], block(number)[..]);
    }
    let reads = source.reads();
    assert_eq!(reads[..4], [(0, 1), (1, 2), (3, 4), (7, 8)]);
    assert!(reads.len() < 20 && reads.iter().all(|(_, n)| *n <= 256), "{reads:?}");
    assert_eq!(device.counters().read_blocks, 1000);
}

#[test]
fn a_bad_block_is_an_error_for_itself_only() {
    let source = Source::of(100);
    source.bad.lock().insert(20);
    let device = device(&source, 200);
    for round in 0..2 {
        for number in 0..100 {
            match device.get(number) {
                Ok(buffer) => assert_eq!(buffer[..], block(number)[..]),
                Err(error) => assert_eq!((number, error.raw_os_error()), (20, Some(libc::EIO)), "{round}"),
            }
        }
    }
    source.bad.lock().clear();
    assert_eq!(device.get(20).unwrap()[..], block(20)[..], "an error was kept");
    assert!(device.state.lock().flights.is_empty());
}

/// Run `f` in four threads. They are joined one by one, because ThreadSanitizer does not see the end of a
/// scope.
fn four(f: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || f(i))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn misses_of_one_block_make_one_read() {
    let source = Source::of(64);
    for number in 0..64 {
        let device = device(&source, 64);
        let all = Barrier::new(4);
        four(|_| {
            all.wait();
            assert_eq!(device.get(number).unwrap()[..], block(number)[..]);
        });
        assert_eq!(source.reads(), [(number, 1)]);
    }
}

#[test]
fn an_error_reaches_all_and_is_not_kept() {
    let source = Source::of(64);
    let device = device(&source, 64);
    // In an order without read-ahead: a block that is there already cannot fail.
    for number in (0..64).map(|i| i * 27 % 64) {
        source.bad.lock().insert(number);
        let all = Barrier::new(4);
        four(|_| {
            all.wait();
            assert_eq!(device.get(number).unwrap_err().raw_os_error(), Some(libc::EIO));
        });
        source.bad.lock().clear();
        assert_eq!(device.get(number).unwrap()[..], block(number)[..]);
    }
}

/// A source that panics.
struct Panics;

impl BlockSource for Panics {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        assert_ne!(offset, 0, "this source panics on purpose");
        Ok(out.len())
    }
}

#[test]
fn a_source_that_panics_leaves_nothing_behind() {
    let device = Device::with(Arc::new(Panics), SIZE, 2).unwrap();
    for _ in 0..10 {
        let got = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.get(0).is_ok()));
        assert!(got.is_err());
        assert!(device.state.lock().flights.is_empty());
    }
    assert!(device.get(1).is_ok(), "slots were lost");
}

#[test]
fn pinned_blocks_stay_and_if_all_are_pinned_there_is_no_memory() {
    let source = Source::of(1000);
    let device = device(&source, 8);
    let slots = device.blocks.slots() - 1;
    let pinned: Vec<_> = (0..u64::from(slots)).map(|i| device.get(3 * i).unwrap()).collect();
    assert_eq!(device.get(999).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    assert_eq!(device.give(u64::MAX), 0);
    for (i, buffer) in (0_u64..).zip(&pinned) {
        assert_eq!(buffer[..], block(3 * i)[..]);
    }
    drop(pinned);
    for number in 0..1000 {
        assert_eq!(device.get(number).unwrap()[..], block(number)[..]);
    }
}

/// A scan over everything does not evict blocks in constant use.
#[test]
fn blocks_in_constant_use_stay() {
    let source = Source::of(100_000);
    let device = device(&source, 2048);
    let hot = |number: u64| 90_000 + 64 * number;
    let mut hot_reads = 0;
    for number in 0..20_000 {
        device.get(7 * number % 80_000).unwrap();
        device.get(hot(number % 16)).unwrap();
        hot_reads += source.reads().iter().filter(|(first, _)| *first >= 90_000).count();
    }
    assert!(hot_reads < 16 * 20, "hot blocks were read {hot_reads} times");
    assert!(device.counters().evicted > 10_000);
}

#[test]
fn blocks_are_charged_to_the_limit_and_go_back() {
    const LIMIT: u64 = 4 << 20;
    let cache = limited(LIMIT);
    let source = Source::of(100_000);
    let before = cache.committed();
    {
        let device = Device::new(&cache, source, SIZE).unwrap();
        let kept = device.get(5).unwrap();
        for number in (0..100_000).step_by(3) {
            assert_eq!(device.get(number).unwrap()[..8], number.to_le_bytes());
            assert!(cache.committed() <= LIMIT, "{} at {number}", cache.committed());
        }
        let bytes = device.counters().bytes;
        assert!(bytes > LIMIT / 2 && bytes == cache.buffer_bytes() && cache.committed() == before + bytes);
        cache.set_memory_limit(LIMIT / 4);
        assert!(cache.committed() <= LIMIT / 4);
        assert_eq!(kept[..], block(5)[..]);
        drop(kept);
        assert!(device.give(u64::MAX) > 0);
        assert_eq!(device.get(6).unwrap()[..], block(6)[..]);
    }
    assert_eq!((cache.committed(), cache.buffer_bytes()), (before, 0));
}

#[test]
fn a_device_that_joins_counts_there_and_leaves_the_last_one() {
    let (first, second) = (limited(64 << 20), limited(4 << 20));
    let source = Source::of(100_000);
    let device = Device::alone(source, SIZE, 20_000).unwrap();
    let before = [first.committed(), second.committed()];
    for number in (0..3000).step_by(3) {
        device.get(number).unwrap();
    }
    let bytes = device.counters().bytes;
    assert!(bytes != 0 && first.buffer_bytes() == 0);
    device.join(&first);
    device.join(&first);
    assert_eq!((first.buffer_bytes(), first.committed()), (bytes, before[0] + bytes));
    device.join(&second);
    assert_eq!((first.committed(), second.committed()), (before[0], before[1] + bytes));
    first.set_memory_limit(1 << 20);
    assert_eq!(device.counters().bytes, bytes, "it returned memory for a cache that it has left");
    for number in (0..100_000).step_by(3) {
        device.get(number).unwrap();
        assert!(second.committed() <= 4 << 20);
    }
    // Without a cache only its slots limit it.
    drop(second);
    assert_eq!(device.get(99).unwrap()[..], block(99)[..]);
}

#[test]
fn a_note_lives_as_long_as_its_block() {
    let source = Source::of(1000);
    let device = device(&source, 64);
    let mut out = [0; 8];
    assert_eq!(device.read_noted(5, 0, &mut out).unwrap(), 0);
    device.get(5).unwrap().set_note(99);
    assert_eq!((device.read_noted(5, 0, &mut out).unwrap(), device.get(5).unwrap().note()), (99, 99));
    assert_eq!(out, 5_u64.to_le_bytes());
    assert_eq!(device.read_noted(5, SIZE - 7, &mut out).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    while device.give(u64::MAX) != 0 {}
    assert_eq!(device.read_noted(5, 0, &mut out).unwrap(), 0);
}

/// Threads that find, read, evict and give back at once; every byte is its block's.
#[test]
fn bytes_are_the_blocks_under_a_storm() {
    let source = Source::of(4096);
    let device = device(&source, 200);
    let rounds = if cfg!(miri) { 100 } else { 20_000 };
    four(|thread| {
        lookaside::isolate(thread == 3);
        let mut random = fastrand(thread + 1);
        let (mut out, mut kept) = ([0; SIZE], Vec::new());
        for round in 0..rounds {
            let number = if round % 4 == 0 { random() % 4096 } else { random() % 128 };
            if round % 3 == 0 {
                device.read(number, 0, &mut out).unwrap();
                assert_eq!(out[..], block(number)[..]);
                continue;
            }
            let buffer = device.get(number).unwrap();
            assert_eq!(buffer[..], block(number)[..]);
            kept.push((number, buffer));
            if kept.len() > 20 {
                assert!(kept.drain(..).all(|(number, buffer)| buffer[..] == block(number)[..]));
            }
            if thread == 0 && round % 500 == 0 {
                device.give(64 << 10);
            }
        }
    });
}

/// Pseudo-random numbers.
fn fastrand(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    }
}

/// Leaves of another device, and of evicted blocks, are not taken for the device's own.
#[test]
fn devices_come_and_go() {
    for round in 0..50_u64 {
        let source = Source::of(1000);
        let devices = [device(&source, 64), device(&source, 64)];
        for number in 0..200 {
            let number = (number * (round + 1)) % 1000;
            assert_eq!(devices[(number % 2) as usize].get(number).unwrap()[..], block(number)[..]);
        }
    }
}

/// Rule 19: a device's state is noted while it is held. Planted bug: rule19-device-is-not-noted.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "Eviction is taken while Device is held")]
fn rule19_the_state_of_a_device_is_noted() {
    let device = device(&Source::of(4), 4);
    let _state = device.state.lock();
    uvfs_sync::lock_order::check(uvfs_sync::lock_order::Class::Eviction);
}
