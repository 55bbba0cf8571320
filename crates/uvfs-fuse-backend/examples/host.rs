//! Walks a host directory as a client would: two passes of LOOKUP and FORGET through a store of 16 MiB.
//!
//! ```text
//! $ cargo run --release -p uvfs-fuse-backend --example host -- /usr/share/doc
//! ```

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, statat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uvfs_fuse_backend::{
    Attr, InodeAnswer, InodeHolder, InodeKey, InodeStore, ROOT, StoreOptions, StoredInode,
};

/// The server: its data of each inode is an `O_PATH` descriptor, which pins the inode number.
struct Host {
    inodes: InodeStore<OwnedFd>,
    asked: AtomicU64,
}

fn describe(fd: OwnedFd) -> io::Result<InodeAnswer<OwnedFd>> {
    let st = statat(&fd, "", AtFlags::EMPTY_PATH)?;
    let (size, blocks) = (st.st_size as u64, st.st_blocks as u64);
    let attr = Attr { mode: st.st_mode, nlink: st.st_nlink as u32, size, blocks, ..Attr::default() };
    Ok(InodeAnswer { key: InodeKey::of_inode(st.st_dev, st.st_ino, 0), attr, data: fd })
}

impl Host {
    fn ask(&self, dir: &StoredInode<OwnedFd>, name: &[u8]) -> io::Result<InodeAnswer<OwnedFd>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        describe(openat(dir.data(), name, flags, Mode::empty())?)
    }

    /// Look up everything below a directory; returns the numbers that the client now holds.
    fn walk(&self, dir: u64, held: &mut Vec<u64>) -> io::Result<()> {
        let fd =
            openat(self.inodes.get(dir)?.data(), ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for entry in Dir::new(fd)? {
            let name: CString = entry?.file_name().into();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = self.inodes.lookup(dir, name.to_bytes(), |dir| self.ask(dir, name.to_bytes()))?;
            let is_dir = found.attr().is_dir();
            let ino = found.give();
            held.push(ino);
            if is_dir {
                self.walk(ino, held)?;
            }
        }
        Ok(())
    }
}

/// A client that forgets on its own only.
struct Busy;

impl InodeHolder for Busy {
    fn invalidate(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }
}

fn main() -> io::Result<()> {
    // One descriptor for each inode.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let dir = std::env::args_os().nth(1).unwrap_or_else(|| ".".into());
    let root = describe(openat(CWD, dir.as_bytes(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?)?;
    let options = StoreOptions { limit: 16 << 20, ..StoreOptions::default() };
    let host = Host { inodes: InodeStore::new(options, root)?, asked: AtomicU64::new(0) };
    host.inodes.keep_limit(Busy)?;
    for pass in ["first", "second"] {
        let mut held = Vec::new();
        host.walk(ROOT, &mut held)?;
        let asked = host.asked.swap(0, Ordering::Relaxed);
        println!("{pass} walk: {} lookups, {asked} asked the host", held.len());
        if let Some(last) = held.last() {
            println!("the last one is {}", host.inodes.path_of(*last)?.display());
        }
        host.inodes.batch_forget(held.into_iter().map(|ino| (ino, 1)));
    }
    let counters = host.inodes.counters();
    println!("{} inodes and {} bytes are cached", counters.inodes, counters.bytes);
    Ok(())
}
