//! Requests about names: lookup, creation, link, removal, rename.
//!
//! Each holds a reference to the directory's inode and no lock; the VFS takes the name lock itself.

use uvfs::{Cached, Errno, Found, Inode, Op, RenameFlags, Result, Ttl};

use super::request_counters::Count;
use super::{Core, Frontend, Who};
use crate::threads::waiting_by_node::For;
use crate::transport::{Caller, Entry, Looked, NodeId, Reply};

impl Frontend {
    pub(crate) fn lookup(&self, who: Caller, dir: NodeId, name: &[u8], reply: impl Reply<Looked>) {
        self.core.tally.add(Count::Lookup, 1);
        let cached = match self.core.inode(dir) {
            Ok(dir) => self.core.look_in_cache(who, &dir, name),
            Err(error) => Some(Err(error)),
        };
        match cached {
            Some(answer) => reply.send(answer),
            None => {
                let name = name.to_vec();
                self.answer_anybody(who, dir, reply, move |core, op, dir| {
                    core.looked(op, dir, &name, core.vfs.lookup(op, dir, &name)?)
                });
            }
        }
    }

    pub(crate) fn mknod(
        &self,
        who: Caller,
        dir: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
        reply: impl Reply<Entry>,
    ) {
        let name = name.to_vec();
        self.answer_to(Who::Owner(who), dir, reply, move |core, op, dir| {
            let (inode, attr) = core.vfs.mknod(op, dir, &name, mode, rdev)?;
            Ok(core.hand_out(&inode, attr))
        });
    }

    pub(crate) fn mkdir(&self, who: Caller, dir: NodeId, name: &[u8], mode: u32, reply: impl Reply<Entry>) {
        let name = name.to_vec();
        self.answer_to(Who::Owner(who), dir, reply, move |core, op, dir| {
            let (inode, attr) = core.vfs.mkdir(op, dir, &name, mode)?;
            Ok(core.hand_out(&inode, attr))
        });
    }

    pub(crate) fn symlink(
        &self,
        who: Caller,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        reply: impl Reply<Entry>,
    ) {
        let (name, target) = (name.to_vec(), target.to_vec());
        self.answer_to(Who::Owner(who), dir, reply, move |core, op, dir| {
            let (inode, attr) = core.vfs.symlink(op, dir, &name, &target)?;
            Ok(core.hand_out(&inode, attr))
        });
    }

    pub(crate) fn link(&self, who: Caller, node: NodeId, dir: NodeId, name: &[u8], reply: impl Reply<Entry>) {
        let name = name.to_vec();
        self.answer(who, dir, reply, move |core, op, dir| {
            let inode = core.inode(node)?;
            let attr = core.vfs.link(op, &inode, dir, &name)?;
            Ok(core.hand_out_changed(&inode, attr))
        });
    }

    pub(crate) fn unlink(&self, who: Caller, dir: NodeId, name: &[u8], reply: impl Reply<()>) {
        let name = name.to_vec();
        self.answer_to(Who::Owner(who), dir, reply, move |core, op, dir| core.vfs.unlink(op, dir, &name));
    }

    pub(crate) fn rmdir(&self, who: Caller, dir: NodeId, name: &[u8], reply: impl Reply<()>) {
        let name = name.to_vec();
        self.answer_to(Who::Owner(who), dir, reply, move |core, op, dir| core.vfs.rmdir(op, dir, &name));
    }

    /// `flags` are those of `renameat2`; an unknown flag is EINVAL.
    pub(crate) fn rename(
        &self,
        who: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
        reply: impl Reply<()>,
    ) {
        let Some(flags) = RenameFlags::from_bits(flags) else {
            return reply.send(Err(Errno::INVAL));
        };
        let (from_dir, from_name) = (from.0, from.1.to_vec());
        let (to_dir, to_name) = (to.0, to.1.to_vec());
        // The kernel holds both directories until there is an answer, also between two attempts.
        let waits = self.core.waiting(to_dir, For::Memory);
        self.answer(who, from_dir, reply, move |core, op, from_dir| {
            let (_held, _asking) = (&waits, core.waiting(to_dir, For::Driver));
            let to_dir = core.inode(to_dir)?;
            core.vfs.rename(op, from_dir, &from_name, &to_dir, &to_name, flags)
        });
    }

    pub(crate) fn readlink(&self, who: Caller, node: NodeId, reply: impl for<'a> Reply<&'a [u8]>) {
        self.route(Who::Anybody(who), node, reply, move |reply, core, op, inode| {
            let target = inode.and_then(|inode| core.vfs.readlink(op, &inode));
            reply.send(target.as_deref().map_err(|error| *error));
        });
    }
}

impl Core {
    /// The answer to a lookup, if the cache has it. Reads no clock, unless the name or its inode may expire, and copies
    /// attributes once, from the inode to the answer.
    fn look_in_cache(&self, who: Caller, dir: &Inode<'_>, name: &[u8]) -> Option<Result<Looked>> {
        let op = self.op_for_cache(who);
        Some(match self.vfs.peek(&op, dir, name)? {
            // If the kernel writes to the file, its driver must give the attributes.
            Ok(Cached::Node(inode)) if self.is_written(&inode) => return None,
            Ok(Cached::Node(inode)) => {
                Ok(self.found(&op, dir, name, &inode, || self.hand_out_cached(&inode)))
            }
            Ok(Cached::Absent(ttl)) => self.absent(dir, ttl),
            Err(error) => Err(error),
        })
    }

    fn looked(&self, op: &Op, dir: &Inode<'_>, name: &[u8], found: Found<'_>) -> Result<Looked> {
        match found {
            Found::Node(inode, attr) => Ok(self.found(op, dir, name, &inode, || self.hand_out(&inode, attr))),
            Found::Absent(ttl) => self.absent(dir, ttl),
        }
    }

    /// `hand_out` hands the inode to the kernel, which may hold it already.
    #[inline]
    fn found(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        name: &[u8],
        inode: &Inode<'_>,
        hand_out: impl FnOnce() -> Entry,
    ) -> Looked {
        let held = inode.lookups() != 0;
        let mut entry = hand_out();
        if held {
            self.revalidated(op, dir, name, inode, &mut entry);
        }
        Looked::Found(entry)
    }

    fn absent(&self, dir: &Inode<'_>, ttl: Ttl) -> Result<Looked> {
        let ttl = self.names_lifetime(dir, self.lifetime(ttl));
        if ttl.is_zero() { Err(Errno::NOENT) } else { Ok(Looked::Absent(ttl)) }
    }

    /// Looks a name up, first in the cache; this thread may wait.
    pub(super) fn find<'c>(&'c self, op: &Op, dir: &Inode<'c>, name: &[u8]) -> Result<Found<'c>> {
        match self.vfs.lookup_cached(op, dir, name) {
            Some(found) => found,
            None => self.vfs.lookup(op, dir, name),
        }
    }
}
