//! `--memory`: walks all trees through a cache that is too small for them.
//!
//! The generated driver computes its answers, so the cache is what takes time. A turn looks each inode up once, and the
//! inode has been evicted when its turn comes again. Between two directories, outside the measured time,
//! each thread looks those files of the last one up again that are still cached. It times these hits
//! ([`stall`](super::stall)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use uvfs::{Attr, Context, Cred, DirEntry, InodeId, Vfs, VfsConfig};
use uvfs_cache::Peek;
use uvfs_drivers::generated::{Generated, ROOT_INO, Spec};

use crate::arms::inodes::links::HashHeads;
use crate::harness::{Arm, Worker, WorkerSeat, usage};
use crate::workloads::tree::cold::ColdDriver;
use crate::workloads::tree::shape::{TreeShape, Unit, Units};
use crate::workloads::tree::stall::{Meter, StallBook};

/// Length of the names.
const NAME: u8 = 12;
/// Committed memory is read once in this many entries.
const LOOK: u64 = 64;
/// Files of a directory that are looked up again.
const AGAIN: usize = 64;

/// The arm.
pub struct Stream {
    name: &'static str,
    shape: TreeShape,
    limit: u64,
    /// One cache for all, or one for each thread with its part of the limit.
    vfss: Vec<(Arc<Vfs>, Arc<ColdDriver>)>,
    stalls: StallBook,
    /// The most bytes that a cache had committed, read at each [`LOOK`]th entry.
    most: AtomicU64,
}

impl Stream {
    /// With an empty cache.
    ///
    /// # Errors
    /// If the trees are impossible, or there is no address space.
    pub fn new(
        name: &'static str,
        shape: TreeShape,
        limit: u64,
        heads: HashHeads,
        own: usize,
    ) -> Result<Self> {
        let limit = limit / own as u64;
        let mounted = |_| {
            let dirs = shape.trees * shape.dirs;
            let spec = Spec { depth: 1, dirs, files: shape.files, name: (NAME, NAME), ..Spec::default() };
            let tree = Arc::new(Generated::new(spec)?);
            let driver = Arc::new(ColdDriver::new(name, tree, shape.inodes(), limit, heads)?);
            let mut config = VfsConfig::default();
            config.cache.memory_limit = limit;
            Ok((Vfs::new(config, driver.clone())?, driver))
        };
        let vfss = (0..own).map(mounted).collect::<Result<_>>()?;
        Ok(Self { name, shape, limit, vfss, stalls: StallBook::default(), most: AtomicU64::new(0) })
    }

    fn streaming(&self, shape: TreeShape, seat: WorkerSeat) -> Streaming<'_> {
        let (vfs, driver) = &self.vfss[seat.index.min(self.vfss.len() - 1)];
        let context = vfs.context(Cred::root());
        Streaming {
            arm: self,
            shape,
            units: shape.dealt(seat),
            context,
            driver,
            again: Again::default(),
            meter: Meter::of_this_thread(),
        }
    }
}

impl Arm for Stream {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<()> {
        for index in 0..self.vfss.len() {
            let shape = TreeShape { trees: 1 + index as u64, dirs: 1, ..self.shape };
            let mut streaming = self.streaming(shape, WorkerSeat { index, of: index + 1 });
            streaming.batch(shape.per_dir())?;
            streaming.between();
        }
        Ok(())
    }

    fn worker<'a>(&'a self, _variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        Ok(Box::new(self.streaming(self.shape, seat)))
    }

    fn grain(&self, _variant: usize) -> Option<u64> {
        Some(self.shape.per_dir())
    }

    /// This process's time: there is no server.
    fn server_cpu(&self) -> Option<Duration> {
        usage::processor_time()
    }

    fn remark(&self) -> Option<String> {
        const MIB: f64 = (1u64 << 20) as f64;
        let most = self.most.load(Ordering::Relaxed) as f64 / MIB;
        let said = format!("at most {most:.1} MiB committed, of {:.1}", self.limit as f64 / MIB);
        let passed = self.vfss[0].1.passed();
        let passed = passed.map(|[made, ended]| format!("the model made {made} inodes and ended {ended}"));
        Some([self.stalls.remark(), Some(said), passed].into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

/// The last files of a directory, and the directory.
#[derive(Default)]
struct Again {
    dir: Option<InodeId>,
    names: Vec<[u8; NAME as usize]>,
    next: usize,
}

impl Again {
    fn begin(&mut self, dir: InodeId) {
        self.dir = Some(dir);
        self.names.clear();
        self.next = 0;
    }

    fn note(&mut self, name: &[u8]) {
        let Ok(name) = name.try_into() else { return };
        if self.names.len() < AGAIN {
            self.names.push(name);
        } else {
            self.names[self.next] = name;
            self.next = (self.next + 1) % AGAIN;
        }
    }
}

/// One thread. A batch is a directory.
struct Streaming<'a> {
    arm: &'a Stream,
    shape: TreeShape,
    units: Units,
    context: Context<'a>,
    driver: &'a ColdDriver,
    again: Again,
    meter: Meter,
}

impl Streaming<'_> {
    fn walk(&mut self, unit: Unit) -> Result<()> {
        let number = unit.tree * self.shape.dirs + unit.dir;
        let name = self
            .driver
            .tree()
            .tree()
            .name(ROOT_INO, number)
            .context("the generated tree has too few directories")?;
        self.context.chdir(&[&b"/"[..], &name].concat())?;
        let (arm, context, mut attr) = (self.arm, &self.context, Attr::default());
        context.lstat_into(b".", &mut attr)?;
        let here = context.resolve(b".")?;
        let again = &mut self.again;
        again.begin(here.id());
        let (mut found, mut wrong) = (0, None);
        let vfs = context.vfs();
        vfs.readdir(&vfs.op(context.cred()), &here, 0, &mut |entry: DirEntry<'_>| {
            found += 1;
            if found % LOOK == 0 {
                arm.most.fetch_max(vfs.cache().committed(), Ordering::Relaxed);
            }
            match context.lstat_into(entry.name, &mut attr) {
                Ok(()) if attr.ino == entry.ino && attr.is_reg() => again.note(entry.name),
                Ok(()) => wrong = Some(String::from("another inode than was listed")),
                Err(errno) => wrong = Some(errno.to_string()),
            }
            wrong.is_none()
        })?;
        if let Some(wrong) = wrong {
            bail!("an entry that was listed cannot be looked at: {wrong}");
        }
        ensure!(found == self.shape.files, "{found} entries are listed, not {}", self.shape.files);
        Ok(())
    }

    /// Looks the last files up again. Returns the number of hits and the longest time.
    fn hits(context: &Context<'_>, dir: InodeId, names: &[[u8; NAME as usize]]) -> (u64, Duration) {
        let cache = context.vfs().cache();
        let (mut hits, mut longest, mut attr) = (0, Duration::ZERO, Attr::default());
        for name in names {
            let Peek::Hit(id, _) = cache.peek(dir, name) else { continue };
            let began = Instant::now();
            let found = context.lstat_into(name, &mut attr).is_ok();
            let took = began.elapsed();
            // The name was cached before and after, in the same generation, so this was a hit.
            if found && matches!(cache.peek(dir, name), Peek::Hit(again, _) if again == id) {
                hits += 1;
                longest = longest.max(took);
            }
        }
        (hits, longest)
    }
}

impl Worker for Streaming<'_> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        ensure!(ops == self.shape.per_dir(), "a directory cannot be cut");
        let unit = self.units.next().context("no directory is left")?;
        self.walk(unit)
    }

    fn between(&mut self) {
        if let Some(dir) = self.again.dir {
            let (context, names) = (&self.context, &self.again.names);
            self.meter.window(|| Self::hits(context, dir, names));
        }
    }

    fn finished(&self) -> Option<bool> {
        Some(self.units.is_empty())
    }
}

impl Drop for Streaming<'_> {
    fn drop(&mut self) {
        self.arm.stalls.enter(&self.meter.stalls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arms::inodes::links::BATCH;

    #[test]
    fn every_form_makes_each_inode_and_ends_those_that_are_evicted() {
        let shape = TreeShape { trees: 2, dirs: 40, files: 400 };
        for arm in ["stock", "hash-bl", "lists", "both", "rcu"] {
            let stream = Stream::new(arm, shape, 1 << 20, HashHeads::Boot, 1).unwrap();
            for _ in 0..2 {
                let mut streaming = stream.streaming(shape, WorkerSeat { index: 0, of: 1 });
                while streaming.finished() == Some(false) {
                    streaming.batch(shape.per_dir()).unwrap();
                    streaming.between();
                }
            }
            let [made, ended] = stream.vfss[0].1.passed().unwrap();
            let cached = stream.vfss[0].0.cache().counters().inodes;
            // Each inode at least in the first pass, and again if it was evicted.
            assert!(made > shape.all_files() && ended > 0, "{arm}: {made} made, {ended} ended");
            // An inode that was made and has not ended is cached by uvfs (which has the root too), or rests.
            let rest = (made + 1).checked_sub(ended + cached);
            let few = rest.is_some_and(|rest| rest <= 2 * BATCH as u64);
            assert!(few, "{arm}: {made} made, {ended} ended, {cached} cached");
        }
    }
}
