//! A small map of numbers that is read constantly, changed hardly ever, and read without storing anything.
//!
//! For a question that a walk asks at each step: which directories are mount points. A snapshot behind a
//! counted pointer would do, except for the count. The pairs stand in memory that is never given back,
//! under one sequence: a reader scans them between two looks at it. Writers exclude each other by other
//! means. A reader that meets one looks again a few times and then returns [`Busy`]: it never waits. A look
//! costs two loads a pair; put a filter in front of it if most keys are absent.

use crate::primitives::{AtomicU32, AtomicU64, Ordering, spin_loop};
use crate::segvec::SegVec;
use crate::seqcount::SeqCount;

/// Looks at a map that is being changed, before a reader gives up.
const TRIES: u32 = if cfg!(loom) { 2 } else { 16 };

/// A map from numbers to numbers.
#[derive(Debug, Default)]
pub struct SmallMap {
    seq: SeqCount,
    len: AtomicU32,
    pairs: SegVec<Pair>,
}

#[derive(Debug, Default)]
struct Pair {
    key: AtomicU64,
    value: AtomicU64,
}

/// A writer was in the way all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl SmallMap {
    /// A map with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of `key`: one moment's truth.
    ///
    /// # Errors
    /// [`Busy`]: ask again under the writers' lock.
    pub fn get(&self, key: u64) -> Result<Option<u64>, Busy> {
        for _ in 0..TRIES {
            if let Some(seq) = self.seq.begin() {
                let found = self.scan(key);
                if self.seq.check(seq) {
                    return Ok(found);
                }
            }
            spin_loop();
        }
        Err(Busy)
    }

    fn scan(&self, key: u64) -> Option<u64> {
        // A length of another moment leads to pairs that exist all the same.
        let mut pairs = (0..self.len.load(Ordering::Relaxed)).map_while(|i| self.pairs.get(i));
        let pair = pairs.find(|pair| pair.key.load(Ordering::Relaxed) == key)?;
        Some(pair.value.load(Ordering::Relaxed))
    }

    /// Replace all pairs by these. The caller excludes other writers.
    pub fn replace(&self, pairs: &[(u64, u64)]) {
        // Room first: nothing is allocated inside the sequence.
        let places: Vec<&Pair> = (0..).map_while(|i| self.pairs.get_or_grow(i)).take(pairs.len()).collect();
        self.seq.write(|| {
            self.len.store(places.len() as u32, Ordering::Relaxed);
            for (place, (key, value)) in places.iter().zip(pairs) {
                place.key.store(*key, Ordering::Relaxed);
                place.value.store(*value, Ordering::Relaxed);
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_and_replaced_pairs_are_not() {
        let map = SmallMap::new();
        assert_eq!(map.get(1), Ok(None));
        let many: Vec<_> = (1..=200).map(|i| (i, i * 2)).collect();
        map.replace(&many);
        assert!((1..=200).all(|i| map.get(i) == Ok(Some(i * 2))));
        map.replace(&[(7, 70)]);
        assert_eq!((map.get(7), map.get(8), map.get(200)), (Ok(Some(70)), Ok(None), Ok(None)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitives::Arc;

    /// Rule 7: key and value are of one moment, and so is their absence. Planted bug:
    /// rule7-small-map-not-checked.
    #[test]
    fn loom_rule7_a_small_map_is_read_whole() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let map = Arc::new(SmallMap::new());
            map.replace(&[(1, 10), (2, 20)]);
            let reader = {
                let map = map.clone();
                loom::thread::spawn(move || (map.get(2), map.get(3)))
            };
            map.replace(&[(2, 21), (3, 30)]);
            let (two, three) = reader.join().unwrap();
            assert!(matches!(two, Ok(Some(20 | 21)) | Err(Busy)), "{two:?}");
            assert!(matches!(three, Ok(None | Some(30)) | Err(Busy)), "{three:?}");
        });
    }
}
