//! Reading directories, by the host's own cookies.
//!
//! A reader goes on by cookie, and no directory is held open for it. So that a long listing need not be opened and sought
//! for at each step, the last few *streams* are kept: a descriptor and the entries that were read ahead. A stream
//! belongs to a directory and the cookie at which it stands; it is taken out while it is read.
//! Where there is none (too many readers, or one that seeks) the directory is opened and sought: the host's cookies are
//! good for that on all usual file systems. Before each step the directory's path is walked again: a directory that was
//! moved out of the source, or in whose place another one stands, is not read on.
//!
//! The lock protects the list of streams and is held neither across a system call nor while entries are handed out.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom, fdatasync, fsync, openat, seek};
use uvfs::Inode;
use uvfs::types::{DirEntry, Errno, Result, mode};

use super::Mirror;
use super::node::Node;
use super::reach::At;

/// Bytes that are read of a directory at a time.
const BUFFER: usize = 16 << 10;
/// Cookies 0 to 2 are not for entries.
const SHIFT: u64 = 3;
/// Larger ones than any count, that is hashes, are passed on as they are.
const LARGE: u64 = 1 << 62;

/// The host's cookie as we tell it. Two hashes of 2^63 that lie just above [`LARGE`] look like a count.
fn tell(cookie: u64) -> u64 {
    if cookie < LARGE { cookie + SHIFT } else { cookie }
}

/// The inverse of [`tell`].
fn untell(cookie: u64) -> u64 {
    if cookie < LARGE + SHIFT { cookie.saturating_sub(SHIFT) } else { cookie }
}

struct Entry {
    name: Box<[u8]>,
    ino: u64,
    fmt: u32,
    cookie: u64,
}

struct Stream {
    dir: u64,
    /// The cookie after which it goes on.
    at: u64,
    fd: OwnedFd,
    ahead: VecDeque<Entry>,
    ended: bool,
}

/// Streams that somebody may come back to.
pub(super) struct Streams {
    kept: Mutex<VecDeque<Stream>>,
    max: usize,
}

impl Streams {
    pub(super) fn new(max: usize) -> Self {
        Self { kept: Mutex::new(VecDeque::new()), max }
    }

    /// The stream that goes on after `at`, the youngest of several.
    fn take(&self, dir: u64, at: u64) -> Option<Stream> {
        let mut kept = self.kept.lock();
        let mut stale = VecDeque::new();
        if at < SHIFT {
            // A listing begins: it must not come to be continued by what was read ahead before. Who was about to go on
            // with that opens a stream of his own.
            let all = std::mem::take(&mut *kept).into_iter();
            (stale, *kept) = all.partition(|stream| stream.dir == dir && !stream.ahead.is_empty());
        }
        let found = kept.iter().rposition(|stream| stream.dir == dir && stream.at == at);
        let found = found.and_then(|found| kept.remove(found));
        drop(kept);
        // Closed out of the lock.
        drop(stale);
        found
    }

    /// Who read on until `last` has used the entries up to `cookie` only: the others are for the next one.
    fn give_back(&self, dir: u64, last: u64, cookie: u64, rest: VecDeque<Entry>) {
        let mut kept = self.kept.lock();
        // It may have been given up, or be in use by another reader. One that has something ahead stands further on.
        if let Some(stream) = kept.iter_mut().find(|s| s.dir == dir && s.at == last && s.ahead.is_empty()) {
            stream.at = cookie;
            stream.ahead = rest;
        }
    }

    fn keep(&self, stream: Stream) {
        let mut kept = self.kept.lock();
        kept.push_back(stream);
        let gone = if kept.len() > self.max { kept.pop_front() } else { None };
        drop(kept);
        // Closed out of the lock.
        drop(gone);
    }
}

impl Mirror {
    pub(super) fn read_dir(
        &self,
        dir: &Inode<'_>,
        mut cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = self.node(dir)?;
        if node.covered() {
            return Ok(());
        }
        loop {
            let batch = self.next_entries(&node, cookie)?;
            let Some(last) = batch.back().map(|entry| entry.cookie) else { return Ok(()) };
            let mut rest = batch.into_iter();
            while let Some(Entry { name, ino, fmt, cookie: after }) = rest.next() {
                cookie = after;
                if !sink(DirEntry { name: &name, ino, fmt, cookie }) {
                    self.streams.give_back(node.number, last, cookie, rest.collect());
                    return Ok(());
                }
            }
        }
    }

    /// The next entries after `cookie`, none at the end. The stream that they are from is kept meanwhile.
    fn next_entries(&self, node: &Arc<Node>, cookie: u64) -> Result<VecDeque<Entry>> {
        let _turn = self.budget.turn();
        let at = self.reach(node)?;
        let mut stream = match self.streams.take(node.number, cookie) {
            Some(stream) => stream,
            None => open_stream(node.number, &at, cookie)?,
        };
        if stream.ahead.is_empty() && !stream.ended {
            stream.read_ahead()?;
        }
        let batch = std::mem::take(&mut stream.ahead);
        if let Some(last) = batch.back() {
            stream.at = last.cookie;
            self.streams.keep(stream);
        }
        Ok(batch)
    }
}

impl Mirror {
    pub(super) fn sync_dir(&self, dir: &Inode<'_>, datasync: bool) -> Result<()> {
        let (_, at) = self.reach_inode(dir)?;
        let fd = open_dir(&at)?;
        if datasync { fdatasync(&fd) } else { fsync(&fd) }
    }
}

fn open_dir(at: &At<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(at, c".", flags, Mode::empty())
}

fn open_stream(dir: u64, at: &At<'_>, cookie: u64) -> Result<Stream> {
    let fd = open_dir(at)?;
    if cookie >= SHIFT {
        seek(&fd, SeekFrom::Start(untell(cookie)))?;
    }
    Ok(Stream { dir, at: cookie, fd, ahead: VecDeque::new(), ended: false })
}

impl Stream {
    /// Reads the next entries; a directory that was removed has none.
    fn read_ahead(&mut self) -> Result<()> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut dir = RawDir::new(&self.fd, &mut buffer);
        loop {
            match dir.next() {
                None => {
                    self.ended = true;
                    return Ok(());
                }
                Some(Err(Errno::NOENT)) => {
                    self.ended = true;
                    return Ok(());
                }
                Some(Err(errno)) => return Err(errno),
                Some(Ok(entry)) => {
                    let name = entry.file_name().to_bytes();
                    if name != b"." && name != b".." {
                        self.ahead.push_back(Entry {
                            name: name.into(),
                            ino: entry.ino(),
                            fmt: type_bits(entry.file_type()),
                            cookie: tell(entry.next_entry_cookie()),
                        });
                    }
                }
            }
            if dir.is_buffer_empty() && !self.ahead.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Type bits of a mode; none where the host does not say.
fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::RegularFile => mode::S_IFREG,
        FileType::Directory => mode::S_IFDIR,
        FileType::Symlink => mode::S_IFLNK,
        FileType::Fifo => mode::S_IFIFO,
        FileType::Socket => mode::S_IFSOCK,
        FileType::CharacterDevice => mode::S_IFCHR,
        FileType::BlockDevice => mode::S_IFBLK,
        FileType::Unknown => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_come_back_as_they_were() {
        for cookie in [0, 1, 2, 3, 4096, LARGE - 1, LARGE + SHIFT, i64::MAX as u64 - 1, i64::MAX as u64] {
            assert!(tell(cookie) >= SHIFT);
            assert!(tell(cookie) <= i64::MAX as u64);
            assert_eq!(untell(tell(cookie)), cookie);
        }
    }
}
