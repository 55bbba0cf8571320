//! The part of a node that no lock protects.
//!
//! [`Inner`] is the part of a node that an open file needs: its content and its active references. A table
//! ([`super::tree_operations`]) finds it by inode number, and it lives while it is referenced. The tree's own part
//! of a node ([`super::tree`]) is freed when the node is removed.

use std::sync::atomic::AtomicBool;

use parking_lot::{Condvar, Mutex};
use uvfs::types::mode;
use uvfs_sync::active_ref::ActiveRef;

use super::attribute::Attribute;
use super::poll_waiters::Waiters;

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
