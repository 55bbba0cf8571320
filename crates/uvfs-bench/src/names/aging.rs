//! An aged tree: files were removed and created, so its entries no longer lie in memory in order of creation.
//!
//! In each of [`ROUNDS`] rounds half of the files, chosen at random, are removed in random order and created again in
//! another. The seed is fixed and the files stay the same. So every arm does the same operations in the same order,
//! and afterwards holds the tree that it held before.

use anyhow::{Context as _, Result};

use crate::names::tree::{NameTree, TreeEntry};

/// Rounds of removal and creation.
pub const ROUNDS: usize = 10;
const SEED: u64 = 22;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgingStep {
    /// The file is removed.
    Remove,
    /// The file is created.
    Create,
}

/// Calls `change` for each operation, with the entry of the file.
///
/// # Errors
/// The first error of `change`.
pub fn age(tree: &NameTree, mut change: impl FnMut(AgingStep, &TreeEntry) -> Result<()>) -> Result<()> {
    let is_file = |entry: &TreeEntry| entry.attr.ino != 0 && !entry.attr.is_dir();
    let files: Vec<&TreeEntry> = tree.entries.iter().filter(|entry| is_file(entry)).collect();
    operations(files.len() as u64, |what, file| {
        change(what, files.get(file as usize).context("no file of this number")?)
    })
}

/// Calls `change` for each operation on files `0..files`, fewer than 2^32.
///
/// # Errors
/// The first error of `change`.
pub fn operations(files: u64, mut change: impl FnMut(AgingStep, u64) -> Result<()>) -> Result<()> {
    let mut order: Vec<u32> = (0..u32::try_from(files)?).collect();
    let mut random = fastrand::Rng::with_seed(SEED);
    for _ in 0..ROUNDS {
        random.shuffle(&mut order);
        let half = order.len().div_ceil(2);
        let chosen = &mut order[..half];
        chosen.iter().try_for_each(|file| change(AgingStep::Remove, u64::from(*file)))?;
        random.shuffle(chosen);
        chosen.iter().try_for_each(|file| change(AgingStep::Create, u64::from(*file)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(files: u64) -> Vec<(AgingStep, u64)> {
        let mut all = Vec::new();
        operations(files, |change, file| {
            all.push((change, file));
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn half_of_the_files_are_removed_and_created_in_every_round() {
        let all = recorded(7);
        assert_eq!(all.len(), ROUNDS * 2 * 4);
        for round in all.chunks(8) {
            let of = |wanted| {
                let mut files: Vec<_> = round.iter().filter(|(c, _)| *c == wanted).map(|(_, f)| *f).collect();
                files.sort_unstable();
                files.dedup();
                files
            };
            assert!(round[..4].iter().all(|(change, _)| *change == AgingStep::Remove));
            assert_eq!(of(AgingStep::Remove).len(), 4);
            assert_eq!(of(AgingStep::Remove), of(AgingStep::Create));
        }
        assert_eq!(all, recorded(7), "every arm does the same");
        let removed = |round: usize| -> Vec<u64> { all[round * 8..][..4].iter().map(|(_, f)| *f).collect() };
        assert!((1..ROUNDS).any(|round| removed(round) != removed(0)));
    }
}
