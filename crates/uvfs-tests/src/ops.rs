//! The operations that every target understands: the call, its user, its target.
//!
//! An operation is plain data without handles: open files are named by slot number. So a
//! list of operations can be generated without running it, replayed on any target, and cut down to
//! the shortest list that fails.

use std::fmt;

use rustix::fs::{Access, Mode, OFlags, RenameFlags, XattrFlags};

/// Slots for open files and directories.
pub const SLOTS: usize = 4;

/// The user on whose behalf an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// uid 0.
    Root,
    /// uid 1000, gid 1000, supplementary group 2000.
    Alice,
    /// uid 1001, gid 2000, no supplementary group.
    Bob,
}

impl Who {
    /// User id, group id, supplementary groups.
    pub fn ids(self) -> (u32, u32, &'static [u32]) {
        match self {
            Who::Root => (0, 0, &[]),
            Who::Alice => (1000, 1000, &[2000]),
            Who::Bob => (1001, 2000, &[]),
        }
    }
}

/// The start of a relative path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The working directory.
    Cwd,
    /// The directory open in a slot.
    Slot(usize),
}

/// A path and its start.
#[derive(Clone, PartialEq, Eq)]
pub struct At {
    /// The start of a relative path.
    pub base: Base,
    /// The path.
    pub path: Bytes,
}

impl At {
    /// A path from the working directory.
    pub fn cwd(path: &[u8]) -> Self {
        Self { base: Base::Cwd, path: Bytes(path.to_vec()) }
    }

    /// The path of the last component's parent, derived from the text alone.
    pub fn parent(&self) -> At {
        let end = self.path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
        let path = match self.path[..end].iter().rposition(|&b| b == b'/') {
            Some(0) => b"/".to_vec(),
            Some(i) => self.path[..i].to_vec(),
            None if end == 0 => self.path.to_vec(),
            None => b".".to_vec(),
        };
        At { base: self.base, path: Bytes(path) }
    }
}

impl fmt::Debug for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Base::Slot(s) = self.base {
            write!(f, "slot{s}:")?;
        }
        self.path.fmt(f)
    }
}

/// Bytes that are mostly text: a path, a name. Long ones are shortened when printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.escape_ascii().to_string();
        if text.len() > 60 {
            write!(f, "\"{}...\"({} bytes)", &text[..20], self.0.len())
        } else {
            write!(f, "\"{text}\"")
        }
    }
}

/// Permission and type bits; printed in octal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bits(pub u32);

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0{:o}", self.0)
    }
}

/// The object of an attribute operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPath {
    /// A path; `follow` says whether a symbolic link at its end is followed.
    Path {
        /// The path.
        at: At,
        /// Whether a final symbolic link is followed.
        follow: bool,
    },
    /// An open file.
    Slot(usize),
}

/// A time as `utimensat` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeArg {
    /// UTIME_NOW.
    Now,
    /// UTIME_OMIT.
    Omit,
    /// A given time.
    At(i64, u32),
}

/// The start of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Whence {
    Set,
    Cur,
    End,
    Data,
    Hole,
}

/// The mode of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Falloc {
    Allocate,
    KeepSize,
    Punch,
}

/// One operation. The names and arguments are those of the system calls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FileOp {
    Open { slot: usize, at: At, flags: OFlags, mode: Bits },
    Close { slot: usize },
    Mkdir { at: At, mode: Bits },
    Mknod { at: At, mode: Bits, rdev: u64 },
    Symlink { target: Bytes, at: At },
    Link { old: At, new: At, follow: bool },
    Unlink { at: At },
    Rmdir { at: At },
    Rename { old: At, new: At, flags: RenameFlags },
    Truncate { path: Bytes, len: u64 },
    Ftruncate { slot: usize, len: u64 },
    Write { slot: usize, len: usize, fill: u8 },
    Pwrite { slot: usize, off: u64, len: usize, fill: u8 },
    Read { slot: usize, len: usize },
    Pread { slot: usize, off: u64, len: usize },
    Seek { slot: usize, whence: Whence, off: i64 },
    Fallocate { slot: usize, how: Falloc, off: u64, len: u64 },
    Fsync { slot: usize },
    Chmod { target: TargetPath, mode: Bits },
    Chown { target: TargetPath, uid: Option<u32>, gid: Option<u32> },
    Utimens { target: TargetPath, atime: TimeArg, mtime: TimeArg },
    SetXattr { target: TargetPath, name: Bytes, len: usize, fill: u8, flags: XattrFlags },
    GetXattr { target: TargetPath, name: Bytes },
    ListXattr { target: TargetPath },
    RemoveXattr { target: TargetPath, name: Bytes },
    Stat { target: TargetPath },
    Readlink { at: At },
    Access { at: At, access: Access },
    Readdir { at: At },
    Chdir { path: Bytes },
    Umask { mask: Bits },
}

/// An operation and its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestStep {
    /// The user.
    pub who: Who,
    /// The operation.
    pub op: FileOp,
}

/// The bytes of a write. They depend on the position, so that shifted data is noticed.
pub fn pattern(fill: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| fill.wrapping_add((i % 251) as u8) | 1).collect()
}

impl Bits {
    /// The permission bits as rustix's type.
    pub fn mode(self) -> Mode {
        Mode::from_raw_mode(self.0)
    }
}

impl FileOp {
    /// The targets to look at before and after: the paths (with and without following a final symbolic link), their
    /// parent directories, and open files.
    pub fn touched(&self) -> Vec<TargetPath> {
        let mut out = Vec::new();
        let mut path = |at: &At| {
            for follow in [false, true] {
                out.push(TargetPath::Path { at: at.clone(), follow });
            }
            out.push(TargetPath::Path { at: at.parent(), follow: true });
        };
        match self {
            FileOp::Open { at, .. }
            | FileOp::Mkdir { at, .. }
            | FileOp::Mknod { at, .. }
            | FileOp::Symlink { at, .. }
            | FileOp::Unlink { at }
            | FileOp::Rmdir { at }
            | FileOp::Readlink { at }
            | FileOp::Access { at, .. }
            | FileOp::Readdir { at } => path(at),
            FileOp::Link { old, new, .. } | FileOp::Rename { old, new, .. } => {
                path(old);
                path(new);
            }
            FileOp::Truncate { path: p, .. } | FileOp::Chdir { path: p } => path(&At::cwd(p)),
            FileOp::Ftruncate { slot, .. }
            | FileOp::Write { slot, .. }
            | FileOp::Pwrite { slot, .. }
            | FileOp::Read { slot, .. }
            | FileOp::Pread { slot, .. }
            | FileOp::Seek { slot, .. }
            | FileOp::Fallocate { slot, .. }
            | FileOp::Fsync { slot }
            | FileOp::Close { slot } => out.push(TargetPath::Slot(*slot)),
            FileOp::Chmod { target, .. }
            | FileOp::Chown { target, .. }
            | FileOp::Utimens { target, .. }
            | FileOp::SetXattr { target, .. }
            | FileOp::GetXattr { target, .. }
            | FileOp::ListXattr { target }
            | FileOp::RemoveXattr { target, .. }
            | FileOp::Stat { target } => match target {
                TargetPath::Path { at, .. } => path(at),
                TargetPath::Slot(s) => out.push(TargetPath::Slot(*s)),
            },
            FileOp::Umask { .. } => {}
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_lexical() {
        for (path, parent) in [("a/b", "a"), ("a", "."), ("/a", "/"), ("a/b//", "a"), ("/", "/"), ("", "")] {
            assert_eq!(At::cwd(path.as_bytes()).parent(), At::cwd(parent.as_bytes()), "{path}");
        }
    }
}
