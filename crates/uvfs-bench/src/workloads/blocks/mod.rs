//! `blocks`: a block's number to its buffer, as the kernel's per-CPU lookaside is measured.
//!
//! The subject is the thread "fs/buffer.c: remove per-CPU buffer_head lookup cache" (linux-fsdevel, June 2023). It
//! looks the same `mod` blocks up again and again. A lookup takes 41 ns while they fit a list of 16, 138 ns from 17
//! blocks on, and 71 ns without a list.
//!
//! There are three variants. `find` looks whether the block is in memory. `copy` also reads the eight bytes that hold
//! its number, and keeps no reference. `pin` takes a reference before it reads and drops it afterwards. The place
//! of the next number depends on the result. The kernel's arms ([`kernel`]) take a reference in all three, as a kernel
//! does.

mod device;
mod kernel;
mod pattern;
mod radix;
mod tables;

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Arg, ArgMatches, value_parser};
use parking_lot::Mutex;
use serde_json::json;

use self::pattern::{Pattern, Sequence};
use crate::harness::schedule::Params;
use crate::harness::{Arm, Worker, WorkerSeat};
use crate::workloads::target::RunTarget;
use crate::workloads::{Maker, Prepare, Workload, options};

const ARMS: [&str; 8] = ["tree", "slow", "stock", "stock-8", "own-tree", "uvfs", "hashbrown", "papaya"];

/// How the block is held: the variants.
const HOLDS: [&str; 3] = ["find", "copy", "pin"];

/// A table of blocks.
pub(in crate::workloads) trait Table: Send + Sync + Sized {
    /// One thread's part.
    type Local<'t>: Local
    where
        Self: 't;

    /// Builds a table of these blocks, each of which contains its number.
    fn build(blocks: &Blocks) -> Result<Self>;

    /// The calling thread's part.
    fn local(&self) -> Self::Local<'_>;
}

/// One thread's part of a table.
pub(in crate::workloads) trait Local {
    /// A value that depends on where the block was found; `None`: it is not there.
    fn find(&mut self, block: u64) -> Option<u64>;

    /// The number stored in a block ([`place`]), read without a reference; `None`: it is not there.
    fn copy(&mut self, block: u64) -> Option<u64>;

    /// The same, with a reference taken before the read and dropped after it.
    fn pin(&mut self, block: u64) -> Option<u64>;

    /// Where blocks were found.
    fn tally(&self) -> Tally {
        Tally::default()
    }
}

/// How many blocks were found in which place, by name of the place, in order.
#[derive(Clone, Debug, Default)]
pub(in crate::workloads) struct Tally(Vec<(String, u64)>);

impl Tally {
    fn add(&mut self, other: Tally) {
        for (at, (name, n)) in other.0.into_iter().enumerate() {
            match self.0.get_mut(at) {
                Some(mine) => mine.1 += n,
                None => self.0.push((name, n)),
            }
        }
    }

    fn say(&self) -> Option<String> {
        let all: u64 = self.0.iter().map(|(_, n)| n).sum();
        let places = self.0.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ");
        (all != 0).then_some(places)
    }
}

/// The blocks in memory.
#[derive(Clone, Debug)]
pub(in crate::workloads) struct Blocks {
    /// Their numbers, each once.
    numbers: Vec<u64>,
    /// Bytes of each.
    size: usize,
    /// The size that lookups name. If it is another one, the kernel's list does not match.
    asked: usize,
}

/// The workload.
pub struct BlockLookups;

impl Workload for BlockLookups {
    fn name(&self) -> &'static str {
        "blocks"
    }

    fn about(&self) -> &'static str {
        "block number to buffer: the same few blocks, one a leaf, random, Zipf, in order, of the wrong size, a trace"
    }

    fn arms(&self) -> Vec<&'static str> {
        ARMS.to_vec()
    }

    fn args(&self) -> Vec<Arg> {
        let number = |name: &'static str, default: &'static str, help: &'static str| {
            Arg::new(name).long(name).value_name("N").default_value(default).help(help)
        };
        vec![
            Arg::new("patterns")
                .long("patterns")
                .value_name("P,..")
                .value_delimiter(',')
                .value_parser(pattern::NAMES)
                .help("Only these patterns [default: all; with --trace none]"),
            Arg::new("mods")
                .long("mods")
                .value_name("N,..")
                .value_delimiter(',')
                .value_parser(value_parser!(u64).range(1..=65_536))
                .default_value("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,32,64,256,4096")
                .help("Blocks of the patterns mod and leaf-mod; each number is a case"),
            number("blocks", "65536", "Blocks of the other patterns")
                .value_parser(value_parser!(u64).range(1..=1 << 24)),
            number("block-size", "512", "Bytes of a block, a power of two from 512 to 65536")
                .value_parser(value_parser!(u64).range(512..=65_536)),
            number("device", "4194304", "Blocks of the device: the trees are as high as that makes them")
                .value_parser(value_parser!(u64).range(1..=1 << 40)),
            Arg::new("trace")
                .long("trace")
                .value_name("FILE")
                .value_parser(value_parser!(std::path::PathBuf))
                .help("A recorded trace: a block number on each line, and perhaps its size in bytes"),
        ]
    }

    fn has_targets(&self) -> bool {
        false
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let one = |name| options::numbers(matches, name).map(|all| all[0]);
        let (blocks, device, size) = (one("blocks")?, one("device")?, one("block-size")? as usize);
        ensure!(size.is_power_of_two(), "--block-size {size}: a power of two from 512 to 65536 is valid");
        let trace = matches.get_one::<std::path::PathBuf>("trace");
        let wanted: Vec<&String> = matches.get_many("patterns").into_iter().flatten().collect();
        let asked =
            |name: &str| if wanted.is_empty() { trace.is_none() } else { wanted.iter().any(|w| *w == name) };
        let mods = options::numbers(matches, "mods")?;
        let mut cases: Vec<Prepare<'w>> = Vec::new();
        for pattern in pattern::all(&mods, blocks).into_iter().filter(|p| asked(p.name())) {
            let most = pattern.highest();
            ensure!(most < device, "--device {device}: {} needs {} blocks", pattern.name(), most + 1);
            cases.push(prepare(pattern, device, size));
        }
        if let Some(path) = trace {
            let (pattern, own) = pattern::read_trace(path)?;
            let (device, size) = (device.max(pattern.highest() + 1), own.unwrap_or(size));
            ensure!(
                size.is_power_of_two() && (512..=65_536).contains(&size),
                "{}: blocks of {size} bytes",
                path.display()
            );
            cases.push(prepare(pattern, device, size));
        }
        Ok(cases)
    }
}

fn prepare<'w>(pattern: Pattern, device: u64, size: usize) -> Prepare<'w> {
    let mut params = Params::from_iter([("pattern".to_owned(), json!(pattern.name()))]);
    if let Some(n) = pattern.modulus() {
        params.insert("mod".to_owned(), json!(n));
    }
    let variants = HOLDS.map(|hold| Params::from_iter([("hold".to_owned(), json!(hold))])).into();
    Prepare { params, variants, maker: Box::new(Tables { pattern, device, size }) }
}

struct Tables {
    pattern: Pattern,
    device: u64,
    size: usize,
}

impl Tables {
    fn of<T: Table + 'static>(&self, name: &'static str) -> Result<Box<dyn Arm>> {
        let sequence = self.pattern.sequence();
        let mut numbers: Vec<u64> = sequence.iter().copied().collect();
        // The last one: it says how high a tree is.
        numbers.push(self.device - 1);
        numbers.sort_unstable();
        numbers.dedup();
        let table = T::build(&Blocks { numbers, size: self.size, asked: self.pattern.asked(self.size) })?;
        Ok(Box::new(LookupArm { name, table, sequence, tallies: Mutex::default() }))
    }
}

impl Maker for Tables {
    fn arm(&self, name: &'static str, _threads: usize) -> Result<Box<dyn Arm>> {
        match name {
            "tree" => self.of::<tables::BlockTree>(name),
            "slow" => self.of::<kernel::Mapping>(name),
            "stock" => self.of::<kernel::WithList<16>>(name),
            "stock-8" => self.of::<kernel::WithList<8>>(name),
            "hashbrown" => self.of::<tables::Hashbrown>(name),
            "papaya" => self.of::<tables::Papaya>(name),
            "own-tree" => self.of::<device::Cached<true>>(name),
            "uvfs" => self.of::<device::Cached<false>>(name),
            other => bail!("{other:?} is no arm"),
        }
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        bail!("{target}: there are no system calls for a block in memory")
    }
}

struct LookupArm<T> {
    name: &'static str,
    table: T,
    sequence: Sequence,
    /// By variant.
    tallies: Mutex<[Tally; HOLDS.len()]>,
}

impl<T: Table> Arm for LookupArm<T> {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<()> {
        let mut local = self.table.local();
        for block in self.sequence.iter().take(100_000) {
            let found = [local.copy(*block), local.pin(*block)];
            ensure!(found == [Some(*block); 2] && local.find(*block).is_some(), "block {block}: {found:?}");
        }
        Ok(())
    }

    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let at = seat.index * self.sequence.len() / seat.of.max(1);
        // Zero; only the compiler may not know it.
        let mask = std::hint::black_box(0);
        Ok(Box::new(Looking { arm: self, local: Some(self.table.local()), at, mask, variant }))
    }

    fn remark(&self) -> Option<String> {
        let tallies = self.tallies.lock();
        let said: Vec<String> = HOLDS
            .iter()
            .zip(tallies.iter())
            .filter_map(|(hold, tally)| Some(format!("{hold}: {}", tally.say()?)))
            .collect();
        let pattern = self.sequence.name();
        (!said.is_empty()).then(|| format!("{pattern}: found in {}", said.join("; ")))
    }
}

struct Looking<'a, T: Table + 'a> {
    arm: &'a LookupArm<T>,
    local: Option<T::Local<'a>>,
    at: usize,
    mask: u64,
    variant: usize,
}

impl<'a, T: Table + 'a> Looking<'a, T> {
    /// `find` says what was found, and whether that is wrong.
    #[inline(always)]
    fn run(&mut self, ops: u64, find: impl Fn(&mut T::Local<'a>, u64) -> (u64, bool)) -> Result<()> {
        let local = self.local.as_mut().context("a worker that has ended")?;
        let sequence = &self.arm.sequence[..];
        let (mut at, mut wrong) = (self.at, false);
        for _ in 0..ops {
            let (found, bad) = find(local, sequence[at]);
            wrong |= bad;
            at = if at + 1 == sequence.len() { 0 } else { at + 1 };
            at += (found & self.mask) as usize;
        }
        self.at = at;
        ensure!(!wrong, "another block was found");
        Ok(())
    }
}

impl<'a, T: Table + 'a> Worker for Looking<'a, T> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        let number = |found: Option<u64>, block| (found.unwrap_or(0), found != Some(block));
        match HOLDS[self.variant] {
            "pin" => self.run(ops, |local, block| number(local.pin(block), block)),
            "copy" => self.run(ops, |local, block| number(local.copy(block), block)),
            _ => self.run(ops, |local, block| {
                let found = local.find(block);
                (found.unwrap_or(0), found.is_none())
            }),
        }
    }
}

impl<'a, T: Table + 'a> Drop for Looking<'a, T> {
    fn drop(&mut self) {
        if let Some(local) = self.local.take() {
            self.arm.tallies.lock()[self.variant].add(local.tally());
        }
    }
}

/// Offset of a block's number in the block. Neighbouring blocks use different cache lines; otherwise all blocks would
/// share a few sets of the processor's caches.
#[inline(always)]
fn place(number: u64, size: usize) -> usize {
    (number as usize * 64) & (size - 1)
}

/// The number stored in a block that was looked up by `number`.
#[inline(always)]
fn number(bytes: &[u8], of: u64) -> Option<u64> {
    let at = place(of, bytes.len());
    bytes.get(at..at + 8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// A block's content: its number at its offset, else zeroes.
fn contents(number: u64, size: usize) -> Vec<u8> {
    let (mut bytes, at) = (vec![0; size], place(number, size));
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A source that can read every block.
struct Numbers {
    size: usize,
}

impl uvfs_cache::machinery::buffers::BlockSource for Numbers {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<usize> {
        for (number, out) in (offset / self.size as u64..).zip(out.chunks_mut(self.size)) {
            out.copy_from_slice(&contents(number, self.size)[..out.len()]);
        }
        Ok(out.len())
    }
}

/// The numbers' source, shared.
fn source(size: usize) -> Arc<Numbers> {
    Arc::new(Numbers { size })
}
