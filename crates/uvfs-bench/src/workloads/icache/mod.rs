//! `icache`: inodes by number, as a file system, or a server that receives file handles, looks them up.
//!
//! Phases are variants of one case, whose arms are filled once with `--files` permanent inodes.
//!
//! - `stat`: reads an inode's attributes, by a number in random order.
//! - `get`: takes a reference and drops it.
//! - `make-end`: makes an inode under an unused number; it ends with its reference.
//! - `through`: makes an inode under an unused number and drops it; the models keep the last 1,024 unused ones in the LRU
//!   list, and their shrinker ends older ones.
//! - `enumerate`: visits all inodes, each held while its number is read, while another thread makes and ends inodes.
//!   An operation is one permanent inode.
//!
//! Preempted batches are dropped, except if only `enumerate` is chosen with as many threads as processors.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Arg, ArgMatches, ValueEnum};
use serde_json::json;
use uvfs_cache::Attr;

use crate::arms::inodes::kernel::KernelInodes;
use crate::arms::inodes::links::{Both, HashBl, HashHeads, Lists, RcuSearch, Stock};
use crate::arms::inodes::{FIRST, Inodes, attr_of, uvfs};
use crate::harness::schedule::Params;
use crate::harness::{Arm, Companion, Worker, WorkerSeat};
use crate::workloads::target::RunTarget;
use crate::workloads::{Maker, Prepare, Workload, options};

/// Inodes made and ended between two checks whether the turn is over.
const BURST: u64 = 256;
/// First number of the seats' own inodes; the ranges of two seats are this far apart.
const OWN: u64 = 1 << 40;

/// The phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
enum Phase {
    /// Attributes by number.
    Stat,
    /// Takes a reference by number and drops it at once.
    Get,
    /// Makes an inode under a new number; it ends at once.
    MakeEnd,
    /// Makes an inode and drops it; an old one ends in its place.
    Through,
    /// Visits all inodes, beside a thread that makes and ends others.
    Enumerate,
}

/// The workload.
pub struct Icache;

impl Workload for Icache {
    fn name(&self) -> &'static str {
        "icache"
    }

    fn about(&self) -> &'static str {
        "inodes by number: stat, get, make and end, enumerate; uvfs, and the kernel's hash and list in five forms"
    }

    fn arms(&self) -> Vec<&'static str> {
        vec!["null", "stock", "hash-bl", "lists", "both", "rcu", "uvfs"]
    }

    fn args(&self) -> Vec<Arg> {
        vec![
            options::files("100000").help("Inodes that stay; each number is a case"),
            options::phases::<Phase>(),
            options::heads(),
        ]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let (phases, heads) = (options::chosen::<Phase>(matches), options::chosen_heads(matches));
        let case = |files, heads| Prepare {
            params: Params::from_iter([
                ("files".to_owned(), json!(files)),
                ("heads".to_owned(), json!(heads)),
            ]),
            variants: phases.iter().map(|p| Params::from_iter([("phase".to_owned(), json!(p))])).collect(),
            maker: Box::new(Numbers { files, heads, phases: phases.clone() }),
        };
        let files = options::numbers(matches, "files")?;
        Ok(files.iter().flat_map(|files| heads.iter().map(|heads| case(*files, *heads))).collect())
    }

    fn companions(&self, matches: &ArgMatches) -> usize {
        usize::from(options::chosen::<Phase>(matches).iter().all(|phase| *phase == Phase::Enumerate))
    }

    fn has_targets(&self) -> bool {
        false
    }
}

struct Numbers {
    files: u64,
    heads: HashHeads,
    phases: Vec<Phase>,
}

impl Numbers {
    fn of<I: Inodes>(&self, name: &'static str, caches: usize) -> Result<Box<dyn Arm>> {
        let caches = (0..caches).map(|_| I::new(self.files, self.heads)).collect::<Result<_>>()?;
        let (files, phases) = (self.files, self.phases.clone());
        let (phase, next) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Box::new(Caches::<I> { name, caches, files, phases, phase, next }))
    }
}

impl Maker for Numbers {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        match name {
            // One for each thread, and one for the companion beside them.
            "null" => self.of::<uvfs::UvfsInodes>(name, threads + 1),
            "stock" => self.of::<KernelInodes<Stock>>(name, 1),
            "hash-bl" => self.of::<KernelInodes<HashBl>>(name, 1),
            "lists" => self.of::<KernelInodes<Lists>>(name, 1),
            "both" => self.of::<KernelInodes<Both>>(name, 1),
            "rcu" => self.of::<KernelInodes<RcuSearch>>(name, 1),
            "uvfs" => self.of::<uvfs::UvfsInodes>(name, 1),
            other => bail!("{other:?} is no arm"),
        }
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        bail!("{target}: there are no system calls that go by inode number")
    }
}

/// The arm: one cache for all, or one for each.
struct Caches<I> {
    name: &'static str,
    caches: Vec<I>,
    files: u64,
    phases: Vec<Phase>,
    /// The phase of the current turn.
    phase: AtomicU64,
    /// Counts workers, so that no two of them ever make inodes with the same numbers.
    next: AtomicU64,
}

impl<I> Caches<I> {
    fn cache_of(&self, seat: usize) -> &I {
        &self.caches[seat.min(self.caches.len() - 1)]
    }

    /// Numbers that no other worker uses.
    fn own_numbers(&self) -> u64 {
        OWN * (1 + self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn phase(&self, variant: usize) -> Result<Phase> {
        self.phases.get(variant).copied().context("no such phase")
    }
}

impl<I: Inodes> Arm for Caches<I> {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<()> {
        for cache in &self.caches {
            let mut attr = Attr::default();
            for ino in (FIRST..FIRST + self.files).step_by((self.files / 20_000).max(1) as usize) {
                ensure!(cache.stat(ino, &mut attr) && cache.get(ino), "inode {ino} is not found");
                ensure!(attr == attr_of(ino), "inode {ino} has attributes {attr:?}");
            }
            let new = FIRST + self.files;
            ensure!(!cache.stat(new, &mut attr) && !cache.get(new), "an inode that nobody made is found");
            ensure!(cache.make_and_end(FIRST).is_err() || cache.get(FIRST), "an inode that is held ended");
            cache.make_and_end(new)?;
            ensure!(!cache.get(new), "an inode that ended is found");
            let (mut seen, mut sum) = (0, 0u64);
            cache.each(&mut |ino| {
                seen += 1;
                sum += ino - FIRST;
            });
            let wanted = self.files * (self.files - 1) / 2;
            ensure!(
                seen == self.files && sum == wanted,
                "enumerating finds {seen} inodes, not {}",
                self.files
            );
            let (last, through) = (OWN - 1, 4096);
            (0..through).try_for_each(|n| cache.pass_through(last - n))?;
            ensure!(!cache.get(last), "an old unused inode is found");
        }
        Ok(())
    }

    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let (cache, files) = (self.cache_of(seat.index), self.files);
        let random = Random(0x9e37_79b9_7f4a_7c15 ^ (seat.index as u64 + 1) << 32);
        Ok(match self.phase(variant)? {
            Phase::Stat => Box::new(Stat { cache, files, random }),
            Phase::Get => Box::new(Get { cache, files, random }),
            Phase::MakeEnd => Box::new(MakeEnd { cache, next: self.own_numbers() }),
            Phase::Through => Box::new(Through { cache, next: self.own_numbers() }),
            Phase::Enumerate => Box::new(Enumerate { cache, files }),
        })
    }

    fn grain(&self, variant: usize) -> Option<u64> {
        (self.phase(variant).ok()? == Phase::Enumerate).then_some(self.files)
    }

    fn prepare(&self, variant: usize, _workers: usize) -> Result<()> {
        self.phase.store(variant as u64, Ordering::Relaxed);
        Ok(())
    }

    fn companion<'a>(&'a self) -> Result<Option<Box<dyn Companion + 'a>>> {
        if self.phase(self.phase.load(Ordering::Relaxed) as usize)? != Phase::Enumerate {
            return Ok(None);
        }
        let cache = self.cache_of(usize::MAX);
        Ok(Some(Box::new(Churn(MakeEnd { cache, next: self.own_numbers() }))))
    }
}

/// xorshift64*: the same for all arms, and a few instructions.
struct Random(u64);

impl Random {
    /// Below `n`.
    #[inline]
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (high * n) >> 32
    }
}

struct Stat<'a, I> {
    cache: &'a I,
    files: u64,
    random: Random,
}

impl<I: Inodes> Worker for Stat<'_, I> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        let mut attr = Attr::default();
        for _ in 0..ops {
            let ino = FIRST + self.random.below(self.files);
            ensure!(self.cache.stat(ino, &mut attr), "inode {ino} is not found");
            black_box(&attr);
        }
        Ok(())
    }
}

struct Get<'a, I> {
    cache: &'a I,
    files: u64,
    random: Random,
}

impl<I: Inodes> Worker for Get<'_, I> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        for _ in 0..ops {
            let ino = FIRST + self.random.below(self.files);
            ensure!(self.cache.get(ino), "inode {ino} is not found");
        }
        Ok(())
    }
}

struct MakeEnd<'a, I> {
    cache: &'a I,
    next: u64,
}

impl<I: Inodes> Worker for MakeEnd<'_, I> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        for _ in 0..ops {
            self.cache.make_and_end(self.next)?;
            self.next += 1;
        }
        Ok(())
    }
}

struct Through<'a, I> {
    cache: &'a I,
    next: u64,
}

impl<I: Inodes> Worker for Through<'_, I> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        for _ in 0..ops {
            self.cache.pass_through(self.next)?;
            self.next += 1;
        }
        Ok(())
    }
}

/// A batch is one pass.
struct Enumerate<'a, I> {
    cache: &'a I,
    files: u64,
}

impl<I: Inodes> Worker for Enumerate<'_, I> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        ensure!(ops == self.files, "a pass cannot be cut");
        let mut seen = 0;
        let range = FIRST..FIRST + self.files;
        self.cache.each(&mut |ino| seen += u64::from(range.contains(&ino)));
        ensure!(seen == self.files, "a pass sees {seen} of the {} inodes that stay", self.files);
        Ok(())
    }
}

struct Churn<'a, I>(MakeEnd<'a, I>);

impl<I: Inodes> Companion for Churn<'_, I> {
    fn step(&mut self) -> Result<()> {
        self.0.batch(BURST)
    }
}
