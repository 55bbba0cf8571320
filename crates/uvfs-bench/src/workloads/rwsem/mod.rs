//! `rwsem`: the cost of reader-writer locks to their readers and writers.
//!
//! A phase is a case. In `read` all measured threads read. In the others the measured threads write, alone
//! (`write-idle`) or beside readers that only read ([`crew`]). Each write is timed by itself ([`book`]),
//! because the subject is the latency of a single write. The notes give medians, 99th percentiles, and their ratios to
//! the bare heavy barrier of the same round. Between two writes, or two bursts, there is an unmeasured
//! pause: long enough for readers to forget the last one. Preemption is part of the subject, so
//! no batch is dropped for it.

mod book;
mod crew;
mod locks;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Arg, ArgMatches};
use serde_json::json;

use self::book::TurnBook;
use self::crew::Crew;
use self::locks::Lock;
use crate::harness::schedule::Params;
use crate::harness::{Arm, Companion, Worker, WorkerSeat};
use crate::workloads::target::RunTarget;
use crate::workloads::{Maker, Prepare, Workload};

/// Sections of a batch of readers.
const READS: u64 = 4096;
/// Writes of a burst.
const BURST: u64 = 1000;
/// Pause between writes. Readers run some hundreds of sections meanwhile and forget the last write.
const PAUSE: Duration = Duration::from_micros(50);

/// The kind of section, and the number of readers beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phase {
    name: &'static str,
    reads: bool,
    /// Writes between two pauses.
    writes: u64,
    readers: usize,
}

const PHASES: [Phase; 5] = [
    Phase { name: "read", reads: true, writes: 0, readers: 0 },
    Phase { name: "write-idle", reads: false, writes: 1, readers: 0 },
    Phase { name: "write-one", reads: false, writes: 1, readers: 1 },
    Phase { name: "write-eight", reads: false, writes: 1, readers: 8 },
    Phase { name: "burst", reads: false, writes: BURST, readers: 1 },
];

/// The workload.
pub struct Rwsem;

impl Workload for Rwsem {
    fn name(&self) -> &'static str {
        "rwsem"
    }

    fn about(&self) -> &'static str {
        "sections of a reader-writer lock: reading, and writing alone and beside readers"
    }

    fn arms(&self) -> Vec<&'static str> {
        locks::NAMES.to_vec()
    }

    fn args(&self) -> Vec<Arg> {
        let phases = Arg::new("phases")
            .long("phases")
            .value_name("P,..")
            .value_delimiter(',')
            .value_parser(PHASES.map(|phase| phase.name))
            .help("Only these phases [default: all]");
        vec![phases]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let wanted: Vec<&String> = matches.get_many("phases").into_iter().flatten().collect();
        let asked = |phase: &Phase| wanted.is_empty() || wanted.iter().any(|name| *name == phase.name);
        let case = |phase: usize| Prepare {
            params: Params::from_iter([("phase".to_owned(), json!(PHASES[phase].name))]),
            variants: vec![Params::new()],
            maker: Box::new(Locks { phase: PHASES[phase], book: Arc::default() }),
        };
        Ok((0..PHASES.len()).filter(|i| asked(&PHASES[*i])).map(case).collect())
    }

    fn preemption_is_the_subject(&self) -> bool {
        true
    }

    fn has_targets(&self) -> bool {
        false
    }
}

struct Locks {
    phase: Phase,
    book: Arc<TurnBook>,
}

impl Locks {
    fn of<L: Lock>(&self, name: &'static str) -> Result<Box<dyn Arm>> {
        let lock = Arc::new(L::new()?);
        Ok(Box::new(Sections { name, phase: self.phase, lock, book: self.book.clone() }))
    }
}

impl Maker for Locks {
    fn arm(&self, name: &'static str, _threads: usize) -> Result<Box<dyn Arm>> {
        match name {
            "null" => self.of::<locks::NullLock>(name),
            "membarrier" => self.of::<locks::Membarrier>(name),
            "std-rwlock" => self.of::<locks::StdLock>(name),
            "uvfs-unbatched" => self.of::<locks::Unbatched>(name),
            "uvfs" => self.of::<uvfs_sync::percpu_rwsem::PerCpuRwSem<u64>>(name),
            other => bail!("{other:?} is no arm"),
        }
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        bail!("{target}: there are no system calls for sections")
    }
}

struct Sections<L> {
    name: &'static str,
    phase: Phase,
    lock: Arc<L>,
    book: Arc<TurnBook>,
}

impl<L: Lock> Arm for Sections<L> {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<()> {
        if L::EXCLUDES {
            locks::check(&*self.lock)?;
        }
        Ok(())
    }

    fn worker<'a>(&'a self, _variant: usize, _seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        Ok(if self.phase.reads {
            Box::new(Reading(&*self.lock))
        } else {
            Box::new(Writing { arm: self, samples: Vec::new() })
        })
    }

    fn companion<'a>(&'a self) -> Result<Option<Box<dyn Companion + 'a>>> {
        if self.phase.readers == 0 {
            return Ok(None);
        }
        Ok(Some(Box::new(Crew::start(&self.lock, self.phase.readers)?)))
    }

    fn grain(&self, _variant: usize) -> Option<u64> {
        Some(if self.phase.reads { READS } else { self.phase.writes })
    }

    fn prepare(&self, _variant: usize, workers: usize) -> Result<()> {
        self.book.begin(self.name, workers);
        Ok(())
    }

    /// This process runs the sections itself.
    fn server_cpu(&self) -> Option<Duration> {
        self.phase.reads.then(locks::processor_time).flatten()
    }

    fn remark(&self) -> Option<String> {
        let said = [self.book.remark(self.name, self.phase.name), self.lock.remark()];
        let said: Vec<String> = said.into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join("; "))
    }
}

struct Reading<'a, L>(&'a L);

impl<L: Lock> Worker for Reading<'_, L> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        for _ in 0..ops {
            black_box(self.0.read());
        }
        Ok(())
    }
}

struct Writing<'a, L> {
    arm: &'a Sections<L>,
    /// Nanoseconds of each write, or of each burst over its writes.
    samples: Vec<f64>,
}

impl<L: Lock> Worker for Writing<'_, L> {
    fn between(&mut self) {
        let began = Instant::now();
        while began.elapsed() < PAUSE {
            std::hint::spin_loop();
        }
    }

    fn batch(&mut self, ops: u64) -> Result<()> {
        let began = Instant::now();
        for _ in 0..ops {
            self.arm.lock.write();
        }
        self.samples.push(began.elapsed().as_nanos() as f64 / ops.max(1) as f64);
        Ok(())
    }
}

impl<L> Drop for Writing<'_, L> {
    fn drop(&mut self) {
        self.arm.book.enter(std::mem::take(&mut self.samples));
    }
}
