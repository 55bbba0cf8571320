//! Requests, taken apart: `struct fuse_in_header`, the operation's structure, names and data.
//!
//! [`Operation::parse`] believes nothing: each length is checked before it is used, a name ends with the nul that belongs to it, is
//! not empty, has no slash and at most [`NAME_MAX`] bytes. EIO is the answer to what no kernel sends, [`Operation::Unsupported`]
//! stands for operations that are not known here, and ENAMETOOLONG to a long name. Nothing is copied.
//!
//! In a request of `/dev/fuse` all follows the header in one piece; [`split`] says where the structure ends. A ring
//! gives the structure in an area of 128 bytes that is not cut to its length, hence a longer one is no error.

use uvfs::{Errno, FSXATTR, FileFlags, FlagsForm, Result, SetAttr, SetTime, Time};

use super::reply_port::IN_HEADER;
use crate::transport::{Caller, NodeId, Write};

/// Longest name, as in the kernel (`FUSE_NAME_MAX` is larger; no driver has longer ones).
pub(crate) const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, without its nul.
const TARGET_MAX: usize = 4095;

/// Numbers of the operations (`enum fuse_opcode`).
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BMAP: u32 = 37;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const POLL: u32 = 40;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Bytes of the structure that belongs to an operation; the payload follows it.
pub(crate) fn structure(op: u32) -> usize {
    use opcode::*;
    match op {
        FORGET | BATCH_FORGET | MKDIR | RENAME | LINK | OPEN | OPENDIR | SETXATTR | GETXATTR | LISTXATTR
        | ACCESS | INTERRUPT => 8,
        GETATTR | MKNOD | FSYNC | FSYNCDIR | CREATE | RENAME2 | BMAP | SYNCFS | TMPFILE => 16,
        RELEASE | RELEASEDIR | FLUSH | POLL | LSEEK | STATX => 24,
        IOCTL | FALLOCATE => 32,
        READ | WRITE | READDIR | READDIRPLUS | NOTIFY_REPLY => 40,
        GETLK | SETLK | SETLKW => 48,
        COPY_FILE_RANGE | COPY_FILE_RANGE_64 => 56,
        INIT => 64,
        SETATTR => 88,
        // Names only, nothing at all, or unknown.
        _ => 0,
    }
}

/// How many bytes of a file a request asks for or brings; 0 where it is about something else.
pub(crate) fn data_len(header: &[u8; IN_HEADER], structure: &[u8], payload: &[u8]) -> usize {
    /// Behind handle and offset.
    const SIZE: usize = 16;
    match Head::parse(header).opcode {
        opcode::READ => structure.get(SIZE..).and_then(|rest| Fields(rest).u32().ok()).unwrap_or(0) as usize,
        opcode::WRITE => payload.len(),
        _ => 0,
    }
}

/// A request in one piece as its three parts; EIO if it is shorter than its header, or another length than that says.
pub(crate) fn split(request: &[u8]) -> Result<(&[u8; IN_HEADER], &[u8], &[u8])> {
    let (header, rest) = request.split_first_chunk::<IN_HEADER>().ok_or(Errno::IO)?;
    if Fields(header.as_slice()).u32()? as usize != request.len() {
        return Err(Errno::IO);
    }
    let op = Fields(&header[4..]).u32()?;
    // A structure that is cut off is found out when it is read: INIT's first versions were shorter.
    let (structure, payload) = rest.split_at(structure(op).min(rest.len()));
    Ok((header, structure, payload))
}

/// `struct fuse_in_header`, without its lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub opcode: u32,
    pub unique: u64,
    pub node: NodeId,
    pub caller: Caller,
}

impl Head {
    pub(crate) fn parse(header: &[u8; IN_HEADER]) -> Self {
        let part = |at: usize| header.get(at..).unwrap_or_default();
        let word = |at: usize| Fields(part(at)).u32().unwrap_or_default();
        let long = |at: usize| Fields(part(at)).u64().unwrap_or_default();
        let caller = Caller { uid: word(24), gid: word(28), pid: word(32), umask: 0 };
        Self { opcode: word(4), unique: long(8), node: long(16), caller }
    }

    /// Whether the kernel waits for an answer. INTERRUPT has one that means something; we never give it.
    pub(crate) fn is_answered(&self) -> bool {
        use opcode::{BATCH_FORGET, FORGET, INTERRUPT, NOTIFY_REPLY};
        !matches!(self.opcode, FORGET | BATCH_FORGET | INTERRUPT | NOTIFY_REPLY)
    }
}

/// An operation and its arguments; the node that it is asked of is in [`Head`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttr,
    /// Always answered in full.
    Statx,
    /// `FS_IOC_GETFLAGS` and `FS_IOC_FSGETXATTR`.
    GetFlags(FlagsForm),
    /// `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR`.
    SetFlags(FileFlags),
    /// `fh`: the open file by which the size is set.
    SetAttr {
        set: SetAttr,
        fh: Option<u64>,
    },
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        to_dir: NodeId,
        to_name: &'a [u8],
        flags: u32,
    },
    /// Of the node `node`, into the directory that is asked.
    Link {
        node: NodeId,
        name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: i32,
    },
    TmpFile {
        mode: u32,
        umask: u32,
        flags: i32,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
    },
    Write(Write, &'a [u8]),
    Release {
        fh: u64,
    },
    ReleaseDir,
    Fsync {
        fh: u64,
        datasync: bool,
    },
    FsyncDir {
        datasync: bool,
    },
    OpenDir,
    Access {
        mask: u32,
    },
    ReadDir {
        cookie: u64,
        size: u32,
        plus: bool,
    },
    StatFs,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Poll {
        fh: u64,
        kh: u64,
        notify: bool,
    },
    Fallocate {
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
    },
    Lseek {
        fh: u64,
        offset: i64,
        whence: i32,
    },
    Interrupt {
        unique: u64,
    },
    Init(InitIn),
    Destroy,
    /// An answer that the kernel gives; it is never asked for one here.
    NotifyReply,
    /// The kernel never asks again and does without. Closing needs no flush here; locks are the kernel's; it copies
    /// ranges itself. DAX mappings and CUSE are not for this server, and it does not know later inventions.
    Unsupported,
}

/// `struct fuse_init_in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    /// Both words; the second is 0 from kernels that do not have it.
    pub flags: u64,
}

/// Nodes that are forgotten together, with the count of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgets<'a>(&'a [u8]);

impl<'a> Forgets<'a> {
    const EACH: usize = 16;

    fn parse(s: &mut Fields<'_>, p: &mut Payload<'a>) -> Result<Self> {
        let len = s.u32()?.checked_mul(Self::EACH as u32).ok_or(Errno::IO)?;
        p.data(len).map(Self)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.0.chunks_exact(Self::EACH).filter_map(|one| {
            let mut fields = Fields(one);
            Some((fields.u64().ok()?, fields.u64().ok()?))
        })
    }
}

/// Fields of a structure, in order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Result<u32> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*bytes))
    }

    fn u64(&mut self) -> Result<u64> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*bytes))
    }

    /// Numbers that callers of system calls know with a sign.
    fn i32(&mut self) -> Result<i32> {
        self.u32().map(u32::cast_signed)
    }

    fn i64(&mut self) -> Result<i64> {
        self.u64().map(u64::cast_signed)
    }
}

/// The part after the structure: strings with their nuls, then data.
struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    fn string(&mut self, max: usize) -> Result<&'a [u8]> {
        let nul = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::IO)?;
        let (string, rest) = self.0.split_at(nul);
        self.0 = &rest[1..];
        match string.len() {
            0 => Err(Errno::IO),
            len if len > max => Err(Errno::NAMETOOLONG),
            _ => Ok(string),
        }
    }

    /// The name of an entry to look up.
    fn any_name(&mut self) -> Result<&'a [u8]> {
        let name = self.string(NAME_MAX)?;
        if name.contains(&b'/') { Err(Errno::IO) } else { Ok(name) }
    }

    /// The name of an entry to make or remove.
    fn name(&mut self) -> Result<&'a [u8]> {
        let name = self.any_name()?;
        if matches!(name, b"." | b"..") { Err(Errno::INVAL) } else { Ok(name) }
    }

    /// The name of an extended attribute.
    fn attribute(&mut self) -> Result<&'a [u8]> {
        self.string(NAME_MAX)
    }

    /// The next `len` bytes.
    fn data(&mut self, len: u32) -> Result<&'a [u8]> {
        let (data, rest) = self.0.split_at_checked(len as usize).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(data)
    }
}

impl<'a> Operation<'a> {
    /// Takes an operation apart; see the module for the errors.
    pub(crate) fn parse(opcode: u32, structure: &'a [u8], payload: &'a [u8]) -> Result<Self> {
        let (mut s, mut p) = (Fields(structure), Payload(payload));
        Ok(match opcode {
            opcode::LOOKUP => Self::Lookup { name: p.any_name()? },
            opcode::FORGET => Self::Forget { count: s.u64()? },
            opcode::GETATTR => Self::GetAttr,
            opcode::SETATTR => set_attr(&mut s)?,
            opcode::READLINK => Self::ReadLink,
            opcode::SYMLINK => Self::Symlink { name: p.name()?, target: p.string(TARGET_MAX)? },
            opcode::MKNOD => Self::MkNod { mode: s.u32()?, rdev: s.u32()?, umask: s.u32()?, name: p.name()? },
            opcode::MKDIR => Self::MkDir { mode: s.u32()?, umask: s.u32()?, name: p.name()? },
            opcode::UNLINK => Self::Unlink { name: p.name()? },
            opcode::RMDIR => Self::RmDir { name: p.name()? },
            opcode::RENAME => {
                Self::Rename { to_dir: s.u64()?, flags: 0, name: p.name()?, to_name: p.name()? }
            }
            opcode::RENAME2 => {
                Self::Rename { to_dir: s.u64()?, flags: s.u32()?, name: p.name()?, to_name: p.name()? }
            }
            opcode::LINK => Self::Link { node: s.u64()?, name: p.name()? },
            opcode::CREATE => {
                Self::Create { flags: s.i32()?, mode: s.u32()?, umask: s.u32()?, name: p.name()? }
            }
            // With it comes a name that means nothing.
            opcode::TMPFILE => Self::TmpFile { flags: s.i32()?, mode: s.u32()?, umask: s.u32()? },
            opcode::SETXATTR => set_xattr(&mut s, &mut p)?,
            opcode::GETXATTR => Self::GetXattr { size: s.u32()?, name: p.attribute()? },
            opcode::LISTXATTR => Self::ListXattr { size: s.u32()? },
            opcode::REMOVEXATTR => Self::RemoveXattr { name: p.attribute()? },
            opcode::OPEN => Self::Open { flags: s.i32()? },
            opcode::READ => DataIn::parse(&mut s)?.read(),
            opcode::WRITE => DataIn::parse(&mut s)?.write(&mut p)?,
            opcode::READDIR => DataIn::parse(&mut s)?.read_dir(false),
            opcode::READDIRPLUS => DataIn::parse(&mut s)?.read_dir(true),
            opcode::STATFS => Self::StatFs,
            opcode::RELEASE => Self::Release { fh: s.u64()? },
            opcode::RELEASEDIR => Self::ReleaseDir,
            opcode::FSYNC => Self::Fsync { fh: s.u64()?, datasync: s.u32()? & FSYNC_DATA != 0 },
            opcode::FSYNCDIR => {
                s.u64()?; // The open directory.
                Self::FsyncDir { datasync: s.u32()? & FSYNC_DATA != 0 }
            }
            opcode::OPENDIR => Self::OpenDir,
            opcode::ACCESS => Self::Access { mask: s.u32()? },
            opcode::POLL => {
                Self::Poll { fh: s.u64()?, kh: s.u64()?, notify: s.u32()? & POLL_SCHEDULE_NOTIFY != 0 }
            }
            opcode::FALLOCATE => {
                Self::Fallocate { fh: s.u64()?, offset: s.u64()?, length: s.u64()?, mode: s.i32()? }
            }
            opcode::LSEEK => Self::Lseek { fh: s.u64()?, offset: s.i64()?, whence: s.i32()? },
            opcode::BATCH_FORGET => Forgets::parse(&mut s, &mut p).map(Self::BatchForget)?,
            opcode::INTERRUPT => Self::Interrupt { unique: s.u64()? },
            opcode::INIT => InitIn::parse(&mut s).map(Self::Init)?,
            opcode::DESTROY => Self::Destroy,
            opcode::IOCTL => ioctl(&mut s, &mut p)?,
            opcode::STATX => Self::Statx,
            opcode::NOTIFY_REPLY => Self::NotifyReply,
            _ => Self::Unsupported,
        })
    }
}

/// `struct fuse_read_in` and `struct fuse_write_in`.
struct DataIn {
    fh: u64,
    offset: u64,
    size: u32,
    /// Of the read or write.
    io_flags: u32,
    /// Of the open file.
    flags: i32,
}

impl DataIn {
    fn parse(s: &mut Fields<'_>) -> Result<Self> {
        let (fh, offset, size, io_flags) = (s.u64()?, s.u64()?, s.u32()?, s.u32()?);
        s.u64()?; // The owner of a lock.
        let flags = s.i32()?;
        if size > super::reply_port::MAX_WRITE {
            return Err(Errno::INVAL);
        }
        Ok(Self { fh, offset, size, io_flags, flags })
    }

    fn read<'a>(self) -> Operation<'a> {
        Operation::Read { fh: self.fh, offset: self.offset, size: self.size }
    }

    fn write<'a>(self, p: &mut Payload<'a>) -> Result<Operation<'a>> {
        /// `fuse_write_in.write_flags`: pages that the kernel writes back.
        const WRITE_CACHE: u32 = 1 << 0;
        /// `fuse_write_in.write_flags`: set-id bits are to go.
        const WRITE_KILL_SUIDGID: u32 = 1 << 2;
        let written_back = self.io_flags & WRITE_CACHE != 0;
        let write = Write {
            fh: self.fh,
            offset: self.offset,
            kill_priv: self.io_flags & WRITE_KILL_SUIDGID != 0,
            // Pages that the kernel writes back belong where they are.
            append: self.flags & libc::O_APPEND != 0 && !written_back,
            written_back,
        };
        Ok(Operation::Write(write, p.data(self.size)?))
    }

    fn read_dir<'a>(self, plus: bool) -> Operation<'a> {
        Operation::ReadDir { cookie: self.offset, size: self.size, plus }
    }
}

fn set_xattr<'a>(s: &mut Fields<'a>, p: &mut Payload<'a>) -> Result<Operation<'a>> {
    let size = s.u32()?;
    Ok(Operation::SetXattr { flags: s.i32()?, name: p.attribute()?, value: p.data(size)? })
}

/// Numbers of ioctls, where they are put together in the usual way. The kernel translates those of 32-bit programs.
mod command {
    pub(super) const GETFLAGS: u32 = libc::FS_IOC_GETFLAGS as u32;
    pub(super) const SETFLAGS: u32 = libc::FS_IOC_SETFLAGS as u32;
    pub(super) const FSGETXATTR: u32 = 0x801c_581f;
    pub(super) const FSSETXATTR: u32 = 0x401c_5820;
}

/// The ioctls that files have: those of flags. ENOTTY for all others; EINVAL where what comes, or may go back, has not the length
/// that the number stands for.
fn ioctl<'a>(s: &mut Fields<'a>, p: &mut Payload<'a>) -> Result<Operation<'a>> {
    /// FS_IOC_GETFLAGS is about an `int`, whatever its number says.
    const INT: usize = 4;
    s.u64()?; // The open file.
    s.u32()?; // Flags.
    let command = s.u32()?;
    s.u64()?; // The caller's address.
    let (given, room) = (s.u32()?, s.u32()? as usize);
    let fits = |needed: usize| if room >= needed { Ok(()) } else { Err(Errno::INVAL) };
    let bytes = |len: usize| if given as usize >= len { Ok(()) } else { Err(Errno::INVAL) };
    Ok(match command {
        command::GETFLAGS => fits(INT).map(|()| Operation::GetFlags(FlagsForm::Inode))?,
        command::FSGETXATTR => fits(FSXATTR).map(|()| Operation::GetFlags(FlagsForm::Extended))?,
        command::SETFLAGS => {
            bytes(INT)?;
            Operation::SetFlags(FileFlags::Inode(Fields(p.data(given)?).u32()?))
        }
        command::FSSETXATTR => {
            bytes(FSXATTR)?;
            let given = p.data(given)?.first_chunk().ok_or(Errno::INVAL)?;
            Operation::SetFlags(FileFlags::Extended(*given))
        }
        _ => return Err(Errno::NOTTY),
    })
}

const FSYNC_DATA: u32 = 1;
const POLL_SCHEDULE_NOTIFY: u32 = 1;

/// Bits of `fuse_setattr_in.valid`.
mod fattr {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const FH: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
    pub(super) const CTIME: u32 = 1 << 10;
    pub(super) const KILL_SUIDGID: u32 = 1 << 11;
}

fn set_attr<'a>(s: &mut Fields<'a>) -> Result<Operation<'a>> {
    let valid = s.u32()?;
    s.u32()?;
    let fh = s.u64()?;
    let size = s.u64()?;
    s.u64()?; // The owner of a lock.
    let sec = [s.i64()?, s.i64()?, s.i64()?];
    let nsec = [s.u32()?, s.u32()?, s.u32()?];
    let mode = s.u32()?;
    s.u32()?;
    let (uid, gid) = (s.u32()?, s.u32()?);
    s.u32()?;
    let has = |bit: u32| valid & bit != 0;
    let time = |i: usize| Time::new(sec[i], nsec[i].min(999_999_999));
    let set_time = |i: usize, now: u32| if has(now) { SetTime::Now } else { SetTime::At(time(i)) };
    let set = SetAttr {
        mode: has(fattr::MODE).then_some(mode),
        uid: has(fattr::UID).then_some(uid),
        gid: has(fattr::GID).then_some(gid),
        size: has(fattr::SIZE).then_some(size),
        atime: has(fattr::ATIME).then(|| set_time(0, fattr::ATIME_NOW)),
        mtime: has(fattr::MTIME).then(|| set_time(1, fattr::MTIME_NOW)),
        ctime: has(fattr::CTIME).then(|| time(2)),
        kill_suidgid: has(fattr::KILL_SUIDGID),
        opened: false,
    };
    Ok(Operation::SetAttr { set, fh: (has(fattr::SIZE) && has(fattr::FH)).then_some(fh) })
}

impl InitIn {
    fn parse(s: &mut Fields<'_>) -> Result<Self> {
        /// The second word of flags follows.
        const INIT_EXT: u32 = 1 << 30;
        let (major, minor) = (s.u32()?, s.u32()?);
        let (max_readahead, low) = (s.u32()?, s.u32()?);
        let high = if low & INIT_EXT != 0 { s.u32()? } else { 0 };
        Ok(Self { major, minor, max_readahead, flags: u64::from(low) | u64::from(high) << 32 })
    }
}
