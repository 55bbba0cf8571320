//! `tree`: creates, walks and removes trees of files, as in the thread "vfs: inode cache conversion to hash-bl"
//! (linux-fsdevel, October 2023): 20 processes, each with a tree of 1,000 directories of 1,000 files.
//!
//! Phases are variants of one case. Each is a whole pass over all trees, which are dealt to the threads. [`inproc`]
//! makes the library's calls, [`calls`] makes system calls below a target. With `--memory` the only phase is `stream`:
//! the trees are walked through a cache that is too small ([`stream`]), with the models below it ([`cold`]). With
//! `--cold` a target's walk begins without the kernel's dentries and inodes. Operations are inodes. The processor time of an
//! inode is this process's.

pub mod calls;
pub mod cold;
pub mod inproc;
pub mod shape;
pub mod stall;
pub mod stream;

use anyhow::{Context as _, Result, ensure};
use clap::{Arg, ArgAction, ArgMatches, ValueEnum, value_parser};
use serde_json::{Value, json};

use crate::arms::inodes::links::HashHeads;
use crate::harness::Arm;
use crate::harness::schedule::{Case, Params, Series};
use crate::harness::spread::Spread;
use crate::workloads::target::RunTarget;
use crate::workloads::tree::shape::TreeShape;
use crate::workloads::{Maker, Prepare, Workload, options};

/// Least value of `--memory`.
const LEAST: u64 = 1 << 20;

/// Default of `--memory` with `--cold`.
const COLD: &str = "256M";

/// Help of `--aged`.
const AGED: &str = "Age the trees before find and unlink: in each of 10 rounds half of the files, chosen at random, are \
    removed in random order and created again in another. The seed is fixed, so all arms do the same operations in the \
    same order. The files and their names stay the same. Creating is not aged: it begins without any tree";

/// The phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TreePhase {
    /// Makes all directories and files.
    Create,
    /// Reads every directory and looks at each entry.
    Find,
    /// Removes everything.
    Unlink,
}

/// An arm's work on its trees.
#[derive(Clone, Debug)]
pub struct TreePlan {
    /// The measured phases, by variant.
    pub phases: Vec<TreePhase>,
    /// Whether trees are aged before they are walked or removed.
    pub aged: bool,
    /// Whether a target's walk begins with empty caches.
    pub cold: bool,
    /// Heads of the models' hash.
    pub heads: HashHeads,
}

impl TreePlan {
    /// Whether this phase needs aged trees.
    pub fn wants_aged(&self, phase: TreePhase) -> bool {
        self.aged && phase != TreePhase::Create
    }

    /// Whether aged trees exist after this phase.
    pub fn leaves_aged(&self, phase: TreePhase) -> bool {
        self.aged && phase == TreePhase::Find
    }

    /// The phase of a variant.
    ///
    /// # Errors
    /// If there is none.
    pub fn phase(&self, variant: usize) -> Result<TreePhase> {
        self.phases.get(variant).copied().context("no such phase")
    }
}

/// The workload.
pub struct Trees;

fn number(name: &'static str, default: &'static str, most: u64, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..=most))
        .default_value(default)
        .help(help)
}

fn bytes(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is no size; 256M is one, and 1M the least (K, M and G are powers of 1024)");
    let shift = match text.bytes().next_back() {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes >= LEAST).ok_or_else(wrong)
}

impl Workload for Trees {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn about(&self) -> &'static str {
        "trees created, walked with a stat of each file, and removed; uvfs, and the kernel's inode hash and list beside it"
    }

    fn arms(&self) -> Vec<&'static str> {
        vec!["null", "stock", "hash-bl", "lists", "both", "rcu", "uvfs"]
    }

    fn args(&self) -> Vec<Arg> {
        let memory = Arg::new("memory")
            .long("memory")
            .value_name("LIMIT")
            .value_parser(bytes)
            .default_value_if("cold", "true", COLD)
            .help("Walk generated trees through a cache limited to so many bytes (256M) instead");
        let cold = Arg::new("cold")
            .long("cold")
            .action(ArgAction::SetTrue)
            .help("The same with 256M unless --memory says another limit; a target drops the kernel's caches (as root)");
        vec![
            number("trees", "20", 10_000, "Trees, which are dealt to the threads"),
            number("dirs", "10", 1_000_000, "Directories of a tree"),
            number("files", "1000", 10_000_000, "Files of a directory"),
            options::phases::<TreePhase>().conflicts_with_all(["memory", "cold"]),
            options::aged().conflicts_with_all(["memory", "cold"]).long_help(AGED),
            options::heads(),
            memory,
            cold,
        ]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let number =
            |name: &str| matches.get_one::<u64>(name).copied().with_context(|| format!("--{name} is needed"));
        let shape = TreeShape { trees: number("trees")?, dirs: number("dirs")?, files: number("files")? };
        for kind in ["threads", "procs"] {
            let most = matches.get_many::<u64>(kind).into_iter().flatten().max().copied().unwrap_or(1);
            ensure!(
                most <= shape.trees,
                "{most} {kind} cannot be dealt {} trees: --trees must be {most} at least",
                shape.trees
            );
        }
        ensure!(shape.inodes() <= 1 << 28, "{} inodes are more than 2^28", shape.inodes());
        let limit = matches.get_one::<u64>("memory").copied();
        let mut params = Params::new();
        for (key, value) in [("trees", shape.trees), ("dirs", shape.dirs), ("files", shape.files)] {
            params.insert(key.to_owned(), json!(value));
        }
        limit.map(|limit| params.insert("memory".to_owned(), json!(limit)));
        let aged = options::is_aged(matches);
        if aged {
            params.insert("aged".to_owned(), json!(true));
        }
        let cold = matches.get_flag("cold");
        let phases = if cold { vec![TreePhase::Find] } else { options::chosen::<TreePhase>(matches) };
        let named = |phase| Params::from_iter([("phase".to_owned(), phase)]);
        let variants = match limit {
            Some(_) => vec![named(json!("stream"))],
            None => phases.iter().map(|phase| named(json!(phase))).collect(),
        };
        let case = |heads| {
            let plan = TreePlan { phases: phases.clone(), aged, cold, heads };
            let params = params.iter().map(|(key, value)| (key.clone(), value.clone()));
            let params = params.chain([("heads".to_owned(), json!(heads))]).collect();
            Prepare { params, variants: variants.clone(), maker: Box::new(Made { shape, plan, limit }) }
        };
        Ok(options::chosen_heads(matches).into_iter().map(case).collect())
    }

    /// A cold walk in seconds, as the thread gives it.
    fn remarks(&self, case: &Case, series: &[Series]) -> Vec<String> {
        let whole = |one: &&Series| {
            let phase = case.variants[one.variant].get("phase").and_then(Value::as_str);
            matches!(phase, Some("stream" | "find"))
        };
        let seconds = |one: &Series| {
            let Spread { median, min, max } = Spread::of(one.took.iter().copied())?;
            let (workers, arm) = (one.width, case.arms[one.arm].name());
            Some(format!("{arm}: the walk of {workers} takes {median:.2} s ({min:.2} to {max:.2})"))
        };
        series.iter().filter(whole).filter_map(seconds).collect()
    }
}

struct Made {
    shape: TreeShape,
    plan: TreePlan,
    limit: Option<u64>,
}

impl Maker for Made {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let own = if name == "null" { threads } else { 1 };
        match self.limit {
            Some(limit) => Ok(Box::new(stream::Stream::new(name, self.shape, limit, self.plan.heads, own)?)),
            None => Ok(Box::new(inproc::TreeInProcess::new(name, self.shape, self.plan.clone(), own)?)),
        }
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        ensure!(
            self.limit.is_none() || self.plan.cold,
            "{target}: --memory limits the cache of this process; its only target is inproc, unless with --cold"
        );
        Ok(Box::new(calls::TreeCalls::new(target, self.shape, self.plan.clone())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!((bytes("256M"), bytes("1048576"), bytes("2G")), (Ok(256 << 20), Ok(1 << 20), Ok(2 << 30)));
        for wrong in ["", "M", "1K", "-1M", "99999999999G", "1T"] {
            assert!(bytes(wrong).unwrap_err().contains("256M is one"), "{wrong}");
        }
    }
}
