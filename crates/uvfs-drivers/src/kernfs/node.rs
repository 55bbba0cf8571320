//! A node as a program holds it, and the part of it that no lock protects.
//!
//! [`Inner`] is the part of a node that an open file needs: its content and its active references. A table
//! ([`super::engine`]) finds it by inode number, and it lives while it is referenced. The tree's own part
//! of a node ([`super::tree`]) is freed when the node is removed. A [`Node`] is a counted handle. It does not
//! keep the node in the tree, and it delays the drop of the program's value only while it is held.
//! An attribute that holds a `Node` of its own tree keeps the whole tree alive for ever: use [`Node::downgrade`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};
use uvfs::types::{Attr, Errno, Result, SetAttr, mode};
use uvfs_sync::active::ActiveRef;

use super::attribute::Attribute;
use super::engine::Engine;
use super::options::{Meta, Tag};
use super::poll::Waiters;

/// The kind of a node, with its content.
pub(super) enum Body {
    Dir,
    Attribute(Box<dyn Attribute>),
    Link,
}

/// The part of a node that open files use.
pub(super) struct Inner {
    pub(super) ino: u64,
    pub(super) fmt: u32,
    pub(super) active: ActiveRef,
    pub(super) body: Body,
    pub(super) waiters: Waiters,
    /// The node was taken out of the tree without waiting for its open files.
    pub(super) unlinked: AtomicBool,
    /// A call is in [`super::Call::remove_self`].
    pub(super) removing_itself: AtomicBool,
    gone: Mutex<bool>,
    is_gone: Condvar,
}

impl Inner {
    pub(super) fn new(ino: u64, body: Body) -> Self {
        let fmt = match body {
            Body::Dir => mode::S_IFDIR,
            Body::Attribute(_) => mode::S_IFREG,
            Body::Link => mode::S_IFLNK,
        };
        Self {
            ino,
            fmt,
            active: ActiveRef::new(),
            body,
            waiters: Waiters::default(),
            unlinked: AtomicBool::new(false),
            removing_itself: AtomicBool::new(false),
            gone: Mutex::new(false),
            is_gone: Condvar::new(),
        }
    }

    /// Records that the removal is over.
    pub(super) fn set_gone(&self) {
        *self.gone.lock() = true;
        self.is_gone.notify_all();
    }

    pub(super) fn wait_until_gone(&self) {
        let mut gone = self.gone.lock();
        while !*gone {
            self.is_gone.wait(&mut gone);
        }
    }
}

/// The target of a symbolic link.
#[derive(Clone, Debug)]
pub enum Target {
    /// A node of the same tree. The link's text is the relative path to it, and stays right when either moves.
    Node(Node),
    /// Any text.
    Text(Vec<u8>),
}

impl From<&Node> for Target {
    fn from(node: &Node) -> Self {
        Self::Node(node.clone())
    }
}

impl From<&[u8]> for Target {
    fn from(text: &[u8]) -> Self {
        Self::Text(text.to_vec())
    }
}

impl From<&str> for Target {
    fn from(text: &str) -> Self {
        Self::Text(text.as_bytes().to_vec())
    }
}

/// A node of a [`Kernfs`](super::Kernfs): a directory, an attribute or a symbolic link. Cheap to clone. Operations on
/// a removed node fail with ENOENT.
#[derive(Clone)]
pub struct Node {
    engine: Arc<Engine>,
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.path().unwrap_or_else(|_| b"(removed)".to_vec());
        write!(f, "Node({}, {})", self.inner.ino, String::from_utf8_lossy(&path))
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Node {}

/// A [`Node`] handle that keeps nothing alive.
#[derive(Clone)]
pub struct WeakNode {
    engine: Weak<Engine>,
    inner: Weak<Inner>,
}

impl std::fmt::Debug for WeakNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakNode")
    }
}

impl WeakNode {
    /// The node, if it still exists.
    pub fn upgrade(&self) -> Option<Node> {
        Some(Node { engine: self.engine.upgrade()?, inner: self.inner.upgrade()? })
    }
}

impl Node {
    pub(super) fn new(engine: Arc<Engine>, inner: Arc<Inner>) -> Self {
        Self { engine, inner }
    }

    /// A handle that does not keep the tree alive, for the tree's own attributes.
    pub fn downgrade(&self) -> WeakNode {
        WeakNode { engine: Arc::downgrade(&self.engine), inner: Arc::downgrade(&self.inner) }
    }

    /// The inode number; never used again for another node.
    pub fn ino(&self) -> u64 {
        self.inner.ino
    }

    /// Type bits (`S_IFMT`).
    pub fn fmt(&self) -> u32 {
        self.inner.fmt
    }

    /// Whether it can be found and used: it is activated, and its removal has not begun.
    pub fn is_active(&self) -> bool {
        self.inner.active.is_active() && !self.inner.unlinked.load(Ordering::Acquire)
    }

    /// Adds a directory.
    ///
    /// # Errors
    /// EEXIST; ENOENT (this node is removed); ENOTDIR (this node is not a directory); EINVAL (an invalid name; a tag
    /// although children have none here, or no tag although they have); ENAMETOOLONG; ENOMEM (2^32 nodes).
    pub fn add_dir(&self, name: impl AsRef<[u8]>, meta: Meta) -> Result<Self> {
        self.add(name.as_ref(), &meta, Body::Dir, None)
    }

    /// Adds a file that shows and takes a value; a closure will do. Errors as [`Node::add_dir`].
    pub fn add_attr(&self, name: impl AsRef<[u8]>, meta: Meta, attribute: impl Attribute) -> Result<Self> {
        self.add(name.as_ref(), &meta, Body::Attribute(Box::new(attribute)), None)
    }

    /// Adds a symbolic link to a node of this tree (which must be in it), or with any text. Errors as
    /// [`Node::add_dir`]; also ENOENT if the target is removed or the text empty, and EXDEV if the target is in
    /// another tree.
    pub fn add_symlink(&self, name: impl AsRef<[u8]>, meta: Meta, target: impl Into<Target>) -> Result<Self> {
        let target = target.into();
        match &target {
            Target::Node(node) if !Arc::ptr_eq(&node.engine, &self.engine) => return Err(Errno::XDEV),
            Target::Text(text) if text.is_empty() => return Err(Errno::NOENT),
            _ => {}
        }
        self.add(name.as_ref(), &meta, Body::Link, Some(target))
    }

    fn add(&self, name: &[u8], meta: &Meta, body: Body, target: Option<Target>) -> Result<Self> {
        let inner = self.engine.add(self.inner.ino, name, meta, body, target)?;
        Ok(Self { engine: Arc::clone(&self.engine), inner })
    }

    /// Lets everybody find this node and all below it that were hidden.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn activate(&self) -> Result<()> {
        self.engine.activate(self.inner.ino)
    }

    /// The child of this name, hidden ones too; `tag` in a namespaced directory.
    pub fn find(&self, name: impl AsRef<[u8]>, tag: Option<Tag>) -> Option<Self> {
        let inner = self.engine.find(self.inner.ino, name.as_ref(), tag)?;
        Some(Self { engine: Arc::clone(&self.engine), inner })
    }

    /// All children in order of creation, hidden ones too; empty if this is not a directory.
    pub fn children(&self) -> Vec<Self> {
        let children = self.engine.children(self.inner.ino);
        children.into_iter().map(|inner| Self { engine: Arc::clone(&self.engine), inner }).collect()
    }

    /// The directory that it is in; `None` for the root and for a removed node.
    pub fn parent(&self) -> Option<Self> {
        let inner = self.engine.parent(self.inner.ino)?;
        Some(Self { engine: Arc::clone(&self.engine), inner })
    }

    /// Its name; empty for the root.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn name(&self) -> Result<Vec<u8>> {
        self.engine.name(self.inner.ino)
    }

    /// The path from the root, with a slash before each name; `/` for the root itself.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn path(&self) -> Result<Vec<u8>> {
        self.engine.path(self.inner.ino)
    }

    /// Moves it, with everything below it, to another directory, name or tag, or several of these. Open files
    /// stay open.
    ///
    /// # Errors
    /// As [`Node::add_dir`]. Also EINVAL if the new directory is this one or below it, EBUSY for the root,
    /// EXDEV if the new directory is in another tree.
    pub fn rename(&self, new_parent: &Self, new_name: impl AsRef<[u8]>, new_tag: Option<Tag>) -> Result<()> {
        if !Arc::ptr_eq(&self.engine, &new_parent.engine) {
            return Err(Errno::XDEV);
        }
        self.engine.rename(self.inner.ino, new_parent.inner.ino, new_name.as_ref(), new_tag)
    }

    /// Removes it and everything below it. From the beginning, nobody finds these nodes and no call of an attribute
    /// begins; when this returns, no call is inside any more. A call must not do this to its own node: it would wait
    /// for itself; see [`Call::remove_self`](super::Call::remove_self). The root loses its children but stays.
    /// Idempotent.
    pub fn remove(&self) {
        self.engine.remove(self.inner.ino);
    }

    /// Removes it and everything below it without waiting. From the beginning, nobody finds these nodes. Calls that
    /// are inside go on, and an open file can be read to the end of one text. So an attribute must tolerate calls
    /// after its removal. Reading from the start again, and writing, fail with ENODEV. The root stays unchanged.
    /// Idempotent.
    pub fn unlink(&self) {
        self.engine.unlink_open(self.inner.ino);
    }

    /// Wakes pollers: the value differs from what was read. Everyone who has the file open sees POLLPRI and POLLERR
    /// until they read it from the start again. O(waiters); no lock is held while they are woken.
    pub fn notify(&self) {
        self.inner.waiters.notify();
    }

    /// The attributes for `stat`.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn attr(&self) -> Result<Attr> {
        self.engine.attr(self.inner.ino).ok_or(Errno::NOENT)
    }

    /// Changes mode, owner and times; a size is ignored.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn set_attr(&self, set: &SetAttr) -> Result<()> {
        self.engine.set_attr(self.inner.ino, set)
    }
}
