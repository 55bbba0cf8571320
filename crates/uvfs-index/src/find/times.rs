//! Time tests: ages in days and minutes, and comparisons with a moment.
//!
//! The arithmetic is GNU find's. An age counts from a day before the start of the search, and `-N` from one second
//! before it. With `-daystart` it counts from midnight. Ages may have a fraction.

use super::numbers::sign;
use super::{FileAttributes, Timestamp};
use std::cmp::Ordering;

/// Seconds of a day.
pub(super) const DAY: i64 = 86_400;

/// One of a file's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeField {
    Modified,
    Changed,
    Accessed,
}

impl TimeField {
    /// The time, unless it is one that the table does not store.
    pub(super) fn of(self, attributes: &FileAttributes) -> Option<Timestamp> {
        match self {
            Self::Modified => Some(attributes.mtime),
            Self::Changed => Some(attributes.ctime),
            Self::Accessed => attributes.atime,
        }
    }
}

/// Days or minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgeUnit {
    Days,
    Minutes,
}

/// A test of an age: a time later than a moment, earlier, or in the unit of time after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AgeTest {
    order: Ordering,
    moment: Timestamp,
    window: f64,
}

impl AgeTest {
    /// Reads an operand such as `-7` or `+1.5`. `origin` is the moment from which days count: a day before now, or
    /// midnight.
    pub(super) fn parse(text: &[u8], unit: AgeUnit, origin: Timestamp) -> Option<Self> {
        let (more, number) = sign(text);
        let number = std::str::from_utf8(number.trim_ascii_start()).ok()?;
        if !number.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)) {
            return None;
        }
        let number: f64 = number.parse().ok().filter(|n: &f64| n.is_finite())?;
        let (seconds, base) = match (unit, more) {
            (AgeUnit::Days, Ordering::Less) => (DAY, DAY - 1),
            (AgeUnit::Days, _) => (DAY, 0),
            (AgeUnit::Minutes, _) => (60, DAY),
        };
        let origin = Timestamp { sec: origin.sec.saturating_add(base), ..origin };
        #[expect(clippy::cast_precision_loss, reason = "a day's seconds are exact")]
        let window = seconds as f64;
        Some(Self { order: more.reverse(), moment: earlier(origin, number * window), window })
    }

    pub(super) fn holds(&self, time: Timestamp) -> bool {
        match self.order {
            Ordering::Equal => {
                let delta = difference(time, self.moment);
                delta > 0.0 && delta <= self.window
            }
            order => time.cmp(&self.moment) == order,
        }
    }
}

/// The moment so many seconds before another; it stops at the ends of time.
fn earlier(origin: Timestamp, seconds: f64) -> Timestamp {
    // A cast from a floating-point number saturates.
    #[expect(clippy::cast_possible_truncation, reason = "the fraction follows")]
    let (whole, nanos) = (seconds.trunc() as i64, (seconds.fract() * 1e9) as i64);
    let nsec = i64::from(origin.nsec) - nanos;
    let sec = origin.sec.saturating_sub(whole).saturating_add(nsec.div_euclid(1_000_000_000));
    let nsec = nsec.rem_euclid(1_000_000_000);
    Timestamp { sec, nsec: u32::try_from(nsec).unwrap_or(0) }
}

#[expect(clippy::cast_precision_loss, reason = "find compares so, too")]
fn difference(one: Timestamp, other: Timestamp) -> f64 {
    let seconds = i128::from(one.sec) - i128::from(other.sec);
    seconds as f64 + (f64::from(one.nsec) - f64::from(other.nsec)) * 1e-9
}
