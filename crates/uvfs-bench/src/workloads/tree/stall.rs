//! How long hits take while others evict: the longest, with and without its thread's wait for a processor.
//!
//! A window is a series of hits between two readings of the thread's wait time (proc(5), `schedstat`). Hits take less
//! than a microsecond, so a window's waits are attributed to its longest hit and subtracted from that one.

use std::time::Duration;

use parking_lot::Mutex;

use crate::harness::usage::RunQueue;

/// A hit longer than this is a stall.
pub const LONG: Duration = Duration::from_millis(1);

/// The observations of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Hits.
    pub hits: u64,
    /// The longest hit as measured, and with waits subtracted.
    pub longest: [Duration; 2],
    /// Windows whose longest hit exceeded [`LONG`], in the same two ways.
    pub long: [u64; 2],
}

impl Stalls {
    /// Adds one window: the number of hits, the longest hit, and the thread's wait.
    pub fn window(&mut self, hits: u64, longest: Duration, waited: Duration) {
        self.hits += hits;
        for (i, time) in [longest, longest.saturating_sub(waited)].into_iter().enumerate() {
            self.longest[i] = self.longest[i].max(time);
            self.long[i] += u64::from(time > LONG);
        }
    }

    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        for i in 0..2 {
            self.longest[i] = self.longest[i].max(other.longest[i]);
            self.long[i] += other.long[i];
        }
    }
}

/// The observations of all threads.
#[derive(Debug, Default)]
pub struct StallBook(Mutex<Stalls>);

impl StallBook {
    /// Adds one thread's observations.
    pub fn enter(&self, stalls: &Stalls) {
        self.0.lock().add(stalls);
    }

    /// A remark for the report; `None` if nothing was observed.
    pub fn remark(&self) -> Option<String> {
        let Stalls { hits, longest, long } = *self.0.lock();
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        (hits > 0).then(|| {
            format!(
                "{hits} hits beside the eviction, the longest {:.1} us ({:.1} with waits for a processor); above 1 ms: {} ({})",
                us(longest[1]),
                us(longest[0]),
                long[1],
                long[0]
            )
        })
    }
}

/// One thread's meter.
pub struct Meter {
    queue: Option<RunQueue>,
    /// The observations so far.
    pub stalls: Stalls,
}

impl Meter {
    /// For the calling thread. If the kernel does not report waits, nothing is subtracted.
    pub fn of_this_thread() -> Self {
        Self { queue: RunQueue::of_this_thread().ok(), stalls: Stalls::default() }
    }

    fn waited(&self) -> Duration {
        self.queue.as_ref().and_then(RunQueue::waited).unwrap_or_default()
    }

    /// Runs one window. `hits` makes some hits and returns their number and the longest time.
    pub fn window(&mut self, hits: impl FnOnce() -> (u64, Duration)) {
        let before = self.waited();
        let (hits, longest) = hits();
        let waited = self.waited().saturating_sub(before);
        self.stalls.window(hits, longest, waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_subtracted_from_the_longest() {
        let ms = Duration::from_millis;
        let (mut one, mut two) = (Stalls::default(), Stalls::default());
        one.window(64, ms(5), ms(5));
        one.window(64, ms(3), ms(1));
        two.window(64, Duration::from_micros(2), ms(9));
        let book = StallBook::default();
        assert_eq!(book.remark(), None);
        book.enter(&one);
        book.enter(&two);
        let said = book.remark().unwrap();
        assert_eq!(
            said,
            "192 hits beside the eviction, the longest 2000.0 us (5000.0 with waits for a processor); above 1 ms: 1 (2)"
        );
    }
}
