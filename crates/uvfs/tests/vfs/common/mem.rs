//! A resident driver: names and attributes live in the cache, bytes and targets here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use uvfs::driver::{AclStore, File, Rename};
use uvfs::{
    Access, Acl, AclKind, Attr, Driver, Errno, Features, Inode, Make, NewInode, Op, Result, SetAttr, SetTime,
    StatFs, Time, XattrFlags, mode,
};

use super::{new_attr, new_inode};

#[derive(Default)]
struct Node {
    bytes: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    acls: [Option<Arc<Acl>>; 2],
}

/// The driver. Tests read its public fields, or use them to plant faults.
#[derive(Default)]
pub struct Mem {
    last: AtomicU64,
    nodes: Mutex<HashMap<u64, Node>>,
    /// The VFS refuses every change with EROFS; tests set it before mounting.
    pub read_only: bool,
    /// The VFS leaves `open` and `release` out; tests set it before mounting.
    pub plain_files: bool,
    /// A read of a link moves its access time, as `relatime` asks for it.
    pub stamps_links: bool,
    /// The next change fails with EIO.
    pub broken: AtomicBool,
    /// Inodes that the cache dropped, with their link counts.
    pub evicted: Mutex<Vec<(u64, u32)>>,
    /// Files opened and not yet released.
    pub open: AtomicU64,
    /// Changes requested since the mount.
    pub changes: AtomicU64,
    /// How often a link pauses before it acts, so that other threads can come between.
    pub slow_links: AtomicU64,
    /// Called by each rename before it changes anything.
    pub renaming: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    /// How often an access control list was requested.
    pub acls_asked: AtomicU64,
}

impl Mem {
    fn change(&self) -> Result<()> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        if self.broken.swap(false, Ordering::Relaxed) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Every link made so far has an empty target, as on a damaged disk.
    pub fn empty_targets(&self) {
        self.nodes.lock().clear();
    }

    fn node<R>(&self, inode: &Inode<'_>, act: impl FnOnce(&mut Node) -> R) -> R {
        act(self.nodes.lock().entry(inode.private()).or_default())
    }
}

fn stamp(inode: &Inode<'_>, now: Time, links: i32) {
    inode.update(|a| {
        a.mtime = now;
        a.ctime = now;
        a.nlink = a.nlink.wrapping_add_signed(links);
    });
}

fn is_dir(inode: &Inode<'_>) -> bool {
    inode.fmt() == mode::S_IFDIR
}

/// Updates an inode that lost a name.
fn unlinked(inode: &Inode<'_>, now: Time) {
    inode.update(|a| {
        a.nlink = if a.is_dir() { 0 } else { a.nlink - 1 };
        a.ctime = now;
    });
}

pub fn set_time(to: &mut Time, set: Option<SetTime>, now: Time) {
    match set {
        Some(SetTime::Now) => *to = now,
        Some(SetTime::At(time)) => *to = time,
        None => {}
    }
}

impl Driver for Mem {
    fn name(&self) -> &'static str {
        "mem"
    }

    fn features(&self) -> Features {
        let Self { read_only, plain_files, stamps_links, .. } = *self;
        Features {
            resident: true,
            fixed_links: true,
            timeless_links: !stamps_links,
            acl: true,
            read_only,
            plain_files,
            ..Features::default()
        }
    }

    fn root(&self, op: &Op) -> Result<NewInode> {
        let ino = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(new_inode(new_attr(ino, mode::S_IFDIR | 0o755, 0, 0, op.now)))
    }

    fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        self.change()?;
        assert!(!set.kill_suidgid, "the VFS decides on set-id bits");
        if let Some(size) = set.size {
            self.node(inode, |n| n.bytes.resize(size as usize, 0));
        }
        inode.update(|a| {
            if let Some(mode) = set.mode {
                a.mode = a.fmt() | mode & 0o7777;
            }
            a.uid = set.uid.unwrap_or(a.uid);
            a.gid = set.gid.unwrap_or(a.gid);
            if let Some(size) = set.size.filter(|&size| size != a.size) {
                a.size = size;
                a.mtime = op.now;
            }
            set_time(&mut a.atime, set.atime, op.now);
            set_time(&mut a.mtime, set.mtime, op.now);
            a.ctime = op.now;
        });
        Ok(())
    }

    fn create(&self, op: &Op, dir: &Inode<'_>, _name: &[u8], make: &Make<'_>) -> Result<NewInode> {
        self.change()?;
        let ino = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut attr = new_attr(ino, make.mode, make.uid, make.gid, op.now);
        attr.rdev = make.rdev;
        attr.acl = make.acl.is_some();
        if make.acl.is_some() || make.default_acl.is_some() {
            let acls = [make.acl.cloned(), make.default_acl.cloned()];
            self.nodes.lock().entry(ino).or_default().acls = acls;
        }
        if let Some(target) = make.target {
            attr.size = target.len() as u64;
            self.nodes.lock().entry(ino).or_default().bytes = target.to_vec();
        }
        stamp(dir, op.now, i32::from(attr.is_dir()));
        Ok(new_inode(attr))
    }

    fn link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>, _name: &[u8]) -> Result<()> {
        self.change()?;
        (0..self.slow_links.load(Ordering::Relaxed)).for_each(|_| std::thread::yield_now());
        inode.update(|a| {
            assert_ne!(a.nlink, 0, "a link to an inode without names");
            a.nlink += 1;
            a.ctime = op.now;
        });
        stamp(dir, op.now, 0);
        Ok(())
    }

    fn unlink(&self, op: &Op, dir: &Inode<'_>, _name: &[u8], inode: &Inode<'_>) -> Result<()> {
        self.change()?;
        unlinked(inode, op.now);
        stamp(dir, op.now, 0);
        Ok(())
    }

    fn rmdir(&self, op: &Op, dir: &Inode<'_>, _name: &[u8], inode: &Inode<'_>) -> Result<()> {
        self.change()?;
        unlinked(inode, op.now);
        stamp(dir, op.now, -1);
        Ok(())
    }

    fn rename(&self, op: &Op, r: &Rename<'_>) -> Result<()> {
        self.change()?;
        let renaming = self.renaming.lock().clone();
        if let Some(renaming) = renaming {
            renaming();
        }
        let (mut from, mut to) = (0, 0);
        if is_dir(r.inode) {
            (from, to) = (from - 1, to + 1);
        }
        if let Some(target) = r.target {
            if r.exchange {
                target.update(|a| a.ctime = op.now);
                if is_dir(target) {
                    (from, to) = (from + 1, to - 1);
                }
            } else {
                unlinked(target, op.now);
                to -= i32::from(is_dir(target));
            }
        }
        r.inode.update(|a| a.ctime = op.now);
        stamp(r.from_dir, op.now, from);
        stamp(r.to_dir, op.now, to);
        Ok(())
    }

    fn readlink(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        if self.stamps_links && inode.attr().atime_is_due(op.now) {
            inode.update(|a| a.atime = op.now);
        }
        Ok(self.node(inode, |n| n.bytes.clone()))
    }

    fn open(&self, _op: &Op, inode: &Inode<'_>, _access: Access) -> Result<u64> {
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(inode.private())
    }

    fn release(&self, file: File<'_>) {
        assert_eq!(file.handle, file.inode.private());
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn read(&self, _op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.node(file.inode, |n| {
            let rest = n.bytes.get(offset as usize..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        })
    }

    fn write(&self, op: &Op, file: File<'_>, offset: u64, data: &[u8], append: bool) -> Result<usize> {
        self.change()?;
        let size = self.node(file.inode, |n| {
            let at = if append { n.bytes.len() } else { offset as usize };
            let end = at + data.len();
            n.bytes.resize(n.bytes.len().max(end), 0);
            n.bytes[at..end].copy_from_slice(data);
            n.bytes.len() as u64
        });
        file.inode.update(|a| {
            a.size = size;
            a.mtime = op.now;
            a.ctime = op.now;
        });
        Ok(data.len())
    }

    fn statfs(&self, _op: &Op) -> Result<StatFs> {
        Ok(StatFs { bsize: 4096, namelen: 255, ..StatFs::default() })
    }

    fn getxattr(&self, _op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.node(inode, |n| n.xattrs.get(name).cloned()).ok_or(Errno::NODATA)
    }

    fn setxattr(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.change()?;
        self.node(inode, |n| {
            let there = n.xattrs.contains_key(name);
            if there && flags.contains(XattrFlags::CREATE) {
                return Err(Errno::EXIST);
            }
            if !there && flags.contains(XattrFlags::REPLACE) {
                return Err(Errno::NODATA);
            }
            n.xattrs.insert(name.to_vec(), value.to_vec());
            Ok(())
        })?;
        inode.update(|a| a.ctime = op.now);
        Ok(())
    }

    fn listxattr(&self, _op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        Ok(self.node(inode, |n| n.xattrs.keys().flat_map(|k| k.iter().copied().chain([0])).collect()))
    }

    fn removexattr(&self, _op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        self.change()?;
        self.node(inode, |n| n.xattrs.remove(name)).map(|_| ()).ok_or(Errno::NODATA)
    }

    fn evict(&self, attr: &Attr, private: u64) {
        assert_eq!(attr.ino, private);
        self.nodes.lock().remove(&private);
        self.evicted.lock().push((attr.ino, attr.nlink));
    }

    fn acls(&self) -> Option<&dyn AclStore> {
        Some(self)
    }
}

impl AclStore for Mem {
    fn acl(&self, _op: &Op, inode: &Inode<'_>, kind: AclKind) -> Result<Option<Arc<Acl>>> {
        self.acls_asked.fetch_add(1, Ordering::Relaxed);
        Ok(self.node(inode, |n| n.acls[kind as usize].clone()))
    }

    fn set_acl(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        kind: AclKind,
        acl: Option<Arc<Acl>>,
        mode: Option<u32>,
    ) -> Result<()> {
        self.change()?;
        let listed = acl.is_some();
        self.node(inode, |n| {
            n.acls[kind as usize] = acl;
            inode.update(|a| {
                if kind == AclKind::Access {
                    a.acl = listed;
                }
                a.mode = mode.map_or(a.mode, |mode| a.fmt() | mode);
                a.ctime = op.now;
            });
        });
        Ok(())
    }
}
