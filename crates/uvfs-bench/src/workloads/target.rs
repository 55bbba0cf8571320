//! The same work by system calls on a mounted directory: `--target`.
//!
//! The tree is made in a fresh directory below the target and removed afterwards. Paths are relative to a
//! descriptor of that directory, so that a path of depth 1 is one name for the kernel too. These arms cross the
//! system-call boundary and the others do not; the report says so.

use std::ffi::CString;
use std::hint::black_box;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{AtFlags, Mode, OFlags, open, openat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::harness::{Arm, Worker, WorkerSeat};
use crate::names::aging::{self, AgingStep};
use crate::names::tree::{LazyTree, NameTree, ROOT, Shape};
use crate::workloads::context::ContextCall;
use crate::workloads::lookups::Setup;
use crate::workloads::visit::{Cursor, SERIALIZED, Which};

/// The host's tmpfs to which any user may write.
const HOST_TMPFS: &str = "/dev/shm";

/// One `--target`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunTarget {
    /// This process's own arms.
    InProcess,
    /// System calls below a directory.
    Dir {
        /// Name of the arm.
        name: String,
        /// The directory.
        dir: PathBuf,
    },
}

impl std::fmt::Display for RunTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InProcess => f.write_str("inproc"),
            Self::Dir { name, dir } => write!(f, "{name}={}", dir.display()),
        }
    }
}

impl std::str::FromStr for RunTarget {
    type Err = String;

    /// `inproc`, `host`, `DIR` or `NAME=DIR`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, dir) = match text.split_once('=') {
            _ if text == "inproc" => return Ok(Self::InProcess),
            _ if text == "host" => ("host".to_owned(), PathBuf::from(HOST_TMPFS)),
            Some((name, dir)) => (name.to_owned(), PathBuf::from(dir)),
            None => {
                let last = PathBuf::from(text.trim_end_matches('/'));
                (last.file_name().map_or("target".into(), |n| n.to_string_lossy().into_owned()), text.into())
            }
        };
        if name.is_empty() || !dir.is_dir() {
            return Err(format!(
                "{} is no directory; a target is inproc, host (the machine's tmpfs at {HOST_TMPFS}), DIR or NAME=DIR",
                dir.display()
            ));
        }
        Ok(Self::Dir { name, dir })
    }
}

/// The description that another process needs to do this arm's work.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Elsewhere {
    base: PathBuf,
    shape: Shape,
    call: ContextCall,
    which: Which,
    variant: usize,
}

/// The arm.
pub struct SystemCalls {
    name: String,
    base: tempfile::TempDir,
    fd: OwnedFd,
    tree: Arc<NameTree>,
    paths: Vec<CString>,
    shape: Shape,
    call: ContextCall,
    which: Which,
}

impl SystemCalls {
    /// Makes the tree below the target.
    ///
    /// # Errors
    /// If the directory cannot be written to.
    pub fn new(target: &RunTarget, shape: Shape, setup: &Setup, call: ContextCall) -> Result<Self> {
        let RunTarget::Dir { name, dir } = target else { bail!("this process's own arms are no target") };
        let (base, tree) = (made(dir, setup)?, setup.tree.clone());
        let fd = directory(base.path())?;
        let paths = relative(&tree)?;
        let which = setup.which;
        Ok(Self { name: name.clone(), base, fd, tree, paths, shape, call, which })
    }
}

/// A descriptor below which names are looked up.
///
/// # Errors
/// If the directory cannot be opened.
pub fn directory(path: &std::path::Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).with_context(|| format!("cannot open {}", path.display()))
}

/// A fresh directory with the tree in it, aged if the setup says so.
fn made(dir: &std::path::Path, setup: &Setup) -> Result<tempfile::TempDir> {
    let base = tempfile::Builder::new()
        .prefix("uvfs-bench-")
        .tempdir_in(dir)
        .with_context(|| format!("cannot make a directory in {}", dir.display()))?;
    let mut dirs = std::collections::HashMap::from([(ROOT, base.path().to_owned())]);
    for entry in setup.tree.entries.iter().filter(|e| e.attr.ino != 0) {
        let parent = dirs.get(&entry.parent).context("an entry stands before its directory")?;
        let path = parent.join(String::from_utf8_lossy(&entry.name).as_ref());
        if entry.attr.is_dir() {
            std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
            dirs.insert(entry.attr.ino, path);
        } else {
            std::fs::File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
    }
    if setup.aged {
        aging::age(&setup.tree, |change, entry| {
            let parent = dirs.get(&entry.parent).context("an entry without its directory")?;
            let path = parent.join(String::from_utf8_lossy(&entry.name).as_ref());
            match change {
                AgingStep::Remove => std::fs::remove_file(path)?,
                AgingStep::Create => drop(std::fs::File::create(path)?),
            }
            Ok(())
        })?;
    }
    Ok(base)
}

fn relative(tree: &NameTree) -> Result<Vec<CString>> {
    (0..tree.paths.len()).map(|i| Ok(CString::new(&tree.paths.get(i).whole[1..])?)).collect()
}

impl Arm for SystemCalls {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<()> {
        let mut seen = std::collections::HashSet::new();
        for (index, path) in self.paths.iter().enumerate().take(20_000) {
            let got = statat(&self.fd, path, AtFlags::empty());
            match self.tree.inos[index] {
                0 => ensure!(got.is_err_and(|e| e == Errno::NOENT), "an absent name was found"),
                _ => ensure!(seen.insert(got?.st_ino), "two paths lead to one inode"),
            }
        }
        Ok(())
    }

    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let cursor = Cursor::new(self.which, self.paths.len(), seat);
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?;
        Ok(Box::new(Calling {
            fd,
            paths: &self.paths[..],
            cursor,
            call: self.call,
            serialized: variant == SERIALIZED,
        }))
    }

    fn elsewhere(&self, variant: usize) -> Option<Value> {
        let base = self.base.path().to_owned();
        let said = Elsewhere { base, shape: self.shape, call: self.call, which: self.which, variant };
        serde_json::to_value(said).ok()
    }
}

/// The worker of another process, from the description that [`Arm::elsewhere`] gave.
///
/// # Errors
/// If the description cannot be read, or its directory cannot be opened.
pub fn worker_elsewhere(said: &Value, seat: WorkerSeat) -> Result<Box<dyn Worker>> {
    let said: Elsewhere = serde_json::from_value(said.clone())?;
    let paths = relative(&*LazyTree::new(said.shape).get()?)?;
    let (fd, cursor) = (directory(&said.base)?, Cursor::new(said.which, paths.len(), seat));
    Ok(Box::new(Calling { fd, paths, cursor, call: said.call, serialized: said.variant == SERIALIZED }))
}

struct Calling<P> {
    fd: OwnedFd,
    paths: P,
    cursor: Cursor,
    call: ContextCall,
    serialized: bool,
}

impl<P: AsRef<[CString]>> Calling<P> {
    /// Makes the call once and returns a value that depends on its result.
    fn once(&self, path: &CString) -> Result<u64, Errno> {
        match self.call {
            ContextCall::Stat => statat(&self.fd, path, AtFlags::empty()).map(|stat| black_box(&stat).st_ino),
            ContextCall::Absent => match statat(&self.fd, path, AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(black_box(1)),
                Err(errno) => Err(errno),
                Ok(_) => Err(Errno::EXIST),
            },
            ContextCall::Open => {
                let file = openat(&self.fd, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                Ok(std::os::fd::AsRawFd::as_raw_fd(&black_box(&file).as_fd()) as u64)
            }
        }
    }
}

impl<P: AsRef<[CString]>> Worker for Calling<P> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        for _ in 0..ops {
            let path = &self.paths.as_ref()[self.cursor.index()];
            let result = self.once(path).with_context(|| path.to_string_lossy().into_owned())?;
            if self.serialized { self.cursor.next_after(result) } else { self.cursor.next() }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        let dir = |name: &str, dir: &str| RunTarget::Dir { name: name.to_owned(), dir: dir.into() };
        assert_eq!("inproc".parse(), Ok(RunTarget::InProcess));
        assert_eq!("/dev/".parse(), Ok(dir("dev", "/dev/")));
        assert_eq!("a=/dev".parse(), Ok(dir("a", "/dev")));
        for wrong in ["/nowhere/at/all", "=/dev", "x=", ""] {
            let said = wrong.parse::<RunTarget>().unwrap_err();
            assert!(said.contains("a target is inproc, host"), "{wrong}: {said}");
        }
    }
}
