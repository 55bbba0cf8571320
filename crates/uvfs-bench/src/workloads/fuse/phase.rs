//! The clients' work, phase by phase. Each client works in its own directories
//! ([`tree`](crate::workloads::fuse::tree)).

use std::ffi::CString;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, fstat, openat, statat, unlinkat};
use rustix::io::read;

use crate::harness::Worker;
use crate::workloads::fuse::tree::{MountTree, PAGE, made_in, page_name};

/// A phase. Its name is the variant's in lower case, with a dash between words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// fstat(2) of an open file.
    Getattr,
    /// stat(2) of one name in an open directory.
    Stat,
    /// Reads every directory and looks at every entry, after the kernel has dropped its caches.
    WalkCold,
    /// The same again, with warm caches.
    WalkWarm,
    /// GNU find with a test that needs a stat of each entry, after the kernel has dropped its caches.
    Find,
    /// Makes, closes and removes a file.
    CreateUnlink,
    /// Opens, reads and closes a file of one page.
    OpenReadClose,
}

impl Phase {
    /// Whether an operation is one entry of a walk.
    pub fn walks(self) -> bool {
        matches!(self, Self::WalkCold | Self::WalkWarm | Self::Find)
    }

    /// Whether the kernel's caches must be empty at the beginning.
    pub fn cold(self) -> bool {
        matches!(self, Self::WalkCold | Self::Find)
    }

    /// The work of one client.
    ///
    /// # Errors
    /// If its files cannot be opened.
    pub fn worker(self, tree: &MountTree, client: usize) -> Result<Box<dyn Worker + '_>> {
        if self.walks() {
            let find = self == Self::Find;
            return Ok(if find {
                Box::new(Finding { tree, client })
            } else {
                Box::new(Walking { tree, client })
            });
        }
        let (base, name) = (tree.base()?, CString::new(page_name(client))?);
        Ok(match self {
            Self::Getattr => {
                let file = openat(&base, &name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                each(move |_| whole(fstat(&file)?))
            }
            Self::Stat => each(move |_| whole(statat(&base, &name, AtFlags::empty())?)),
            Self::CreateUnlink => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let dir = openat(&base, made_in(client), flags, Mode::empty())?;
                each(move |i| create_unlink(&dir, i))
            }
            _ => {
                let mut page = [0; PAGE];
                each(move |_| open_read_close(&base, &name, &mut page))
            }
        })
    }
}

fn whole(stat: Stat) -> Result<()> {
    ensure!(black_box(stat).st_size == PAGE as i64, "a stat gave a wrong size");
    Ok(())
}

/// Names are all different, so none can be cached.
fn create_unlink(dir: &OwnedFd, i: u64) -> Result<()> {
    let name = format!("made{i}");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    drop(openat(dir, &name, flags, Mode::from_raw_mode(0o644)).context("cannot make a file")?);
    unlinkat(dir, &name, AtFlags::empty()).context("cannot remove a file")
}

fn open_read_close(base: &OwnedFd, name: &CString, page: &mut [u8; PAGE]) -> Result<()> {
    let file = openat(base, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    ensure!(read(&file, &mut page[..])? == PAGE, "a read was short");
    black_box(page);
    Ok(())
}

/// A worker that runs `once` for each operation, with the operation's number.
fn each<'a>(once: impl FnMut(u64) -> Result<()> + 'a) -> Box<dyn Worker + 'a> {
    Box::new(Each { once, done: 0 })
}

struct Each<F> {
    once: F,
    done: u64,
}

impl<F: FnMut(u64) -> Result<()>> Worker for Each<F> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        for _ in 0..ops {
            (self.once)(self.done)?;
            self.done += 1;
        }
        Ok(())
    }
}

/// A batch is one walk; its entries are the operations.
struct Walking<'a> {
    tree: &'a MountTree,
    client: usize,
}

impl Worker for Walking<'_> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        ensure!(ops == self.tree.entries(), "a walk cannot be cut");
        self.tree.walk(self.client)
    }
}

struct Finding<'a> {
    tree: &'a MountTree,
    client: usize,
}

impl Worker for Finding<'_> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        ensure!(ops == self.tree.entries(), "a walk cannot be cut");
        find(&self.tree.top(self.client))
    }
}

/// Runs GNU find. No file is as large as the test asks, so nothing is printed, but each must be looked at.
///
/// # Errors
/// If find cannot be started, fails, or finds such a file.
pub fn find(path: &Path) -> Result<()> {
    let mut find = Command::new("find");
    find.arg(path).args(["-size", "+1048576G"]);
    let out = find.stdin(Stdio::null()).output().context("cannot start find")?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success() && out.stdout.is_empty(), "find failed: {}", said.trim());
    Ok(())
}
