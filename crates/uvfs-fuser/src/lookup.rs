//! Lookups: what the table knows, and the question to the back end otherwise.
//!
//! A [`NameQuestion`] holds the name's lock, borrows nothing and is `Send`: any thread answers it, together with fuser's
//! reply. If it is dropped, others who wait for the name ask again.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use fuser::{Errno, FileAttr, Generation, INodeNo, ReplyEntry};
use uvfs_cache::{CacheError, NameLock, NodeKnown, NodeLookup, OwnedNode, Room, Ticket, Ttl};

use crate::attr::absent;
use crate::entry::NodeEntry;
use crate::limit::PendingRequest;
use crate::nodes::{Nodes, PASSED, errno};

/// The table's knowledge of a name.
#[derive(Debug)]
pub enum LookedUp<T: Send + Sync + 'static> {
    /// The name leads to this node.
    Known(NodeEntry<T>),
    /// There is certainly no such name.
    Absent,
    /// The back end must be asked.
    Ask(NameQuestion<T>),
}

/// The right to ask: of a name that is not cached, or of one whose inode's attributes have expired.
enum Right<T: Send + Sync + 'static> {
    Miss(Ticket<T>),
    Expired(NameLock<T>),
}

/// A name that the back end must be asked about.
pub struct NameQuestion<T: Send + Sync + 'static> {
    nodes: Nodes<T>,
    right: Right<T>,
    pending: PendingRequest,
}

impl<T: Send + Sync + 'static> NameQuestion<T> {
    fn new(nodes: &Nodes<T>, dir: &OwnedNode<T>, right: Right<T>) -> Self {
        let mut pending = nodes.pending(dir);
        pending.set_asking(true);
        Self { nodes: nodes.clone(), right, pending }
    }

    /// The directory.
    pub fn dir(&self) -> OwnedNode<T> {
        match &self.right {
            Right::Miss(ticket) => ticket.dir(),
            Right::Expired(lock) => lock.dir(),
        }
    }

    /// The name.
    pub fn name(&self) -> OsString {
        OsString::from_vec(match &self.right {
            Right::Miss(ticket) => ticket.name().to_vec(),
            Right::Expired(lock) => lock.name().to_vec(),
        })
    }

    /// Take the back end's answer; ENOENT says that there is no such name. Frees the name.
    ///
    /// # Errors
    /// The answer's. ENOMEM: the table is at its limit; ask again.
    pub fn answer(mut self, answer: Result<(FileAttr, T), Errno>) -> Result<NodeEntry<T>, Errno> {
        self.pending.set_asking(false);
        let nodes = self.nodes;
        match (answer, self.right) {
            (Ok(found), Right::Miss(ticket)) => nodes.keep(ticket.into_lock(), found),
            (Ok(found), Right::Expired(lock)) => nodes.keep(lock, found),
            (Err(error), Right::Miss(ticket)) => {
                if error.code() == Errno::ENOENT.code() {
                    ticket.absent(nodes.options().absent_ttl);
                } else {
                    ticket.fail(uvfs_cache::Errno::from_raw_os_error(error.code()));
                }
                return Err(error);
            }
            (Err(error), Right::Expired(lock)) => {
                if error.code() == Errno::ENOENT.code() {
                    lock.dir().invalidate(lock.name());
                }
                return Err(error);
            }
        }
        .map(|node| NodeEntry::new(&nodes, node))
        .map_err(errno)
    }

    /// [`NameQuestion::answer`], and the reply to the kernel.
    pub fn reply(self, answer: Result<(FileAttr, T), Errno>, reply: ReplyEntry) {
        let nodes = self.nodes.clone();
        nodes.reply_entry(self.answer(answer), reply);
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for NameQuestion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameQuestion({:?})", self.name())
    }
}

/// Whether a name leads to an inode whose attributes have expired.
fn is_expired<T: Send + Sync + 'static>(found: &NodeLookup<T>) -> bool {
    matches!(found, NodeLookup::Hit(node) if node.trusted_attr().is_none())
}

impl<T: Send + Sync + 'static> Nodes<T> {
    /// Answer a lookup. `ask` asks the back end about the name in this directory; it is called only if the table does
    /// not know, and again if memory is short. ENOENT is remembered.
    pub fn lookup(
        &self,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
        ask: impl Fn(&OwnedNode<T>) -> Result<(FileAttr, T), Errno>,
    ) {
        // Pending until the reply: the pauses between two attempts too.
        let _pending = self.node(parent).map(|dir| self.pending(&dir));
        let entry = self.with_patience(|| match self.start_lookup(parent, name)? {
            LookedUp::Known(entry) => Ok(entry),
            LookedUp::Absent => Err(Errno::ENOENT),
            LookedUp::Ask(question) => {
                let answer = ask(&question.dir());
                question.answer(answer)
            }
        });
        self.reply_entry(entry, reply);
    }

    /// Look a name up, and answer later: a [`NameQuestion`] and fuser's reply may go to another thread. Blocks only while
    /// another caller asks about the same name.
    ///
    /// # Errors
    /// ESTALE: there is no such directory. Those of the other caller.
    pub fn start_lookup(&self, parent: INodeNo, name: &OsStr) -> Result<LookedUp<T>, Errno> {
        let dir = self.node(parent)?;
        loop {
            let found = dir.blocking_lookup(name.as_bytes()).map_err(errno)?;
            let lock = is_expired(&found).then(|| dir.blocking_lock_name(name.as_bytes()));
            if let Some(found) = self.looked_up(&dir, found, lock) {
                return Ok(found);
            }
        }
    }

    /// [`Nodes::start_lookup`] for a task.
    ///
    /// # Errors
    /// As there.
    pub async fn lookup_task(&self, parent: INodeNo, name: &OsStr) -> Result<LookedUp<T>, Errno> {
        let dir = self.node(parent)?;
        loop {
            let found = dir.lookup(name.as_bytes()).await.map_err(errno)?;
            let lock = if is_expired(&found) { Some(dir.lock_name(name.as_bytes()).await) } else { None };
            if let Some(found) = self.looked_up(&dir, found, lock) {
                return Ok(found);
            }
        }
    }

    /// `None`: look again. `lock` is the name's lock, if the attributes had expired; they are not looked at again, as
    /// they may expire at any moment.
    fn looked_up(
        &self,
        dir: &OwnedNode<T>,
        found: NodeLookup<T>,
        lock: Option<NameLock<T>>,
    ) -> Option<LookedUp<T>> {
        match (found, lock) {
            (NodeLookup::Hit(node), None) => Some(LookedUp::Known(NodeEntry::new(self, node))),
            (NodeLookup::Hit(_), Some(mut lock)) => match lock.known() {
                NodeKnown::Hit(node) if node.trusted_attr().is_none() => {
                    Some(LookedUp::Ask(NameQuestion::new(self, dir, Right::Expired(lock))))
                }
                // Another caller has asked meanwhile.
                _ => None,
            },
            (NodeLookup::Negative, _) => Some(LookedUp::Absent),
            (NodeLookup::Miss(ticket), _) => {
                Some(LookedUp::Ask(NameQuestion::new(self, dir, Right::Miss(ticket))))
            }
        }
    }

    /// Take an answer. If it is late, the name leads to the node all the same, for paths: it was locked, so nobody has
    /// changed it.
    fn keep(&self, mut lock: NameLock<T>, found: (FileAttr, T)) -> Result<OwnedNode<T>, CacheError> {
        let answer = self.answer(|| lock.previous(), found);
        let node = lock.found(answer)?;
        if node.name().is_none() {
            self.link_untrusted(lock, &node)?;
        }
        Ok(node)
    }

    /// A name that leads to a node for its path only: the next lookup asks. In a removed directory, none does.
    pub(crate) fn link_untrusted(
        &self,
        mut lock: NameLock<T>,
        node: &OwnedNode<T>,
    ) -> Result<(), CacheError> {
        if node.is_root() || (node.attr().is_dir() && lock.dir().is_below(node)) {
            return Ok(());
        }
        match lock.reserve(Room::Name).and_then(|()| lock.link(node, PASSED)) {
            Err(CacheError::Dying) => Ok(()),
            done => done,
        }
    }

    /// The reply to a request for an entry. An absence is told with a TTL, unless it is not to be trusted.
    pub fn reply_entry(&self, entry: Result<NodeEntry<T>, Errno>, reply: ReplyEntry) {
        match entry {
            Ok(entry) => entry.reply(reply),
            Err(error) if error.code() == Errno::ENOENT.code() && self.options().absent_ttl != Ttl::ZERO => {
                reply.entry(&self.options().kernel_ttl, &absent(), Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::attr::host_attr;
    use crate::nodes::NodesOptions;

    /// The attributes expire between any two looks at them. Polled without a wait: nobody else holds the name.
    #[test]
    fn attributes_may_expire_during_a_lookup() {
        let attr = |number| Ok((host_attr(number, &std::fs::symlink_metadata("/")?), ()));
        let options =
            NodesOptions { name_ttl: Ttl::Forever, attr_ttl: Ttl::Forever, ..NodesOptions::default() };
        let nodes = Nodes::new(options, |_| attr(1)).unwrap();
        let name = OsStr::new("name");
        let answer = |found| match found {
            LookedUp::Known(entry) => entry,
            LookedUp::Ask(question) => question.answer(attr(2)).unwrap(),
            LookedUp::Absent => panic!("nobody said so"),
        };
        let entry = answer(nodes.start_lookup(INodeNo::ROOT, name).unwrap());
        std::thread::scope(|s| {
            let lookups = s.spawn(|| {
                for _ in 0..1_000_000 {
                    let mut task = pin!(nodes.lookup_task(INodeNo::ROOT, name));
                    let Poll::Ready(found) = task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
                    else {
                        panic!("nobody has the name")
                    };
                    drop(answer(found.unwrap()));
                }
            });
            let node = entry.node();
            while !lookups.is_finished() {
                node.refresh(node.revision(), &node.attr(), Ttl::ZERO);
                node.refresh(node.revision(), &node.attr(), Ttl::Forever);
            }
        });
        assert_eq!(nodes.lookups(), 1);
    }
}
