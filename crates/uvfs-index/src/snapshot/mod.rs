//! Snapshots: a tree's names in a file, so that a server that starts has them at once.
//!
//! # Why a snapshot makes no answer wrong
//!
//! A snapshot shows the host of an earlier time. A walk finds the differences, and the order is the one of the first
//! scan: **mark, then load, then walk, then reports** (see [`tree`](crate::tree)).
//!
//! ```text
//! server                                     others
//! marks the file system                      change C
//! loads the snapshot    phase: checking
//! lists each directory, and
//!   puts its names, removes all others
//! looks where reports say
//!                       phase: following
//! ```
//!
//! - *C ends before the mark.* No event tells of it, whether the server was down or was starting. Every listing comes
//!   after the mark, so the walk shows C: a name that C made is put, one that it removed is not shown and goes.
//! - *C ends after the mark.* The walk may have read that directory before or after C. C's report waits until the walk
//!   has ended, and leads to a look after C.
//!
//! If the walk came first and the mark then, a change between both would be in neither, and for ever.
//!
//! Directories are known by handle. One that a snapshot has at another place is moved when its new place is listed.
//! It still counts as *unread* until its own listing ends, and a report that finds it unread has it read. Directories
//! that are still unread when the walk has ended are read then, and emptied if that fails. So no name of a snapshot outlives the
//! walk without having been seen on the host.
//!
//! While the walk goes on, find answers from the names that are there, with a warning. `changed` answers "everything",
//! also later, for each clock of an earlier server. The walk finds how the tree differs from the snapshot, but not which
//! names came and went meanwhile. The clock's owner may have seen such a name, made and removed while no server ran. It
//! would keep that name for ever. So a server that starts is a new instance.
//!
//! # The file
//!
//! It is written beside the former one, synced, and takes its name, so a crash or a full disk leaves the former one.
//! Its blocks have checksums that cover its own random number and theirs: see `format`.
//!
//! The directory must belong to this user, and nobody else may write there; symbolic links are not followed at its end
//! nor in it. A file that someone else may have written is refused. A lock beside it is held as long as a server has
//! the tree: another server with the same tree and directory goes without.
//!
//! A snapshot is refused if it is of another root: other handle or inode number, or another file system. That one is
//! known by the number that statfs(2) gives, which ext4 takes from its UUID; if there is none, by the device.

mod format;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, fsync, openat, renameat, unlinkat,
};
use rustix::io::Errno;

use crate::protocol::WirePath;
use crate::table::restore::Restorer;
use crate::table::{FileFacts, HostHandle, NameTable};
pub(crate) use format::RootIdentity;
use format::{BlockReader, BlockWriter, Header, Part};

/// Bytes of a name of the file that come from the tree's path.
const READABLE: usize = 80;
/// A name takes as many bytes of a snapshot at least.
const LEAST_BYTES: u64 = 8;
/// Blocks that are read ahead.
const AHEAD: usize = 8;
/// Bytes that are written at a time.
const BUFFER: usize = 1 << 20;

/// The directory that snapshots are kept in.
#[derive(Debug)]
pub struct SnapshotDir {
    fd: OwnedFd,
    path: PathBuf,
}

/// The snapshot of one tree. Until it is closed, no other server uses it.
#[derive(Debug)]
pub struct SnapshotFile {
    dir: OwnedFd,
    /// The snapshot, the one being written.
    names: [String; 2],
    path: PathBuf,
    /// Held while one is written. Whether it is closed.
    closed: Mutex<bool>,
    lock: OwnedFd,
}

/// The names of a snapshot.
pub(crate) struct Loaded {
    pub(crate) table: NameTable,
    pub(crate) written: SystemTime,
}

/// The usual directory: `/var/lib/uvfs/index` for root, else `uvfs/index` in `$XDG_STATE_HOME` or
/// `~/.local/state`; nothing if there is no home.
pub fn usual_snapshots() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/uvfs/index".into());
    }
    let of = |variable: &str| std::env::var_os(variable).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")));
    state.map(|state| state.join("uvfs/index"))
}

impl SnapshotDir {
    /// Opens the directory; makes it if it is missing.
    ///
    /// # Errors
    /// A sentence: it cannot be made or opened, or others may write there.
    pub fn open(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let said = |error: io::Error| format!("no snapshot can be kept in {shown}: {error}");
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(said)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => {
                format!(
                    "no snapshot can be kept in {shown}: it is a symbolic link; name the directory itself"
                )
            }
            errno => said(errno.into()),
        })?;
        let stat = fstat(&fd).map_err(|errno| said(errno.into()))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
            return Err(format!(
                "no snapshot can be kept in {shown}: other users may write there; name a directory of your own with --snapshots"
            ));
        }
        Ok(Self { fd, path: path.to_owned() })
    }

    /// The snapshot of a tree.
    ///
    /// # Errors
    /// A sentence: another server has it, or its lock cannot be made.
    pub fn of(&self, tree: &Path) -> Result<SnapshotFile, String> {
        let name = file_name(tree);
        let shown = self.path.join(&name);
        let said = |errno: Errno| format!("no snapshot can be kept at {}: {errno}", shown.display());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let lock =
            openat(&self.fd, format!("{name}.lock"), flags, Mode::from_raw_mode(0o600)).map_err(said)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => {
                format!("another server keeps the snapshot {}: this one does without", shown.display())
            }
            errno => said(errno),
        })?;
        let dir = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(said)?;
        let names = [name.clone(), format!("{name}.new")];
        Ok(SnapshotFile { dir, names, path: shown, closed: Mutex::new(false), lock })
    }
}

/// A name that is readable, and another one for each path.
fn file_name(tree: &Path) -> String {
    let bytes = tree.as_os_str().as_bytes();
    // FNV-1a, the same in each version.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let readable = bytes.strip_prefix(b"/").unwrap_or(bytes);
    let readable = &readable[readable.len().saturating_sub(READABLE)..];
    let plain = |&byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte),
        _ => '-',
    };
    format!("{}-{hash:016x}.snapshot", readable.iter().map(plain).collect::<String>())
}

impl SnapshotFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets another server use it; none is written any more.
    pub(crate) fn close(&self) {
        *self.closed.lock() = true;
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }

    /// Writes a snapshot in the place of the former one. `dump` passes the blocks to its argument.
    pub(crate) fn write(
        &self,
        root: &RootIdentity,
        tree: &Path,
        names: u64,
        dump: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<crate::table::Dumped>,
    ) -> Result<(), String> {
        let closed = self.closed.lock();
        if *closed {
            return Err(format!("the snapshot {} cannot be written: the server ends", self.path.display()));
        }
        let [name, new] = &self.names;
        // One that a server left when it was killed.
        let _ = unlinkat(&self.dir, new, AtFlags::empty());
        let written = self.write_new(root, tree, names, dump).and_then(|()| {
            renameat(&self.dir, new, &self.dir, name)?;
            Ok(fsync(&self.dir)?)
        });
        written.map_err(|error| {
            let _ = unlinkat(&self.dir, new, AtFlags::empty());
            format!("the snapshot {} cannot be written: {error}", self.path.display())
        })
    }

    fn write_new(
        &self,
        root: &RootIdentity,
        tree: &Path,
        names: u64,
        dump: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<crate::table::Dumped>,
    ) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&self.dir, &self.names[1], flags, Mode::from_raw_mode(0o600))?);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = Header {
            id: getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?,
            path: WirePath::new(tree.as_os_str().as_bytes()),
            root: root.clone(),
            written: now.as_secs(),
            names,
        };
        let mut out = BlockWriter::begin(BufWriter::with_capacity(BUFFER, &file), &header)?;
        let dumped = dump(&mut |block| out.block(block))?;
        out.end(dumped)?.flush()?;
        Ok(fsync(file.as_fd())?)
    }

    /// Reads it. Nothing if there is none. `goes_on` is asked now and then, and says why not.
    ///
    /// # Errors
    /// A sentence that says why it is not used.
    pub(crate) fn read(
        &self,
        root: &RootIdentity,
        facts: &FileFacts,
        goes_on: impl FnMut(&Restorer) -> Result<(), String>,
    ) -> Result<Option<Loaded>, String> {
        let said = |why: String| format!("the snapshot {} is not used: {why}", self.path.display());
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.dir, &self.names[0], flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(said("it is a symbolic link".into())),
            Err(errno) => return Err(said(errno.to_string())),
        };
        let stat = fstat(&file).map_err(|errno| said(errno.to_string()))?;
        if stat.st_mode & 0o170_000 != 0o100_000 {
            return Err(said("it is no regular file".into()));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
            return Err(said("other users may have written it".into()));
        }
        let most = u64::try_from(stat.st_size).unwrap_or(0) / LEAST_BYTES;
        read_from(&file, most, root, facts, goes_on).map(Some).map_err(said)
    }
}

/// Sends the parts of the file, up to its end, an error, or the end of the receiver.
fn send_parts(mut reader: BlockReader<impl io::Read>, send: &SyncSender<Result<Part, String>>) {
    loop {
        let part = reader.next();
        let is_last = !matches!(part, Ok(Part::Block(_)));
        if send.send(part).is_err() || is_last {
            return;
        }
    }
}

/// Reads a snapshot from its bytes. `most`: as many names are in it at most.
fn read_from(
    file: impl io::Read + Send,
    most: u64,
    root: &RootIdentity,
    facts: &FileFacts,
    mut goes_on: impl FnMut(&Restorer) -> Result<(), String>,
) -> Result<Loaded, String> {
    let (reader, header) = BlockReader::begin(io::BufReader::with_capacity(BUFFER, file))?;
    header.root.is_same(root)?;
    let names = usize::try_from(header.names.min(most)).unwrap_or(0);
    let handle = HostHandle::from_bytes(&root.handle()?);
    let mut table = Restorer::new(facts, handle, names);
    // The disk is read, and sums are made, while names are put into the table.
    let dumped = thread::scope(|scope| {
        let (send, parts) = sync_channel(AHEAD);
        let reading = thread::Builder::new().name("uvfs-snapshot".into());
        reading.spawn_scoped(scope, move || send_parts(reader, &send)).map_err(|error| error.to_string())?;
        for part in parts {
            match part? {
                Part::Block(block) => table.block(&block).map_err(|malformed| malformed.0)?,
                Part::End(dumped) => return Ok(dumped),
            }
            goes_on(&table)?;
        }
        Err("a thread ended".to_owned())
    })?;
    let table = table.finish(dumped).map_err(|malformed| malformed.0)?;
    Ok(Loaded { table, written: UNIX_EPOCH + Duration::from_secs(header.written.min(1 << 40)) })
}
