//! How many changes of each kind were made.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;

use anyhow::{Context, Result};

/// A kind of change. Only changes that succeeded are counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A name that was free, which a view may have as a negative entry, became a file.
    Made,
    Rewritten,
    Grown,
    Truncated,
    Directory,
    Symlink,
    Renamed,
    Linked,
    Attributes,
    Removed,
}

/// As they are counted, in the order of [`Kind`].
const NAMES: [&str; 10] = [
    "made",
    "rewritten",
    "grown",
    "truncated",
    "directories",
    "symlinks",
    "renamed",
    "linked",
    "attributes",
    "removed",
];

/// How many of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorChanges([u64; NAMES.len()]);

impl MirrorChanges {
    pub(super) fn add(&mut self, kind: Kind) {
        self.0[kind as usize] += 1;
    }

    /// Of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// "12 made, 3 rewritten, …"
    pub fn kinds(&self) -> String {
        let counts = self.0.iter().zip(NAMES);
        counts.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }
}

impl AddAssign for MirrorChanges {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}

/// The counts alone, as a process says them to another.
impl fmt::Display for MirrorChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&counts.join(" "))
    }
}

impl FromStr for MirrorChanges {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let counts = text.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let counts = counts.try_into().ok().context("another number of kinds")?;
        Ok(Self(counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_they_were_said() {
        let mut changes = MirrorChanges::default();
        changes.add(Kind::Made);
        changes.add(Kind::Removed);
        changes += changes;
        let said: MirrorChanges = changes.to_string().parse().expect("counts");
        assert_eq!((said, said.total()), (changes, 4));
        assert!(
            said.kinds().starts_with("2 made, ") && said.kinds().ends_with(", 2 removed"),
            "{}",
            said.kinds()
        );
        assert!("1 2 3".parse::<MirrorChanges>().is_err());
    }
}
