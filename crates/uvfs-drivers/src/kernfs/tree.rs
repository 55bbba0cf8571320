//! The nodes as the tree lock protects them: names, children in order, attributes.
//!
//! The lock ([`super::tree_lock`]) protects [`Nodes`]. An inode number is generation << 32 | slot, counted from 1. It is
//! never reused, so an old one finds nothing. Children are found by name and listed by cookie. Cookies count up in
//! each directory, so a reader that resumes after one neither misses nor repeats the entries that stayed. Nothing
//! here calls out or waits. Finding is O(1); listing is O(log n) plus the entries.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use uvfs::types::{Attr, Errno, Result, Time, mode};

use super::lock_free::{Body, Inner};
use super::options::{Meta, Tag};

/// The size that `stat` reports for a text, as sysfs does: readers expect no more.
const TEXT_SIZE: u64 = 4096;
/// Cookies 0 to 2 are the start, `.` and `..`.
const FIRST_COOKIE: u64 = 3;

/// A node.
pub(super) struct Entry {
    pub(super) inner: Arc<Inner>,
    /// The directory's number; 0 for the root and for a node without a name.
    pub(super) parent: u64,
    pub(super) name: Arc<[u8]>,
    pub(super) tag: Option<Tag>,
    cookie: u64,
    /// A removal has begun: the node cannot be moved, and nothing is added to it.
    pub(super) removing: bool,
    pub(super) owner: Owner,
    pub(super) dir: Option<Box<Dir>>,
    pub(super) link: Option<Link>,
}

/// The target of a symbolic link.
pub(super) struct Link {
    /// The text; for a link to a node, the text when the link was made.
    pub(super) text: Box<[u8]>,
    /// The node's number, or 0.
    pub(super) node: u64,
}

/// Mode, owner, times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
}

impl Owner {
    pub(super) fn new(meta: &Meta, fmt: u32, now: Time) -> Self {
        let mode = if fmt == mode::S_IFLNK { 0o777 } else { meta.mode };
        Self { mode, uid: meta.uid, gid: meta.gid, atime: now, mtime: now, ctime: now }
    }
}

impl Entry {
    pub(super) fn new(inner: Arc<Inner>, meta: &Meta, name: Arc<[u8]>, now: Time) -> Self {
        let is_dir = inner.fmt == mode::S_IFDIR;
        Self {
            parent: 0,
            name,
            tag: meta.tag,
            cookie: 0,
            removing: false,
            owner: Owner::new(meta, inner.fmt, now),
            dir: is_dir.then(|| Box::new(Dir::new(meta.namespaced))),
            link: None,
            inner,
        }
    }

    /// The attributes for `stat`.
    pub(super) fn attr(&self) -> Attr {
        let Owner { mode, uid, gid, atime, mtime, ctime } = self.owner;
        let size = match &self.inner.body {
            Body::Attribute(attribute) => match attribute.kind() {
                super::attribute::Kind::Text => TEXT_SIZE,
                super::attribute::Kind::Binary { size } => size,
                super::attribute::Kind::Records => 0,
            },
            // The text of a link to a node is made when it is read; its size is 0 here, as in sysfs.
            Body::Link => {
                self.link.as_ref().filter(|link| link.node == 0).map_or(0, |link| link.text.len() as u64)
            }
            Body::Dir => 0,
        };
        Attr {
            ino: self.inner.ino,
            mode: self.inner.fmt | mode,
            nlink: self.dir.as_ref().map_or(1, |dir| dir.subdirs.saturating_add(2)),
            uid,
            gid,
            size,
            atime,
            mtime,
            ctime,
            ..Attr::default()
        }
    }
}

type Map = HashMap<Arc<[u8]>, (u64, Arc<Inner>), RandomState>;

enum Names {
    Plain(Map),
    Tagged(HashMap<Tag, Map, RandomState>),
}

/// A directory's children.
pub(super) struct Dir {
    names: Names,
    order: BTreeMap<u64, Listed>,
    next_cookie: u64,
    pub(super) subdirs: u32,
    /// Changes when a child is added, removed, shown or hidden.
    pub(super) revision: u64,
}

struct Listed {
    name: Arc<[u8]>,
    tag: Option<Tag>,
    inner: Arc<Inner>,
}

/// Some entries of a directory, copied.
#[derive(Default)]
pub(super) struct Batch {
    names: Vec<u8>,
    entries: Vec<(usize, u64, u32, u64)>,
    /// Cookie to resume from; `None` at the end.
    pub(super) next: Option<u64>,
}

impl Batch {
    /// Name, inode number, type bits, cookie of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u64, u32, u64)> {
        let mut from = 0;
        self.entries.iter().map(move |&(to, ino, fmt, cookie)| {
            let name = &self.names[from..to];
            from = to;
            (name, ino, fmt, cookie)
        })
    }
}

impl Dir {
    fn new(namespaced: bool) -> Self {
        let names = if namespaced { Names::Tagged(HashMap::default()) } else { Names::Plain(Map::default()) };
        Self { names, order: BTreeMap::new(), next_cookie: FIRST_COOKIE, subdirs: 0, revision: 0 }
    }

    fn map(&self, tag: Option<Tag>) -> Option<&Map> {
        match (&self.names, tag) {
            (Names::Plain(map), None) => Some(map),
            (Names::Tagged(maps), Some(tag)) => maps.get(&tag),
            _ => None,
        }
    }

    /// Whether the children have tags.
    pub(super) fn is_namespaced(&self) -> bool {
        matches!(self.names, Names::Tagged(_))
    }

    /// The tag by which a view with `tag` finds children here.
    fn seen_by(&self, tag: Option<Tag>) -> Option<Tag> {
        if self.is_namespaced() { tag } else { None }
    }

    /// The child of this name and tag.
    pub(super) fn find(&self, name: &[u8], tag: Option<Tag>) -> Option<&Arc<Inner>> {
        self.map(tag)?.get(name).map(|(_, inner)| inner)
    }

    /// The child of this name that a view with `tag` sees.
    pub(super) fn find_seen(&self, name: &[u8], tag: Option<Tag>) -> Option<&Arc<Inner>> {
        self.find(name, self.seen_by(tag))
    }

    /// Whether a child of this name and tag can be added.
    pub(super) fn may_add(&self, name: &[u8], tag: Option<Tag>) -> Result<()> {
        if self.is_namespaced() != tag.is_some() {
            Err(Errno::INVAL)
        } else if self.find(name, tag).is_some() {
            Err(Errno::EXIST)
        } else {
            Ok(())
        }
    }

    /// Adds a child, which the caller has checked may be added. Returns its cookie.
    fn add(&mut self, name: &Arc<[u8]>, tag: Option<Tag>, inner: &Arc<Inner>) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.put(name, tag, inner, cookie);
        cookie
    }

    /// Puts a child at a cookie, replacing the one there.
    fn put(&mut self, name: &Arc<[u8]>, tag: Option<Tag>, inner: &Arc<Inner>, cookie: u64) {
        let map = match (&mut self.names, tag) {
            (Names::Plain(map), _) => map,
            (Names::Tagged(maps), tag) => maps.entry(tag.unwrap_or(Tag(0))).or_default(),
        };
        map.insert(Arc::clone(name), (cookie, Arc::clone(inner)));
        let listed = Listed { name: Arc::clone(name), tag, inner: Arc::clone(inner) };
        if let Some(old) = self.order.insert(cookie, listed) {
            self.subdirs -= u32::from(old.inner.fmt == mode::S_IFDIR);
        }
        self.subdirs += u32::from(inner.fmt == mode::S_IFDIR);
        self.revision += 1;
    }

    fn remove(&mut self, name: &[u8], tag: Option<Tag>, cookie: u64) {
        match (&mut self.names, tag) {
            (Names::Plain(map), _) => {
                map.remove(name);
            }
            (Names::Tagged(maps), tag) => {
                let tag = tag.unwrap_or(Tag(0));
                if let Some(map) = maps.get_mut(&tag) {
                    map.remove(name);
                    if map.is_empty() {
                        maps.remove(&tag);
                    }
                }
            }
        }
        if let Some(gone) = self.order.remove(&cookie) {
            self.subdirs -= u32::from(gone.inner.fmt == mode::S_IFDIR);
        }
        self.revision += 1;
    }

    /// All children.
    pub(super) fn children(&self) -> impl Iterator<Item = &Arc<Inner>> {
        self.order.values().map(|listed| &listed.inner)
    }

    /// Up to `max` active entries after `cookie` that a view with `tag` sees.
    pub(super) fn list(&self, tag: Option<Tag>, cookie: u64, max: usize) -> Batch {
        let tag = self.seen_by(tag);
        let mut batch = Batch::default();
        for (&at, listed) in self.order.range(cookie.saturating_add(1)..) {
            if batch.entries.len() == max {
                batch.next = batch.entries.last().map(|last| last.3);
                break;
            }
            if listed.tag == tag && listed.inner.active.is_active() {
                batch.names.extend_from_slice(&listed.name);
                batch.entries.push((batch.names.len(), listed.inner.ino, listed.inner.fmt, at));
            }
        }
        batch
    }
}

/// The index of a node.
fn place(ino: u64) -> usize {
    (ino as u32).wrapping_sub(1) as usize
}

/// All nodes of a tree.
#[derive(Default)]
pub(super) struct Nodes {
    entries: Vec<Option<Box<Entry>>>,
}

impl Nodes {
    /// The node, if it is in the tree.
    pub(super) fn entry(&self, ino: u64) -> Option<&Entry> {
        self.entries.get(place(ino))?.as_deref().filter(|entry| entry.inner.ino == ino)
    }

    pub(super) fn entry_mut(&mut self, ino: u64) -> Option<&mut Entry> {
        self.entries.get_mut(place(ino))?.as_deref_mut().filter(|entry| entry.inner.ino == ino)
    }

    /// Puts a node into its free slot.
    pub(super) fn put(&mut self, entry: Box<Entry>) {
        let at = place(entry.inner.ino);
        if self.entries.len() <= at {
            self.entries.resize_with(at + 1, || None);
        }
        self.entries[at] = Some(entry);
    }

    /// Takes a node out.
    pub(super) fn take(&mut self, ino: u64) -> Option<Box<Entry>> {
        self.entries.get_mut(place(ino))?.take_if(|entry| entry.inner.ino == ino)
    }

    /// Hangs a node that is in the tree below `parent`; the caller has checked that this is allowed.
    pub(super) fn hang(&mut self, ino: u64, parent: u64, now: Time) {
        let Some(entry) = self.entry(ino) else { return };
        let (name, tag, inner) = (Arc::clone(&entry.name), entry.tag, Arc::clone(&entry.inner));
        let Some(above) = self.entry_mut(parent) else { return };
        (above.owner.mtime, above.owner.ctime) = (now, now);
        let cookie = above.dir.as_mut().map_or(0, |dir| dir.add(&name, tag, &inner));
        if let Some(entry) = self.entry_mut(ino) {
            (entry.parent, entry.cookie) = (parent, cookie);
        }
    }

    /// Hangs `new`, which is in the tree, in place of `old`, which has its name. Afterwards `old` hangs nowhere.
    pub(super) fn swap(&mut self, old: u64, new: u64, now: Time) {
        let Some(entry) = self.entry_mut(old) else { return };
        let (parent, cookie) = (std::mem::take(&mut entry.parent), entry.cookie);
        let Some(entry) = self.entry_mut(new) else { return };
        (entry.parent, entry.cookie) = (parent, cookie);
        let (name, tag, inner) = (Arc::clone(&entry.name), entry.tag, Arc::clone(&entry.inner));
        let Some(above) = self.entry_mut(parent) else { return };
        (above.owner.mtime, above.owner.ctime) = (now, now);
        if let Some(dir) = &mut above.dir {
            dir.put(&name, tag, &inner, cookie);
        }
    }

    /// Takes a node's name out of its directory; the node stays.
    pub(super) fn unhang(&mut self, ino: u64, now: Time) {
        let Some(entry) = self.entry(ino) else { return };
        let (name, tag, cookie, parent) = (Arc::clone(&entry.name), entry.tag, entry.cookie, entry.parent);
        let Some(above) = self.entry_mut(parent) else { return };
        (above.owner.mtime, above.owner.ctime) = (now, now);
        if let Some(dir) = &mut above.dir {
            dir.remove(&name, tag, cookie);
        }
    }
}
