//! The time that a lock is held, fitted to the throughput of two threads.
//!
//! One thread's time of an operation is private work and holds. The more of it is held, the slower are two threads. So
//! two threads' throughput tells how much. Data that moves with the lock is in the fitted time. A fit is no check: it
//! meets the two threads by itself.

use super::model::{MachineClass, Operation, Station};
use super::published::WITHIN;
use super::steps::lock_of;

/// The steps of the search.
const HALVINGS: usize = 50;

/// An operation that holds one lock.
#[derive(Clone, Copy, Debug)]
pub struct FittedLock {
    /// One thread's time.
    pub alone_ns: f64,
    /// Holds of the lock.
    pub holds: f64,
    /// Time of all holds together.
    pub hold_ns: f64,
}

impl FittedLock {
    /// With so many processors.
    pub fn of(self, processors: usize) -> Operation {
        let station = Station { lines: self.holds * lock_of(processors), hold_ns: self.hold_ns };
        Operation { private_ns: self.alone_ns - self.hold_ns, stations: vec![station] }
    }

    /// The holds with which two threads here make `both` operations a second. None if they would make no more with no
    /// hold at all, or far more with nothing but holds.
    pub fn fitted(here: &MachineClass, alone_ns: f64, holds: f64, both: f64) -> Option<Self> {
        let rate = |hold_ns| Self { alone_ns, holds, hold_ns }.of(2).per_second(here, 2);
        let (mut low, mut high) = (0.0, alone_ns);
        if rate(low) <= both || rate(high) > both * (1.0 + WITHIN) {
            return None;
        }
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if rate(middle) > both { low = middle } else { high = middle }
        }
        Some(Self { alone_ns, holds, hold_ns: low })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_finds_the_hold() {
        let here = MachineClass { socket: 64, inside_ns: 25.0, across_ns: 25.0 };
        for hold_ns in [100.0, 400.0, 700.0] {
            let truth = FittedLock { alone_ns: 900.0, holds: 2.0, hold_ns };
            let both = truth.of(2).per_second(&here, 2);
            let found = FittedLock::fitted(&here, 900.0, 2.0, both).unwrap();
            assert!((found.hold_ns / hold_ns - 1.0).abs() < 0.02, "{} for {hold_ns}", found.hold_ns);
        }
        assert!(FittedLock::fitted(&here, 900.0, 2.0, 1e9).is_none(), "two threads do not meet");
    }
}
