//! A node as a program holds it.
//!
//! A [`Node`] is a counted handle of a node's part without a lock ([`Inner`]). It does not keep the node in the tree,
//! and it delays the drop of the program's value only while it is held.
//! An attribute that holds a `Node` of its own tree keeps the whole tree alive for ever: use [`Node::downgrade`].

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use uvfs::types::{Attr, Errno, Result, SetAttr};

use super::attribute::Attribute;
use super::lock_free::{Body, Inner};
use super::options::{Meta, Tag};

/// The tree that a handle belongs to. An attribute's [`Call`](super::Call) gives handles, and the engine holds
/// attributes, so handles know the engine by this trait alone. Nodes go by number; the methods are those of [`Node`].
pub(super) trait NodeTree: Send + Sync {
    fn add(
        &self,
        parent: u64,
        name: &[u8],
        meta: &Meta,
        body: Body,
        target: Option<Target>,
    ) -> Result<Arc<Inner>>;
    fn activate(&self, ino: u64) -> Result<()>;
    fn find(&self, dir: u64, name: &[u8], tag: Option<Tag>) -> Option<Arc<Inner>>;
    fn children(&self, dir: u64) -> Vec<Arc<Inner>>;
    fn parent(&self, ino: u64) -> Option<Arc<Inner>>;
    fn name(&self, ino: u64) -> Result<Vec<u8>>;
    fn path(&self, ino: u64) -> Result<Vec<u8>>;
    fn rename(&self, ino: u64, to: u64, name: &[u8], tag: Option<Tag>) -> Result<()>;
    fn remove(&self, ino: u64);
    fn unlink(&self, ino: u64);
    fn attr(&self, ino: u64) -> Option<Attr>;
    fn set_attr(&self, ino: u64, set: &SetAttr) -> Result<()>;
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
    tree: Arc<dyn NodeTree>,
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
    tree: Weak<dyn NodeTree>,
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
        Some(Node { tree: self.tree.upgrade()?, inner: self.inner.upgrade()? })
    }
}

/// Compares addresses: one engine may have several tables of methods.
fn same_tree(a: &Node, b: &Node) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(&a.tree), Arc::as_ptr(&b.tree))
}

impl Node {
    pub(super) fn new(tree: Arc<dyn NodeTree>, inner: Arc<Inner>) -> Self {
        Self { tree, inner }
    }

    /// A handle that does not keep the tree alive, for the tree's own attributes.
    pub fn downgrade(&self) -> WeakNode {
        WeakNode { tree: Arc::downgrade(&self.tree), inner: Arc::downgrade(&self.inner) }
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
            Target::Node(node) if !same_tree(node, self) => return Err(Errno::XDEV),
            Target::Text(text) if text.is_empty() => return Err(Errno::NOENT),
            _ => {}
        }
        self.add(name.as_ref(), &meta, Body::Link, Some(target))
    }

    fn add(&self, name: &[u8], meta: &Meta, body: Body, target: Option<Target>) -> Result<Self> {
        let inner = self.tree.add(self.inner.ino, name, meta, body, target)?;
        Ok(Self { tree: Arc::clone(&self.tree), inner })
    }

    /// Lets everybody find this node and all below it that were hidden.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn activate(&self) -> Result<()> {
        self.tree.activate(self.inner.ino)
    }

    /// The child of this name, hidden ones too; `tag` in a namespaced directory.
    pub fn find(&self, name: impl AsRef<[u8]>, tag: Option<Tag>) -> Option<Self> {
        let inner = self.tree.find(self.inner.ino, name.as_ref(), tag)?;
        Some(Self { tree: Arc::clone(&self.tree), inner })
    }

    /// All children in order of creation, hidden ones too; empty if this is not a directory.
    pub fn children(&self) -> Vec<Self> {
        let children = self.tree.children(self.inner.ino);
        children.into_iter().map(|inner| Self { tree: Arc::clone(&self.tree), inner }).collect()
    }

    /// The directory that it is in; `None` for the root and for a removed node.
    pub fn parent(&self) -> Option<Self> {
        let inner = self.tree.parent(self.inner.ino)?;
        Some(Self { tree: Arc::clone(&self.tree), inner })
    }

    /// Its name; empty for the root.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn name(&self) -> Result<Vec<u8>> {
        self.tree.name(self.inner.ino)
    }

    /// The path from the root, with a slash before each name; `/` for the root itself.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn path(&self) -> Result<Vec<u8>> {
        self.tree.path(self.inner.ino)
    }

    /// Moves it, with everything below it, to another directory, name or tag, or several of these. Open files
    /// stay open.
    ///
    /// # Errors
    /// As [`Node::add_dir`]. Also EINVAL if the new directory is this one or below it, EBUSY for the root,
    /// EXDEV if the new directory is in another tree.
    pub fn rename(&self, new_parent: &Self, new_name: impl AsRef<[u8]>, new_tag: Option<Tag>) -> Result<()> {
        if !same_tree(self, new_parent) {
            return Err(Errno::XDEV);
        }
        self.tree.rename(self.inner.ino, new_parent.inner.ino, new_name.as_ref(), new_tag)
    }

    /// Removes it and everything below it. From the beginning, nobody finds these nodes and no call of an attribute
    /// begins; when this returns, no call is inside any more. A call must not do this to its own node: it would wait
    /// for itself; see [`Call::remove_self`](super::Call::remove_self). The root loses its children but stays.
    /// Idempotent.
    pub fn remove(&self) {
        self.tree.remove(self.inner.ino);
    }

    /// Removes it and everything below it without waiting. From the beginning, nobody finds these nodes. Calls that
    /// are inside go on, and an open file can be read to the end of one text. So an attribute must tolerate calls
    /// after its removal. Reading from the start again, and writing, fail with ENODEV. The root stays unchanged.
    /// Idempotent.
    pub fn unlink(&self) {
        self.tree.unlink(self.inner.ino);
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
        self.tree.attr(self.inner.ino).ok_or(Errno::NOENT)
    }

    /// Changes mode, owner and times; a size is ignored.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn set_attr(&self, set: &SetAttr) -> Result<()> {
        self.tree.set_attr(self.inner.ino, set)
    }
}
