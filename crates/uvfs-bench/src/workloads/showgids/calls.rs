//! The loop through system calls below a directory.
//!
//! If the files exist already (a sysfs, or a mount of uvfs), they are read as they are and cannot be
//! changed. Otherwise they are made in a fresh directory below the target and removed afterwards. Paths are relative to
//! a descriptor of the directory.

use std::ffi::CStr;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::harness::{Arm, Companion, Worker, WorkerSeat};
use crate::workloads::showgids::{GidsPlan, PATH, Pattern, READ, TEXT};
use crate::workloads::target::{RunTarget, directory};

/// Longest sleep of the thread that changes the tree.
const PAUSE: Duration = Duration::from_millis(1);

/// The description that another process needs to do this arm's work.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Elsewhere {
    /// Distinguishes it from other workloads' arms.
    showgids: Pattern,
    dir: PathBuf,
    plan: GidsPlan,
}

/// The arm.
pub struct ShowgidsCalls {
    name: String,
    dir: PathBuf,
    pattern: Pattern,
    /// With as many files as there are.
    plan: GidsPlan,
    asked: u64,
    /// The files made for this arm, if any.
    _made: Option<tempfile::TempDir>,
}

impl ShowgidsCalls {
    /// On the target's existing files, or on files made there.
    ///
    /// # Errors
    /// If there are none and none can be made, or if they exist but changes are asked for.
    pub fn new(target: &RunTarget, pattern: &Pattern, plan: GidsPlan) -> Result<Self> {
        let RunTarget::Dir { name, dir } = target else { bail!("this process's own arms are no target") };
        let GidsPlan { files, changes, .. } = plan;
        let found = found(dir, pattern, files)?;
        let made = if found == 0 { Some(made(dir, pattern, files)?) } else { None };
        ensure!(
            changes == 0 || made.is_some(),
            "{} is there already and is not ours to change; --changes 0 leaves it as it is",
            dir.join(pattern.at(0)).display()
        );
        let dir = made.as_ref().map_or(dir.clone(), |made| made.path().to_owned());
        let plan = GidsPlan { files: if found == 0 { files } else { found }, ..plan };
        let (name, pattern) = (name.clone(), pattern.clone());
        Ok(Self { name, dir, pattern, plan, asked: files, _made: made })
    }

    fn elsewhere(&self) -> Elsewhere {
        Elsewhere { showgids: self.pattern.clone(), dir: self.dir.clone(), plan: self.plan }
    }
}

/// How many of the files exist, counted from 0.
fn found(dir: &Path, pattern: &Pattern, files: u64) -> Result<u64> {
    let fd = directory(dir)?;
    let there = |n: &u64| statat(&fd, pattern.at(*n), AtFlags::empty()).is_ok();
    Ok((0..files).take_while(there).count() as u64)
}

fn made(dir: &Path, pattern: &Pattern, files: u64) -> Result<tempfile::TempDir> {
    let base = tempfile::Builder::new().prefix("uvfs-bench-").tempdir_in(dir).with_context(|| {
        let path = dir.join(pattern.at(0));
        format!("there is no {}, and none can be made; --path says what to read instead", path.display())
    })?;
    for n in 0..files {
        let path = base.path().join(pattern.at(n));
        let above = path.parent().context("a path without a directory")?;
        std::fs::create_dir_all(above).with_context(|| format!("cannot make {}", above.display()))?;
        let text = format!("fe80:0000:0000:0000:0000:0000:0000:{n:04x}\n");
        std::fs::write(&path, text).with_context(|| format!("cannot make {}", path.display()))?;
    }
    Ok(base)
}

impl Arm for ShowgidsCalls {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<()> {
        let mut reading = Reading::new(self.elsewhere(), 0)?;
        for n in 0..self.plan.files {
            let text = reading.one()?.to_vec();
            let whole = std::fs::read(self.dir.join(self.pattern.at(n)))?;
            let len = whole.len().min(READ);
            ensure!(text[..len] == whole[..len], "file {n} has another text");
        }
        Ok(())
    }

    fn worker<'a>(&'a self, _variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        worker(self.elsewhere(), seat)
    }

    fn grain(&self, _variant: usize) -> Option<u64> {
        self.plan.grain()
    }

    fn companion<'a>(&'a self) -> Result<Option<Box<dyn Companion + 'a>>> {
        if self.plan.changes == 0 {
            return Ok(None);
        }
        let every = Duration::from_nanos(1_000_000_000 / self.plan.changes);
        let last = self.dir.join(self.pattern.at(0));
        let path = last.parent().context("a path without a directory")?.join("new");
        Ok(Some(Box::new(Changing { path, storm: self.plan.storm, every, began: Instant::now(), done: 0 })))
    }

    fn elsewhere(&self, _variant: usize) -> Option<Value> {
        // The thread that changes the tree is in this process, so an arm with changes has no worker processes.
        serde_json::to_value(self.elsewhere()).ok().filter(|_| self.plan.changes == 0)
    }

    fn remark(&self) -> Option<String> {
        let path = self.dir.join(self.pattern.at(0));
        let files = self.plan.files;
        (files != self.asked).then(|| format!("{files} files, as many as there are like {}", path.display()))
    }
}

/// The worker of another process, if the description that [`Arm::elsewhere`] gave is of this workload.
///
/// # Errors
/// If its directory cannot be opened.
pub fn worker_elsewhere(said: &Value, seat: WorkerSeat) -> Option<Result<Box<dyn Worker>>> {
    let said: Elsewhere = serde_json::from_value(said.clone()).ok()?;
    Some(worker(said, seat))
}

fn worker(said: Elsewhere, seat: WorkerSeat) -> Result<Box<dyn Worker>> {
    let first = seat.index as u64 * said.plan.files / seat.of.max(1) as u64;
    Ok(Box::new(Reading::new(said, first)?))
}

/// The program that reads.
struct Reading {
    fd: OwnedFd,
    pattern: Pattern,
    files: u64,
    /// Passes over the files that remain, if their number is fixed.
    left: Option<u64>,
    next: u64,
    path: [u8; PATH],
    text: [u8; TEXT],
}

impl Reading {
    fn new(what: Elsewhere, first: u64) -> Result<Self> {
        let Elsewhere { showgids: pattern, dir, plan } = what;
        let (fd, files, left) = (directory(&dir)?, plan.files, plan.passes());
        Ok(Self { fd, pattern, files, left, next: first, path: [0; PATH], text: [0; TEXT] })
    }

    /// Reads one file.
    fn one(&mut self) -> Result<&[u8; TEXT]> {
        self.text.fill(0);
        let n = self.next;
        let len = self.pattern.write(n, &mut self.path)?;
        let path = CStr::from_bytes_with_nul(&self.path[..=len])?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(&self.fd, path, flags, Mode::empty()).with_context(|| n.to_string())?;
        let read = rustix::io::read(&file, &mut self.text[..READ])?;
        drop(file);
        ensure!(read != 0, "file {n} is empty");
        self.next = if n + 1 == self.files { 0 } else { n + 1 };
        Ok(&self.text)
    }
}

impl Worker for Reading {
    fn batch(&mut self, ops: u64) -> Result<()> {
        for _ in 0..ops {
            black_box(self.one()?);
        }
        // A batch is a pass, if their number is fixed.
        self.left = self.left.map(|left| left.saturating_sub(1));
        Ok(())
    }

    fn finished(&self) -> Option<bool> {
        self.left.map(|left| left == 0)
    }
}

/// Makes and removes a file, or a directory of files.
struct Changing {
    path: PathBuf,
    storm: u64,
    every: Duration,
    began: Instant,
    done: u64,
}

impl Changing {
    fn add(&self) -> std::io::Result<()> {
        if self.storm == 0 {
            return std::fs::File::create(&self.path).map(drop);
        }
        std::fs::create_dir(&self.path)?;
        (0..self.storm).try_for_each(|n| std::fs::File::create(self.path.join(n.to_string())).map(drop))
    }

    fn remove(&self) -> std::io::Result<()> {
        if self.storm == 0 { std::fs::remove_file(&self.path) } else { std::fs::remove_dir_all(&self.path) }
    }
}

impl Companion for Changing {
    fn step(&mut self) -> Result<()> {
        while self.began + self.every * (self.done as u32 + 1) <= Instant::now() {
            if self.done.is_multiple_of(2) {
                self.add()?
            } else {
                self.remove()?
            }
            self.done += 1;
        }
        std::thread::sleep(PAUSE.min(self.every));
        Ok(())
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if !self.done.is_multiple_of(2) {
            // The whole directory is removed anyway.
            let _ = self.remove();
        }
    }
}
