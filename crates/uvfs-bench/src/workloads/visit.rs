//! The order in which a thread visits a tree's paths, independent or serialized.
//!
//! *Independent*: the processor may begin the next lookup before the last one has ended, and does. *Serialized*: the
//! position of the next path is computed from the last result, so the processor must wait. A program that needs the
//! answer sees this. The dependence is real for the processor but changes
//! nothing: the result is masked with a zero that the compiler cannot see.

use serde_json::json;

use crate::harness::WorkerSeat;
use crate::harness::schedule::Params;

/// Which paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Which {
    /// Every thread visits the first path.
    Same,
    /// Each thread visits a path of its own.
    Separate,
    /// Every thread visits all paths, from different starting points.
    All,
}

/// The two variants of every lookup, as the report gives them.
pub fn variants() -> Vec<Params> {
    ["independent", "serialized"].map(|order| Params::from_iter([("order".to_owned(), json!(order))])).into()
}

/// Index of the serialized variant in [`variants`].
pub const SERIALIZED: usize = 1;

/// A thread's position.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    at: usize,
    from: usize,
    to: usize,
    mask: usize,
}

impl Cursor {
    /// At the beginning of a thread's share of `len` paths (at least one).
    pub fn new(which: Which, len: usize, seat: WorkerSeat) -> Self {
        let own = seat.index % len.max(1);
        let (from, to, at) = match which {
            Which::Same => (0, 1, 0),
            Which::Separate => (own, own + 1, own),
            Which::All => (0, len, seat.index * len / seat.of.max(1)),
        };
        // Always zero, but the compiler must not know that.
        let mask = std::hint::black_box(0);
        Self { at, from, to, mask }
    }

    /// The index of the path to look up now.
    #[inline]
    pub fn index(self) -> usize {
        self.at
    }

    /// Moves on to the next path, whatever the last result was.
    #[inline]
    pub fn next(&mut self) {
        self.at = if self.at + 1 == self.to { self.from } else { self.at + 1 };
    }

    /// Moves on to the next path, which depends on the last result.
    #[inline]
    pub fn next_after(&mut self, result: u64) {
        self.next();
        self.at += result as usize & self.mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visits(which: Which, seat: WorkerSeat) -> Vec<usize> {
        let mut cursor = Cursor::new(which, 4, seat);
        (0..6)
            .map(|i| {
                let at = cursor.index();
                if i % 2 == 0 {
                    cursor.next()
                } else {
                    cursor.next_after(99)
                }
                at
            })
            .collect()
    }

    #[test]
    fn threads_visit_their_share() {
        let (first, second) = (WorkerSeat { index: 0, of: 2 }, WorkerSeat { index: 1, of: 2 });
        assert_eq!(visits(Which::Same, second), [0; 6]);
        assert_eq!(visits(Which::Separate, second), [1; 6]);
        assert_eq!(visits(Which::All, first), [0, 1, 2, 3, 0, 1]);
        assert_eq!(visits(Which::All, second), [2, 3, 0, 1, 2, 3]);
    }
}
