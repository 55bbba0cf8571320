//! Requests about names: lookup, creation, link, removal, rename.
//!
//! Each holds a reference to the directory's inode and no lock; the VFS takes the name lock itself.

use uvfs::{Errno, Found, Inode, Op, RenameFlags, Result};

use super::tally::Count;
use super::{Core, Frontend, Who};
use crate::threads::pending::For;
use crate::transport::{Caller, Entry, Looked, NodeId, Reply};

impl Frontend {
    pub(crate) fn lookup(&self, who: Caller, dir: NodeId, name: &[u8], reply: impl Reply<Looked>) {
        self.core.tally.add(Count::Lookup, 1);
        let cached = match self.core.inode(dir) {
            Ok(dir) => {
                let op = self.core.op(who);
                let found = self.core.vfs.lookup_cached(&op, &dir, name);
                // If the kernel writes to the file, its driver must give the attributes.
                let asks = |found: &Result<Found<'_>>| matches!(found, Ok(Found::Node(inode, _)) if self.core.is_written(inode));
                let found = found.filter(|found| !asks(found));
                found.map(|found| found.and_then(|found| self.core.looked(&op, &dir, name, found)))
            }
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
    fn looked(&self, op: &Op, dir: &Inode<'_>, name: &[u8], found: Found<'_>) -> Result<Looked> {
        match found {
            Found::Node(inode, attr) => {
                let held = inode.lookups() != 0;
                let mut entry = self.hand_out(&inode, attr);
                if held {
                    self.revalidated(op, dir, name, &inode, &mut entry);
                }
                Ok(Looked::Found(entry))
            }
            Found::Absent(ttl) => {
                let ttl = self.names_lifetime(dir, self.lifetime(ttl));
                if ttl.is_zero() { Err(Errno::NOENT) } else { Ok(Looked::Absent(ttl)) }
            }
        }
    }

    /// Looks a name up, first in the cache; this thread may wait.
    pub(super) fn find<'c>(&'c self, op: &Op, dir: &Inode<'c>, name: &[u8]) -> Result<Found<'c>> {
        match self.vfs.lookup_cached(op, dir, name) {
            Some(found) => found,
            None => self.vfs.lookup(op, dir, name),
        }
    }
}
