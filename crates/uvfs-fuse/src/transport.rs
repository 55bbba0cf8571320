//! The values that a transport carries between the kernel and [`Frontend`](crate::frontend::Frontend), in our own
//! terms.
//!
//! A transport (`dev_fuse.rs`, `uring`) receives requests, `wire` takes them apart, calls the method of the front end that has
//! the request's name, and gives it a [`Reply`] that it can answer at once or later from another thread.
//! The front end knows these traits and nothing of bytes.
//!
//! Node ids are the cache's own: `generation << 32 | index`, except that the root is [`ROOT`]. There is
//! no table that maps them. All values here are plain and owned by one request.

use std::time::Duration;

use uvfs::{Attr, FileFlags, Result, Time};

pub(crate) mod dev_fuse;
pub(crate) mod uring;

/// A node id as the kernel knows it.
pub(crate) type NodeId = u64;

/// The kernel's id for the root of a mount.
pub(crate) const ROOT: NodeId = 1;

/// The kernel's number of a file of the host's that it was lent.
pub(crate) type BackingId = i32;

/// The caller of a request. Supplementary groups and capabilities are not told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Process; 0 where the kernel itself asks.
    pub pid: u32,
    /// Permission bits that what it makes does not get; 0 for requests that make nothing.
    pub umask: u32,
}

/// The purpose of a request, by its operation: it decides which threads the request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It changes nothing.
    Question,
    Change,
    /// The kernel makes it in no user's name: it closes a file, or writes pages back.
    Kernel,
}

/// Where one `write` request writes, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub fh: u64,
    pub offset: u64,
    /// FUSE_WRITE_KILL_SUIDGID.
    pub kill_priv: bool,
    /// O_APPEND, of the open file.
    pub append: bool,
    /// FUSE_WRITE_CACHE: the kernel writes pages back, in no user's name.
    pub written_back: bool,
}

/// A node handed to the kernel, which has one lookup more on it when the reply is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// 0 in a listing: only the name, its type and a number (`attr.ino`) are known.
    pub node: NodeId,
    pub generation: u64,
    pub attr: Attr,
    /// How long the kernel may believe the name.
    pub entry_ttl: Duration,
    /// How long the kernel may believe the attributes.
    pub attr_ttl: Duration,
}

/// The answer to a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Looked {
    Found(Entry),
    /// No such name, which may be believed for so long (never zero).
    Absent(Duration),
}

/// The answer to getattr and setattr.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub node: NodeId,
    pub attr: Attr,
    pub ttl: Duration,
}

/// The answer to statx.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statx {
    pub attributes: Attributes,
    /// When the file was made, where that is known.
    pub birth: Option<Time>,
}

/// The answer to an ioctl about a file's flags.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flagged {
    Told(FileFlags),
    Set,
}

/// An open file or directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub fh: u64,
    /// The page cache's content of the file is still true.
    pub keep_cache: bool,
    /// The kernel may keep the directory's entries.
    pub cache_dir: bool,
    /// The page cache is not to be used: the content is made when it is read.
    pub direct_io: bool,
    /// The kernel reads and writes the file that it was lent under this number by itself. It keeps no pages of its own then.
    pub backing: Option<BackingId>,
}

/// The answer to getxattr and listxattr: a size where the caller asked for one, else the bytes.
#[derive(Clone, Debug)]
pub(crate) enum Xattr {
    Size(u32),
    Bytes(Vec<u8>),
}

/// A request that is not answered yet, of whatever kind.
pub(crate) trait Asked: Send + 'static {
    /// From now on the answer waits for a driver, in another thread: the caller may be gone before it comes.
    fn waits(&mut self) {}

    /// The purpose of the request.
    fn purpose(&self) -> Purpose {
        Purpose::Question
    }

    /// False once the request has been given up: there is no need to begin with it any more.
    fn is_wanted(&self) -> bool {
        true
    }
}

/// Where one answer goes. Sending consumes it; dropped unsent, the kernel gets EIO.
pub(crate) trait Reply<T>: Asked {
    fn send(self, answer: Result<T>);
}

/// Where the content of a file goes.
pub(crate) trait DataReply: Asked {
    /// Sends what `fill` wrote to the buffer of `size` bytes that it is given: so many bytes, or the error. The
    /// buffer's earlier content is nobody's.
    fn fill(self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize>);
}

/// Where a directory's entries go: a buffer of the size that the kernel asked for.
pub(crate) trait DirReply: Asked {
    /// Adds an entry and returns true, or returns false if there is no room for it. `next` is the
    /// cookie to go on from.
    fn add(&mut self, name: &[u8], next: u64, entry: &Entry) -> bool;
    /// Whether nodes are handed over with the names (READDIRPLUS): then the kernel counts a lookup
    /// on each node that was added, `.` and `..` excepted.
    fn plus(&self) -> bool;
    /// Sends what was added, or the error if nothing was.
    fn send(self, outcome: Result<()>);
}
