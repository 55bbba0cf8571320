//! A small number for each thread that runs, for arrays with a line per thread.
//!
//! Numbers are dense: a thread that ends gives its number back, and the next new thread takes it
//! over, with whatever stands in the lines of that number. So a line has one writer at a time, and
//! what the last writer stored happens before what the next one loads (both hold the registry's mutex).
//! Nobody is told when a thread ends; sums over all lines stay right because no line goes away.
//!
//! More than [`LANES`] threads at a time, and threads that are ending, have no number: they go the way
//! that needs none. Costs one load of a thread-local.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

/// Threads with a number at one time.
pub const LANES: u32 = if cfg!(loom) { 2 } else { 1024 };

/// A number that was never handed out is not below this. Raised before the number's first use.
static TOP: AtomicU32 = AtomicU32::new(0);
static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());

const UNASKED: u32 = u32::MAX;
const NONE: u32 = u32::MAX - 1;

/// Gives the number back when its thread ends.
struct Holder(u32);

impl Drop for Holder {
    fn drop(&mut self) {
        // What is dropped after this has no number any more.
        let _ = MINE.try_with(|mine| mine.set(NONE));
        FREE.lock().push(self.0);
    }
}

/// Aligned so that the low bits of its address are free for who uses it as the thread's [`Seat::me`].
#[repr(align(64))]
struct Mine(Cell<u32>);

impl Mine {
    #[inline]
    fn get(&self) -> u32 {
        self.0.get()
    }

    fn set(&self, lane: u32) {
        self.0.set(lane);
    }
}

thread_local! {
    // Without a destructor: it may be asked until the thread is gone.
    static MINE: Mine = const { Mine(Cell::new(UNASKED)) };
    static HOLDER: Cell<Option<Holder>> = const { Cell::new(None) };
}

/// This thread's number, below [`LANES`], if it has one by now.
#[inline]
pub fn known() -> Option<u32> {
    MINE.try_with(Mine::get).ok().filter(|lane| *lane < LANES)
}

/// This thread's number, below [`LANES`]; it gets one now if there is one to be had.
#[cold]
pub fn mine() -> Option<u32> {
    match MINE.try_with(Mine::get) {
        Ok(UNASKED) => take(),
        _ => known(),
    }
}

/// Where a thread's marks stand, and what they say.
///
/// A thread keeps its `me` until it is gone, its number only until its thread-locals are dropped: a guard that is
/// kept in one may outlive the number. So who marks a line with `me` finds out whether it is his.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The thread's number, or [`LANES`] if it has none.
    pub lane: u32,
    /// Different from that of each other thread that runs; a multiple of 64, never 0.
    pub me: u64,
}

/// This thread's seat; it gets a number now if there is one to be had. One load of a thread-local.
#[inline]
pub fn seat() -> Seat {
    let known = MINE.with(|mine| Seat { lane: mine.get(), me: std::ptr::from_ref(mine).addr() as u64 });
    if known.lane < LANES { known } else { Seat { lane: mine().unwrap_or(LANES), ..known } }
}

fn take() -> Option<u32> {
    let lane = {
        let mut free = FREE.lock();
        match free.pop() {
            Some(lane) => Some(lane),
            None => {
                let top = TOP.load(Ordering::Relaxed);
                // SeqCst, and before the first use: see `used`.
                (top < LANES).then(|| TOP.fetch_add(1, Ordering::SeqCst))
            }
        }
    };
    let Some(holder) = lane.map(Holder) else {
        let _ = MINE.try_with(|mine| mine.set(NONE));
        return None;
    };
    // Where the thread is ending, the holder is dropped here and now.
    HOLDER.try_with(move |h| h.set(Some(holder))).ok()?;
    let _ = MINE.try_with(|mine| mine.set(lane.unwrap_or(NONE)));
    lane
}

/// All numbers in use are below this. A thread whose first number comes after this call has stored it
/// before its first [`crate::barrier::light`].
pub fn used() -> u32 {
    if cfg!(loom) { LANES } else { TOP.load(Ordering::SeqCst) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;

    #[test]
    fn threads_that_run_have_different_numbers_and_leave_them_to_others() {
        let round = || {
            let all = Barrier::new(8);
            let lanes: HashSet<u32> = std::thread::scope(|s| {
                let threads: Vec<_> = (0..8)
                    .map(|_| {
                        s.spawn(|| {
                            let lane = mine();
                            assert_eq!(lane, mine());
                            all.wait();
                            lane
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
            });
            assert_eq!(lanes.len(), 8);
        };
        // Without giving numbers back, half of these rounds would use them all up.
        for _ in 0..LANES / 4 {
            round();
        }
    }
}
