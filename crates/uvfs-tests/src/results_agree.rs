//! The results of operations and of `lstat`, and the rules by which two targets agree on them.
//!
//! Not compared: atime, inode and device numbers, blocks, sizes of directories. Times that an operation set
//! ([`crate::generate::SET_TIMES`]) are compared exactly. All others are "now"; of
//! those, only whether an operation moved them is compared.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use crate::generate::SET_TIMES;

/// Type bits of a mode.
pub const S_IFMT: u32 = 0o170000;
/// A directory's type bits.
pub const S_IFDIR: u32 = 0o040000;
/// A regular file's type bits.
pub const S_IFREG: u32 = 0o100000;
/// Set-user-id and set-group-id.
pub const SET_IDS: u32 = 0o6000;
/// A symbolic link's type bits.
pub const S_IFLNK: u32 = 0o120000;

/// Seconds and nanoseconds.
pub type SeenTime = (i64, u32);

/// The result of `stat`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserView {
    /// Inode number: tells whether two views of one target show the same file.
    pub ino: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Links.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Last modification.
    pub mtime: SeenTime,
    /// Last change.
    pub ctime: SeenTime,
}

impl UserView {
    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// The difference in words, if there is one.
    pub fn differs(&self, other: &UserView) -> Option<String> {
        let mut out = Vec::new();
        let mut field = |name: &str, a: u64, b: u64, octal: bool| {
            if a != b {
                out.push(if octal { format!("{name} {a:o} / {b:o}") } else { format!("{name} {a} / {b}") });
            }
        };
        field("mode", self.mode.into(), other.mode.into(), true);
        field("nlink", self.nlink, other.nlink, false);
        field("uid", self.uid.into(), other.uid.into(), false);
        field("gid", self.gid.into(), other.gid.into(), false);
        field("rdev", self.rdev, other.rdev, true);
        if !self.is_dir() {
            field("size", self.size, other.size, false);
        }
        for (name, a, b) in [("mtime", self.mtime, other.mtime), ("ctime", self.ctime, other.ctime)] {
            if a != b && (SET_TIMES.contains(&a) || SET_TIMES.contains(&b)) {
                out.push(format!("{name} {a:?} / {b:?}"));
            }
        }
        (!out.is_empty()).then(|| out.join(", "))
    }

    /// Whether mtime and ctime differ from an earlier view of the same file.
    pub fn moved(&self, before: &UserView) -> (bool, bool) {
        (self.mtime != before.mtime, self.ctime != before.ctime)
    }
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Success without data.
    Done,
    /// A count or an offset.
    Number(u64),
    /// Content: of a file, a link, an attribute.
    Data(Vec<u8>),
    /// Names, with the type bits of directory entries (0 for others).
    Names(BTreeSet<(Vec<u8>, u32)>),
    /// Attributes.
    Node(UserView),
    /// An error.
    Failed(Errno),
    /// The operation names a slot in which nothing is open.
    NoSlot,
    /// Not compared: POSIX leaves it open, or it does not concern the file system.
    Unspecified,
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Done => f.write_str("ok"),
            Outcome::Number(n) => write!(f, "{n}"),
            Outcome::Data(d) if d.len() <= 48 => write!(f, "\"{}\"", d.escape_ascii()),
            Outcome::Data(d) => write!(f, "{} bytes, digest {:016x}", d.len(), digest(d)),
            Outcome::Names(names) => {
                f.write_str("{")?;
                for (name, fmt) in names {
                    write!(f, " {}:{:o}", String::from_utf8_lossy(&name[..name.len().min(40)]), fmt >> 12)?;
                }
                f.write_str(" }")
            }
            Outcome::Node(v) => write!(f, "{v:?}"),
            Outcome::Failed(e) => f.write_str(&errno_name(*e)),
            Outcome::NoSlot => f.write_str("(nothing open)"),
            Outcome::Unspecified => f.write_str("(unspecified)"),
        }
    }
}

impl Outcome {
    /// The difference between two targets' results, if they disagree.
    pub fn differs(&self, other: &Outcome) -> Option<String> {
        match (self, other) {
            (Outcome::Unspecified, _) | (_, Outcome::Unspecified) => None,
            (Outcome::Node(a), Outcome::Node(b)) => a.differs(b),
            (a, b) if a == b => None,
            (a, b) => Some(format!("{a:?} / {b:?}")),
        }
    }
}

impl<T: Into<Outcome>> From<Result<T, Errno>> for Outcome {
    fn from(r: Result<T, Errno>) -> Self {
        r.map_or_else(Outcome::Failed, Into::into)
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Outcome::Done
    }
}

/// The usual name of an error.
pub fn errno_name(e: Errno) -> String {
    const NAMES: [(Errno, &str); 26] = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::IO, "EIO"),
        (Errno::NXIO, "ENXIO"),
        (Errno::BADF, "EBADF"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::ACCESS, "EACCES"),
        (Errno::BUSY, "EBUSY"),
        (Errno::EXIST, "EEXIST"),
        (Errno::XDEV, "EXDEV"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::ISDIR, "EISDIR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::FBIG, "EFBIG"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::SPIPE, "ESPIPE"),
        (Errno::MLINK, "EMLINK"),
        (Errno::PIPE, "EPIPE"),
        (Errno::RANGE, "ERANGE"),
        (Errno::NAMETOOLONG, "ENAMETOOLONG"),
        (Errno::NOTEMPTY, "ENOTEMPTY"),
        (Errno::LOOP, "ELOOP"),
        (Errno::NODATA, "ENODATA"),
        (Errno::STALE, "ESTALE"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::ILSEQ, "EILSEQ"),
    ];
    let known = NAMES.iter().find(|(errno, _)| *errno == e);
    known.map_or_else(|| format!("errno {}", e.raw_os_error()), |(_, name)| (*name).into())
}

/// One entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewEntry {
    /// Attributes.
    pub view: UserView,
    /// The first name, in order, of the same file: hard links must agree.
    pub alias: Vec<u8>,
    /// Target of a symbolic link; digest of a regular file's first bytes.
    pub content: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A tree: paths without a leading slash; the root is the empty path.
pub type TreeView = BTreeMap<Vec<u8>, ViewEntry>;

/// The first difference of two trees.
pub fn trees_differ(a: &TreeView, b: &TreeView) -> Option<String> {
    let paths: BTreeSet<&Vec<u8>> = a.keys().chain(b.keys()).collect();
    for path in paths {
        let shown = path.escape_ascii();
        let why = match (a.get(path), b.get(path)) {
            (Some(x), Some(y)) => x.view.differs(&y.view).or_else(|| {
                if x.content != y.content {
                    return Some(format!(
                        "content {} / {}",
                        x.content.escape_ascii(),
                        y.content.escape_ascii()
                    ));
                }
                (x.alias != y.alias || x.xattrs != y.xattrs).then(|| {
                    format!("links or attributes {:?} / {:?}", (&x.alias, &x.xattrs), (&y.alias, &y.xattrs))
                })
            }),
            (Some(_), None) => Some("only on the first side".into()),
            (None, _) => Some("only on the second side".into()),
        };
        if let Some(why) = why {
            return Some(format!("tree: \"{shown}\": {why}"));
        }
    }
    None
}

/// FNV-1a, to name contents in reports.
pub fn digest(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// The form of a regular file's content in [`ViewEntry::content`].
pub fn content_digest(data: &[u8]) -> Vec<u8> {
    format!("{:016x} of {} bytes", digest(data), data.len()).into_bytes()
}

/// How many bytes of a file are digested.
pub const CONTENT_LIMIT: usize = 128 << 10;

/// A target of operations: a directory of the host, a model, a file system in this process.
pub trait Side {
    /// Does one operation.
    fn apply(&mut self, step: &crate::ops::TestStep) -> Outcome;
    /// Attributes, as root sees them; `None` if nothing is there.
    fn look(&mut self, target: &crate::ops::TargetPath) -> Option<UserView>;
    /// The whole tree, as root sees it.
    fn tree(&mut self) -> Result<TreeView, Errno>;
    /// Closes whatever is open in a slot.
    fn drop_slot(&mut self, slot: usize);
}
