//! Changes that others made to the mounted file system: from the cache, which is notified first, to the kernel.
//!
//! A listener of the cache (`uvfs::Listener`) puts each notification into the outbox (`notify.rs`), by node, as the
//! kernel knows it. It runs in the thread that notified the cache, and does not wait.
//!
//! **A reply on its way against a change.** A thread reads a node's attributes, counts its lookup and sends the
//! reply; meanwhile the attributes change. The cache is notified of the change first. If the count comes first, the
//! outbox finds the node held, and sends notifications until the kernel knows the node. If the notification comes
//! first, the composer of the reply sees that the inode is stale (`Core::describe_counted`). A full fence is on
//! either side. While a name is looked up, the kernel delays invalidations of names in that directory. The
//! exception is a name that the kernel has and asks for again (`revalidation.rs`).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

use uvfs::{InodeId, Listener, SbId};

use super::{Core, FIRST_ISSUED, Frontend};
use crate::notify::messages::Message;
use crate::notify::{Kernel, Late, Nodes, Notice, Notices, Outbox};
use crate::threads::waiting_by_node::Wait;
use crate::transport::{NodeId, ROOT};

/// Nodes that are processed at a time.
const BATCH: usize = 512;

/// The TTL of names if the kernel cannot be told that all may be wrong.
const WITHOUT_EPOCHS: Duration = Duration::from_secs(1);

struct Device(File);

impl Kernel for Device {
    fn tell(&self, message: &Message<'_>) -> io::Result<()> {
        message.send(&self.0)
    }
}

/// From now on the kernel is notified of changes. If the root's file system reports changes, the threads start now;
/// otherwise with the first change in a file system mounted inside. INIT has been answered on the device, and no
/// other request is answered yet.
pub(crate) fn start(device: OwnedFd, frontend: &Arc<Frontend>) -> io::Result<()> {
    let core = &frontend.core;
    let watched = core.vfs.watched(&core.vfs.root());
    let device = Device(File::from(device));
    if let Err(error) = device.tell(&Message::Epoch) {
        let _ = core.names_at_most.set(WITHOUT_EPOCHS);
        if watched {
            tracing::warn!(
                %error,
                "this kernel cannot expire all names at once (Linux 6.16 can): it asks again after a second"
            );
        }
    }
    let outbox = Outbox::new(Arc::new(device), Box::new(Arc::downgrade(core)));
    if watched {
        outbox.start()?;
    }
    if core.outbox.set(outbox).is_ok() {
        let listener: Weak<Core> = Arc::downgrade(core);
        core.vfs.cache().listen(listener);
    }
    Ok(())
}

impl Frontend {
    pub(crate) fn notices(&self) -> Notices {
        self.core.outbox.get().map(Outbox::notices).unwrap_or_default()
    }

    /// Waits until the kernel has been notified of all earlier changes, for at most `time`. Returns whether it has.
    pub(crate) fn settle(&self, time: Duration) -> bool {
        self.core.outbox.get().is_none_or(|outbox| outbox.settle(time))
    }

    /// The session has ended. The threads that hold the device must release it, so that the kernel answers the
    /// remaining waiters.
    pub(crate) fn stop_telling(&self) {
        if let Some(outbox) = self.core.outbox.get() {
            outbox.close();
        }
    }
}

impl Core {
    fn notice(&self, sb: SbId, notice: Notice) {
        // Pairs with the fence of `Core::describe_counted`.
        fence(SeqCst);
        if let Some(outbox) = self.outbox.get() {
            outbox.push(sb, notice);
        }
    }
}

impl Listener for Core {
    fn name(&self, sb: SbId, dir: InodeId, name: &[u8]) {
        self.notice(sb, Notice::Name { dir: self.node_of(dir), name: name.into() });
    }

    fn inode(&self, sb: SbId, inode: InodeId, content: bool) {
        self.notice(sb, Notice::Node { node: self.node_of(inode), content });
    }

    fn all(&self, sb: SbId) {
        fence(SeqCst);
        if let Some(outbox) = self.outbox.get() {
            outbox.push_all(sb);
        }
    }
}

impl Nodes for Weak<Core> {
    fn waits(&self, node: NodeId) -> Wait {
        self.upgrade().map_or(Wait::No, |core| core.pending.about(node))
    }

    fn is_held(&self, node: NodeId) -> bool {
        let Some(core) = self.upgrade() else { return false };
        node >= FIRST_ISSUED && core.inode(node).is_ok_and(|inode| inode.lookups() != 0)
    }

    fn late(&self, dir: NodeId, name: &[u8]) -> Late {
        self.upgrade().map_or(Late::Nothing, |core| core.late(dir, name))
    }

    fn held(&self, sb: SbId, from: u32) -> (Vec<(NodeId, bool)>, Option<u32>) {
        let Some(core) = self.upgrade() else { return (Vec::new(), None) };
        let (held, next) = core.vfs.cache().held_nodes(sb, from, BATCH);
        // The kernel holds the root without having looked it up.
        let root = (from == 0).then_some((ROOT, true));
        (
            root.into_iter().chain(held.into_iter().map(|(id, is_dir)| (core.node_of(id), is_dir))).collect(),
            next,
        )
    }
}
