//! A small number for each running thread, for arrays with a line per thread.
//!
//! Numbers are dense: a thread that ends returns its number, and the next new thread takes it over, with
//! the contents of the lines of that number. So a line has one writer at a time. The last writer's stores
//! happen before the next one's loads (both hold the registry's mutex). Nobody is notified when a thread
//! ends; sums over all lines stay right because no line goes away.
//!
//! More than [`LANES`] threads at a time, and threads that are ending, have no number: they use the path
//! that needs none. Costs one load of a thread-local.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

/// Threads with a number at one time.
pub const LANES: u32 = if cfg!(loom) { 2 } else { 1024 };

/// All numbers that were ever handed out are below this. Raised before a number's first use.
static TOP: AtomicU32 = AtomicU32::new(0);
static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());

const UNASKED: u32 = u32::MAX;
const NONE: u32 = u32::MAX - 1;

/// Returns the number when its thread ends.
struct Holder(u32);

impl Drop for Holder {
    fn drop(&mut self) {
        // Any code that runs after this, in later destructors, finds no number.
        let _ = MINE.try_with(|mine| mine.set(NONE));
        FREE.lock().push(self.0);
    }
}

/// Aligned so that the low bits of its address are free for users of [`Seat::me`].
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

/// This thread's number, below [`LANES`]; it gets one now if one is available.
#[cold]
pub fn mine() -> Option<u32> {
    match MINE.try_with(Mine::get) {
        Ok(UNASKED) => take(),
        _ => known(),
    }
}

/// A thread's line, and the value that it marks lines with.
///
/// A thread keeps its `me` until it is gone, but its number only until its thread-locals are dropped: a
/// guard kept in a thread-local may outlive the number. So a thread that marks a line with `me` can tell
/// whether a mark is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The thread's number, or [`LANES`] if it has none.
    pub lane: u32,
    /// Different from that of every other running thread; a multiple of 64, never 0.
    pub me: u64,
}

/// This thread's seat; it gets a number now if one is available. One load of a thread-local.
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
    // If the thread is ending, the holder is dropped at once.
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
        // If numbers were not returned, half of these rounds would use them all up.
        for _ in 0..LANES / 4 {
            round();
        }
    }
}
