//! `uvfs` as a program uses it: a [`Vfs`] over a driver, called through [`Context`].
//!
//! These figures include everything that the library does for a `stat` or an `open`: mounts,
//! symbolic links, credentials and bail-outs.

use std::collections::{HashMap, HashSet};
use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use uvfs::{Attr, Context, Cred, Driver, Errno, OpenFlags, Vfs, VfsConfig};
use uvfs_drivers::tmpfs::{Tmpfs, parse};

use crate::harness::{Arm, Worker, WorkerSeat};
use crate::names::aging::{self, AgingStep};
use crate::names::paths::Paths;
use crate::names::tree::{NameTree, ROOT, TreeEntry, attr_of};
use crate::workloads::lookups::{Setup, USER};
use crate::workloads::visit::{Cursor, SERIALIZED, Which};

/// The measured call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ContextCall {
    /// `stat`, which succeeds.
    Stat,
    /// `stat`, which answers ENOENT.
    Absent,
    /// `open` for reading, then dropping the handle.
    Open,
}

/// The arm.
pub struct Contexts {
    vfs: Arc<Vfs>,
    tree: Arc<NameTree>,
    call: ContextCall,
    which: Which,
}

impl Contexts {
    /// The tree on a tmpfs.
    ///
    /// # Errors
    /// The error of uvfs.
    pub fn on_tmpfs(setup: &Setup, call: ContextCall) -> Result<Self> {
        let options = parse("size=0,nr_inodes=0,mode=755").map_err(anyhow::Error::msg)?;
        let this = Self::over(Tmpfs::new(options)?, setup, call)?;
        let dirs = make(&this.vfs, &this.tree)?;
        if setup.aged {
            age(&this.vfs, &this.tree, &dirs)?;
        }
        Ok(this)
    }

    /// On a driver that already has the tree.
    ///
    /// # Errors
    /// The error of uvfs.
    pub fn over(driver: Arc<dyn Driver>, setup: &Setup, call: ContextCall) -> Result<Self> {
        let vfs = Vfs::new(VfsConfig::default(), driver)?;
        Ok(Self { vfs, tree: setup.tree.clone(), call, which: setup.which })
    }

    fn context(&self) -> Context<'_> {
        self.vfs.context(Cred::user(USER.uid, USER.gid))
    }

    fn check_hit(&self, context: &Context<'_>, path: &[u8], want: u64) -> Result<u64> {
        let attr = context.stat(path)?;
        let expected = attr_of(want, false);
        ensure!(
            (attr.mode, attr.nlink, attr.uid, attr.gid) == (expected.mode, 1, expected.uid, expected.gid),
            "{}: {attr:?}",
            String::from_utf8_lossy(path)
        );
        if self.call == ContextCall::Open {
            let opened = context.open(path, OpenFlags::READ, 0)?.attr()?;
            ensure!(opened.ino == attr.ino, "open and stat found different files");
        }
        Ok(attr.ino)
    }
}

/// Paths of directories by the tree's inode numbers.
type Dirs = HashMap<u64, Vec<u8>>;

/// Makes every entry of a tree.
fn make(vfs: &Vfs, tree: &NameTree) -> Result<Dirs> {
    let context = vfs.context(Cred::root());
    let mut dirs = Dirs::from([(ROOT, Vec::new())]);
    for entry in tree.entries.iter().filter(|e| e.attr.ino != 0) {
        let path = path_of(&dirs, entry)?;
        if entry.attr.is_dir() {
            context.mkdir(&path, entry.attr.mode & 0o777)?;
            dirs.insert(entry.attr.ino, path);
        } else {
            context.mknod(&path, entry.attr.mode, 0)?;
        }
    }
    Ok(dirs)
}

fn path_of(dirs: &Dirs, entry: &TreeEntry) -> Result<Vec<u8>> {
    let dir = dirs.get(&entry.parent).context("an entry stands before its directory")?;
    Ok([&dir[..], b"/", &entry.name].concat())
}

/// Removes and creates files ([`aging`]).
fn age(vfs: &Vfs, tree: &NameTree, dirs: &Dirs) -> Result<()> {
    let context = vfs.context(Cred::root());
    aging::age(tree, |change, entry| {
        let path = path_of(dirs, entry)?;
        match change {
            AgingStep::Remove => context.unlink(&path)?,
            AgingStep::Create => drop(context.mknod(&path, entry.attr.mode, 0)?),
        }
        Ok(())
    })
}

impl Arm for Contexts {
    fn name(&self) -> &str {
        "uvfs"
    }

    fn check(&self) -> Result<()> {
        let context = self.context();
        let mut seen = HashSet::new();
        for index in 0..self.tree.paths.len().min(20_000) {
            let path = self.tree.paths.get(index).whole;
            match self.tree.inos[index] {
                0 => ensure!(context.stat(path) == Err(Errno::NOENT), "an absent name was found"),
                ino => {
                    ensure!(seen.insert(self.check_hit(&context, path, ino)?), "two paths lead to one inode")
                }
            }
            let wrong = [path, &b"~"[..]].concat();
            ensure!(context.stat(&wrong) == Err(Errno::NOENT), "a name that is not there was found");
        }
        Ok(())
    }

    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let paths = &self.tree.paths;
        let cursor = Cursor::new(self.which, paths.len(), seat);
        Ok(Box::new(Calling {
            context: self.context(),
            paths,
            cursor,
            call: self.call,
            serialized: variant == SERIALIZED,
        }))
    }
}

struct Calling<'a> {
    context: Context<'a>,
    paths: &'a Paths,
    cursor: Cursor,
    call: ContextCall,
    serialized: bool,
}

impl Calling<'_> {
    fn run<const SERIAL: bool>(
        &mut self,
        ops: u64,
        call: impl Fn(&Context<'_>, &[u8]) -> Result<u64, Errno>,
    ) -> Result<()> {
        let mut cursor = self.cursor;
        for _ in 0..ops {
            let path = self.paths.get(cursor.index()).whole;
            match call(&self.context, path) {
                Ok(result) if SERIAL => cursor.next_after(result),
                Ok(_) => cursor.next(),
                Err(errno) => bail!("{}: {errno}", String::from_utf8_lossy(path)),
            }
        }
        self.cursor = cursor;
        Ok(())
    }

    fn either(&mut self, ops: u64, call: impl Fn(&Context<'_>, &[u8]) -> Result<u64, Errno>) -> Result<()> {
        if self.serialized { self.run::<true>(ops, call) } else { self.run::<false>(ops, call) }
    }
}

impl Worker for Calling<'_> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        match self.call {
            ContextCall::Stat => self.either(ops, |context, path| {
                // Into our own buffer, as the tables do it.
                let mut attr = Attr::default();
                context.stat_into(path, &mut attr)?;
                Ok(black_box(&attr).ino)
            }),
            ContextCall::Absent => self.either(ops, |context, path| match context.stat(path) {
                Err(Errno::NOENT) => Ok(u64::from(black_box(Errno::NOENT).raw_os_error() as u32)),
                Err(errno) => Err(errno),
                Ok(_) => Err(Errno::EXIST),
            }),
            ContextCall::Open => self.either(ops, |context, path| {
                let handle = context.open(path, OpenFlags::READ, 0)?;
                Ok(black_box(&handle).inode().id().as_u64())
            }),
        }
    }
}
