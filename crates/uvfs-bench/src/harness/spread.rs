//! Medians with their least and greatest values, and ratios formed round by round.

use serde::{Deserialize, Serialize};

/// A median over rounds, with the extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median; for an even number of values, the mean of the middle two.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// The spread of these values; `None` if there are none. NaN values are left out.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| !v.is_nan()).collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: low.midpoint(high), min, max })
    }

    /// The spread of `a` over `b`, round by round. A round that either side lacks is left out.
    pub fn of_ratios(a: &[Option<f64>], b: &[Option<f64>]) -> Option<Self> {
        Self::of(a.iter().zip(b).filter_map(|(a, b)| Some((*a)? / (*b)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let spread = |v: &[f64]| Spread::of(v.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(spread(&[7.0]), Some(Spread { median: 7.0, min: 7.0, max: 7.0 }));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[f64::NAN]), None);
    }

    #[test]
    fn ratios_are_those_of_the_rounds() {
        // The machine became four times slower in the second round; the ratio did not change.
        let (a, b) = ([Some(1.0), Some(4.0), Some(9.0)], [Some(2.0), Some(8.0), None]);
        assert_eq!(Spread::of_ratios(&a, &b), Some(Spread { median: 0.5, min: 0.5, max: 0.5 }));
        // The median of ratios is not the ratio of medians.
        let (a, b) = ([Some(1.0), Some(4.0), Some(9.0)], [Some(1.0), Some(2.0), Some(18.0)]);
        assert_eq!(Spread::of_ratios(&a, &b).unwrap().median, 1.0);
    }
}
