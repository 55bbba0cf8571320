//! The tree: the state that all views and handles of one [`Kernfs`](super::Kernfs) share.
//!
//! Nodes are stored twice: under the tree lock ([`super::tree_lock`]), and in a table from inode number to
//! [`Inner`], which open files use. Reading the table costs two exchanges on a line of the reader's own thread
//! ([`ArcSwapOption`]). It takes no lock and counts nothing that another reader counts.
//!
//! A change is made under the tree lock. Then, with nothing held, every view's cache is updated
//! ([`super::update_caches`]). Then the call returns. So a later reader sees the change. A view's answer that
//! was in flight is rejected as late by the cache's own rule.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::{Mutex, Once};
use rustix::time::{ClockId, clock_gettime};
use uvfs::types::{Attr, Errno, NAME_MAX, Result, SetAttr, SetTime, Time};
use uvfs_sync::segvec::SegVec;

use super::lock_free::{Body, Inner};
use super::mounted_views::ViewCaches;
use super::node_handle::{Node, NodeTree, Target};
use super::options::{KernfsOptions, Meta, Tag};
use super::remove::Going;
use super::tree::{Entry, Link, Nodes};
use super::tree_lock::TreeLock;

/// One slot of the table of nodes.
#[derive(Default)]
pub(super) struct Slot {
    inner: ArcSwapOption<Inner>,
    generation: AtomicU32,
    /// The number of the last node of this slot that was unlinked; 0 if there was none.
    unlinked: AtomicU64,
}

/// See the module's head.
pub(super) struct Engine {
    pub(super) options: KernfsOptions,
    pub(super) lock: TreeLock,
    slots: SegVec<Slot>,
    pub(super) root: u64,
    pub(super) root_inner: Arc<Inner>,
    /// A node was renamed or moved, so the texts of links to nodes are no longer those that were made at first.
    /// Written under the tree lock.
    moved: AtomicBool,
    /// The caches have forgotten those texts. A second move waits for the first one to do that; nothing is held.
    forgotten: Once,
    /// A leaf lock: no lock is taken while it is held.
    pub(super) views: Mutex<Vec<Weak<ViewCaches>>>,
}

/// CLOCK_REALTIME.
pub(super) fn now() -> Time {
    let t = clock_gettime(ClockId::Realtime);
    Time::new(t.tv_sec, u32::try_from(t.tv_nsec).unwrap_or(0))
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        Err(Errno::NAMETOOLONG)
    } else if matches!(name, b"" | b"." | b"..") || name.iter().any(|&b| b == b'/' || b == 0) {
        Err(Errno::INVAL)
    } else {
        Ok(())
    }
}

/// A node with a number, in the table.
fn new_inner(slots: &SegVec<Slot>, body: Body) -> Result<Arc<Inner>> {
    let (index, slot) = slots.alloc().ok_or(Errno::NOMEM)?;
    let ino = u64::from(slot.generation.load(Ordering::Relaxed)) << 32 | (u64::from(index) + 1);
    let inner = Arc::new(Inner::new(ino, body));
    slot.inner.store(Some(Arc::clone(&inner)));
    Ok(inner)
}

impl Engine {
    pub(super) fn new(options: KernfsOptions) -> Result<Arc<Self>> {
        let slots = SegVec::new();
        let root_inner = new_inner(&slots, Body::Dir)?;
        root_inner.active.activate();
        let mut meta = Meta::new(options.mode).owner(options.uid, options.gid);
        if options.namespaced {
            meta = meta.namespaced();
        }
        let entry = Entry::new(Arc::clone(&root_inner), &meta, Arc::from(&b""[..]), now());
        let lock = TreeLock::new()?;
        lock.write().put(Box::new(entry));
        let root = root_inner.ino;
        Ok(Arc::new(Self {
            options,
            lock,
            slots,
            root,
            root_inner,
            moved: AtomicBool::new(false),
            forgotten: Once::new(),
            views: Mutex::new(Vec::new()),
        }))
    }

    /// A counted handle.
    pub(super) fn handle(self: &Arc<Self>, inner: &Arc<Inner>) -> Node {
        Node::new(Arc::<Self>::clone(self), Arc::clone(inner))
    }

    /// A node's slot in the table: `ino` is generation << 32 | slot, counted from 1.
    fn slot(&self, ino: u64) -> Option<&Slot> {
        self.slots.get((ino as u32).checked_sub(1)?)
    }

    /// Frees the slot of a node that is in no tree, for another node under another number.
    pub(super) fn free_slot(&self, ino: u64) {
        let Some(slot) = self.slot(ino) else { return };
        slot.inner.store(None);
        // A slot whose numbers have all been used stays empty.
        if slot.generation.fetch_add(1, Ordering::Relaxed) != u32::MAX {
            self.slots.free(ino as u32 - 1);
        }
    }

    /// The node of this number, for as long as the guard is held; it may be removed meanwhile.
    pub(super) fn inner(&self, ino: u64) -> Option<Held> {
        let guard = self.slot(ino)?.inner.load();
        guard.as_ref().is_some_and(|inner| inner.ino == ino).then_some(Held(guard))
    }

    /// As [`Engine::free_slot`], for a node that was unlinked.
    pub(super) fn free_unlinked(&self, ino: u64) {
        if let Some(slot) = self.slot(ino) {
            slot.unlinked.store(ino, Ordering::Release);
        }
        self.free_slot(ino);
    }

    /// Why a node that is not in the table cannot be opened. ESTALE if another node may have its name by now, so that
    /// a kernel looks the name up again; ENODEV if it was removed. A slot remembers one node. If a later node of this
    /// slot was unlinked, nothing records how this one went; the answer is then ESTALE, and the name lookup decides.
    pub(super) fn missing(&self, ino: u64) -> Errno {
        // Numbers of a slot rise with its generation.
        let stale = self.slot(ino).is_some_and(|slot| slot.unlinked.load(Ordering::Acquire) >= ino);
        if stale { Errno::STALE } else { Errno::NODEV }
    }

    /// Hangs a new node. Returns the nodes that it has replaced.
    fn hang_new(&self, nodes: &mut Nodes, parent: u64, meta: &Meta, entry: Box<Entry>) -> Result<Vec<Going>> {
        let above = nodes.entry(parent).filter(|above| !above.removing).ok_or(Errno::NOENT)?;
        let dir = above.dir.as_ref().ok_or(Errno::NOTDIR)?;
        let old = dir.find(&entry.name, entry.tag).filter(|_| meta.replacing).map(|old| old.ino);
        if old.is_none() {
            dir.may_add(&entry.name, entry.tag)?;
        }
        // Everything in a hidden directory is hidden, and shows when the directory does.
        let shows = !meta.hidden && above.inner.active.is_active();
        let (inner, time) = (Arc::clone(&entry.inner), entry.owner.ctime);
        nodes.put(entry);
        // Before it can be found; otherwise a name that existed would be hidden for a moment.
        if shows {
            inner.active.activate();
        }
        let Some(old) = old else {
            nodes.hang(inner.ino, parent, time);
            return Ok(Vec::new());
        };
        nodes.swap(old, inner.ino, time);
        Ok(super::remove::cut(nodes, old))
    }

    /// The text of a symbolic link; ESTALE if it is removed.
    pub(super) fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        let nodes = self.lock.read();
        let entry = nodes.entry(ino).ok_or(Errno::STALE)?;
        let link = entry.link.as_ref().ok_or(Errno::INVAL)?;
        if link.node == 0 {
            return Ok(link.text.to_vec());
        }
        // If the node is removed, the link leads to where it was.
        Ok(super::link_text::text(&nodes, entry.parent, link.node).unwrap_or_else(|_| link.text.to_vec()))
    }

    /// Whether the text of this link stays the same: until the first node moves, or for ever if it leads to no node.
    pub(super) fn is_fixed(&self, link: u64) -> bool {
        let nodes = self.lock.read();
        let link = nodes.entry(link).and_then(|entry| entry.link.as_ref());
        link.is_some_and(|link| link.node == 0) || link.is_some() && !self.moved.load(Ordering::Relaxed)
    }

    /// Whether this is a link to a node.
    pub(super) fn leads_to_a_node(&self, link: u64) -> bool {
        let nodes = self.lock.read();
        nodes.entry(link).and_then(|entry| entry.link.as_ref()).is_some_and(|link| link.node != 0)
    }
}

impl NodeTree for Engine {
    fn add(
        &self,
        parent: u64,
        name: &[u8],
        meta: &Meta,
        body: Body,
        target: Option<Target>,
    ) -> Result<Arc<Inner>> {
        check_name(name)?;
        let inner = new_inner(&self.slots, body)?;
        let mut entry = Box::new(Entry::new(Arc::clone(&inner), meta, Arc::from(name), now()));
        let added = match target {
            None => self.hang_new(&mut self.lock.write(), parent, meta, entry),
            Some(Target::Text(text)) => {
                entry.link = Some(Link { text: text.into(), node: 0 });
                self.hang_new(&mut self.lock.write(), parent, meta, entry)
            }
            Some(Target::Node(node)) => {
                let mut nodes = self.lock.write();
                super::link_text::text(&nodes, parent, node.ino()).and_then(|text| {
                    entry.link = Some(Link { text: text.into(), node: node.ino() });
                    self.hang_new(&mut nodes, parent, meta, entry)
                })
            }
        };
        let replaced = match added {
            Ok(replaced) => replaced,
            Err(errno) => {
                self.free_slot(inner.ino);
                return Err(errno);
            }
        };
        self.push_name(parent, name);
        self.let_go(replaced);
        Ok(inner)
    }

    fn activate(&self, ino: u64) -> Result<()> {
        let mut shown = Vec::new();
        {
            let mut nodes = self.lock.write();
            nodes.entry(ino).filter(|entry| !entry.removing).ok_or(Errno::NOENT)?;
            let mut rest = vec![ino];
            while let Some(entry) = rest.pop().and_then(|ino| nodes.entry(ino)) {
                rest.extend(entry.dir.iter().flat_map(|dir| dir.children()).map(|child| child.ino));
                if entry.inner.active.is_active() || !entry.inner.active.activate() {
                    continue;
                }
                let parent = entry.parent;
                shown.push((parent, Arc::clone(&entry.name)));
                if let Some(dir) = nodes.entry_mut(parent).and_then(|above| above.dir.as_mut()) {
                    dir.revision += 1;
                }
            }
        }
        for (dir, name) in shown {
            self.push_name(dir, &name);
        }
        Ok(())
    }

    fn find(&self, dir: u64, name: &[u8], tag: Option<Tag>) -> Option<Arc<Inner>> {
        self.lock.read().entry(dir)?.dir.as_ref()?.find(name, tag).cloned()
    }

    fn children(&self, dir: u64) -> Vec<Arc<Inner>> {
        let nodes = self.lock.read();
        let dir = nodes.entry(dir).and_then(|entry| entry.dir.as_ref());
        dir.map_or_else(Vec::new, |dir| dir.children().cloned().collect())
    }

    fn parent(&self, ino: u64) -> Option<Arc<Inner>> {
        let nodes = self.lock.read();
        let parent = nodes.entry(ino)?.parent;
        Some(Arc::clone(&nodes.entry(parent)?.inner))
    }

    fn name(&self, ino: u64) -> Result<Vec<u8>> {
        let nodes = self.lock.read();
        Ok(nodes.entry(ino).ok_or(Errno::NOENT)?.name.to_vec())
    }

    fn path(&self, ino: u64) -> Result<Vec<u8>> {
        let nodes = self.lock.read();
        let mut names = Vec::new();
        let mut at = ino;
        while at != self.root {
            let entry = nodes.entry(at).ok_or(Errno::NOENT)?;
            names.push(&entry.name);
            at = entry.parent;
        }
        if names.is_empty() {
            return Ok(b"/".to_vec());
        }
        Ok(names.iter().rev().flat_map(|name| std::iter::once(&b'/').chain(name.iter())).copied().collect())
    }

    fn rename(&self, ino: u64, to: u64, name: &[u8], tag: Option<Tag>) -> Result<()> {
        check_name(name)?;
        if ino == self.root {
            return Err(Errno::BUSY);
        }
        let name: Arc<[u8]> = Arc::from(name);
        let (from, old_name, fmt);
        {
            let mut nodes = self.lock.write();
            let entry = nodes.entry(ino).filter(|entry| !entry.removing).ok_or(Errno::NOENT)?;
            (from, old_name, fmt) = (entry.parent, Arc::clone(&entry.name), entry.inner.fmt);
            if (from, &*old_name, entry.tag) == (to, &*name, tag) {
                return Ok(());
            }
            let above = nodes.entry(to).filter(|above| !above.removing).ok_or(Errno::NOENT)?;
            above.dir.as_ref().ok_or(Errno::NOTDIR)?.may_add(&name, tag)?;
            let mut up = to;
            while up != self.root {
                if up == ino {
                    return Err(Errno::INVAL);
                }
                up = nodes.entry(up).ok_or(Errno::NOENT)?.parent;
            }
            let now = now();
            nodes.unhang(ino, now);
            if let Some(entry) = nodes.entry_mut(ino) {
                (entry.name, entry.tag, entry.owner.ctime) = (Arc::clone(&name), tag, now);
            }
            nodes.hang(ino, to, now);
            self.moved.store(true, Ordering::Relaxed);
        }
        self.forgotten.call_once(|| self.forget_targets());
        self.push_name(from, &old_name);
        self.push_name(to, &name);
        self.push_attr(ino, fmt);
        Ok(())
    }

    fn remove(&self, ino: u64) {
        self.drain_and_remove(ino);
    }

    fn unlink(&self, ino: u64) {
        self.unlink_open(ino);
    }

    fn attr(&self, ino: u64) -> Option<Attr> {
        self.lock.read().entry(ino).map(Entry::attr)
    }

    fn set_attr(&self, ino: u64, set: &SetAttr) -> Result<()> {
        let now = now();
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let fmt = {
            let mut nodes = self.lock.write();
            let entry = nodes.entry_mut(ino).ok_or(Errno::NOENT)?;
            let owner = &mut entry.owner;
            owner.mode = set.mode.map_or(owner.mode, |mode| mode & 0o7777);
            owner.uid = set.uid.unwrap_or(owner.uid);
            owner.gid = set.gid.unwrap_or(owner.gid);
            owner.atime = set.atime.map_or(owner.atime, time);
            owner.mtime = set.mtime.map_or(owner.mtime, time);
            owner.ctime = now;
            entry.inner.fmt
        };
        self.push_attr(ino, fmt);
        Ok(())
    }
}

/// A node as found in the table.
pub(super) struct Held(Guard<Option<Arc<Inner>>>);

impl Held {
    /// Never `None`: the constructor has checked.
    pub(super) fn get(&self) -> Option<&Arc<Inner>> {
        self.0.as_ref()
    }
}
