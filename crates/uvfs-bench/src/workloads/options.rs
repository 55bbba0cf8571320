//! Options that several workloads share, and how they are read.

use anyhow::{Context as _, Result};
use clap::builder::EnumValueParser;
use clap::{Arg, ArgAction, ArgMatches, ValueEnum, value_parser};

use crate::arms::inodes::links::HashHeads;
use crate::names::key::NAME_MAX;
use crate::names::paths::DEPTH_MAX;

/// `--depth 1,6`.
pub fn depth(default: &'static str) -> Arg {
    Arg::new("depth")
        .long("depth")
        .value_name("N,..")
        .value_delimiter(',')
        .value_parser(value_parser!(u64).range(1..=DEPTH_MAX as u64))
        .default_value(default)
        .help("Names of a path; each number is a case")
}

/// `--name-bytes 18`.
pub fn name_bytes() -> Arg {
    Arg::new("name-bytes")
        .long("name-bytes")
        .value_name("N")
        .value_parser(value_parser!(u64).range(8..=NAME_MAX as u64))
        .help("Bytes of a file's name [default: 8]")
}

/// The value of [`name_bytes`], 0 if there is none.
pub fn bytes_of_names(matches: &ArgMatches) -> u64 {
    matches.try_get_one("name-bytes").ok().flatten().copied().unwrap_or(0)
}

/// `--files 1,10000`.
pub fn files(default: &'static str) -> Arg {
    Arg::new("files")
        .long("files")
        .value_name("N,..")
        .value_delimiter(',')
        .value_parser(value_parser!(u64).range(1..=100_000_000))
        .default_value(default)
        .help("Files of the tree; each number is a case")
}

/// The name of [`quick`].
pub const QUICK: &str = "quick";

/// `--quick`: other defaults for `--files`, `--seconds` and `--rounds`.
pub fn quick() -> Arg {
    Arg::new(QUICK)
        .long(QUICK)
        .action(ArgAction::SetTrue)
        .help("A run of a moment, to see whether it works: fewer files and rounds, short turns")
}

/// `--per-dir N`.
pub fn per_dir() -> Arg {
    Arg::new("per-dir")
        .long("per-dir")
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..))
        .help("Files of a directory [default: as many as make every level branch alike]")
}

/// The name of [`aged`].
const AGED: &str = "aged";

/// `--aged`.
pub fn aged() -> Arg {
    Arg::new(AGED).long(AGED).action(ArgAction::SetTrue).help(
        "Age every arm before it is measured: in each of 10 rounds half of the files, chosen at random, are removed in \
         random order and created again in another. The seed is fixed, so all arms do the same operations in the same \
         order. The files, their names and the visiting order stay the same",
    )
}

/// Whether [`aged`] was given.
pub fn is_aged(matches: &ArgMatches) -> bool {
    matches.try_get_one::<bool>(AGED).ok().flatten().copied().unwrap_or(false)
}

/// `--phases a,b`.
pub fn phases<T: ValueEnum + Clone + Send + Sync + 'static>() -> Arg {
    Arg::new("phases")
        .long("phases")
        .value_name("P,..")
        .value_delimiter(',')
        .value_parser(EnumValueParser::<T>::new())
        .help("What is done [default: all]")
}

/// The chosen phases.
pub fn chosen<T: ValueEnum + Clone + Send + Sync + 'static>(matches: &ArgMatches) -> Vec<T> {
    let all = || T::value_variants().to_vec();
    matches.get_many("phases").map_or_else(all, |some| some.cloned().collect())
}

/// `--heads fit,boot`.
pub fn heads() -> Arg {
    Arg::new("heads")
        .long("heads")
        .value_name("H,..")
        .value_delimiter(',')
        .value_parser(EnumValueParser::<HashHeads>::new())
        .default_value("fit")
        .help("Heads of the kernel's inode hash; each is a case")
}

/// The chosen heads.
pub fn chosen_heads(matches: &ArgMatches) -> Vec<HashHeads> {
    matches.get_many("heads").into_iter().flatten().copied().collect()
}

/// The numbers of an option.
///
/// # Errors
/// If the workload does not have the option.
pub fn numbers(matches: &ArgMatches, name: &str) -> Result<Vec<u64>> {
    let values = matches.try_get_many::<u64>(name)?.with_context(|| format!("--{name} is needed"))?;
    Ok(values.copied().collect())
}
