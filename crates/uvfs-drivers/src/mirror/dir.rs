//! Reading directories, by the host's own cookies.
//!
//! A reader goes on by cookie, and no directory is held open for it. So that a long listing need not be opened and sought
//! for at each step, the last few *streams* are kept: a descriptor, and the entries that were read last. A reader goes on
//! at any of these: a front end hands out fewer than it asked for, as many as its reply has room for. A stream belongs to
//! a node, not to a number, which the host may give to another directory.
//! Where there is none (too many readers, or one that seeks) the directory is opened and sought: the host's cookies are
//! good for that on all usual file systems. Before each step the directory's path is walked again: a directory that was
//! moved out of the source, or in whose place another one stands, is not read on.
//!
//! The lock protects the list of streams and is held neither across a system call nor while entries are handed out.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

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
/// Entries that are kept when the next ones are read: who goes on may have had no room for the last few.
const BEHIND: usize = 32;

/// The host's cookie as we tell it. Two hashes of 2^63 that lie just above [`LARGE`] look like a count.
fn tell(cookie: u64) -> u64 {
    if cookie < LARGE { cookie + SHIFT } else { cookie }
}

/// The inverse of [`tell`].
fn untell(cookie: u64) -> u64 {
    if cookie < LARGE + SHIFT { cookie.saturating_sub(SHIFT) } else { cookie }
}

#[derive(Clone)]
struct Entry {
    name: Box<[u8]>,
    ino: u64,
    fmt: u32,
    cookie: u64,
}

struct Stream {
    dir: Weak<Node>,
    fd: OwnedFd,
    /// The cookie before the first of the entries.
    from: u64,
    entries: Arc<Vec<Entry>>,
    /// The last reading came to the end, and nobody was told yet.
    ended: bool,
}

impl Stream {
    fn is_of(&self, dir: &Arc<Node>) -> bool {
        // As long as it is referred to, no other node has its address.
        self.dir.as_ptr() == Arc::as_ptr(dir)
    }

    /// Which of the entries comes after this cookie.
    fn after(&self, cookie: u64) -> Option<usize> {
        if cookie == self.from {
            return Some(0);
        }
        self.entries.iter().rposition(|entry| entry.cookie == cookie).map(|at| at + 1)
    }
}

#[derive(Default)]
struct Kept {
    streams: VecDeque<Stream>,
    /// Those that are being read: a number, and whose. Where a listing of the directory begins meanwhile, it goes.
    out: Vec<(u64, Weak<Node>)>,
}

/// Streams that somebody may come back to.
pub(super) struct Streams {
    kept: Mutex<Kept>,
    max: usize,
    next: AtomicU64,
    /// Directories that were opened to be read.
    opened: AtomicU64,
}

impl Streams {
    pub(super) fn new(max: usize) -> Self {
        Self { kept: Mutex::default(), max, next: AtomicU64::new(0), opened: AtomicU64::new(0) }
    }

    /// The youngest stream that has this cookie, and a number to give it back by.
    fn take(&self, dir: &Arc<Node>, cookie: u64) -> (u64, Option<Stream>) {
        let number = self.next.fetch_add(1, Relaxed);
        let mut kept = self.kept.lock();
        let Kept { streams, out } = &mut *kept;
        let mut stale = VecDeque::new();
        if cookie < SHIFT {
            // A listing begins: it must not come to be continued by what was read before. Who was about to go on with
            // that opens a stream of his own.
            (stale, *streams) = std::mem::take(streams).into_iter().partition(|stream| stream.is_of(dir));
            out.retain(|(_, of)| of.as_ptr() != Arc::as_ptr(dir));
        }
        out.push((number, Arc::downgrade(dir)));
        let found = streams.iter().rposition(|stream| stream.is_of(dir) && stream.after(cookie).is_some());
        let found = found.and_then(|found| streams.remove(found));
        drop(kept);
        // Closed out of the lock.
        drop(stale);
        (number, found)
    }

    /// Gives a stream back, or none.
    fn keep(&self, number: u64, stream: Option<Stream>) {
        let mut kept = self.kept.lock();
        let Kept { streams, out } = &mut *kept;
        let mut gone = stream;
        if let Some(at) = out.iter().position(|(out, _)| *out == number) {
            out.swap_remove(at);
            streams.extend(gone.take());
        }
        let unknown = streams.iter().position(|stream| stream.dir.strong_count() == 0);
        let unknown = unknown.and_then(|at| streams.remove(at));
        let oldest = if streams.len() > self.max { streams.pop_front() } else { None };
        drop(kept);
        // Closed out of the lock.
        drop((gone, unknown, oldest));
    }

    /// How often a directory was opened to be read.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
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
            let (entries, at) = self.next_entries(&node, cookie)?;
            let next = entries.get(at..).unwrap_or_default();
            if next.is_empty() {
                return Ok(());
            }
            for Entry { name, ino, fmt, cookie: after } in next {
                cookie = *after;
                if !sink(DirEntry { name, ino: *ino, fmt: *fmt, cookie }) {
                    return Ok(());
                }
            }
        }
    }

    /// Entries, and which of them is the next after `cookie`; none at the end.
    fn next_entries(&self, node: &Arc<Node>, cookie: u64) -> Result<(Arc<Vec<Entry>>, usize)> {
        let _turn = self.budget.turn();
        let at = self.reach(node)?;
        let (number, stream) = self.streams.take(node, cookie);
        match self.go_on(node, &at, cookie, stream) {
            Ok((stream, next)) => {
                let entries = Arc::clone(&stream.entries);
                self.streams.keep(number, Some(stream));
                Ok((entries, next))
            }
            Err(errno) => {
                self.streams.keep(number, None);
                Err(errno)
            }
        }
    }

    /// The stream with something after `cookie`, unless that is the end.
    fn go_on(
        &self,
        node: &Arc<Node>,
        at: &At<'_>,
        cookie: u64,
        stream: Option<Stream>,
    ) -> Result<(Stream, usize)> {
        let mut stream = match stream {
            Some(stream) => stream,
            None => {
                self.streams.opened.fetch_add(1, Relaxed);
                open_stream(node, at, cookie)?
            }
        };
        let next = stream.after(cookie).unwrap_or(0);
        // Who comes back after the end wants to know whether there is more now.
        if next < stream.entries.len() || std::mem::take(&mut stream.ended) {
            return Ok((stream, next));
        }
        stream.read_on()?;
        let next = stream.after(cookie).unwrap_or(stream.entries.len());
        Ok((stream, next))
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

fn open_stream(dir: &Arc<Node>, at: &At<'_>, cookie: u64) -> Result<Stream> {
    let fd = open_dir(at)?;
    if cookie >= SHIFT {
        seek(&fd, SeekFrom::Start(untell(cookie)))?;
    }
    Ok(Stream { dir: Arc::downgrade(dir), fd, from: cookie, entries: Arc::default(), ended: false })
}

impl Stream {
    /// Reads the next entries, and keeps the last ones before them; a directory that was removed has none.
    fn read_on(&mut self) -> Result<()> {
        let behind = self.entries.len().saturating_sub(BEHIND);
        let mut entries = self.entries[behind..].to_vec();
        if let Some(before) = behind.checked_sub(1) {
            self.from = self.entries[before].cookie;
        }
        let before = entries.len();
        let outcome = self.read_ahead(&mut entries);
        self.ended &= entries.len() > before;
        self.entries = Arc::new(entries);
        outcome
    }

    fn read_ahead(&mut self, entries: &mut Vec<Entry>) -> Result<()> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut dir = RawDir::new(&self.fd, &mut buffer);
        let before = entries.len();
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
                        entries.push(Entry {
                            name: name.into(),
                            ino: entry.ino(),
                            fmt: type_bits(entry.file_type()),
                            cookie: tell(entry.next_entry_cookie()),
                        });
                    }
                }
            }
            if dir.is_buffer_empty() && entries.len() > before {
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
