//! Removal.
//!
//! Removal has four steps. First the nodes are marked and deactivated under the tree lock, so that nobody can find
//! them or begin a call. Then the caches are updated. Then, with nothing held, it waits for the calls that are
//! inside. Then the nodes are taken out of the tree, which is examined again, because another removal may have been
//! faster. Of two removals of one node each does all of this. The one that finds the node gone knows that the node
//! was out of the caches and drained before.
//!
//! Unlinking waits for nobody. The nodes are taken out of the tree, the caches are updated, then files that have the
//! nodes open keep them, and then the table of nodes drops them. A file opened before that is kept. A file opened
//! later gets ESTALE, on which a kernel looks the name up again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use uvfs::types::mode;

use super::lock_free::Inner;
use super::tree::Nodes;
use super::tree_operations::{Engine, now};

/// Takes a subtree out of the tree.
pub(super) fn cut(nodes: &mut Nodes, top: u64) -> Vec<Going> {
    let (mut going, mut rest) = (Vec::new(), vec![top]);
    while let Some(entry) = rest.pop().and_then(|at| nodes.entry(at)) {
        rest.extend(entry.dir.iter().flat_map(|dir| dir.children()).map(|child| child.ino));
        let (inner, name) = (Arc::clone(&entry.inner), Arc::clone(&entry.name));
        going.push(Going { inner, parent: entry.parent, name });
    }
    let now = now();
    for node in going.iter().rev() {
        nodes.unhang(node.inner.ino, now);
        nodes.take(node.inner.ino);
    }
    going
}

/// A node that is being removed.
pub(super) struct Going {
    inner: Arc<Inner>,
    /// 0: another node already has its name.
    parent: u64,
    name: Arc<[u8]>,
}

impl Engine {
    /// See [`Node::remove`](super::Node::remove).
    pub(super) fn drain_and_remove(&self, ino: u64) {
        let going = self.deactivate(ino);
        for node in &going {
            self.push_name(node.parent, &node.name);
        }
        for node in &going {
            // Notifies pollers and waits for running calls.
            node.inner.waiters.notify();
            node.inner.active.drain();
        }
        self.take_out(&going);
        for node in &going {
            self.push_attr(node.inner.ino, node.inner.fmt);
            node.inner.set_gone();
        }
        if let Some(top) = going.first() {
            self.push_attr(top.parent, mode::S_IFDIR);
        }
    }

    /// See [`Node::unlink`](super::Node::unlink).
    pub(super) fn unlink_open(&self, ino: u64) {
        if ino == self.root {
            return;
        }
        let going = cut(&mut self.lock.write(), ino);
        self.let_go(going);
    }

    /// Ends nodes that are no longer in the tree.
    pub(super) fn let_go(&self, going: Vec<Going>) {
        for node in going.iter().filter(|node| node.parent != 0) {
            self.push_name(node.parent, &node.name);
        }
        for node in &going {
            // After the caches were updated: an open refused from here on looks the name up again, and does not find
            // this node.
            node.inner.unlinked.store(true, Ordering::Release);
            self.each_view(|view| view.opens.keep(&node.inner));
            self.free_unlinked(node.inner.ino);
            self.push_attr(node.inner.ino, node.inner.fmt);
            node.inner.waiters.notify();
            node.inner.set_gone();
        }
        if let Some(top) = going.first().filter(|top| top.parent != 0) {
            self.push_attr(top.parent, mode::S_IFDIR);
        }
    }

    /// Marks the nodes of a subtree, ancestors first, including those whose removal has begun.
    fn deactivate(&self, ino: u64) -> Vec<Going> {
        let mut going = Vec::new();
        let mut nodes = self.lock.write();
        let mut rest = vec![ino];
        while let Some(at) = rest.pop() {
            let Some(entry) = nodes.entry_mut(at) else { continue };
            rest.extend(entry.dir.iter().flat_map(|dir| dir.children()).map(|child| child.ino));
            if at == self.root {
                continue;
            }
            entry.removing = true;
            entry.inner.active.deactivate();
            let parent = entry.parent;
            let (inner, name) = (Arc::clone(&entry.inner), Arc::clone(&entry.name));
            if let Some(dir) = nodes.entry_mut(parent).and_then(|above| above.dir.as_mut()) {
                dir.revision += 1;
            }
            going.push(Going { inner, parent, name });
        }
        going
    }

    /// Takes drained nodes out of the tree, descendants first.
    fn take_out(&self, going: &[Going]) {
        let now = now();
        let mut gone = Vec::new();
        {
            let mut nodes = self.lock.write();
            for node in going.iter().rev() {
                let ino = node.inner.ino;
                nodes.unhang(ino, now);
                gone.extend(nodes.take(ino));
            }
        }
        for entry in &gone {
            self.free_slot(entry.inner.ino);
        }
    }

    /// See [`Call::remove_self`](super::Call::remove_self); the caller's own protection is broken.
    pub(super) fn remove_self(&self, inner: &Arc<Inner>) -> bool {
        let first = !inner.removing_itself.swap(true, Ordering::AcqRel);
        if first {
            self.drain_and_remove(inner.ino);
            inner.set_gone();
        } else {
            inner.wait_until_gone();
        }
        first
    }
}
