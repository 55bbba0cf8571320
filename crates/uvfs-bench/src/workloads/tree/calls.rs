//! The phases through system calls below a directory: mknodat(2), getdents(2) and fstatat(2), unlinkat(2).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, mkdirat, mknodat, openat, statat, unlinkat};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::harness::{Arm, Worker, WorkerSeat, usage};
use crate::names::aging::{self, AgingStep};
use crate::workloads::fuse::place::drop_dentries;
use crate::workloads::target::{RunTarget, directory};
use crate::workloads::tree::shape::{EntryName, TreeShape, Unit, Units, dir, top};
use crate::workloads::tree::{TreePhase, TreePlan};

/// The buffer size of glibc's readdir(3).
const READDIR: usize = 32 * 1024;

/// The description that another process needs to do this arm's work.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Elsewhere {
    /// Distinguishes it from other workloads' arms.
    trees: TreeShape,
    phase: TreePhase,
    base: PathBuf,
}

/// The worker of another process, if the description that [`Arm::elsewhere`] gave is of this workload.
///
/// # Errors
/// If its directory cannot be opened.
pub fn worker_elsewhere(said: &Value, seat: WorkerSeat) -> Option<Result<Box<dyn Worker>>> {
    let Elsewhere { trees, phase, base } = serde_json::from_value(said.clone()).ok()?;
    Some(directory(&base).map(|fd| Box::new(Walking::new(fd, phase, trees, seat)) as Box<dyn Worker>))
}

/// The arm.
pub struct TreeCalls {
    name: String,
    shape: TreeShape,
    plan: TreePlan,
    fd: OwnedFd,
    filled: Mutex<bool>,
    /// Whether the trees that exist are aged.
    aged: AtomicBool,
    /// Dropped last, with everything left in it.
    base: tempfile::TempDir,
}

impl TreeCalls {
    /// In a fresh directory below the target.
    ///
    /// # Errors
    /// If the directory cannot be written to.
    pub fn new(target: &RunTarget, shape: TreeShape, plan: TreePlan) -> Result<Self> {
        let RunTarget::Dir { name, dir } = target else { bail!("this process's own arms are no target") };
        let base = tempfile::Builder::new()
            .prefix("uvfs-bench-")
            .tempdir_in(dir)
            .with_context(|| format!("cannot make a directory in {}", dir.display()))?;
        let fd = directory(base.path())?;
        Ok(Self {
            name: name.clone(),
            shape,
            plan,
            fd,
            filled: Mutex::new(false),
            aged: AtomicBool::new(false),
            base,
        })
    }

    fn walking(&self, phase: TreePhase, shape: TreeShape, seat: WorkerSeat) -> Result<Walking> {
        let fd = self.fd.try_clone().context("no descriptor is left")?;
        Ok(Walking::new(fd, phase, shape, seat))
    }

    fn run(&self, phase: TreePhase, shape: TreeShape) -> Result<()> {
        let mut walking = self.walking(phase, shape, WorkerSeat { index: 0, of: 1 })?;
        while walking.finished() == Some(false) {
            walking.batch(shape.per_dir())?;
        }
        Ok(())
    }

    fn change(&self, change: AgingStep, file: u64) -> Result<()> {
        let (unit, file) = self.shape.file(file);
        let above = opened(&self.fd, top(unit.tree), OFlags::PATH)?;
        let (here, name) = (opened(&above, dir(unit.dir), OFlags::PATH)?, EntryName::new(b'f', file));
        match change {
            AgingStep::Remove => unlinkat(&here, name.c(), AtFlags::empty()).context("cannot remove a file"),
            AgingStep::Create => made(&here, name),
        }
    }
}

impl Arm for TreeCalls {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<()> {
        let shape = TreeShape { trees: 1, dirs: 1, files: self.shape.files.min(100) };
        [TreePhase::Create, TreePhase::Find, TreePhase::Unlink]
            .into_iter()
            .try_for_each(|phase| self.run(phase, shape))
    }

    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let phase = self.plan.phase(variant)?;
        Ok(Box::new(self.walking(phase, self.shape, seat)?))
    }

    fn grain(&self, _variant: usize) -> Option<u64> {
        Some(self.shape.per_dir())
    }

    fn prepare(&self, variant: usize, _workers: usize) -> Result<()> {
        let phase = self.plan.phase(variant)?;
        let mut filled = self.filled.lock();
        match (phase, *filled) {
            (TreePhase::Create, true) => self.run(TreePhase::Unlink, self.shape)?,
            (TreePhase::Find | TreePhase::Unlink, false) => self.run(TreePhase::Create, self.shape)?,
            _ => {}
        }
        *filled = phase != TreePhase::Unlink;
        let aged = self.aged.swap(self.plan.leaves_aged(phase), Ordering::Relaxed);
        if self.plan.wants_aged(phase) && !aged {
            aging::operations(self.shape.all_files(), |change, file| self.change(change, file))?;
        }
        if self.plan.cold { drop_dentries() } else { Ok(()) }
    }

    fn elsewhere(&self, variant: usize) -> Option<Value> {
        let (trees, base) = (self.shape, self.base.path().to_owned());
        serde_json::to_value(Elsewhere { trees, phase: self.plan.phase(variant).ok()?, base }).ok()
    }

    /// This process's time, system time included; not that of a server behind the directory.
    fn server_cpu(&self) -> Option<Duration> {
        usage::processor_time()
    }
}

struct Walking {
    base: OwnedFd,
    phase: TreePhase,
    shape: TreeShape,
    units: Units,
    buffer: Box<[MaybeUninit<u8>; READDIR]>,
}

fn opened(above: impl AsFd, name: EntryName, flags: OFlags) -> Result<OwnedFd> {
    openat(above, name.c(), flags | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("cannot open {:?}", name.c()))
}

fn made(dir: impl AsFd, name: EntryName) -> Result<()> {
    mknodat(dir, name.c(), FileType::RegularFile, Mode::from_raw_mode(0o644), 0).context("cannot make a file")
}

impl Walking {
    fn new(base: OwnedFd, phase: TreePhase, shape: TreeShape, seat: WorkerSeat) -> Self {
        let buffer = Box::new([const { MaybeUninit::uninit() }; READDIR]);
        Self { base, phase, shape, units: shape.dealt(seat), buffer }
    }

    fn create(&self, unit: Unit) -> Result<()> {
        let mode = Mode::from_raw_mode(0o755);
        if unit.dir == 0 {
            mkdirat(&self.base, top(unit.tree).c(), mode).context("cannot make a directory")?;
        }
        let above = opened(&self.base, top(unit.tree), OFlags::PATH)?;
        mkdirat(&above, dir(unit.dir).c(), mode).context("cannot make a directory")?;
        let here = opened(&above, dir(unit.dir), OFlags::PATH)?;
        let mut name = EntryName::new(b'f', 0);
        for file in 0..self.shape.files {
            name.set(file);
            made(&here, name)?;
        }
        Ok(())
    }

    fn find(&mut self, unit: Unit) -> Result<()> {
        let above = opened(&self.base, top(unit.tree), OFlags::PATH)?;
        let here = opened(&above, dir(unit.dir), OFlags::empty())?;
        let stat = statat(&here, c"", AtFlags::EMPTY_PATH)?;
        ensure!(FileType::from_raw_mode(stat.st_mode).is_dir(), "a directory has become something else");
        let mut found = 0;
        let mut entries = RawDir::new(&here, &mut self.buffer[..]);
        while let Some(entry) = entries.next() {
            let entry = entry.context("cannot read a directory")?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = statat(&here, name, AtFlags::SYMLINK_NOFOLLOW).context("cannot look at a file")?;
            let same = stat.st_ino == entry.ino() && FileType::from_raw_mode(stat.st_mode).is_file();
            ensure!(same, "{name:?} is not what was listed");
            found += 1;
        }
        ensure!(found == self.shape.files, "{found} entries are listed, not {}", self.shape.files);
        Ok(())
    }

    fn unlink(&self, unit: Unit) -> Result<()> {
        let above = opened(&self.base, top(unit.tree), OFlags::PATH)?;
        let here = opened(&above, dir(unit.dir), OFlags::PATH)?;
        let mut name = EntryName::new(b'f', 0);
        for file in 0..self.shape.files {
            name.set(file);
            unlinkat(&here, name.c(), AtFlags::empty()).context("cannot remove a file")?;
        }
        drop(here);
        unlinkat(&above, dir(unit.dir).c(), AtFlags::REMOVEDIR).context("cannot remove a directory")?;
        if unit.dir + 1 == self.shape.dirs {
            drop(above);
            unlinkat(&self.base, top(unit.tree).c(), AtFlags::REMOVEDIR)
                .context("cannot remove a directory")?;
        }
        Ok(())
    }
}

impl Worker for Walking {
    fn batch(&mut self, ops: u64) -> Result<()> {
        ensure!(ops == self.shape.per_dir(), "a directory cannot be cut");
        let unit = self.units.next().context("no directory is left")?;
        match self.phase {
            TreePhase::Create => self.create(unit),
            TreePhase::Find => self.find(unit),
            TreePhase::Unlink => self.unlink(unit),
        }
    }

    fn finished(&self) -> Option<bool> {
        Some(self.units.is_empty())
    }
}
