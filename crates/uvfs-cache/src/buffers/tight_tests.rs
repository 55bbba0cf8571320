//! The buffer cache with next to no memory, or no tree node to spare.

use std::sync::Barrier;
use std::sync::mpsc;

use uvfs_sync::primitives::Mutex;

use super::*;

const SIZE: usize = 512;

/// Every block is full of its number's lowest byte. Reads of blocks from `slow` on wait for `go`, and then
/// fail.
struct Source {
    slow: u64,
    begun: Barrier,
    go: Mutex<mpsc::Receiver<()>>,
}

impl BlockSource for Source {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let first = offset / SIZE as u64;
        if first >= self.slow {
            self.begun.wait();
            self.go.lock().recv().expect("the test lets the slow read continue");
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        for (number, out) in (first..).zip(out.chunks_mut(SIZE)) {
            out.fill(number as u8);
        }
        Ok(out.len())
    }
}

fn source(slow: u64) -> (Arc<Source>, mpsc::Sender<()>) {
    let (go, waits) = mpsc::channel();
    (Arc::new(Source { slow, begun: Barrier::new(2), go: Mutex::new(waits) }), go)
}

/// The only slot is taken for a read under way. A miss waits for that read and is not refused, nor does it
/// get that read's error.
#[test]
fn a_miss_that_finds_all_slots_taken_waits_for_one() {
    let (source, go) = source(1000);
    let device = Device::with(source.clone(), SIZE, 1).unwrap();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| device.get(1000).map(drop).unwrap_err().raw_os_error());
        source.begun.wait();
        let other = scope.spawn(|| device.get(7).map(|block| block[0]));
        // The table holds the flight, its seat does, and the waiting thread does.
        let waits = || device.state.lock().flights.get(&1000).is_some_and(|f| Arc::strong_count(f) > 2);
        while !waits() && !other.is_finished() {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        assert_eq!(other.join().unwrap().unwrap(), 7);
        assert_eq!(slow.join().unwrap(), Some(libc::EIO));
    });
}

/// Blocks so far apart that each has three nodes of the tree for itself.
#[test]
fn blocks_far_from_each_other_take_each_others_nodes() {
    let (source, _go) = source(u64::MAX);
    let device = Device::with(source, SIZE, 4096).unwrap();
    for round in 0..2 {
        for i in 0..6000_u64 {
            let number = i << 18;
            assert_eq!(device.get(number).unwrap()[0], 0, "{i} in round {round}");
        }
    }
}
