//! A small language of system calls. One text runs on a [`Vfs`](uvfs::Vfs) and on the host's kernel, and both are
//! compared with the expected outcome.
//!
//! A line is `[@uid[:gid[,group...]]] call argument... : outcome`. Calls are those of [`Call`]. Paths are relative
//! to, or absolute in, the tree under test. `name*300` stands for the name repeated. An access control list is
//! written in setfacl(1)'s syntax, or as `hex:` and bytes. The outcome is `ok`, an errno's name, or the call's
//! result. A line that ends with `!host` says that the host's kernel (or its configuration) answers differently; a
//! comment gives the reason. Empty lines and `#` comments are skipped.

use rustix::io::Errno;
use uvfs::{Access, Cred, OpenFlags, RenameFlags, SetTime, Time, XattrFlags, mode};

/// The answer of a call: text, or the error.
pub type Answer = Result<String, Errno>;

/// One system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Mkdir(Vec<u8>, u32),
    Mknod(Vec<u8>, u32, u32),
    Symlink(Vec<u8>, Vec<u8>),
    Link(Vec<u8>, Vec<u8>),
    Unlink(Vec<u8>),
    Rmdir(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>, RenameFlags),
    /// The flag says whether links at the end are followed.
    Stat(Vec<u8>, bool),
    Open(Vec<u8>, OpenFlags, u32),
    /// Opens and writes.
    Write(Vec<u8>, OpenFlags, Vec<u8>),
    Cat(Vec<u8>),
    Readlink(Vec<u8>),
    Chmod(Vec<u8>, u32),
    Chown(Vec<u8>, Option<u32>, Option<u32>, bool),
    Utimes(Vec<u8>, Option<SetTime>, Option<SetTime>),
    Truncate(Vec<u8>, u64),
    Access(Vec<u8>, Access),
    Chdir(Vec<u8>),
    Ls(Vec<u8>),
    SetXattr(Vec<u8>, Vec<u8>, Vec<u8>, XattrFlags),
    GetXattr(Vec<u8>, Vec<u8>),
    ListXattr(Vec<u8>),
    RemoveXattr(Vec<u8>, Vec<u8>),
    /// Reads an extended attribute that is a list.
    GetAcl(Vec<u8>, Vec<u8>),
    Umask(u32),
}

impl Call {
    /// The paths that it walks.
    pub fn paths(&self) -> Vec<&[u8]> {
        match self {
            Self::Link(old, new) | Self::Rename(old, new, _) => vec![old, new],
            Self::Mkdir(path, _)
            | Self::Mknod(path, ..)
            | Self::Symlink(_, path)
            | Self::Unlink(path)
            | Self::Rmdir(path)
            | Self::Stat(path, _)
            | Self::Open(path, ..)
            | Self::Write(path, ..)
            | Self::Cat(path)
            | Self::Readlink(path)
            | Self::Chmod(path, _)
            | Self::Chown(path, ..)
            | Self::Utimes(path, ..)
            | Self::Truncate(path, _)
            | Self::Access(path, _)
            | Self::Chdir(path)
            | Self::Ls(path)
            | Self::SetXattr(path, ..)
            | Self::GetXattr(path, _)
            | Self::ListXattr(path)
            | Self::RemoveXattr(path, _)
            | Self::GetAcl(path, _) => vec![path],
            Self::Umask(_) => vec![],
        }
    }
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    pub cred: Cred,
    pub call: Call,
    pub outcome: String,
    /// Whether the host should answer the same.
    pub host: bool,
    /// The text, for messages.
    pub text: String,
}

/// A system under test.
pub trait Sys {
    fn call(&mut self, cred: &Cred, call: &Call) -> Answer;
}

/// The answer in the syntax of scripts.
pub fn outcome(answer: Answer) -> String {
    match answer {
        Ok(text) if text.is_empty() => "ok".into(),
        Ok(text) => text,
        Err(errno) => errno_name(errno),
    }
}

/// Runs a script; panics at the first line with another outcome.
pub fn run(script: &str, sys: &mut dyn Sys, is_host: bool) {
    for line in script.lines().filter_map(parse) {
        let got = outcome(sys.call(&line.cred, &line.call));
        if !is_host || line.host {
            assert_eq!(got, line.outcome, "{}: {}", if is_host { "host" } else { "uvfs" }, line.text);
        }
    }
}

/// The meaning of a line; `None` if it is empty.
pub fn parse(text: &str) -> Option<Line> {
    let bare = text.split('#').next().unwrap_or_default().trim();
    if bare.is_empty() {
        return None;
    }
    let (bare, host) = match bare.strip_suffix("!host") {
        Some(rest) => (rest.trim(), false),
        None => (bare, true),
    };
    let (call, outcome) = bare.rsplit_once(" : ").unwrap_or_else(|| panic!("no outcome: {text}"));
    let mut words = call.split_whitespace().peekable();
    let cred = match words.next_if(|w| w.starts_with('@')) {
        Some(word) => cred(&word[1..]),
        None => Cred::root(),
    };
    let words: Vec<&str> = words.collect();
    let call = parse_call(&words).unwrap_or_else(|| panic!("not understood: {text}"));
    Some(Line { cred, call, outcome: outcome.trim().into(), host, text: text.trim().into() })
}

fn cred(word: &str) -> Cred {
    let (uid, groups) = word.split_once(':').unwrap_or((word, word));
    let groups: Vec<u32> = groups.split(',').map(|g| g.parse().unwrap()).collect();
    Cred { uid: uid.parse().unwrap(), gid: groups[0], groups: groups[1..].into() }
}

/// Bytes of a word, with `text*number` repeated.
fn bytes(word: &str) -> Vec<u8> {
    match word.rsplit_once('*') {
        Some((text, count)) => text.repeat(count.parse().unwrap()).into_bytes(),
        None if word == "''" => Vec::new(),
        None => word.as_bytes().to_vec(),
    }
}

fn octal(word: &str) -> u32 {
    u32::from_str_radix(word, 8).unwrap()
}

fn id(word: &str) -> Option<u32> {
    (word != "-").then(|| word.parse().unwrap())
}

fn time(word: &str) -> Option<SetTime> {
    match word {
        "-" => None,
        "now" => Some(SetTime::Now),
        sec => Some(SetTime::At(Time::new(sec.parse().unwrap(), 0))),
    }
}

fn open_flags(word: &str) -> OpenFlags {
    word.split(',').fold(OpenFlags::empty(), |flags, name| flags | OpenFlags::from_name(name).unwrap())
}

fn access(word: &str) -> Access {
    word.chars().fold(Access::empty(), |want, c| {
        want | match c {
            'r' => Access::READ,
            'w' => Access::WRITE,
            'x' => Access::EXEC,
            _ => Access::empty(),
        }
    })
}

fn parse_call(words: &[&str]) -> Option<Call> {
    let path = |index: usize| words.get(index).map(|w| bytes(w));
    Some(match (words[0], words.len()) {
        ("mkdir", 3) => Call::Mkdir(path(1)?, octal(words[2])),
        ("mkfile", 3) => Call::Mknod(path(1)?, mode::S_IFREG | octal(words[2]), 0),
        ("mkfifo", 3) => Call::Mknod(path(1)?, mode::S_IFIFO | octal(words[2]), 0),
        ("mksock", 3) => Call::Mknod(path(1)?, mode::S_IFSOCK | octal(words[2]), 0),
        ("mkchar", 4) => Call::Mknod(path(1)?, mode::S_IFCHR | octal(words[2]), words[3].parse().ok()?),
        ("mknod", 3) => Call::Mknod(path(1)?, octal(words[2]), 0),
        ("symlink", 3) => Call::Symlink(path(1)?, path(2)?),
        ("link", 3) => Call::Link(path(1)?, path(2)?),
        ("unlink", 2) => Call::Unlink(path(1)?),
        ("rmdir", 2) => Call::Rmdir(path(1)?),
        ("rename", 3) => Call::Rename(path(1)?, path(2)?, RenameFlags::empty()),
        ("rename", 4) => Call::Rename(
            path(1)?,
            path(2)?,
            words[3].split(',').fold(RenameFlags::empty(), |f, n| f | RenameFlags::from_name(n).unwrap()),
        ),
        ("stat", 2) => Call::Stat(path(1)?, true),
        ("lstat", 2) => Call::Stat(path(1)?, false),
        ("open", 3) => Call::Open(path(1)?, open_flags(words[2]), 0),
        ("open", 4) => Call::Open(path(1)?, open_flags(words[2]), octal(words[3])),
        ("write", 4) => Call::Write(path(1)?, open_flags(words[2]), bytes(words[3])),
        ("cat", 2) => Call::Cat(path(1)?),
        ("readlink", 2) => Call::Readlink(path(1)?),
        ("chmod", 3) => Call::Chmod(path(1)?, octal(words[2])),
        ("chown", 4) => Call::Chown(path(1)?, id(words[2]), id(words[3]), true),
        ("lchown", 4) => Call::Chown(path(1)?, id(words[2]), id(words[3]), false),
        ("utimes", 4) => Call::Utimes(path(1)?, time(words[2]), time(words[3])),
        ("truncate", 3) => Call::Truncate(path(1)?, words[2].parse().ok()?),
        ("access", 3) => Call::Access(path(1)?, access(words[2])),
        ("chdir", 2) => Call::Chdir(path(1)?),
        ("ls", 2) => Call::Ls(path(1)?),
        ("setxattr", 4) => Call::SetXattr(path(1)?, path(2)?, path(3)?, XattrFlags::empty()),
        ("setxattr", 5) => {
            Call::SetXattr(path(1)?, path(2)?, path(3)?, XattrFlags::from_name(words[4]).unwrap())
        }
        ("getxattr", 3) => Call::GetXattr(path(1)?, path(2)?),
        ("listxattr", 2) => Call::ListXattr(path(1)?),
        ("setacl", 4) => {
            Call::SetXattr(path(1)?, acl_name(words[2])?, acl_bytes(words[3])?, XattrFlags::empty())
        }
        ("getacl", 3) => Call::GetAcl(path(1)?, acl_name(words[2])?),
        ("rmacl", 3) => Call::RemoveXattr(path(1)?, acl_name(words[2])?),
        ("umask", 2) => Call::Umask(octal(words[1])),
        ("removexattr", 3) => Call::RemoveXattr(path(1)?, path(2)?),
        _ => return None,
    })
}

fn acl_name(kind: &str) -> Option<Vec<u8>> {
    matches!(kind, "access" | "default").then(|| format!("system.posix_acl_{kind}").into_bytes())
}

/// The kinds of entries, in their order: letter, whether it has an id, and number.
const ACL_TAGS: [(&str, bool, u16); 6] = [
    ("u", false, 0x01),
    ("u", true, 0x02),
    ("g", false, 0x04),
    ("g", true, 0x08),
    ("m", false, 0x10),
    ("o", false, 0x20),
];

/// A list in the kernel's form. Independent of the VFS's implementation.
pub fn acl_bytes(text: &str) -> Option<Vec<u8>> {
    if let Some(hex) = text.strip_prefix("hex:") {
        let digits = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        return (0..hex.len()).step_by(2).map(digits).collect();
    }
    let mut bytes = vec![2, 0, 0, 0];
    for entry in text.split(',') {
        let mut parts = entry.split(':');
        let (letter, id, perm) = (parts.next()?, parts.next()?, parts.next()?);
        let tag = ACL_TAGS.iter().find(|tag| tag.0 == letter && tag.1 != id.is_empty())?.2;
        let bits = perm.bytes().fold(0, |bits, letter| bits << 1 | u16::from(letter != b'-'));
        let id = if id.is_empty() { u32::MAX } else { id.parse().ok()? };
        bytes.extend(tag.to_le_bytes());
        bytes.extend(bits.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Some(bytes)
}

/// The text of a list.
pub fn acl_text(bytes: &[u8]) -> Answer {
    let (entries, rest) = bytes.get(4..).ok_or(Errno::ILSEQ)?.as_chunks::<8>();
    let entry = |&[t0, t1, perm, _, i0, i1, i2, i3]: &[u8; 8]| {
        let tag = u16::from_le_bytes([t0, t1]);
        let (letter, named, _) = ACL_TAGS.iter().find(|known| known.2 == tag)?;
        let id = if *named { u32::from_le_bytes([i0, i1, i2, i3]).to_string() } else { String::new() };
        let perm: String = [(4, 'r'), (2, 'w'), (1, 'x')]
            .into_iter()
            .map(|(bit, letter)| if perm & bit != 0 { letter } else { '-' })
            .collect();
        Some(format!("{letter}:{id}:{perm}"))
    };
    let entries: Option<Vec<_>> = entries.iter().map(entry).collect();
    match entries {
        Some(entries) if rest.is_empty() && bytes[..4] == [2, 0, 0, 0] => Ok(entries.join(",")),
        _ => Err(Errno::ILSEQ),
    }
}

/// The `stat` output in scripts: type, bits, owner, group, links, and the size except of directories (file systems
/// differ).
pub fn show(mode: u32, uid: u32, gid: u32, nlink: u64, size: u64) -> String {
    let (letter, sized) = match mode & mode::S_IFMT {
        mode::S_IFDIR => ('d', false),
        mode::S_IFREG => ('-', true),
        mode::S_IFLNK => ('l', true),
        mode::S_IFIFO => ('p', false),
        mode::S_IFSOCK => ('s', false),
        mode::S_IFCHR => ('c', false),
        _ => ('b', false),
    };
    let size = if sized { format!(" {size}") } else { String::new() };
    format!("{letter}{:o} {uid}:{gid} {nlink}{size}", mode & 0o7777)
}

const NAMES: [(Errno, &str); 26] = [
    (Errno::PERM, "EPERM"),
    (Errno::NOENT, "ENOENT"),
    (Errno::IO, "EIO"),
    (Errno::NXIO, "ENXIO"),
    (Errno::TOOBIG, "E2BIG"),
    (Errno::BADF, "EBADF"),
    (Errno::ACCESS, "EACCES"),
    (Errno::BUSY, "EBUSY"),
    (Errno::EXIST, "EEXIST"),
    (Errno::XDEV, "EXDEV"),
    (Errno::NOTDIR, "ENOTDIR"),
    (Errno::ISDIR, "EISDIR"),
    (Errno::INVAL, "EINVAL"),
    (Errno::FBIG, "EFBIG"),
    (Errno::NOSPC, "ENOSPC"),
    (Errno::ROFS, "EROFS"),
    (Errno::MLINK, "EMLINK"),
    (Errno::RANGE, "ERANGE"),
    (Errno::NAMETOOLONG, "ENAMETOOLONG"),
    (Errno::NOSYS, "ENOSYS"),
    (Errno::NOTEMPTY, "ENOTEMPTY"),
    (Errno::LOOP, "ELOOP"),
    (Errno::NODATA, "ENODATA"),
    (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    (Errno::STALE, "ESTALE"),
    (Errno::NOMEM, "ENOMEM"),
];

fn errno_name(errno: Errno) -> String {
    let known = NAMES.iter().find(|(e, _)| *e == errno);
    known.map_or_else(|| format!("{errno:?}"), |(_, name)| (*name).into())
}
