//! Files whose contents are in the [pool](super::host_pool), where the kernel of a front end reads and writes them by
//! itself (FUSE passthrough).
//!
//! **Where contents are.** A regular file's pages are in the server, or its contents are a file of the pool. It moves
//! to the pool when a front end opens it and it has no pages: as a rule, at its first open for writing. A file that
//! has pages stays where it is, so nothing is ever copied, and none moves back. The size that a file will have is not
//! known when the kernel asks how to write it, so small ones move too. Each takes an inode and a name of the host.
//!
//! **Locks.** The mapping's mutex, which protects the pages, protects the move and every change of a moved file by
//! the server. Readers take no lock: they read the attributes, then look where the contents are. A size of a
//! moved file was published after the move, so a reader who knows that size also knows the move. The mutex is held
//! across calls of the host, in a file system without a device or server.
//!
//! **Attributes.** The kernel writes without a word to the server. So while an open file is lent, or a mapping made
//! through one may exist, changes are *unreported*: size, blocks and times are the host's, and front ends ask each time
//! ([`FileLender::was_lent`]). A release takes them over. This ends when no lent file is open and the host finds no
//! other open file or mapping of the contents ([`sys::is_alone`]). A kernel opens a lent file only between `lend` and
//! `release`, and this is looked at only outside of these, under the mutex. Mode, owner and links are the cache's alone.
//!
//! **Times.** Those of the kernel's writes may be its clock's last tick, at most 10 ms ago. So a time that would go back
//! by so little moves by a nanosecond instead. (Since Linux 6.13 a write after a look has the exact time.)

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{
    FallocateFlags, OFlags, SeekFrom, Statx, StatxTimestamp, Timespec, Timestamps, fallocate, ftruncate,
    futimens, seek,
};
use rustix::io::pread;
use uvfs::driver::{Borrower, File, FileLender, Inode};
use uvfs::types::{Attr, Errno, Fallocate, Op, Result, Seek, SetAttr, Time};
use uvfs_cache::machinery::mapping::Writer;

use super::attr::{apply, resized};
use super::file_data::{MAX_SIZE, PAGE, below_max_size, touch_atime};
use super::host_pool::{Pool, write_at};
use super::node::Node;
use super::{Tmpfs, sys};

/// The contents are in the pool.
const MOVED: u32 = 1;
/// The attributes may change without notice.
const UNREPORTED: u32 = 2;

/// The handle of all open files of a tmpfs that lends none. So an open and a close store nothing that threads share.
pub(super) const NOT_LENT: u64 = 0;

/// Nanoseconds of the longest tick of a kernel's clock.
const TICK: i64 = 10_000_000;
/// Nanoseconds.
const SECOND: i128 = 1_000_000_000;

/// Where a file's contents are, and by whom they are used.
#[derive(Debug, Default)]
pub(super) struct Home {
    state: AtomicU32,
    /// Lent files that are open. Changed under the mapping's mutex.
    open: AtomicU32,
    /// The time of change of the host's file, as last seen. The server's own changes of that file move it too, and must
    /// not show. Changed under the mapping's mutex.
    seen: AtomicI64,
}

impl Home {
    /// Whether the contents are in the pool. Under the mapping's mutex this does not change.
    pub(super) fn is_moved(&self) -> bool {
        // Acquire: of the size that a reader has read before, see the module.
        self.state.load(Ordering::Acquire) & MOVED != 0
    }

    fn changes_unreported(&self) -> bool {
        self.state.load(Ordering::Acquire) & UNREPORTED != 0
    }

    /// Notes the host's time of change; whether it has moved.
    fn saw(&self, host: &Statx) -> bool {
        let time = nanoseconds(time(host.stx_ctime)) as i64;
        self.seen.swap(time, Ordering::Relaxed) != time
    }

    /// For the next file of this node.
    pub(super) fn clear(&self) {
        self.state.store(0, Ordering::Relaxed);
        self.open.store(0, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
    }
}

/// The open files that are lent.
#[derive(Debug, Default)]
pub(super) struct Handles {
    last: AtomicU64,
    lent: Mutex<HashSet<u64>>,
}

impl Handles {
    /// A handle for a file that is being opened, and may be lent.
    pub(super) fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A moved file, under its mapping's mutex.
struct Moved<'a> {
    pool: &'a Pool,
    index: u32,
    node: &'a Node,
    _writer: Writer<'a>,
}

impl Tmpfs {
    /// The node's index, which names its file in the pool.
    fn index_of(inode: &Inode<'_>) -> Option<u32> {
        inode.private().checked_sub(1).and_then(|index| u32::try_from(index).ok())
    }

    /// The inode's file in the pool, if its contents are there.
    fn moved(&self, inode: &Inode<'_>) -> Option<Moved<'_>> {
        let (node, pool) = (self.node(inode)?, self.bytes.pool()?);
        if !node.home.is_moved() {
            return None;
        }
        let index = Self::index_of(inode)?;
        Some(Moved { pool, index, node, _writer: node.mapping.lock(&self.memory) })
    }

    /// Moves a file without pages to the pool.
    fn move_in(&self, inode: &Inode<'_>, node: &Node, index: u32, pool: &Pool) -> Result<()> {
        let file = pool.create(index)?;
        // The size does not change under the mutex.
        if let Err(error) = ftruncate(&file, inode.attr().size) {
            pool.remove(index);
            return Err(error);
        }
        // A change of times comes before, or it finds the file moved and waits for the mutex.
        let attr = inode.update(|attr| {
            // Release: before the first size that the host reports.
            node.home.state.fetch_or(MOVED, Ordering::Release);
            *attr
        });
        futimens(&file, &times(&attr))?;
        node.home.saw(&pool.look(index)?);
        Ok(())
    }

    /// The attributes of a moved file, taken over from the host if they may differ.
    pub(super) fn attr_now(&self, inode: &Inode<'_>) -> Result<Attr> {
        if let Some(moved) = self.moved(inode) {
            moved.take_over(inode)?;
        }
        Ok(inode.attr())
    }

    pub(super) fn release_file(&self, file: File<'_>) {
        if file.handle == NOT_LENT || !self.handles.lent.lock().remove(&file.handle) {
            return;
        }
        if let Some(moved) = self.moved(file.inode) {
            moved.node.home.open.fetch_sub(1, Ordering::Relaxed);
            let _ = moved.take_over(file.inode);
        }
    }

    /// Reads of a moved file; `None` of another one.
    pub(super) fn read_moved(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize>> {
        let file = self.moved(inode)?.open(OFlags::RDONLY);
        let read = || {
            let (file, mut done) = (file?, 0);
            while done < buf.len() && offset.saturating_add(done as u64) < MAX_SIZE {
                match pread(&file, &mut buf[done..], offset + done as u64)? {
                    0 => break,
                    len => done += len,
                }
            }
            Ok(done)
        };
        let read = read();
        touch_atime(inode, &inode.attr(), op.now);
        Some(read)
    }

    /// Writes of a moved file; `None` of another one.
    pub(super) fn write_moved(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        offset: u64,
        data: &[u8],
        append: bool,
    ) -> Option<Result<usize>> {
        let moved = self.moved(inode)?;
        Some((|| {
            let start = if append { moved.pool.look(moved.index)?.stx_size } else { offset };
            let data = below_max_size(data, start)?;
            let written = write_at(moved.open(OFlags::WRONLY)?, data, start)?;
            moved.changed(op, inode)?;
            Ok(written)
        })())
    }

    /// fallocate(2) of a moved file; `None` of another one.
    pub(super) fn allocate_moved(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        how: Fallocate,
        range: (u64, u64),
    ) -> Option<Result<()>> {
        let moved = self.moved(inode)?;
        Some((|| {
            let (start, len) = range;
            let file = moved.open(OFlags::WRONLY)?;
            match how {
                Fallocate::Allocate { keep_size } => fallocate(&file, flags(keep_size), start, len)?,
                Fallocate::ZeroRange { keep_size } => {
                    // The host's tmpfs has no such call. Bytes beyond the size are zeroes.
                    let old = moved.pool.look(moved.index)?.stx_size;
                    fallocate(&file, flags(keep_size), start, len)?;
                    let zeroes = [0; 16 * PAGE as usize];
                    let (mut at, end) = (start, old.min(start + len));
                    while at < end {
                        let len = (end - at).min(zeroes.len() as u64) as usize;
                        at += write_at(&file, &zeroes[..len], at)? as u64;
                    }
                }
                Fallocate::PunchHole => {
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&file, punch, start, len)?;
                }
            }
            moved.changed(op, inode)
        })())
    }

    /// SEEK_DATA and SEEK_HOLE of a moved file; `None` of another one.
    pub(super) fn seek_moved(&self, inode: &Inode<'_>, offset: u64, what: Seek) -> Option<Result<u64>> {
        let file = self.moved(inode)?.open(OFlags::RDONLY);
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        Some(file.and_then(|file| seek(file, from)))
    }

    /// Changes attributes of a moved file; `None` of another one.
    pub(super) fn set_attr_moved(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Option<Result<()>> {
        let moved = self.moved(inode)?;
        Some((|| {
            let file = match set {
                SetAttr { size: None, atime: None, mtime: None, .. } => None,
                _ => Some(moved.open(OFlags::WRONLY)?),
            };
            if let (Some(file), Some(size)) = (&file, set.size) {
                ftruncate(file, size)?;
            }
            moved.take_over(inode)?;
            let attr = inode.update(|attr| {
                if set.size.is_some() {
                    resized(attr, op, set)
                } else {
                    apply(attr, op, set)
                }
                *attr
            });
            if let Some(file) = file {
                futimens(&file, &times(&attr))?;
                moved.node.home.saw(&moved.pool.look(moved.index)?);
            }
            Ok(())
        })())
    }

    /// Ends the state in which changes are unreported, if nothing can make any. Returns whether it has ended.
    fn end_unreported(&self, inode: &Inode<'_>) -> bool {
        let Some(moved) = self.moved(inode) else { return true };
        let home = &moved.node.home;
        if home.open.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let alone = moved.open(OFlags::RDWR).is_ok_and(|file| sys::is_alone(file.as_fd()));
        let ended = alone && moved.take_over(inode).is_ok();
        if ended {
            // Release: after the last attributes.
            home.state.fetch_and(!UNREPORTED, Ordering::Release);
        }
        ended
    }
}

impl Moved<'_> {
    fn open(&self, flags: OFlags) -> Result<std::os::fd::OwnedFd> {
        self.pool.open(self.index, flags)
    }

    /// Takes over the attributes that the host has.
    fn take_over(&self, inode: &Inode<'_>) -> Result<()> {
        let host = self.pool.look(self.index)?;
        let changed = self.node.home.saw(&host);
        inode.update(|attr| merge(attr, &host, changed));
        Ok(())
    }

    /// Takes them over after a change of the contents by the server.
    fn changed(&self, op: &Op, inode: &Inode<'_>) -> Result<()> {
        let host = self.pool.look(self.index)?;
        let changed = self.node.home.saw(&host);
        inode.update(|attr| {
            merge(attr, &host, changed);
            attr.mtime = op.now;
            attr.ctime = op.now;
        });
        Ok(())
    }
}

impl FileLender for Tmpfs {
    fn offer(&self, _op: &Op, file: File<'_>, to: &mut Borrower<'_>) -> Result<()> {
        let pool = self.bytes.use_pool().ok_or(Errno::OPNOTSUPP)?;
        let node = self.node_or_new(file.inode)?;
        let index = Self::index_of(file.inode).ok_or(Errno::STALE)?;
        let lent = {
            let writer = node.mapping.lock(&self.memory);
            if !node.home.is_moved() {
                if writer.count() != 0 {
                    return Err(Errno::BUSY);
                }
                self.move_in(file.inode, node, index, pool)?;
            }
            pool.open(index, OFlags::RDONLY)?
        };
        to(lent.as_fd())
    }

    fn lend(&self, file: File<'_>) -> Result<()> {
        let moved = self.moved(file.inode).ok_or(Errno::STALE)?;
        moved.node.home.open.fetch_add(1, Ordering::Relaxed);
        // Release: an answer with attributes may follow at once.
        moved.node.home.state.fetch_or(UNREPORTED, Ordering::Release);
        self.handles.lent.lock().insert(file.handle);
        Ok(())
    }

    fn was_lent(&self, inode: &Inode<'_>) -> bool {
        self.node(inode).is_some_and(|node| node.home.changes_unreported()) && !self.end_unreported(inode)
    }
}

fn flags(keep_size: bool) -> FallocateFlags {
    if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() }
}

/// Takes over what the host has. `changed`: somebody else changed its file.
fn merge(attr: &mut Attr, host: &Statx, changed: bool) {
    attr.size = host.stx_size;
    attr.blocks = host.stx_blocks;
    attr.atime = attr.atime.max(time(host.stx_atime));
    if changed {
        attr.ctime = later(attr.ctime, time(host.stx_ctime));
        attr.mtime = later(attr.mtime, time(host.stx_mtime));
    }
}

/// The time of a change that the host puts at `host`, after one at `last`. The host's clock may be a tick late.
fn later(last: Time, host: Time) -> Time {
    let ahead = nanoseconds(last) - nanoseconds(host);
    if !(0..i128::from(TICK)).contains(&ahead) {
        return host;
    }
    let next = nanoseconds(last) + 1;
    Time::new(next.div_euclid(SECOND) as i64, next.rem_euclid(SECOND) as u32)
}

fn time(t: StatxTimestamp) -> Time {
    Time::new(t.tv_sec, t.tv_nsec)
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.sec()) * SECOND + i128::from(time.nsec())
}

fn times(attr: &Attr) -> Timestamps {
    let time = |t: Time| Timespec { tv_sec: t.sec(), tv_nsec: t.nsec().into() };
    Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) }
}
