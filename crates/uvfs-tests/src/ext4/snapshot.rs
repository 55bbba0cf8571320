//! A tree as it can be seen: attributes, extended attributes, targets and contents of everything, by path; of a
//! host directory, or of an image that uvfs reads.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use rustix::fs::{lgetxattr, llistxattr, major, minor};
use rustix::io::Errno;
use uvfs::{Access, Attr, Cred, DirEntry, Found, Inode, Op, Time, Vfs, VfsConfig, mode};
use uvfs_drivers::ext4::Ext4;

/// The bytes that are read of a file at a time; a piece of zeros counts as a hole.
const PIECE: usize = 65536;

/// The facts about one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// The answer of `stat`.
    pub attr: Attr,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Hash of the content of a regular file.
    pub content: u64,
}

/// A tree by paths, the root's being empty.
pub type ImageSnapshot = BTreeMap<Vec<u8>, Item>;

/// The parts of two trees that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The same image, read by two.
    Everything,
    /// A directory and an image that was filled from it: inode numbers, sizes of directories, blocks, times beyond
    /// a second, access and change times, and what mke2fs does not copy are left out.
    Copied,
}

struct Contents {
    hasher: DefaultHasher,
}

impl Contents {
    fn new() -> Self {
        Self { hasher: DefaultHasher::new() }
    }

    fn piece(&mut self, offset: u64, piece: &[u8]) {
        // Each byte is like the one before it: one comparison of memory, which is fast in debug builds too.
        let alike = piece.get(1..).unwrap_or_default() == &piece[..piece.len().saturating_sub(1)];
        if !(alike && piece.first().is_none_or(|&byte| byte == 0)) {
            self.hasher.write_u64(offset);
            self.hasher.write(piece);
        }
    }
}

/// The tree below a host directory.
pub fn of_host(dir: &Path) -> Result<ImageSnapshot> {
    let mut found = ImageSnapshot::new();
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        let full = dir.join(OsStr::from_bytes(&path));
        let item = host_item(&full).with_context(|| full.display().to_string())?;
        if item.attr.is_dir() {
            for entry in fs::read_dir(&full)? {
                waiting.push(join(&path, &entry?.file_name().into_vec()));
            }
        }
        found.insert(path, item);
    }
    Ok(found)
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

fn host_item(path: &Path) -> Result<Item> {
    let meta = fs::symlink_metadata(path)?;
    let (major, minor) = (major(meta.rdev()), minor(meta.rdev()));
    let time = |sec, nsec: i64| Time::new(sec, nsec as u32);
    let xattrs = host_xattrs(path)?;
    let attr = Attr {
        ino: meta.ino(),
        mode: meta.mode(),
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: (major & 0xfff) << 8 | minor & 0xff | (minor & 0xfff00) << 12,
        size: meta.size(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        acl: xattrs.contains_key(&b"system.posix_acl_access"[..]),
    };
    let mut item = Item { attr, xattrs, ..Item::default() };
    if attr.is_symlink() {
        item.target = fs::read_link(path)?.into_os_string().into_vec();
    } else if attr.is_reg() {
        let file = File::open(path)?;
        item.content = contents(attr.size, |offset, piece| Ok(file.read_exact_at(piece, offset)?))?;
    }
    Ok(item)
}

fn contents(size: u64, mut read: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<u64> {
    let (mut contents, mut piece) = (Contents::new(), vec![0; PIECE]);
    for offset in (0..size).step_by(PIECE) {
        let len = (size - offset).min(PIECE as u64) as usize;
        read(offset, &mut piece[..len]).with_context(|| format!("reading at {offset}"))?;
        contents.piece(offset, &piece[..len]);
    }
    Ok(contents.hasher.finish())
}

fn host_xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; PIECE];
    let len = match llistxattr(path, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        len => len?,
    };
    let mut found = BTreeMap::new();
    for name in names[..len].split(|&b| b == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; PIECE];
        let len = lgetxattr(path, name, &mut value[..])?;
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

/// A VFS with an image in it.
pub fn mount(image: &Arc<Ext4>) -> Result<Arc<Vfs>> {
    let config = VfsConfig::default();
    Vfs::new(config, image.clone()).map_err(|e| anyhow!("cannot start: {e}"))
}

/// The tree in an image, as uvfs reads it.
pub fn of_image(image: &Arc<Ext4>) -> Result<ImageSnapshot> {
    let vfs = mount(image)?;
    let op = vfs.op(&Cred::root());
    let mut found = ImageSnapshot::new();
    let mut waiting = vec![(Vec::new(), vfs.root())];
    while let Some((path, inode)) = waiting.pop() {
        let name = || String::from_utf8_lossy(&path).into_owned();
        let item = image_item(&vfs, &op, &inode).with_context(name)?;
        if item.attr.is_dir() {
            for (name, ino, fmt) in list(&vfs, &op, &inode).with_context(name)? {
                let below = join(&path, &name);
                let text = || format!("{:?}", String::from_utf8_lossy(&below));
                let Found::Node(child, attr) = vfs.lookup(&op, &inode, &name).with_context(text)? else {
                    return Err(anyhow!("{} is listed and not found", text()));
                };
                if attr.ino != ino {
                    return Err(anyhow!("{} is listed as {ino} and found as {}", text(), attr.ino));
                }
                if attr.fmt() != fmt {
                    return Err(anyhow!("{} is listed as a {fmt:o} and found as a {:o}", text(), attr.fmt()));
                }
                waiting.push((below, child));
            }
        }
        found.insert(path, item);
    }
    Ok(found)
}

/// A name, and its inode's number and type as the directory has them.
type Listed = (Vec<u8>, u64, u32);

/// All names of a directory, read in several turns.
fn list(vfs: &Vfs, op: &Op, dir: &Inode<'_>) -> Result<Vec<Listed>> {
    let mut found: Vec<Listed> = Vec::new();
    let mut cookie = 0;
    loop {
        let before = found.len();
        vfs.readdir(op, dir, cookie, &mut |entry: DirEntry<'_>| {
            found.push((entry.name.to_vec(), entry.ino, entry.fmt));
            cookie = entry.cookie;
            found.len() - before < 50
        })?;
        if found.len() == before {
            return Ok(found);
        }
    }
}

fn image_item(vfs: &Vfs, op: &Op, inode: &Inode<'_>) -> Result<Item> {
    let attr = vfs.getattr(op, inode)?;
    let mut item = Item { attr, ..Item::default() };
    let names = vfs.listxattr(op, inode)?;
    for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        item.xattrs.insert(name.to_vec(), vfs.getxattr(op, inode, name)?);
    }
    match attr.fmt() {
        mode::S_IFLNK => item.target = vfs.readlink(op, inode)?,
        mode::S_IFREG => {
            let handle = vfs.open(op, inode, Access::READ, false)?;
            let read = contents(attr.size, |offset, piece| {
                let len = vfs.read(op, handle, offset, piece)?;
                if len == piece.len() { Ok(()) } else { Err(anyhow!("{len} bytes of {}", piece.len())) }
            });
            vfs.release(handle);
            item.content = read?;
        }
        _ => {}
    }
    Ok(item)
}

/// Where the trees differ, in words; at most so many lines.
pub fn differences(right: &ImageSnapshot, found: &ImageSnapshot, depth: Depth, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for path in right.keys().chain(found.keys().filter(|path| !right.contains_key(*path))) {
        let name = String::from_utf8_lossy(path);
        match (right.get(path), found.get(path)) {
            (Some(_), None) => lines.push(format!("{name:?} is missing")),
            (None, Some(_)) => lines.push(format!("{name:?} is too much")),
            (Some(right), Some(found)) => {
                let (right, found) = (reduced(right, depth), reduced(found, depth));
                if right != found {
                    lines.push(format!("{name:?}:\n  right {right:?}\n  found {found:?}"));
                }
            }
            (None, None) => {}
        }
        if lines.len() >= most {
            break;
        }
    }
    lines
}

fn reduced(item: &Item, depth: Depth) -> Item {
    let mut item = item.clone();
    if depth == Depth::Copied {
        let attr = &mut item.attr;
        (attr.ino, attr.blocks) = (0, 0);
        (attr.atime, attr.ctime) = (Time::default(), Time::default());
        attr.mtime = Time::new(i64::from(attr.mtime.sec() as i32), 0);
        if attr.is_dir() {
            (attr.size, attr.nlink) = (0, 0);
        }
        if !attr.is_reg() && !attr.is_dir() {
            item.xattrs.clear();
        }
    }
    item
}
