//! A moment of a tree: the *instance* of its table, and the tick of the last change then.
//!
//! An instance is 64 random bits, drawn when a reading of the tree begins and when it ends. So a clock of another boot,
//! another server, from before an overflow or from the time of a scan names another instance, and is never taken for
//! one of this.

use std::fmt;
use std::str::FromStr;

/// A moment of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChangeClock {
    pub(crate) instance: u64,
    pub(crate) tick: u64,
}

impl ChangeClock {
    /// A number for a new instance.
    pub(crate) fn new_instance() -> Result<u64, String> {
        getrandom::u64().map_err(|error| format!("the system has no random numbers: {error}"))
    }
}

impl fmt::Display for ChangeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.instance, self.tick)
    }
}

impl FromStr for ChangeClock {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (instance, tick) = text.split_once(':').ok_or(())?;
        let instance = u64::from_str_radix(instance, 16).map_err(drop)?;
        Ok(Self { instance, tick: tick.parse().map_err(drop)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_reads_what_it_writes() {
        let clock = ChangeClock { instance: 0xab, tick: u64::MAX };
        assert_eq!(clock.to_string(), "00000000000000ab:18446744073709551615");
        assert_eq!(clock.to_string().parse(), Ok(clock));
        for bad in ["", ":", "1", "x:1", "1:", "1:-1", "1:18446744073709551616", "11111111111111111:1"] {
            assert_eq!(bad.parse::<ChangeClock>(), Err(()), "{bad}");
        }
    }
}
