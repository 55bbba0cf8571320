//! The tree that fills every mount: how it is made, walked and checked.
//!
//! The tree is below one fresh directory, because a peer may show other users' files. Each client has its own tree
//! (`tN`, directories of `--per-dir` files), a file of one page (`sN`) and an empty directory (`cN`). Clients share
//! only the server: a name that one client has looked up would not be cold for another.

use std::ffi::CString;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, openat, statat};

/// Bytes of the file that is read.
pub const PAGE: usize = 4096;
/// The buffer size of glibc's readdir(3).
const READDIR: usize = 32 * 1024;
/// One file in this many has content, which the check reads back.
const WITH_CONTENT: u64 = 64;

/// The tree of one mount.
pub struct MountTree {
    base: PathBuf,
    files: u64,
    per_dir: u64,
    clients: usize,
}

impl MountTree {
    /// A tree below `mount`; nothing is made yet.
    pub fn new(mount: &Path, files: u64, per_dir: u64, clients: usize) -> Self {
        let base = mount.join(format!("uvfs-bench-{}", std::process::id()));
        Self { base, files, per_dir, clients }
    }

    /// Entries below a client's tree: its files and their directories.
    pub fn entries(&self) -> u64 {
        self.files + self.files.div_ceil(self.per_dir)
    }

    /// The top of a client's tree.
    pub fn top(&self, client: usize) -> PathBuf {
        self.base.join(format!("t{client}"))
    }

    /// A descriptor of the directory that holds everything, for relative paths.
    ///
    /// # Errors
    /// The error of openat(2).
    pub fn base(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, &self.base, flags, Mode::empty())
            .with_context(|| format!("cannot open {}", self.base.display()))
    }

    /// Makes the tree.
    ///
    /// # Errors
    /// The file system's error.
    pub fn fill(&self) -> Result<()> {
        fs::create_dir(&self.base)?;
        for client in 0..self.clients {
            let top = self.top(client);
            fs::create_dir(&top)?;
            for file in 0..self.files {
                if file.is_multiple_of(self.per_dir) {
                    fs::create_dir(top.join(dir(file / self.per_dir)))?;
                }
                fs::write(self.file(client, file), content(file))?;
            }
            fs::write(self.base.join(page_name(client)), page(client))?;
            fs::create_dir(self.base.join(made_in(client)))?;
        }
        Ok(())
    }

    fn file(&self, client: usize, file: u64) -> PathBuf {
        self.top(client).join(dir(file / self.per_dir)).join(format!("f{file}"))
    }

    /// Checks that everything is there with the right content, and nothing else.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<()> {
        for client in 0..self.clients {
            self.walk(client)?;
            for file in (0..self.files).filter(|file| file % WITH_CONTENT < 2) {
                let path = self.file(client, file);
                ensure!(fs::read(&path)? == content(file), "{} is not what was written", path.display());
            }
            let path = self.base.join(page_name(client));
            ensure!(fs::read(&path)? == page(client), "{} is not what was written", path.display());
            ensure!(fs::metadata(&path)?.len() == PAGE as u64, "{} has a wrong size", path.display());
            let made = self.base.join(made_in(client));
            ensure!(fs::read_dir(&made)?.next().is_none(), "{} is not empty", made.display());
        }
        let (found, wanted) = (fs::read_dir(&self.base)?.count(), 3 * self.clients);
        ensure!(found == wanted, "{} has {found} entries, not {wanted}", self.base.display());
        Ok(())
    }

    /// Reads every directory of a client's tree and stats every entry.
    ///
    /// # Errors
    /// The file system's error, or that entries are missing or too many.
    pub fn walk(&self, client: usize) -> Result<()> {
        let top = self.top(client);
        let found = walk(open_dir(CWD, &top)?)?;
        let wanted = self.entries();
        ensure!(found == wanted, "a walk of {} finds {found} entries, not {wanted}", top.display());
        Ok(())
    }

    /// Removes the tree, for mounts that show a directory that stays.
    pub fn remove(&self) {
        // If that fails, the file system is broken, which was reported before.
        let _ = fs::remove_dir_all(&self.base);
    }
}

fn dir(number: u64) -> String {
    format!("d{number}")
}

/// The name of a client's file of one page.
pub fn page_name(client: usize) -> String {
    format!("s{client}")
}

/// The name of the directory in which a client makes files.
pub fn made_in(client: usize) -> String {
    format!("c{client}")
}

fn content(file: u64) -> Vec<u8> {
    // A page of memory for every file would be wasted.
    if file.is_multiple_of(WITH_CONTENT) { format!("file {file}\n").into_bytes() } else { Vec::new() }
}

/// The content of a client's file of one page.
pub fn page(client: usize) -> Vec<u8> {
    (0..PAGE).map(|i| (i * 7 + client) as u8).collect()
}

fn open_dir(at: impl std::os::fd::AsFd, path: impl rustix::path::Arg) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty()).context("cannot open a directory")
}

/// Counts the entries below a directory, each after a stat. Entries are stat'ed while their directory is being
/// read, so the kernel may ask for attributes together with names (READDIRPLUS). GNU find reads the directory first.
fn walk(fd: OwnedFd) -> Result<u64> {
    let mut buffer = [const { MaybeUninit::uninit() }; READDIR];
    let (mut found, mut dirs) = (0, Vec::new());
    let mut entries = RawDir::new(&fd, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.context("cannot read a directory")?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW).with_context(|| format!("{name:?}"))?;
        found += 1;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            dirs.push(CString::from(name));
        }
    }
    for name in dirs {
        found += walk(open_dir(&fd, name)?)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_wrong_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let tree = MountTree::new(dir.path(), 130, 50, 2);
        tree.fill().unwrap();
        tree.check().unwrap();
        assert_eq!(tree.entries(), 133);
        let wrong = |said: &str| {
            let error = tree.check().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        };
        fs::remove_file(tree.file(1, 129)).unwrap();
        wrong("finds 132 entries, not 133");
        fs::write(tree.file(1, 129), content(129)).unwrap();
        fs::write(tree.file(0, 64), "file 65\n").unwrap();
        wrong("is not what was written");
        fs::write(tree.file(0, 64), content(64)).unwrap();
        fs::write(tree.base.join("c1/left"), "").unwrap();
        wrong("c1 is not empty");
        tree.remove();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
