//! The driver: one superblock's view of the tree.
//!
//! Answers hold for ever in the cache, and in a front end's kernel, because both are told of every change
//! ([`super::push`]); but for the policies that ask at each use, whose kernels have to ask too. That a name is hidden or being removed is an answer
//! that is not kept: no negative entry may be left, for activation is on its way. (Nor is it an error: who waits for
//! another's question is told that one's error, and may have come after the activation.)
//! Names cannot be made or removed through a view (EPERM); owners may change mode, owner and times.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use uvfs::driver::{Driver, File, Inode, Rename};
use uvfs::types::{
    Access, Answer, Attr, DirEntry, Errno, Features, Make, NAME_MAX, NewInode, Op, Perm, PollEvents, Result,
    SetAttr, StatFs, Ttl,
};
use uvfs_cache::{Cache, SbId};

use super::engine::Engine;
use super::node::{Body, Inner};
use super::open::Opens;
use super::options::{Options, Policy, Tag};
use super::poll;
use super::read;
use super::tree::{Entry, Nodes};

/// Entries of a directory that are copied at a time.
const BATCH: usize = 64;

/// The TTL of an answer that must not be cached.
const NOT_KEPT: Ttl = Ttl::For(Duration::ZERO);

/// See the module's head.
pub(super) struct View {
    engine: Arc<Engine>,
    tag: Option<Tag>,
    opens: Opens,
    /// A leaf.
    mounts: Mutex<Vec<Mount>>,
}

struct Mount {
    cache: Weak<Cache>,
    sb: SbId,
}

fn forever(attr: Attr) -> NewInode {
    NewInode { attr, private: 0, ttl: Ttl::Forever }
}

impl View {
    pub(super) fn new(engine: Arc<Engine>, tag: Option<Tag>) -> Arc<Self> {
        let view = Arc::new(Self { engine, tag, opens: Opens::new(), mounts: Mutex::new(Vec::new()) });
        view.engine.views.lock().push(Arc::downgrade(&view));
        view
    }

    /// Files that have `inner` open keep it.
    pub(super) fn keep_open(&self, inner: &Arc<Inner>) {
        self.opens.keep(inner);
    }

    /// Calls `tell` with each cache that the view is mounted in, and the superblock there.
    pub(super) fn each_cache(&self, tell: impl Fn(&Cache, SbId)) {
        let caches: Vec<_> = {
            let mut mounts = self.mounts.lock();
            mounts.retain(|mount| mount.cache.strong_count() != 0);
            mounts.iter().filter_map(|mount| Some((mount.cache.upgrade()?, mount.sb))).collect()
        };
        caches.iter().for_each(|(cache, sb)| tell(cache, *sb));
    }

    /// Finds the node that a name in the directory `dir` leads to. `None`: another node has taken its place since the
    /// directory was looked at, or none has; the caller looks again.
    fn look(&self, dir: u64, name: &[u8]) -> Result<Option<Answer>> {
        let nodes = self.engine.locks.read(&[dir]);
        let above = nodes.entry(dir).filter(|above| !above.removing).ok_or(Errno::NOENT)?;
        let above = above.dir.as_ref().ok_or(Errno::NOTDIR)?;
        let Some(child) = above.find_seen(name, self.tag) else {
            return Ok(Some(Answer::Absent(Ttl::Forever)));
        };
        if !child.active.is_active() {
            return Ok(Some(Answer::Absent(NOT_KEPT)));
        }
        let ino = child.ino;
        let attr = match nodes.entry(ino).map(Entry::attr) {
            Some(attr) => Some(attr),
            // Under another lock.
            None => {
                drop(nodes);
                self.engine.attr(ino)
            }
        };
        Ok(attr.map(|attr| Answer::Found(forever(attr))))
    }
}

impl Driver for View {
    fn name(&self) -> &'static str {
        "kernfs"
    }

    fn features(&self) -> Features {
        let Options { policy, may_block, .. } = self.engine.options;
        let watched = policy == Policy::Uvfs;
        Features { may_block, revalidates: !watched, watched, direct_io: true, ..Features::default() }
    }

    /// Names and attributes of nodes are in memory, under a lock that is held for moments.
    fn may_block(&self, inode: &Inode<'_>) -> bool {
        let held = self.engine.inner(inode.ino());
        let inner = held.as_ref().and_then(|held| held.get());
        inner.is_some_and(|inner| matches!(&inner.body, Body::Attribute(attribute) if attribute.may_block()))
    }

    fn ttl(&self) -> Ttl {
        if self.engine.options.policy == Policy::Uvfs { Ttl::Forever } else { NOT_KEPT }
    }

    fn root(&self, _op: &Op) -> Result<NewInode> {
        self.engine.attr(self.engine.root).map(forever).ok_or(Errno::NOENT)
    }

    fn mounted(&self, cache: &Arc<Cache>, root: &Inode<'_>) {
        self.mounts.lock().push(Mount { cache: Arc::downgrade(cache), sb: root.sb() });
        // What changed after `root` was asked and before this was told to nobody.
        self.engine.mend(root);
    }

    fn lookup(&self, _op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        loop {
            // Each repetition is another thread's replacement of the node.
            if let Some(answer) = self.look(inode.ino(), name)? {
                return Ok(answer);
            }
        }
    }

    /// A negative entry is asked about by its name: the lock is held anyway, and what is not there now was not hidden
    /// when the entry was made, for then none would have been made.
    fn revalidate(&self, dir: u64, name: &[u8], child: Option<u64>) -> bool {
        let nodes = self.engine.locks.read(&[child.unwrap_or(dir)]);
        let Some(ino) = child else {
            let above = nodes.entry(dir).filter(|above| !above.removing);
            return above
                .and_then(|above| above.dir.as_ref())
                .is_some_and(|d| d.find_seen(name, self.tag).is_none());
        };
        nodes.entry(ino).is_some_and(|entry| {
            let seen = entry.tag.is_none() || entry.tag == self.tag;
            seen && entry.parent == dir && *entry.name == *name && entry.inner.active.is_active()
        })
    }

    fn permission(&self, ino: u64) -> Option<Perm> {
        let nodes = self.engine.locks.read(&[ino]);
        let entry = nodes.entry(ino)?;
        Some(Perm { mode: entry.inner.fmt | entry.owner.mode, uid: entry.owner.uid, gid: entry.owner.gid })
    }

    /// Of a removed node what was known last, for those who still have it.
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
                let nodes = self.engine.locks.read(&[dir]);
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

    fn open(&self, _op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64> {
        let ino = inode.ino();
        let held = self.engine.inner(ino).ok_or_else(|| self.engine.missing(ino))?;
        let inner = held.get().ok_or(Errno::NODEV)?;
        let _active = inner.active.get().ok_or(Errno::NODEV)?;
        if !matches!(inner.body, Body::Attribute(_)) {
            return Err(Errno::INVAL);
        }
        // As in sysfs, also for root, whom mode bits do not bind: what has no write bit has nothing that takes a write.
        let mode = self.engine.attr(ino).map_or_else(|| inode.attr().mode, |attr| attr.mode);
        let refused = |asked: Access, bits: u32| access.contains(asked) && mode & bits == 0;
        if refused(Access::READ, 0o444) || refused(Access::WRITE, 0o222) {
            return Err(Errno::ACCESS);
        }
        let handle = self.opens.insert(ino);
        // After the handle is there: see `Opens::keep`.
        if inner.unlinked.load(Ordering::Acquire) {
            self.opens.remove(handle);
            return Err(Errno::STALE);
        }
        Ok(handle)
    }

    fn release(&self, file: File<'_>) {
        if let Some(open) = self.opens.get(file.handle) {
            poll::forget(&self.engine, &open);
        }
        self.opens.remove(file.handle);
    }

    fn read(&self, op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let open = self.opens.get(file.handle).ok_or(Errno::BADF)?;
        read::read(op, &self.engine, &open, offset, buf)
    }

    fn write(&self, op: &Op, file: File<'_>, offset: u64, data: &[u8], _append: bool) -> Result<usize> {
        let open = self.opens.get(file.handle).ok_or(Errno::BADF)?;
        read::write(op, &self.engine, &open, offset, data)
    }

    fn poll(&self, _op: &Op, file: File<'_>, waker: Option<&Waker>) -> Result<PollEvents> {
        let open = self.opens.get(file.handle).ok_or(Errno::BADF)?;
        Ok(poll::poll(&self.engine, &open, waker))
    }

    fn statfs(&self, _op: &Op) -> Result<StatFs> {
        Ok(StatFs { bsize: 4096, namelen: NAME_MAX as u32, ..StatFs::default() })
    }
}
