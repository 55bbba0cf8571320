//! `rename-dirs`: `stat` of files deep in a tree, while another thread renames and chmods directories near the root.
//!
//! Every path leads through a changed directory. The thread beside makes `--changes` changes a second: it goes over the
//! directories of the first two levels, and of four changes two are a rename away and back, and two set a mode and
//! set it back. Both modes let every user search. The rates are variants of one case, so that a round has a turn of
//! each rate and the ratio to rate 0 is formed within a round.
//!
//! A file is absent while one of its directories has the other name. That answer is right and counts as an
//! operation; the notes say how often it was given.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Arg, ArgMatches, value_parser};
use parking_lot::Mutex;
use serde_json::json;
use uvfs_cache::Attr;

use crate::arms::{Local, Movable, prefix, uvfs};
use crate::harness::schedule::{Case, Params, Series};
use crate::harness::spread::Spread;
use crate::harness::{Arm, Companion, Worker, WorkerSeat};
use crate::names::NameTable;
use crate::names::namei::Failure;
use crate::names::tree::{LazyTree, NameTree, ROOT, Shape};
use crate::workloads::lookups::{LookupArm, Setup, TRIES, USER, WholeStat};
use crate::workloads::target::RunTarget;
use crate::workloads::visit::{Cursor, SERIALIZED, Which};
use crate::workloads::{Maker, Prepare, Workload, options};

/// Variants of a rate: independent and serialized.
const ORDERS: usize = 2;
/// Levels of directories that are changed.
const LEVELS: usize = 2;
/// The mode bit that is taken away for a moment. Searching does not need it.
const READ_OF_OTHERS: u32 = 0o004;
/// Longest sleep of the thread beside, so that it sees the end of a turn.
const NAP: Duration = Duration::from_millis(1);

/// The workload.
pub struct RenameDirs;

impl Workload for RenameDirs {
    fn name(&self) -> &'static str {
        "rename-dirs"
    }

    fn about(&self) -> &'static str {
        "stat(path) of all files of a tree, while directories near its root are renamed and chmodded"
    }

    fn notes(&self) -> &'static str {
        "Here uvfs is the cache under the namei of the other tables, without its prefix cache. The maps take no part: \
         they have no step that moves a key, so a directory would be absent for a moment, or have two names. papaya is \
         left out for this reason."
    }

    fn arms(&self) -> Vec<&'static str> {
        vec!["uvfs", "uvfs-prefix"]
    }

    fn args(&self) -> Vec<Arg> {
        let changes = Arg::new("changes")
            .long("changes")
            .value_name("RATE,..")
            .value_delimiter(',')
            .value_parser(value_parser!(u64).range(0..=100_000))
            .default_value("0,10,1000")
            .help(
                "Directories renamed or chmodded a second by a thread beside, paced by a clock; the notes have the rates \
                 that were reached, and the time a stat over that at rate 0",
            );
        vec![options::depth("6"), options::files("10000"), options::per_dir(), changes]
    }

    fn has_targets(&self) -> bool {
        false
    }

    fn companions(&self, _matches: &ArgMatches) -> usize {
        1
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let rates = options::numbers(matches, "changes")?;
        let per_dir = matches.get_one::<u64>("per-dir").copied();
        let mut cases = Vec::new();
        for files in options::numbers(matches, "files")? {
            for depth in options::numbers(matches, "depth")? {
                ensure!(depth > 1, "--depth {depth}: a path of one name leads through no directory");
                let params = Params::from_iter([
                    ("files".to_owned(), json!(files)),
                    ("depth".to_owned(), json!(depth)),
                ]);
                let depth = depth as usize;
                let shape =
                    Shape { files, depth, per_dir, own: false, negative: false, name_bytes: 0, seed: 1 };
                let maker = Box::new(Made { tree: LazyTree::new(shape), rates: rates.clone() });
                cases.push(Prepare { params, variants: variants(&rates), maker });
            }
        }
        Ok(cases)
    }

    fn remarks(&self, case: &Case, series: &[Series]) -> Vec<String> {
        series.iter().filter_map(|disturbed| over_rate_0(case, series, disturbed)).collect()
    }
}

/// Each rate, independent and serialized.
fn variants(rates: &[u64]) -> Vec<Params> {
    let orders = crate::workloads::visit::variants();
    let with = |rate: &u64| {
        let rate = json!(rate);
        orders.iter().cloned().map(move |mut order| {
            order.insert("changes".to_owned(), rate.clone());
            order
        })
    };
    rates.iter().flat_map(with).collect()
}

/// The time of a stat over that at rate 0, from the rounds of one arm.
fn over_rate_0(case: &Case, series: &[Series], disturbed: &Series) -> Option<String> {
    let says =
        |of: &Series, key: &str| case.variants.get(of.variant).and_then(|params| params.get(key)).cloned();
    let rate = says(disturbed, "changes").filter(|rate| *rate != json!(0))?;
    let order = says(disturbed, "order")?;
    let alike = |other: &&Series| {
        (other.arm, other.width) == (disturbed.arm, disturbed.width)
            && says(other, "order").as_ref() == Some(&order)
            && says(other, "changes") == Some(json!(0))
    };
    let calm = series.iter().find(alike)?;
    // Rates are throughputs, so the quotient of times is the other way round.
    let ratio = Spread::of_ratios(&calm.rates, &disturbed.rates)?;
    let of = |key| case.params.get(key).map(ToString::to_string).unwrap_or_default();
    Some(format!(
        "{}, {} files, depth {}, {} threads, {}: with {rate} changes a second a stat takes {:.2} of its time without \
         ({:.2} to {:.2})",
        case.arms.get(disturbed.arm)?.name(),
        of("files"),
        of("depth"),
        disturbed.width.workers(),
        order.as_str().unwrap_or_default(),
        ratio.median,
        ratio.min,
        ratio.max
    ))
}

struct Made {
    tree: LazyTree,
    rates: Vec<u64>,
}

impl Maker for Made {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let setup = Setup { tree: self.tree.get()?, which: Which::All, threads, aged: false };
        Ok(match name {
            "uvfs" => Box::new(Disturbed::<uvfs::Uvfs>::new(name, &setup, &self.rates)?),
            "uvfs-prefix" => Box::new(Disturbed::<prefix::Prefixes>::new(name, &setup, &self.rates)?),
            other => bail!("{other:?} cannot rename a directory in one step"),
        })
    }

    fn target(&self, _target: &RunTarget) -> Result<Box<dyn Arm>> {
        bail!("rename-dirs has no system calls")
    }
}

/// A directory that is changed.
struct Victim {
    parent: u64,
    ino: u64,
    mode: u32,
    name: Vec<u8>,
    /// The name that it has for a moment; no file has it.
    other: Vec<u8>,
}

/// The directories of the first levels.
fn victims(tree: &NameTree) -> Vec<Victim> {
    let mut levels = std::collections::HashMap::from([(ROOT, 0)]);
    let mut all = Vec::new();
    for entry in tree.entries.iter().filter(|entry| entry.attr.is_dir()) {
        let level = levels.get(&entry.parent).map_or(LEVELS, |above| above + 1);
        levels.insert(entry.attr.ino, level);
        if level <= LEVELS {
            let other = [&entry.name[..], b"~"].concat();
            let (ino, mode) = (entry.attr.ino, entry.attr.mode);
            all.push(Victim { parent: entry.parent, ino, mode, name: entry.name.clone(), other });
        }
    }
    all
}

/// The changes that the writing thread made at one rate.
#[derive(Clone, Copy, Default)]
struct Paced {
    time: Duration,
    done: u64,
}

/// An arm whose directories change.
struct Disturbed<T> {
    lookups: LookupArm<T, WholeStat>,
    tree: Arc<NameTree>,
    victims: Vec<Victim>,
    rates: Vec<u64>,
    /// Index of this turn's rate.
    rate: AtomicUsize,
    paced: Mutex<Vec<Paced>>,
    absent: AtomicU64,
    stats: AtomicU64,
}

impl<T: Movable + 'static> Disturbed<T> {
    fn new(name: &'static str, setup: &Setup, rates: &[u64]) -> Result<Self> {
        let victims = victims(&setup.tree);
        ensure!(!victims.is_empty(), "the tree has no directory to rename");
        Ok(Self {
            lookups: LookupArm::new(name, setup)?,
            tree: setup.tree.clone(),
            victims,
            rates: rates.to_vec(),
            rate: AtomicUsize::new(0),
            paced: Mutex::new(vec![Paced::default(); rates.len()]),
            absent: AtomicU64::new(0),
            stats: AtomicU64::new(0),
        })
    }

    /// Makes the changes whose number among all changes of this rate is `number`, and returns how many those are.
    fn change(&self, number: u64) -> Result<u64> {
        let table = self.lookups.table();
        let victim = &self.victims[(number / 4) as usize % self.victims.len()];
        match number % 4 {
            2 => table.chmod(victim.ino, victim.mode ^ READ_OF_OTHERS).map(|()| 1),
            3 => table.chmod(victim.ino, victim.mode).map(|()| 1),
            _ => {
                table.rename(victim.parent, &victim.name, &victim.other)?;
                table.rename(victim.parent, &victim.other, &victim.name).map(|()| 2)
            }
        }
    }
}

impl<T: Movable + 'static> Arm for Disturbed<T> {
    fn name(&self) -> &str {
        self.lookups.name()
    }

    fn check(&self) -> Result<()> {
        self.lookups.check()
    }

    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let rate = *self.rates.get(variant / ORDERS).context("no such variant")?;
        Ok(Box::new(Looking {
            arm: self,
            local: self.lookups.table().local(seat.index),
            cursor: Cursor::new(Which::All, self.tree.paths.len(), seat),
            disturbed: rate != 0,
            serialized: variant % ORDERS == SERIALIZED,
        }))
    }

    fn companion<'a>(&'a self) -> Result<Option<Box<dyn Companion + 'a>>> {
        let index = self.rate.load(Ordering::Relaxed);
        let rate = *self.rates.get(index).context("no such rate")?;
        if rate == 0 {
            return Ok(None);
        }
        let so_far = self.paced.lock()[index];
        Ok(Some(Box::new(Changing { arm: self, index, rate, so_far, began: Instant::now() })))
    }

    fn prepare(&self, variant: usize, _workers: usize) -> Result<()> {
        self.rate.store(variant / ORDERS, Ordering::Relaxed);
        Ok(())
    }

    fn remark(&self) -> Option<String> {
        let reached = |(rate, paced): (&u64, &Paced)| {
            let rate = Some(*rate).filter(|rate| *rate != 0)?;
            Some(format!("{:.1} of {rate}", paced.done as f64 / paced.time.as_secs_f64()))
        };
        let reached: Vec<_> = self.rates.iter().zip(&*self.paced.lock()).filter_map(reached).collect();
        let (files, absent) = (self.tree.paths.len(), self.absent.load(Ordering::Relaxed));
        let stats = self.stats.load(Ordering::Relaxed);
        (!reached.is_empty()).then(|| {
            let reached = reached.join(", ");
            format!("{files} files: {reached} changes a second were made; {absent} of {stats} stats beside them found a file absent")
        })
    }
}

/// The thread beside.
struct Changing<'a, T: Movable + 'static> {
    arm: &'a Disturbed<T>,
    index: usize,
    rate: u64,
    so_far: Paced,
    began: Instant,
}

impl<T: Movable + 'static> Companion for Changing<'_, T> {
    /// Makes the next change if it is due. If the thread is late, it makes changes until it has caught up. A turn goes on
    /// where the last turn of this rate ended, so that low rates are kept over short turns.
    fn step(&mut self) -> Result<()> {
        let now = (self.so_far.time + self.began.elapsed()).as_secs_f64();
        let due = (self.so_far.done as f64 + 0.5) / self.rate as f64;
        if now < due {
            std::thread::sleep(Duration::from_secs_f64(due - now).min(NAP));
            return Ok(());
        }
        self.so_far.done += self.arm.change(self.so_far.done)?;
        Ok(())
    }
}

impl<T: Movable + 'static> Drop for Changing<'_, T> {
    fn drop(&mut self) {
        self.so_far.time += self.began.elapsed();
        if let Some(paced) = self.arm.paced.lock().get_mut(self.index) {
            *paced = self.so_far;
        }
    }
}

struct Looking<'a, T: Movable + 'static> {
    arm: &'a Disturbed<T>,
    local: T::Local<'a>,
    cursor: Cursor,
    disturbed: bool,
    serialized: bool,
}

impl<T: Movable + 'static> Looking<'_, T> {
    fn run<const SERIAL: bool>(&mut self, ops: u64) -> Result<()> {
        let (mut attr, mut cursor, mut absent) = (Attr::default(), self.cursor, 0);
        for _ in 0..ops {
            let path = self.arm.tree.paths.get(cursor.index()).whole;
            let got = self.local.pin().stat(USER, path, &mut attr);
            if got.is_err() {
                absent += self.unusual(got, path, &mut attr)?;
            }
            black_box(&mut attr);
            if SERIAL { cursor.next_after(attr.ino) } else { cursor.next() }
        }
        self.cursor = cursor;
        if self.disturbed {
            self.arm.stats.fetch_add(ops, Ordering::Relaxed);
            self.arm.absent.fetch_add(absent, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Repeats a stat during which something moved. Returns 1 if the file is absent, because
    /// one of its directories has the other name.
    #[cold]
    fn unusual(&self, got: Result<(), Failure>, path: &[u8], attr: &mut Attr) -> Result<u64> {
        let mut got = got;
        for _ in 0..TRIES {
            match got {
                Ok(()) => return Ok(0),
                Err(Failure::Absent) if self.disturbed => return Ok(1),
                Err(Failure::Moved) => got = self.local.pin().stat(USER, path, attr),
                Err(failure) => bail!("{}: {failure:?}", String::from_utf8_lossy(path)),
            }
        }
        bail!("{}: changed {TRIES} times while it was looked up", String::from_utf8_lossy(path))
    }
}

impl<T: Movable + 'static> Worker for Looking<'_, T> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        if self.serialized { self.run::<true>(ops) } else { self.run::<false>(ops) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arms::Table as _;

    fn arm<T: Movable + 'static>() -> Disturbed<T> {
        let shape =
            Shape { files: 50, depth: 4, per_dir: None, own: false, negative: false, name_bytes: 0, seed: 1 };
        let tree = Arc::new(NameTree::new(shape).unwrap());
        let setup = Setup { tree, which: Which::All, threads: 1, aged: false };
        Disturbed::new("uvfs", &setup, &[0, 1000]).unwrap()
    }

    fn changes_leave_the_tree_as_it_was<T: Movable + 'static>() {
        let arm = arm::<T>();
        assert!(arm.victims.iter().any(|v| v.parent == ROOT) && arm.victims.iter().any(|v| v.parent != ROOT));
        let mut done = 0;
        while done < arm.victims.len() as u64 * 4 {
            done += arm.change(done).unwrap();
            // A changed mode still lets the user search.
            arm.check().unwrap();
        }
        assert_eq!(done, arm.victims.len() as u64 * 4);
    }

    #[test]
    fn every_path_is_found_after_each_change() {
        changes_leave_the_tree_as_it_was::<uvfs::Uvfs>();
        changes_leave_the_tree_as_it_was::<prefix::Prefixes>();
    }

    #[test]
    fn a_renamed_directory_is_absent_by_its_old_name() {
        let arm = arm::<prefix::Prefixes>();
        arm.check().unwrap();
        let table = arm.lookups.table();
        let stat = |path: &[u8]| table.local(0).pin().stat(USER, path, &mut Attr::default());
        let path = arm.tree.paths.get(0).whole;
        let above = |v: &&Victim| v.parent == ROOT && path[1..].starts_with(&v.name);
        let top = arm.victims.iter().find(above).unwrap();
        // Twice, so that the prefix cache has the path.
        assert_eq!((stat(path), stat(path), stat(path)), (Ok(()), Ok(()), Ok(())));
        table.rename(top.parent, &top.name, &top.other).unwrap();
        assert_eq!(stat(path), Err(Failure::Absent));
        table.rename(top.parent, &top.other, &top.name).unwrap();
        table.chmod(top.ino, top.mode & !0o111).unwrap();
        assert_eq!(stat(path), Err(Failure::Denied));
        table.chmod(top.ino, top.mode).unwrap();
        assert_eq!(stat(path), Ok(()));
    }

    #[test]
    fn the_thread_beside_keeps_its_rate_over_turns() {
        let arm = arm::<uvfs::Uvfs>();
        arm.prepare(ORDERS, 1).unwrap();
        let mut steps = 0;
        for _ in 0..4 {
            let mut beside = arm.companion().unwrap().unwrap();
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(10) {
                beside.step().unwrap();
                steps += 1;
            }
        }
        let paced = arm.paced.lock()[1];
        // Never ahead of its clock by more than the pair of renames that was due last.
        assert!(
            paced.done as f64 <= paced.time.as_secs_f64() * 1000.0 + 2.0,
            "{} in {:?}",
            paced.done,
            paced.time
        );
        assert!(paced.done > 0 && steps > 0 && arm.remark().unwrap().contains("of 1000"));
        arm.prepare(0, 1).unwrap();
        assert!(arm.companion().unwrap().is_none());
    }
}
