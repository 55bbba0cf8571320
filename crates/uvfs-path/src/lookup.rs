//! Lookups: what the table knows, and one question to the back end otherwise.
//!
//! A miss holds the name's lock while the back end is asked, so all who look the name up meanwhile wait for that answer
//! (futures, which may be dropped at any time). If the asking call is dropped, one of them asks.
//!
//! The kernel must not get a node without a path. The cache does not keep an answer that was overtaken by a change of a
//! neighbour. But this name was locked and its directory in use, so the answer is right, and the name is linked to the
//! node all the same. It is not trusted, so the next lookup asks again.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuse3::path::PathFilesystem;
use fuse3::raw::Request;
use fuse3::raw::reply::ReplyEntry;
use fuse3::{Errno, Result};
use uvfs_cache::{Attr, NameLock, NodeAnswer, NodeKnown, NodeLookup, Room, Ticket, Ttl};

use crate::patience::Patience;
use crate::table::{Node, PathNode, Table, code, errno};

/// The right to ask about a name.
enum Right {
    Miss(Ticket<PathNode>),
    Expired(NameLock<PathNode>),
}

impl Right {
    fn previous(&mut self) -> Option<Node> {
        match self {
            Self::Miss(ticket) => ticket.previous(),
            Self::Expired(lock) => lock.previous(),
        }
    }

    fn failed(self, table: &Table, dir: &Node, name: &OsStr, error: Errno) {
        match (self, error.is_not_exist()) {
            (Self::Miss(ticket), true) => ticket.absent(table.options.absent_ttl),
            (Self::Miss(ticket), false) => ticket.fail(uvfs_cache::Errno::from_raw_os_error(code(error))),
            // With the name locked: nobody has changed it meanwhile.
            (Self::Expired(_lock), true) => dir.invalidate(name.as_bytes()),
            (Self::Expired(_), false) => {}
        }
    }
}

/// Take an answer about a locked name, and see to it that the name leads to the node.
pub(crate) fn keep(
    table: &Table,
    patience: &Patience<'_>,
    mut lock: NameLock<PathNode>,
    answer: NodeAnswer<PathNode>,
) -> Result<Node> {
    table.attempt(patience, || {
        let node = lock.found(answer)?;
        if lock.previous().as_ref() != Some(&node) {
            lock.reserve(Room::Name)?;
            lock.link(&node, Ttl::ZERO)?;
        }
        Ok(node)
    })
}

impl Table {
    fn is_trusted(&self, node: &Node) -> bool {
        self.options.name_ttl != Some(Ttl::ZERO) && node.trusted_attr().is_some()
    }

    /// The right to ask, or what the table knows. `Err(None)`: look again.
    async fn right(&self, dir: &Node, name: &OsStr) -> Result<std::result::Result<Right, Option<Node>>> {
        let name = name.as_bytes();
        loop {
            match dir.lookup(name).await.map_err(errno)? {
                NodeLookup::Hit(node) if self.is_trusted(&node) => return Ok(Err(Some(node))),
                NodeLookup::Negative => return Ok(Err(None)),
                NodeLookup::Miss(ticket) => return Ok(Ok(Right::Miss(ticket))),
                NodeLookup::Hit(_) => {
                    let mut lock = dir.lock_name(name).await;
                    // Another caller may have asked meanwhile.
                    match lock.known() {
                        NodeKnown::Hit(node) if !self.is_trusted(&node) => {
                            return Ok(Ok(Right::Expired(lock)));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// The node of a name, and its attributes. `None`: there is no such name.
    async fn find<F: PathFilesystem + Send + Sync>(
        &self,
        fs: &F,
        (req, dir, name): (Request, &Node, &OsStr),
        patience: &Patience<'_>,
    ) -> Result<Option<(Node, Attr)>> {
        let mut right = match self.right(dir, name).await? {
            Ok(right) => right,
            Err(known) => return Ok(known.map(|node| (node.clone(), node.attr()))),
        };
        let asked = async {
            let _used = self.uses.enter([dir]).await;
            fs.lookup(req, &self.path(dir)?, name).await
        };
        let found = match asked.await {
            Ok(found) => found,
            Err(error) => {
                right.failed(self, dir, name, error);
                return if error.is_not_exist() { Ok(None) } else { Err(error) };
            }
        };
        let answer = self.answer(right.previous().as_ref(), &found.attr, (found.ttl, found.ttl));
        let attr = answer.attr;
        let lock = match right {
            Right::Miss(ticket) => ticket.into_lock(),
            Right::Expired(lock) => lock,
        };
        Ok(Some((keep(self, patience, lock, answer)?, attr)))
    }

    /// Answer a lookup.
    pub(crate) async fn lookup<F: PathFilesystem + Send + Sync>(
        &self,
        fs: &F,
        req: Request,
        parent: u64,
        name: &OsStr,
    ) -> Result<ReplyEntry> {
        Self::check_name(name)?;
        let dir = self.node(parent)?;
        let mut patience = self.patience();
        loop {
            match self.find(fs, (req, &dir, name), &patience).await {
                Ok(Some((node, attr))) => return Ok(self.entry(&node, &attr)),
                Ok(None) => return self.absent(),
                Err(error) => {
                    if !patience.again().await {
                        return Err(error);
                    }
                }
            }
        }
    }
}
