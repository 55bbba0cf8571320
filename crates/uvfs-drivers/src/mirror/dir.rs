//! Reading directories, by the host's own cookies.
//!
//! A reader continues by cookie, and no directory is held open for it. To save a long listing an open and a seek at
//! each step, the last few *streams* are kept: a descriptor, and the entries that were read last. A reader may
//! continue at any of these entries, because a front end hands out only as many as its reply has room for. A stream
//! belongs to a node, not to a number, which the host may give to another directory.
//!
//! If no stream fits (too many readers, or one that seeks), the directory is opened and sought. The host's cookies
//! are good for that on all usual file systems. Before each step the directory's path is walked again. So the mirror
//! stops reading a directory that was moved out of the source, or that another one has replaced.
//!
//! If several entries in a row have one cookie, each but the first gets a tag too: see `cookie`.
//!
//! The lock protects the list of streams. It is held neither across a system call nor while entries are handed out.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, StatxAttributes, StatxFlags, fdatasync, fsync, openat,
    seek, statx,
};
use uvfs::Inode;
use uvfs::types::{DirEntry, Errno, Result, mode};

use super::Mirror;
use super::cookie::{Cookies, SHIFT};
use super::node::Node;
use super::reach::At;

/// Bytes of a directory that are read at a time.
const BUFFER: usize = 16 << 10;
/// The number that a listing shows if only a look at the file would tell its number.
const UNKNOWN: u64 = 0xffff_ffff;
/// Entries that are kept when the next ones are read: the reader may have had no room for the last few.
const BEHIND: usize = 32;

#[derive(Clone)]
struct Entry {
    name: Box<[u8]>,
    ino: u64,
    fmt: u32,
    cookie: u64,
}

/// Gets an entry: name, number, type bits and cookie.
type Each<'e> = dyn FnMut(&[u8], u64, u32, u64) + 'e;

/// An open directory of the host.
trait Source {
    /// Continues after this cookie of the host's; 0: from the start.
    fn seek(&self, cookie: u64) -> Result<()>;
    /// Hands out the next few entries. Returns whether it came to the end.
    fn read(&self, each: &mut Each<'_>) -> Result<bool>;
}

struct Stream<S = OwnedFd> {
    dir: Weak<Node>,
    source: S,
    /// The cookie before the first of the entries.
    from: u64,
    entries: Arc<Vec<Entry>>,
    /// The host's cookie of the entry that was read last, dots included.
    last: Option<u64>,
    /// The last reading came to the end, and no reader knows it yet.
    ended: bool,
}

impl<S: Source> Stream<S> {
    fn is_of(&self, dir: &Arc<Node>) -> bool {
        // As long as it is referred to, no other node has its address.
        self.dir.as_ptr() == Arc::as_ptr(dir)
    }

    /// The index of the entry after this cookie.
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
    /// Streams in use: a number, and the directory. If a listing of that directory begins meanwhile, the entry goes.
    out: Vec<(u64, Weak<Node>)>,
}

/// Streams at which a reader may continue.
pub(super) struct Streams {
    kept: Mutex<Kept>,
    max: usize,
    next: AtomicU64,
    /// Directories that were opened to be read.
    opened: AtomicU64,
    cookies: Cookies,
}

impl Streams {
    pub(super) fn new(max: usize) -> Self {
        Self {
            kept: Mutex::default(),
            max,
            next: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            cookies: Cookies::default(),
        }
    }

    /// The youngest stream that has this cookie, and a number to give it back by.
    fn take(&self, dir: &Arc<Node>, cookie: u64) -> (u64, Option<Stream>) {
        let number = self.next.fetch_add(1, Relaxed);
        let mut kept = self.kept.lock();
        let Kept { streams, out } = &mut *kept;
        let mut stale = VecDeque::new();
        if cookie < SHIFT {
            // A listing begins: it must not continue with entries that were read before. A reader of those opens a
            // stream of its own.
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
                let ino = self.table.numbering.shown(*ino).unwrap_or(UNKNOWN);
                if !sink(DirEntry { name, ino, fmt: *fmt, cookie }) {
                    return Ok(());
                }
            }
        }
    }

    /// Whether a directory is empty. Keeps no stream: the caller does not read on. If it is not, the caller refuses to
    /// remove it, and does not ask the host. So this has the error that comes before ENOTEMPTY there.
    ///
    /// # Errors
    /// EPERM for one with entries that is guarded, or is in a guarded directory.
    pub(super) fn has_no_entry(&self, dir: &Inode<'_>) -> Result<bool> {
        let node = self.node(dir)?;
        if node.covered() {
            return Ok(true);
        }
        let at = self.reach(&node)?;
        let source = open_dir(&at)?;
        let mut empty = true;
        while !source.read(&mut |name, _, _, _| empty &= matches!(name, b"." | b".."))? && empty {}
        if !empty && (is_guarded(&at, c"")? || is_guarded(&at, c"..")?) {
            return Err(Errno::PERM);
        }
        Ok(empty)
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
                Stream::begin(Arc::downgrade(node), open_dir(at)?, cookie, &self.streams.cookies)?
            }
        };
        let next = stream.go_on(cookie, &self.streams.cookies)?;
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

/// Whether the directory at `path` is immutable or append-only.
fn is_guarded(at: &At<'_>, path: &CStr) -> Result<bool> {
    let seen = statx(at, path, AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    Ok(seen.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND))
}

fn open_dir(at: &At<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(at, c".", flags, Mode::empty())
}

impl<S: Source> Stream<S> {
    /// A stream that continues after `cookie`.
    fn begin(dir: Weak<Node>, source: S, cookie: u64, cookies: &Cookies) -> Result<Self> {
        let (host, tagged) = cookies.untell(cookie);
        let mut stream =
            Self { dir, source, from: cookie, entries: Arc::default(), last: None, ended: false };
        if host == 0 && !tagged {
            return Ok(stream);
        }
        stream.rewind(host, cookies.tell(host))?;
        while tagged && !stream.ended && stream.last == Some(host) {
            stream.read_on(cookies)?;
            if stream.after(cookie).is_some() {
                return Ok(stream);
            }
        }
        // The entry of this cookie may be gone: all other entries with the host's cookie come once more.
        stream.rewind(host, cookie)?;
        Ok(stream)
    }

    /// Continues after the host's cookie; `from` is the mirror's form of it.
    fn rewind(&mut self, host: u64, from: u64) -> Result<()> {
        self.source.seek(host)?;
        (self.from, self.last, self.ended) = (from, Some(host), false);
        self.entries = Arc::default();
        Ok(())
    }

    /// Reads on if no entry after `cookie` is known, unless that is the end. Returns the index of the next entry.
    fn go_on(&mut self, cookie: u64, cookies: &Cookies) -> Result<usize> {
        let next = self.after(cookie).unwrap_or(0);
        // A reader that comes back after the end wants to know whether there is more now.
        if next < self.entries.len() || std::mem::take(&mut self.ended) {
            return Ok(next);
        }
        self.read_on(cookies)?;
        Ok(self.after(cookie).unwrap_or(self.entries.len()))
    }

    /// Reads the next entries, and keeps the last ones before them; a directory that was removed has none.
    fn read_on(&mut self, cookies: &Cookies) -> Result<()> {
        let behind = self.entries.len().saturating_sub(BEHIND);
        let mut entries = self.entries[behind..].to_vec();
        if let Some(before) = behind.checked_sub(1) {
            self.from = self.entries[before].cookie;
        }
        let before = entries.len();
        let outcome = self.read_ahead(&mut entries, cookies);
        self.ended &= entries.len() > before;
        self.entries = Arc::new(entries);
        outcome
    }

    fn read_ahead(&mut self, entries: &mut Vec<Entry>, cookies: &Cookies) -> Result<()> {
        let before = entries.len();
        let last = &mut self.last;
        while !self.ended && entries.len() == before {
            self.ended = self.source.read(&mut |name, ino, fmt, host| {
                let again = last.replace(host) == Some(host);
                if name == b"." || name == b".." {
                    return;
                }
                let mut cookie = cookies.tell(host);
                if again && let Some(tagged) = cookies.tag(host, name) {
                    cookie = tagged;
                    let told = |cookie| {
                        entries
                            .iter()
                            .rev()
                            .take_while(|e| cookies.untell(e.cookie).0 == host)
                            .any(|e| e.cookie == cookie)
                    };
                    while told(cookie) {
                        cookie = cookies.next_tag(cookie);
                    }
                }
                entries.push(Entry { name: name.into(), ino, fmt, cookie });
            })?;
        }
        Ok(())
    }
}

impl Source for OwnedFd {
    fn seek(&self, cookie: u64) -> Result<()> {
        seek(self, SeekFrom::Start(cookie)).map(drop)
    }

    fn read(&self, each: &mut Each<'_>) -> Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut dir = RawDir::new(self, &mut buffer);
        loop {
            match dir.next() {
                // A directory that was removed has no entries.
                None | Some(Err(Errno::NOENT)) => return Ok(true),
                Some(Err(errno)) => return Err(errno),
                Some(Ok(entry)) => {
                    let (name, fmt) = (entry.file_name().to_bytes(), type_bits(entry.file_type()));
                    each(name, entry.ino(), fmt, entry.next_entry_cookie());
                }
            }
            if dir.is_buffer_empty() {
                return Ok(false);
            }
        }
    }
}

/// Type bits of a mode; none if the host does not tell.
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

    /// Entries in the order of their hashes, several of which may be equal; the host's cookie is the next one's hash.
    struct Hashed {
        entries: Mutex<Vec<(u64, String)>>,
        at: Mutex<usize>,
        few: usize,
    }

    /// The cookie of the last one.
    const END: u64 = 0x7fff_ffff;

    impl Source for &Hashed {
        fn seek(&self, cookie: u64) -> Result<()> {
            *self.at.lock() = self.entries.lock().partition_point(|(hash, _)| *hash < cookie);
            Ok(())
        }

        fn read(&self, each: &mut Each<'_>) -> Result<bool> {
            let (entries, mut at) = (self.entries.lock(), self.at.lock());
            let from = (*at).min(entries.len());
            let next: Vec<_> = entries.iter().skip(from).take(self.few).collect();
            for (nth, (_, name)) in next.iter().enumerate() {
                let cookie = entries.get(from + nth + 1).map_or(END, |(hash, _)| *hash);
                each(name.as_bytes(), 1, 0, cookie);
            }
            *at = from + next.len();
            Ok(next.is_empty())
        }
    }

    /// Eleven entries of one hash among others, `few` of which the host hands out at a time.
    fn hashed(few: usize) -> Hashed {
        let hashes = [5, 9, 9, 20].into_iter().chain([21; 11]).chain([22, 30, 30, 31]);
        let entries = hashes.enumerate().map(|(nth, hash)| (hash, format!("name{nth}"))).collect();
        Hashed { entries: Mutex::new(entries), at: Mutex::default(), few }
    }

    /// Lists all, `step` at a time; `keep`: by one stream, and by a new one for each step otherwise. `remove`: what
    /// was seen is removed before the next step.
    fn list(few: usize, step: usize, keep: bool, remove: bool) -> Vec<String> {
        let (source, cookies) = (hashed(few), Cookies::default());
        let (mut cookie, mut names, mut kept) = (0, Vec::new(), None);
        loop {
            let stream = kept.take().filter(|stream: &Stream<_>| keep && stream.after(cookie).is_some());
            let mut stream =
                stream.unwrap_or_else(|| Stream::begin(Weak::new(), &source, cookie, &cookies).unwrap());
            let mut seen = 0;
            while seen < step {
                let next = stream.go_on(cookie, &cookies).unwrap();
                let Some(entry) = stream.entries.get(next) else { break };
                cookie = entry.cookie;
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                seen += 1;
            }
            if seen == 0 {
                return names;
            }
            if remove {
                source.entries.lock().retain(|(_, name)| !names.contains(name));
            }
            kept = Some(stream);
        }
    }

    #[test]
    fn entries_of_one_hash_are_listed_once_each_wherever_one_goes_on() {
        let all: Vec<_> = (0..19).map(|nth| format!("name{nth}")).collect();
        for (few, step) in (1..=20).flat_map(|few| (1..=20).map(move |step| (few, step))) {
            for keep in [false, true] {
                assert_eq!(list(few, step, keep, false), all, "{few} {step} {keep}");
            }
        }
    }

    #[test]
    fn who_removes_what_he_has_listed_misses_nothing() {
        let all: Vec<_> = (0..19).map(|nth| format!("name{nth}")).collect();
        for (few, step) in (1..=20).flat_map(|few| (1..=20).map(move |step| (few, step))) {
            assert_eq!(list(few, step, false, true), all, "{few} {step}");
        }
    }
}
