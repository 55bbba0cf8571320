//! The mounts inside the source, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
//!
//! Reading it asks no file system anything, so a dead server blocks nobody. The mounts of a
//! namespace are a tree, and a mount appears in it once. If a directory is bind-mounted below itself, the copy
//! is another mount, without the mounts that were added inside later. So the paths of mounts make no circle.
//! Nothing here is shared.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use uvfs::types::{Errno, Result};

/// The table of mounts. poll(2) reports its changes: POLLPRI.
pub(super) const TABLE: &str = "/proc/self/mountinfo";

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u64,
    /// The mount that it is on.
    pub(super) on: u64,
    /// The device of the file system, as "major:minor".
    pub(super) dev: String,
    /// The part of the file system that is mounted.
    root: PathBuf,
    pub(super) point: PathBuf,
    pub(super) fstype: String,
}

impl Mount {
    /// Whether it is that mount; its mount point may have changed.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.id, self.on, &self.dev, &self.root) == (other.id, other.on, &other.dev, &other.root)
    }
}

/// All mounts that this process sees.
pub(super) fn all() -> Result<Vec<Mount>> {
    let text = fs::read(TABLE).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// A directory or file inside a mount that another mount covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInside {
    /// Its path below the source.
    pub path: PathBuf,
    /// The device number that is seen there.
    pub dev: u64,
    /// The number of the mount that is seen there. The kernel gives it to another one after this mount's end.
    pub id: u64,
}

/// The directories and files inside `source` of the mount `on` that another mount covers. Mounts on those are left out.
///
/// # Errors
/// Of reading the table of mounts.
pub fn mounted_inside(on: u64, source: &Path) -> Result<Vec<MountInside>> {
    let direct = inside(&all()?, on, source).into_iter().filter(|(_, under)| *under == on);
    let shown = direct.filter_map(|(mount, _)| {
        let (major, minor) = mount.dev.split_once(':')?;
        let dev = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let path = mount.point.strip_prefix(source).ok()?.to_owned();
        Some(MountInside { path, dev, id: mount.id })
    });
    Ok(shown.collect())
}

/// The mounts visible below the directory `source` of the mount `on`, with the mount in which each is visible. That
/// mount precedes it in the result. Mounts hidden by another one are left out.
pub(super) fn inside(all: &[Mount], on: u64, source: &Path) -> Vec<(Mount, u64)> {
    let mut found = Vec::new();
    let mut next = vec![(on, source.to_owned())];
    while let Some((on, top)) = next.pop() {
        // The first mount of a namespace may name itself as its parent.
        let all = all.iter().filter(|mount| mount.on != mount.id);
        let below = |mount: &&Mount| mount.on == on && mount.point != top && mount.point.starts_with(&top);
        let here: Vec<_> = all.clone().filter(below).collect();
        let points: HashSet<_> = here.iter().map(|mount| mount.point.as_path()).collect();
        let hidden = |mount: &Mount| {
            let mut above = mount.point.ancestors().skip(1).take_while(|path| *path != top);
            above.any(|path| points.contains(path))
        };
        for mount in here.iter().filter(|mount| !hidden(mount)) {
            let mut shown = *mount;
            // A mount over a mount's root takes its place.
            let over =
                |below: &Mount| all.clone().find(|over| over.on == below.id && over.point == below.point);
            while let Some(over) = over(shown) {
                shown = over;
            }
            found.push((shown.clone(), on));
            next.push((shown.id, shown.point.clone()));
        }
    }
    found
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &[u8]) -> Option<Mount> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let path = |field| PathBuf::from(OsString::from_vec(unescape(field)));
    let mut fields = line.split(|&byte| byte == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let on = text(fields.next()?).parse().ok()?;
    let dev = text(fields.next()?);
    let (root, point) = (path(fields.next()?), path(fields.next()?));
    let fstype = text(fields.skip_while(|field| *field != b"-").nth(1)?);
    Some(Mount { id, on, dev, root, point, fstype })
}

/// Space, tab, newline and backslash appear as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        rest = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                after
            }
            _ => {
                bytes.push(first);
                tail
            }
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: u64, on: u64, point: &str) -> Mount {
        parse(format!("{id} {on} 0:{id} / {point} rw shared:1 - tmpfs none rw").as_bytes()).expect("a line")
    }

    fn seen(all: &[Mount], source: &str) -> Vec<u64> {
        let mut ids: Vec<_> = inside(all, 1, Path::new(source)).iter().map(|(mount, _)| mount.id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn lines_are_taken_apart() {
        let odd = parse(br"36 35 98:0 /a\040b /mnt\134\011x rw,noatime - ext3 /dev/root rw").expect("a line");
        assert_eq!((odd.id, odd.on, odd.dev.as_str(), odd.fstype.as_str()), (36, 35, "98:0", "ext3"));
        assert_eq!((odd.root.as_path(), odd.point.as_path()), (Path::new("/a b"), Path::new("/mnt\\\tx")));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 98:0 /a /b rw"), None);
    }

    #[test]
    fn what_is_hidden_is_not_inside() {
        let all = [
            line(1, 0, "/"),
            line(2, 1, "/src/a"),
            line(3, 2, "/src/a/deep"),
            // On a directory that 2 has covered since.
            line(4, 1, "/src/a/hidden"),
            line(5, 1, "/src/b"),
            line(6, 5, "/src/b"),
            // On a directory that 6 has covered since.
            line(7, 5, "/src/b/under"),
            line(8, 6, "/src/b/over"),
            line(9, 1, "/srcs"),
            // Over the source itself, which was opened before.
            line(10, 1, "/src"),
            line(11, 10, "/src/c"),
        ];
        assert_eq!(seen(&all, "/src"), [2, 3, 6, 8]);
        assert_eq!(seen(&all, "/src/a/deep"), [] as [u64; 0]);
        assert_eq!(seen(&all, "/"), [9, 10, 11]);
    }
}
