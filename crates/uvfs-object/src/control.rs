//! `.uvfs` in the root of a mount: a directory with two files. The lines of `stats` are a name and a number; `uvfs stat`
//! prints them. `pid` is the number of the process, for `uvfs mount --list`. They are answered without the store, so also
//! while the store hangs.
//!
//! No listing of the root shows it, and it hides a key of that name there. Its node numbers are the three highest, which no
//! node of the tree has. A file has the figures of its open. The mutex is a leaf.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fuse3::raw::reply::{DirectoryEntry, DirectoryEntryPlus, FileAttr, ReplyEntry};
use fuse3::{FileType, Result, Timestamp};
use futures_util::Stream;
use parking_lot::Mutex;

use crate::object_fs::ObjectFigures;
use crate::tree::ROOT;

const DIR: u64 = u64::MAX;
const STATS: u64 = u64::MAX - 1;
const PID: u64 = u64::MAX - 2;
/// It never moves.
const TTL: Duration = Duration::from_secs(3600);

/// `.uvfs` of one mount.
#[derive(Debug)]
pub(crate) struct Control {
    is_on: bool,
    owner: (u32, u32),
    since: Timestamp,
    open: Mutex<HashMap<u64, Bytes>>,
}

/// Whether a node is one of these.
pub(crate) fn is_control(node: u64) -> bool {
    matches!(node, DIR | STATS | PID)
}

fn text(figures: &ObjectFigures) -> String {
    let lines = [
        ("calls/list", figures.lists),
        ("calls/head", figures.heads),
        ("calls/get", figures.gets),
        ("bytes_read", figures.bytes_read),
        ("calls_now", figures.running as u64),
        ("rereads", figures.rereads),
        ("dentries", figures.names),
        ("lookups_held", figures.lookups),
        ("unshown_keys", figures.unshown_keys),
        ("bytes", figures.name_bytes),
        ("data_bytes", figures.data.0),
        ("data_bytes_peak", figures.data.1),
        ("disk_bytes", figures.disk_bytes),
        ("disk_reads", figures.disk_reads),
        ("memory/limit", figures.limit),
    ];
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name} {value}");
        text
    })
}

/// The entries of `.uvfs` from a place on.
fn entries(offset: u64) -> impl Iterator<Item = (usize, (&'static str, u64, FileType))> + Send {
    let all = [(".", DIR, FileType::Directory), ("..", ROOT, FileType::Directory)];
    let files = [("stats", STATS, FileType::RegularFile), ("pid", PID, FileType::RegularFile)];
    let all = all.into_iter().chain(files).enumerate();
    all.skip(usize::try_from(offset).unwrap_or(usize::MAX))
}

impl Control {
    pub(crate) fn new(is_on: bool) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since = Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos());
        Self { is_on, owner, since, open: Mutex::default() }
    }

    /// The attributes of one of these nodes.
    pub(crate) fn attr(&self, node: u64) -> FileAttr {
        let (kind, perm, nlink) =
            if node == DIR { (FileType::Directory, 0o555, 2) } else { (FileType::RegularFile, 0o444, 1) };
        FileAttr {
            ino: node,
            size: 0,
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
        }
    }

    /// The answer to a lookup; `None`: it is not for this module.
    ///
    /// # Errors
    /// ENOENT.
    pub(crate) fn lookup(&self, parent: u64, name: &OsStr) -> Option<std::result::Result<ReplyEntry, i32>> {
        let node = match parent {
            ROOT if self.is_on && name == ".uvfs" => DIR,
            DIR if name == "stats" => STATS,
            DIR if name == "pid" => PID,
            DIR | STATS | PID => return Some(Err(libc::ENOENT)),
            _ => return None,
        };
        Some(Ok(ReplyEntry { ttl: TTL, attr: self.attr(node), generation: 0 }))
    }

    /// The entries of `.uvfs`, for readdir.
    pub(crate) fn names(offset: u64) -> impl Stream<Item = Result<DirectoryEntry>> + Send {
        futures_util::stream::iter(entries(offset).map(|(at, (name, inode, kind))| {
            Ok(DirectoryEntry { inode, kind, name: name.into(), offset: at as i64 + 1 })
        }))
    }

    /// The same for readdirplus. A node id of 0 says that nothing was looked up.
    pub(crate) fn nodes(&self, offset: u64) -> impl Stream<Item = Result<DirectoryEntryPlus>> + Send + '_ {
        futures_util::stream::iter(entries(offset).map(|(at, (name, inode, kind))| {
            Ok(DirectoryEntryPlus {
                inode,
                generation: 0,
                kind,
                name: name.into(),
                offset: at as i64 + 1,
                attr: FileAttr { ino: 0, ..self.attr(inode) },
                entry_ttl: Duration::ZERO,
                attr_ttl: Duration::ZERO,
            })
        }))
    }

    /// Keep the content of a node for an open file.
    pub(crate) fn open(&self, node: u64, fh: u64, figures: &ObjectFigures) {
        let text = if node == PID { format!("{}\n", std::process::id()) } else { text(figures) };
        self.open.lock().insert(fh, text.into());
    }

    /// Bytes of an open file; `None`: it is not one of these.
    pub(crate) fn read(&self, fh: u64, offset: u64, size: u32) -> Option<Bytes> {
        let text = self.open.lock().get(&fh)?.clone();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let to = from.saturating_add(size as usize).min(text.len());
        Some(text.slice(from..to))
    }

    /// Whether the file was one of these.
    pub(crate) fn release(&self, fh: u64) -> bool {
        self.open.lock().remove(&fh).is_some()
    }
}
