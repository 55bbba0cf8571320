//! The mounts, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
//!
//! Reading it makes no request to any file system, so it also works for a mount whose server is dead.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::mount::attach_device;

const TABLE: &str = "/proc/self/mountinfo";

/// One mount. Its id and device number are reused once it is gone. So only all of these fields together identify a
/// mount, and only while it is known to exist.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    pub id: String,
    /// Device number of its files, as "major:minor".
    pub dev: String,
    /// The mounted part of the file system: a path in it.
    pub root: PathBuf,
    pub point: PathBuf,
    pub fstype: String,
    /// The source, as in the option `fsname`.
    pub source: OsString,
    /// Flags of the mount, and flags and options of the file system, separated by commas.
    pub flags: String,
}

/// Flags may change while the mount stays the same.
impl PartialEq for Mount {
    fn eq(&self, other: &Self) -> bool {
        let Self { id, dev, root, point, fstype, source, flags: _ } = self;
        (id, dev, root, point, fstype, source)
            == (&other.id, &other.dev, &other.root, &other.point, &other.fstype, &other.source)
    }
}

impl Mount {
    /// User and group of a FUSE mount: the kernel lets in no others without `allow_other`.
    pub fn owner(&self) -> Option<(u32, u32)> {
        let number = |name: &str| {
            let words = self.flags.split(',');
            words.rev().find_map(|word| word.strip_prefix(name)?.parse().ok())
        };
        if !self.fstype.starts_with("fuse") {
            return None;
        }
        Some((number("user_id=")?, number("group_id=")?))
    }
}

/// A mount of uvfs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// The source: the option `fsname`.
    pub source: OsString,
    /// The mount point.
    pub dir: PathBuf,
    mount: Mount,
}

/// The state in which a mount's server is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerState {
    /// It answers.
    Serving,
    /// It has ended; what is left of the mount goes with `uvfs umount`.
    Dead,
    /// It gave no answer within a second.
    Silent,
    /// Not known: another file system is mounted over it, and would answer.
    Covered,
}

impl Listed {
    /// Asks its server. Waits at most a second for the answer.
    pub fn state(&self) -> ServerState {
        let is_on_top = at(&self.dir).is_ok_and(|top| top.as_ref() == Some(&self.mount));
        if is_on_top { attach_device::server_state(&self.dir) } else { ServerState::Covered }
    }

    /// The number of its connection to the kernel: the minor part of the device number of its files. `None` if the kernel
    /// shows none.
    pub fn connection(&self) -> Option<u32> {
        self.mount.dev.split_once(':')?.1.parse().ok()
    }

    /// Whether its server has died. A server that gives no answer does not count as dead.
    pub fn is_dead(&self) -> bool {
        self.state() == ServerState::Dead
    }
}

/// The uvfs mounts in this process's namespace, in the order in which they were made, including those whose server
/// is dead.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn listed() -> io::Result<Vec<Listed>> {
    let ours = mounts()?.into_iter().filter(|mount| mount.fstype == "fuse.uvfs");
    let listed = |mount: Mount| Listed { source: mount.source.clone(), dir: mount.point.clone(), mount };
    Ok(ours.map(listed).collect())
}

/// All mounts of this process's namespace, in the order in which they were made.
pub(crate) fn mounts() -> io::Result<Vec<Mount>> {
    let text = fs::read(TABLE)?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// Waits until `is_so` holds for the list of mounts, for at most `time`; returns whether it did.
pub(crate) fn wait_until(time: Duration, is_so: impl Fn(&[Mount]) -> bool) -> io::Result<bool> {
    let deadline = Instant::now() + time;
    // The file reports changes since it was opened.
    let table = File::open(TABLE)?;
    while !is_so(&mounts()?) {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// The mount that a walk to `point` ends in: the last mount made there.
pub(crate) fn at(point: &Path) -> io::Result<Option<Mount>> {
    Ok(mounts()?.into_iter().rfind(|mount| mount.point == point))
}

/// The mount that has the directory `dir`: the last one made at it, or at the nearest directory above.
pub(crate) fn over(dir: &Path) -> io::Result<Option<Mount>> {
    let mounts = mounts()?;
    let found = dir.ancestors().find_map(|point| mounts.iter().rfind(|mount| mount.point == point));
    Ok(found.cloned())
}

/// The mount of uvfs at `point` that is in the table `now` and was not in `before`; `None` unless there is exactly one. A
/// FUSE file system has no disk, so its device has the major number 0.
pub(crate) fn made_since(before: &[Mount], now: Vec<Mount>, point: &Path) -> Option<Mount> {
    let is_new = |mount: &Mount| {
        mount.point == point
            && mount.fstype == attach_device::FSTYPE
            && mount.dev.starts_with("0:")
            && !before.contains(mount)
    };
    let mut new = now.into_iter().filter(is_new);
    new.next().filter(|_| new.next().is_none())
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &[u8]) -> Option<Mount> {
    let text = |field| String::from_utf8_lossy(field).into_owned();
    let mut fields = line.split(|&byte| byte == b' ');
    let id = fields.next()?;
    let dev = fields.nth(1)?;
    let root = fields.next()?;
    let point = fields.next()?;
    let flags = fields.next()?;
    let mut after = fields.skip_while(|field| *field != b"-");
    let fstype = after.nth(1)?;
    let source = after.next()?;
    let of_all = after.next().unwrap_or_default();
    let path = |field| PathBuf::from(OsString::from_vec(unescape(field)));
    Some(Mount {
        id: text(id),
        dev: text(dev),
        root: path(root),
        point: path(point),
        fstype: text(fstype),
        source: OsString::from_vec(unescape(source)),
        flags: format!("{},{}", text(flags), text(of_all)),
    })
}

/// Space, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let line =
            br"36 35 0:42 / /mnt/a\040b\134 rw,nosuid shared:1 master:2 - fuse.uvfs tmp\040fs rw,user_id=0";
        let mount = parse(line).expect("a well-formed line");
        assert_eq!((mount.id.as_str(), mount.dev.as_str()), ("36", "0:42"));
        assert_eq!(mount.point, Path::new(r"/mnt/a b\"));
        assert_eq!(mount.fstype, "fuse.uvfs");
        assert_eq!(mount.source, "tmp fs");
        assert_eq!(mount.flags, "rw,nosuid,rw,user_id=0");
        assert_eq!(mount.owner(), None);
        let line = b"36 35 0:42 / /m rw - fuse.uvfs s rw,user_id=7,group_id=8,allow_other";
        assert_eq!(parse(line).expect("a mount").owner(), Some((7, 8)));
        let line = b"36 35 0:42 / /m rw - tmpfs s rw,user_id=7,group_id=8";
        assert_eq!(parse(line).expect("a mount").owner(), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 0:42 / /mnt rw"), None);
    }

    #[test]
    fn only_the_one_new_mount_is_ours() {
        let mount = |id: u32, dev: &str, fstype: &str| {
            parse(format!("{id} 1 {dev} / /mnt rw - {fstype} uvfs rw").as_bytes()).expect("a mount")
        };
        let (old, ours) = (mount(1, "0:41", "fuse.uvfs"), mount(2, "0:42", "fuse.uvfs"));
        let made = |now: &[&Mount]| {
            let now = now.iter().copied().cloned().collect();
            made_since(std::slice::from_ref(&old), now, Path::new("/mnt"))
        };
        assert_eq!(made(&[&old, &ours]), Some(ours.clone()));
        assert_eq!(made(&[&old]), None);
        assert_eq!(made(&[&old, &ours, &mount(3, "0:43", "fuse.uvfs")]), None, "two servers at once");
        // Those that cover it are no server's of ours.
        for other in [mount(3, "8:42", "ext4"), mount(3, "0:43", "tmpfs"), mount(3, "8:42", "fuse.uvfs")] {
            assert_eq!(made(&[&old, &ours, &other]), Some(ours.clone()));
        }
        assert_eq!(made_since(&[], vec![ours], Path::new("/elsewhere")), None);
    }

    #[test]
    fn what_does_not_come_is_not_waited_for() {
        assert!(wait_until(Duration::ZERO, |mounts| !mounts.is_empty()).expect("/proc is there"));
        assert!(!wait_until(Duration::from_millis(10), <[Mount]>::is_empty).expect("/proc is there"));
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).expect("/proc is there").is_some());
    }
}
