//! Lookups by name.
//!
//! A miss asks the back end with the name locked: concurrent misses of one name make one call, and a change of the name
//! through this store waits for the answer, or makes it late. If `name_ttl` is zero, nothing could be kept. Then each
//! caller asks, without a lock.

use std::io;

use uvfs_cache::{Errno, NodeKnown, NodeLookup, Ticket, Ttl};

use crate::inode::{CountedInode, StoredInode};
use crate::limit::{Attempt, Mark};
use crate::store::{Described, Inner, InodeAnswer, InodeStore, Node, io_error};

/// The longest name.
const NAME_MAX: usize = 255;
/// Attempts until one finds the file that the back end named.
const ATTEMPTS: usize = 3;

impl<T: Send + Sync + 'static> InodeStore<T> {
    /// The inode that a name in a directory leads to, with one lookup counted: LOOKUP, and an entry of READDIRPLUS.
    /// `ask` asks the back end about the name in this directory. It is called only if the store does not know, and
    /// again if memory is short. For `.` and `..` it is always called.
    ///
    /// # Errors
    /// EBADF: there is no such directory. ENOENT: no such name. ENOMEM: the store is at its limit, and stays there.
    /// ESTALE: the back end gives several files one number ([`InodeKey::with_number`](crate::InodeKey::with_number)).
    /// Those of `ask`, also of another caller's for this name.
    pub fn lookup(
        &self,
        parent: u64,
        name: &[u8],
        mut ask: impl FnMut(&StoredInode<T>) -> io::Result<InodeAnswer<T>>,
    ) -> io::Result<CountedInode<'_, T>> {
        let dir = self.get(parent)?;
        if let Some(node) = self.known(&dir, name) {
            return Ok(CountedInode::new(self, node));
        }
        let mut mark = self.waits().enter(dir.0.id());
        self.with_patience(|| {
            for _ in 0..ATTEMPTS {
                if let Some(inode) = self.look_up(&dir, name, &mut mark, &mut ask)? {
                    return Ok(inode);
                }
            }
            Err(io_error(Errno::STALE).into())
        })
    }

    /// The node that a cached name leads to, found without a lock.
    fn known(&self, dir: &StoredInode<T>, name: &[u8]) -> Option<Node<T>> {
        match self.cache().borrow(dir.0.id())?.child(name) {
            NodeKnown::Hit(node) => Some(node.to_owned()),
            NodeKnown::Negative | NodeKnown::Unknown => None,
        }
    }

    /// `None`: look again.
    fn look_up(
        &self,
        dir: &StoredInode<T>,
        name: &[u8],
        mark: &mut Mark,
        ask: &mut impl FnMut(&StoredInode<T>) -> io::Result<InodeAnswer<T>>,
    ) -> Result<Option<CountedInode<'_, T>>, Attempt> {
        let may_be_kept = self.options().name_ttl != Ttl::ZERO
            && !matches!(name, b"." | b"..")
            && (1..=NAME_MAX).contains(&name.len());
        if !may_be_kept {
            let asked = self.ask();
            let Described { key, answer, old } = self.describe(mark.ask(|| ask(dir))?)?;
            let (node, _) = self.superblock().found_number(asked, answer)?;
            self.take_over(old.as_ref(), &node);
            return Ok(self.is_file(&node, &key).then(|| CountedInode::new(self, node)));
        }
        match dir.0.blocking_lookup(name).map_err(io_error)? {
            NodeLookup::Hit(node) => Ok(Some(CountedInode::new(self, node))),
            NodeLookup::Negative => Err(io_error(Errno::NOENT).into()),
            NodeLookup::Miss(ticket) => {
                let answer = match mark.ask(|| ask(dir)) {
                    Ok(answer) => answer,
                    Err(error) => {
                        self.failed(ticket, &error);
                        return Err(error.into());
                    }
                };
                let Described { key, answer, old } = self.describe(answer)?;
                let node = ticket.found(answer)?;
                self.take_over(old.as_ref(), &node);
                if !self.is_file(&node, &key) {
                    // Another caller took the number meanwhile, for another file.
                    dir.0.invalidate(name);
                    return Ok(None);
                }
                Ok(Some(CountedInode::new(self, node)))
            }
        }
    }

    /// Callers that wait for the name get this answer. An absence that is not kept would make each of them ask.
    fn failed(&self, ticket: Ticket<Inner<T>>, error: &io::Error) {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        match self.options().absent_ttl {
            ttl if errno == Errno::NOENT && ttl != Ttl::ZERO => ticket.absent(ttl),
            _ => ticket.fail(errno),
        }
    }
}
