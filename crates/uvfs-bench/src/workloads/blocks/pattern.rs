//! The patterns: which blocks are looked up, in which order.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};

/// Blocks of a leaf of the trees.
const LEAF: u64 = 64;
/// Length of the random patterns, which then repeat.
const LENGTH: usize = 1 << 18;

/// Their names in `--patterns`.
pub(super) const NAMES: [&str; 6] = ["mod", "leaf-mod", "uniform", "zipf", "sequential", "wrong-size"];

/// A pattern.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// This many adjacent blocks, round and round.
    Mod(u64),
    /// The same, with one block in each leaf of the tree.
    LeafMod(u64),
    /// This many adjacent blocks, in random order.
    Uniform(u64),
    /// This many blocks, a few of them much more often than others.
    Zipf(u64),
    /// This many adjacent blocks, in order.
    Sequential(u64),
    /// One block, looked up by a size that it does not have: the mistake in the thread's first figures. Only the
    /// kernel's list compares sizes.
    WrongSize,
    /// A recorded trace.
    Trace(Sequence),
}

/// Every pattern, for these options.
pub(super) fn all(mods: &[u64], blocks: u64) -> Vec<Pattern> {
    let some = mods.iter().map(|n| Pattern::Mod(*n));
    let leaves = mods.iter().map(|n| Pattern::LeafMod(*n));
    some.chain(leaves)
        .chain([
            Pattern::Uniform(blocks),
            Pattern::Zipf(blocks),
            Pattern::Sequential(blocks),
            Pattern::WrongSize,
        ])
        .collect()
}

impl Pattern {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Mod(_) => "mod",
            Self::LeafMod(_) => "leaf-mod",
            Self::Uniform(_) => "uniform",
            Self::Zipf(_) => "zipf",
            Self::Sequential(_) => "sequential",
            Self::WrongSize => "wrong-size",
            Self::Trace(_) => "trace",
        }
    }

    /// Number of blocks of the patterns that go round.
    pub(super) fn modulus(&self) -> Option<u64> {
        match self {
            Self::Mod(n) | Self::LeafMod(n) => Some(*n),
            _ => None,
        }
    }

    /// The highest block number.
    pub(super) fn highest(&self) -> u64 {
        match self {
            Self::Mod(n) | Self::Uniform(n) | Self::Zipf(n) | Self::Sequential(n) => n - 1,
            Self::LeafMod(n) => (n - 1) * LEAF,
            Self::WrongSize => 1,
            Self::Trace(sequence) => sequence.iter().copied().max().unwrap_or(0),
        }
    }

    /// The size that lookups of blocks of `size` bytes name.
    pub(super) fn asked(&self, size: usize) -> usize {
        if matches!(self, Self::WrongSize) { size * 2 } else { size }
    }

    /// The numbers, in order; after the last one comes the first. At least one.
    pub(super) fn sequence(&self) -> Sequence {
        let mut random = fastrand::Rng::with_seed(1);
        let numbers: Vec<u64> = match self {
            Self::Mod(n) | Self::Sequential(n) => (0..*n).collect(),
            Self::LeafMod(n) => (0..*n).map(|i| i * LEAF).collect(),
            Self::Uniform(n) => (0..LENGTH).map(|_| random.u64(..*n)).collect(),
            Self::Zipf(n) => zipf(*n, &mut random),
            Self::WrongSize => vec![1],
            Self::Trace(sequence) => return sequence.clone(),
        };
        let name = match self.modulus() {
            Some(n) => format!("{} {n}", self.name()),
            None => self.name().to_owned(),
        };
        Sequence { name, numbers: numbers.into() }
    }
}

/// The block of rank r comes 1/r times as often as that of rank 1; ranks are dealt out at random.
fn zipf(n: u64, random: &mut fastrand::Rng) -> Vec<u64> {
    let mut blocks: Vec<u64> = (0..n).collect();
    random.shuffle(&mut blocks);
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=n)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let pick = |random: &mut fastrand::Rng| {
        let at = random.f64() * sum;
        blocks[sums.partition_point(|sum| *sum <= at).min(blocks.len() - 1)]
    };
    (0..LENGTH).map(|_| pick(random)).collect()
}

/// Block numbers with a name.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    name: String,
    numbers: Arc<[u64]>,
}

impl Sequence {
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Deref for Sequence {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.numbers
    }
}

/// Reads a trace, and the size of its blocks if it has one. Skips empty lines and lines that begin with `#`.
///
/// # Errors
/// If the file cannot be read, has no block, has a malformed line, or has blocks of several sizes.
pub(super) fn read_trace(path: &Path) -> Result<(Pattern, Option<usize>)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<(Pattern, Option<usize>)> {
    let (mut numbers, mut size) = (Vec::new(), None);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = || format!("line {}: {line:?} is no block number, and no block number and size", at + 1);
        let words: Vec<u64> =
            line.split_whitespace().map(str::parse).collect::<Result<_, _>>().with_context(wrong)?;
        let (number, own) = match words[..] {
            [number] => (number, None),
            [number, bytes] => (number, Some(bytes as usize)),
            _ => anyhow::bail!(wrong()),
        };
        ensure!(
            number <= uvfs_cache::machinery::buffers::MAX_BLOCK,
            "line {}: block {number} is too high",
            at + 1
        );
        ensure!(
            own.is_none() || size.is_none() || own == size,
            "line {}: all blocks of a trace have one size",
            at + 1
        );
        size = size.or(own);
        numbers.push(number);
    }
    ensure!(!numbers.is_empty(), "there is no block in it");
    Ok((Pattern::Trace(Sequence { name: "trace".to_owned(), numbers: numbers.into() }), size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_stay_within_their_blocks() {
        for pattern in all(&[1, 17], 100) {
            let sequence = pattern.sequence();
            assert!(!sequence.is_empty() && sequence.iter().all(|n| *n <= pattern.highest()), "{pattern:?}");
        }
        assert_eq!(Pattern::LeafMod(3).sequence()[..], [0, 64, 128]);
        assert_eq!(Pattern::Mod(3).sequence().name(), "mod 3");
        assert_eq!((Pattern::WrongSize.asked(512), Pattern::Mod(3).asked(512)), (1024, 512));
    }

    #[test]
    fn zipf_has_favourites() {
        let sequence = Pattern::Zipf(1000).sequence();
        let mut counts = vec![0; 1000];
        sequence.iter().for_each(|n| counts[*n as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // 1 / H(1000) of all is 0.134, and half as many.
        let share = |rank: usize| f64::from(counts[rank]) / LENGTH as f64;
        assert!((0.12..0.15).contains(&share(0)) && (0.06..0.075).contains(&share(1)), "{counts:?}");
    }

    #[test]
    fn traces_are_read() {
        let (pattern, size) = parse("# find\n7\n8 4096\n\n 7 4096\n").unwrap();
        assert_eq!((&pattern.sequence()[..], size, pattern.highest()), (&[7, 8, 7][..], Some(4096), 8));
        for wrong in ["", "# nothing\n", "x\n", "-1\n", "1 2 3\n", "1 512\n2 1024\n", "99999999999999999\n"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(format!("{:#}", parse("1\nx\n").unwrap_err()).contains("line 2"));
    }
}
