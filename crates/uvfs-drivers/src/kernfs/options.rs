//! Options of a tree and of a new node. Plain values.

use uvfs::types::mode;

/// The options of a tree.
#[derive(Clone, Copy, Debug)]
pub struct KernfsOptions {
    /// Permission bits of the root directory.
    pub mode: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Whether the children of the root directory are tagged ([`Meta::namespaced`]).
    pub namespaced: bool,
    /// Whether attributes may take long to show or store. A front end then does not call them from a thread
    /// that others need, except those that [say otherwise](super::Attribute::may_block).
    pub may_block: bool,
}

impl Default for KernfsOptions {
    fn default() -> Self {
        Self { mode: 0o755, uid: 0, gid: 0, namespaced: false, may_block: true }
    }
}

/// A namespace's name. In a namespaced directory, a [view](super::Kernfs::view) sees the children with its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// The properties of a new node, besides its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) hidden: bool,
    pub(super) replacing: bool,
    pub(super) namespaced: bool,
    pub(super) tag: Option<Tag>,
}

impl Meta {
    /// Permission bits `mode`, owned by root. (Symbolic links always have 0777.)
    pub const fn new(mode: u32) -> Self {
        let mode = mode & !mode::S_IFMT;
        Self { mode, uid: 0, gid: 0, hidden: false, replacing: false, namespaced: false, tag: None }
    }

    /// Owned by `uid` and `gid`.
    pub const fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    /// The node cannot be found before [`Node::activate`](super::Node::activate).
    pub const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// Replaces the node that has the name, if there is one: the name is never absent, and keeps its position in
    /// listings. The other node goes as by [`Node::unlink`](super::Node::unlink).
    pub const fn replacing(mut self) -> Self {
        self.replacing = true;
        self
    }

    /// For a directory: every child has a tag, and a view sees those with its own tag.
    pub const fn namespaced(mut self) -> Self {
        self.namespaced = true;
        self
    }

    /// The tag, for a child of a namespaced directory.
    pub const fn tag(mut self, tag: Tag) -> Self {
        self.tag = Some(tag);
        self
    }
}
