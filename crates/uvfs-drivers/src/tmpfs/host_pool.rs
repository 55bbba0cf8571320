//! The pool: a tmpfs of the host that nobody else sees, for the contents of files that are lent to a kernel.
//!
//! It is mounted nowhere, and goes with its last descriptor or mapping. Each file's name there is its node's index.
//! No descriptor is kept: a call opens the file and closes it. One page is always in use, because a size of 0 would
//! mean no limit.
//!
//! The mutex of the size comes after all others of this driver. It is held across fsconfig(2), which waits for nobody.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, fstatvfs, ftruncate, openat, statx, unlinkat};
use rustix::io::pwrite;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_reconfigure, fsconfig_set_string,
    fsmount, fsopen,
};
use uvfs::types::Result;

use super::file_data::PAGE;

/// The file of the page that is always in use.
const BALLAST: &str = "ballast";

/// The size of a pool without a limit.
const UNLIMITED: u64 = 1 << 60;

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    root: OwnedFd,
    size: Mutex<Size>,
}

/// The size of the pool's file system, for its only changer.
#[derive(Debug)]
pub(super) struct Size {
    context: OwnedFd,
    /// Bytes, without the page that is always in use.
    pub(super) bytes: u64,
    /// The pool is used, so it may have what nobody else uses.
    pub(super) in_use: bool,
}

impl Pool {
    /// An empty pool: of size 0, or without a limit.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN, and other errors of the host, such as those of an old kernel.
    pub(super) fn new(limited: bool) -> io::Result<Self> {
        let bytes = if limited { 0 } else { UNLIMITED };
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in [("size", &*(bytes + PAGE).to_string()), ("nr_inodes", "0"), ("mode", "0700")] {
            fsconfig_set_string(&context, key, value)?;
        }
        fsconfig_create(&context)?;
        let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
        // O_DIRECT must be the same with and without a pool.
        let ballast = openat(&root, BALLAST, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, PAGE)?;
        Ok(Self { root, size: Mutex::new(Size { context, bytes, in_use: false }) })
    }

    /// The right to change the size.
    pub(super) fn size(&self) -> MutexGuard<'_, Size> {
        self.size.lock()
    }

    /// Bytes of files.
    pub(super) fn used(&self) -> u64 {
        let used = |s: rustix::fs::StatVfs| s.f_blocks.saturating_sub(s.f_bfree).saturating_sub(1) * PAGE;
        fstatvfs(&self.root).map_or(0, used)
    }

    /// Makes the pool smaller by up to `wanted` bytes, in whole pages. Returns by how many: what is free, if that is
    /// less.
    pub(super) fn shrink(&self, size: &mut Size, wanted: u64) -> u64 {
        // The kernel may use more between the look and the change, which is refused then.
        for _ in 0..8 {
            let less = wanted.div_ceil(PAGE).saturating_mul(PAGE).min(size.bytes.saturating_sub(self.used()));
            if less == 0 || size.set(size.bytes - less).is_ok() {
                return less;
            }
        }
        0
    }

    /// A new file for a node.
    pub(super) fn create(&self, index: u32) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        openat(&self.root, index.to_string(), flags, Mode::RUSR | Mode::WUSR)
    }

    /// A node's file.
    pub(super) fn open(&self, index: u32, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOATIME;
        openat(&self.root, index.to_string(), flags, Mode::empty())
    }

    /// The host's attributes of a node's file.
    pub(super) fn look(&self, index: u32) -> Result<Statx> {
        statx(&self.root, index.to_string(), AtFlags::empty(), StatxFlags::BASIC_STATS)
    }

    /// Removes a node's file. It is emptied first: a process that has just closed it may still hold it for a moment.
    pub(super) fn remove(&self, index: u32) {
        let removed = self.open(index, OFlags::WRONLY).and_then(|file| {
            ftruncate(&file, 0)?;
            unlinkat(&self.root, index.to_string(), AtFlags::empty())
        });
        if let Err(error) = removed {
            tracing::warn!(%error, "a removed file keeps its space");
        }
    }
}

impl Size {
    /// Changes the size; refused if more is in use.
    pub(super) fn set(&mut self, bytes: u64) -> Result<()> {
        fsconfig_set_string(&self.context, "size", (bytes + PAGE).to_string())?;
        fsconfig_reconfigure(&self.context)?;
        self.bytes = bytes;
        Ok(())
    }
}

/// Stores all of `data`, or as much as there is room for; returns how much.
///
/// # Errors
/// If it is nothing.
pub(super) fn write_at(file: impl AsFd, data: &[u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match pwrite(&file, &data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
