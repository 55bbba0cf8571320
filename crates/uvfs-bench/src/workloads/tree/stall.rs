//! How long hits take while others evict: the longest, with and without the time for which its thread waited for a processor.
//!
//! A window is some hits one after the other, between two looks at how long the thread has waited (proc(5), `schedstat`). Hits take less than
//! a microsecond, so what a window's waits are is its longest hit's: they are subtracted from that one.

use std::time::Duration;

use parking_lot::Mutex;

use crate::harness::usage::RunQueue;

/// What is not to happen.
pub const LONG: Duration = Duration::from_millis(1);

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Hits.
    pub hits: u64,
    /// The longest as it was, and with waits subtracted.
    pub longest: [Duration; 2],
    /// Windows whose longest was above [`LONG`], likewise.
    pub long: [u64; 2],
}

impl Stalls {
    /// One window: how many hits, how long the longest took, and how long the thread waited.
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

/// What all threads saw.
#[derive(Debug, Default)]
pub struct Book(Mutex<Stalls>);

impl Book {
    /// One thread is done.
    pub fn enter(&self, stalls: &Stalls) {
        self.0.lock().add(stalls);
    }

    /// What is to be said; `None` where nothing was seen.
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

/// One thread's.
pub struct Meter {
    queue: Option<RunQueue>,
    /// So far.
    pub stalls: Stalls,
}

impl Meter {
    /// Of the calling thread. Where the kernel does not tell waits, nothing is subtracted.
    pub fn of_this_thread() -> Self {
        Self { queue: RunQueue::of_this_thread().ok(), stalls: Stalls::default() }
    }

    fn waited(&self) -> Duration {
        self.queue.as_ref().and_then(RunQueue::waited).unwrap_or_default()
    }

    /// `hits` makes some hits; how many, and how long the longest took.
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
        let book = Book::default();
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
