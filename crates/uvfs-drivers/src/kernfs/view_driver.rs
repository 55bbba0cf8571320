//! The driver: one superblock's view of the tree.
//!
//! Answers hold for ever in the cache, and in a front end's kernel, because both are notified of every change
//! ([`super::update_caches`]). The answer about a hidden name, or one that is being removed, is not kept: no negative
//! entry may be left, because the name may be activated at any moment. (Nor is that answer an error. A thread that
//! waits for another's question gets its error too, and may have come after the activation.)
//!
//! Names cannot be made or removed through a view (EPERM); owners may change mode, owner and times.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use uvfs::driver::{Driver, File, Inode, Rename};
use uvfs::types::{
    Access, Answer, Attr, DirEntry, Errno, Features, Make, NAME_MAX, NewInode, Op, PollEvents, Result,
    SetAttr, StatFs, Ttl,
};
use uvfs_cache::Cache;

use super::lock_free::Body;
use super::mounted_views::ViewCaches;
use super::node_handle::NodeTree;
use super::options::Tag;
use super::poll;
use super::read_write;
use super::tree::Entry;
use super::tree_operations::Engine;

/// Entries of a directory that are copied at a time.
const BATCH: usize = 64;

/// The TTL of an answer that must not be cached.
const NOT_KEPT: Ttl = Ttl::For(Duration::ZERO);

/// See the module's head.
pub(super) struct View {
    engine: Arc<Engine>,
    tag: Option<Tag>,
    caches: Arc<ViewCaches>,
}

fn forever(attr: Attr) -> NewInode {
    NewInode { attr, private: 0, ttl: Ttl::Forever }
}

impl View {
    pub(super) fn new(engine: Arc<Engine>, tag: Option<Tag>) -> Arc<Self> {
        let caches = Arc::new(ViewCaches::new());
        engine.views.lock().push(Arc::downgrade(&caches));
        Arc::new(Self { engine, tag, caches })
    }

    /// Finds the node that a name in the directory `dir` leads to.
    fn look(&self, dir: u64, name: &[u8]) -> Result<Answer> {
        let nodes = self.engine.lock.read();
        let above = nodes.entry(dir).filter(|above| !above.removing).ok_or(Errno::NOENT)?;
        let above = above.dir.as_ref().ok_or(Errno::NOTDIR)?;
        let Some(child) = above.find_seen(name, self.tag) else {
            return Ok(Answer::Absent(Ttl::Forever));
        };
        // A child that a directory lists is in the tree.
        let child = nodes.entry(child.ino).filter(|_| child.active.is_active()).map(Entry::attr);
        Ok(child.map_or(Answer::Absent(NOT_KEPT), |attr| Answer::Found(forever(attr))))
    }
}

impl Driver for View {
    fn name(&self) -> &'static str {
        "kernfs"
    }

    fn features(&self) -> Features {
        let may_block = self.engine.options.may_block;
        Features { may_block, watched: true, direct_io: true, timeless_links: true, ..Features::default() }
    }

    /// Names and attributes of nodes are in memory, under a lock that is held for moments.
    fn may_block(&self, inode: &Inode<'_>) -> bool {
        let held = self.engine.inner(inode.ino());
        let inner = held.as_ref().and_then(|held| held.get());
        inner.is_some_and(|inner| matches!(&inner.body, Body::Attribute(attribute) if attribute.may_block()))
    }

    fn ttl(&self) -> Ttl {
        Ttl::Forever
    }

    fn root(&self, _op: &Op) -> Result<NewInode> {
        self.engine.attr(self.engine.root).map(forever).ok_or(Errno::NOENT)
    }

    fn mounted(&self, cache: &Arc<Cache>, root: &Inode<'_>) {
        self.caches.add(cache, root.sb());
        // Nobody was notified of a change after `root` was asked and before this.
        self.engine.mend(root);
    }

    fn lookup(&self, _op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        self.look(inode.ino(), name)
    }

    /// For a removed node that is still in use: its last known attributes.
    fn getattr(&self, _op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        Ok(self.engine.attr(inode.ino()).unwrap_or_else(|| Attr { nlink: 0, ..inode.attr() }))
    }

    fn setattr(&self, _op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        self.engine.set_attr(inode.ino(), set).map_err(|_| Errno::STALE)
    }

    fn create(&self, _op: &Op, _dir: &Inode<'_>, _name: &[u8], _make: &Make<'_>) -> Result<NewInode> {
        Err(Errno::PERM)
    }

    fn link(&self, _op: &Op, _inode: &Inode<'_>, _dir: &Inode<'_>, _name: &[u8]) -> Result<()> {
        Err(Errno::PERM)
    }

    fn unlink(&self, _op: &Op, _dir: &Inode<'_>, _name: &[u8], _inode: &Inode<'_>) -> Result<()> {
        Err(Errno::PERM)
    }

    fn rmdir(&self, _op: &Op, _dir: &Inode<'_>, _name: &[u8], _inode: &Inode<'_>) -> Result<()> {
        Err(Errno::PERM)
    }

    fn rename(&self, _op: &Op, _rename: &Rename<'_>) -> Result<()> {
        Err(Errno::PERM)
    }

    fn readdir(
        &self,
        _op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = dir.ino();
        let mut from = cookie;
        loop {
            let batch = {
                let nodes = self.engine.lock.read();
                let entry = nodes.entry(dir).filter(|entry| !entry.removing).ok_or(Errno::NOENT)?;
                entry.dir.as_ref().ok_or(Errno::NOTDIR)?.list(self.tag, from, BATCH)
            };
            for (name, ino, fmt, cookie) in batch.iter() {
                if !sink(DirEntry { name, ino, fmt, cookie }) {
                    return Ok(());
                }
            }
            match batch.next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    fn readlink(&self, _op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        self.engine.readlink(inode.ino())
    }

    fn link_is_fixed(&self, inode: &Inode<'_>) -> bool {
        self.engine.is_fixed(inode.ino())
    }

    fn open(&self, _op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64> {
        let ino = inode.ino();
        let held = self.engine.inner(ino).ok_or_else(|| self.engine.missing(ino))?;
        let inner = held.get().ok_or(Errno::NODEV)?;
        let _active = inner.active.get().ok_or(Errno::NODEV)?;
        if !matches!(inner.body, Body::Attribute(_)) {
            return Err(Errno::INVAL);
        }
        // As in sysfs, even for root, whom mode bits do not bind: an attribute without a write bit has no code for
        // writes.
        let mode = self.engine.attr(ino).map_or_else(|| inode.attr().mode, |attr| attr.mode);
        let refused = |asked: Access, bits: u32| access.contains(asked) && mode & bits == 0;
        if refused(Access::READ, 0o444) || refused(Access::WRITE, 0o222) {
            return Err(Errno::ACCESS);
        }
        let handle = self.caches.opens.insert(ino);
        // After the handle is there: see `Opens::keep`.
        if inner.unlinked.load(Ordering::Acquire) {
            self.caches.opens.remove(handle);
            return Err(Errno::STALE);
        }
        Ok(handle)
    }

    fn release(&self, file: File<'_>) {
        if let Some(open) = self.caches.opens.get(file.handle) {
            poll::forget(&self.engine, &open);
        }
        self.caches.opens.remove(file.handle);
    }

    fn read(&self, op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let open = self.caches.opens.get(file.handle).ok_or(Errno::BADF)?;
        read_write::read(op, &self.engine, &open, offset, buf)
    }

    fn write(&self, op: &Op, file: File<'_>, offset: u64, data: &[u8], _append: bool) -> Result<usize> {
        let open = self.caches.opens.get(file.handle).ok_or(Errno::BADF)?;
        read_write::write(op, &self.engine, &open, offset, data)
    }

    fn poll(&self, _op: &Op, file: File<'_>, waker: Option<&Waker>) -> Result<PollEvents> {
        let open = self.caches.opens.get(file.handle).ok_or(Errno::BADF)?;
        Ok(poll::poll(&self.engine, &open, waker))
    }

    fn statfs(&self, _op: &Op) -> Result<StatFs> {
        Ok(StatFs { bsize: 4096, namelen: NAME_MAX as u32, ..StatFs::default() })
    }
}
