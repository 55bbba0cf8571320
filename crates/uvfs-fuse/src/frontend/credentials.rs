//! The credentials of an operation: the user and group of a FUSE request, and the rights that the kernel does not send.
//!
//! An operation that the kernel has permitted is `trusted`. Otherwise the VFS checks it, and asks for capabilities and
//! supplementary groups as it needs them ([`proc_status`]). Nothing is kept between requests, and nothing is locked.

use uvfs::{Cred, Inode, Op, Powers, Result, Time, mode};

use crate::frontend::{Core, proc_status};
use crate::mount::options::Permissions;
use crate::transport::Caller;

/// The caller of a request, and its credentials that the outcome may depend on.
#[derive(Clone, Copy)]
pub(super) enum Who {
    /// The supplementary groups count.
    Member(Caller),
    /// They do unless the caller owns the inode: then its owner's permissions decide, whatever groups there are. See
    /// [`Core::decides_alone`].
    Owner(Caller),
    /// They do not: nothing is changed, and nothing done in the caller's name.
    Anybody(Caller),
}

impl Core {
    /// Whether permissions are ours to check.
    pub(super) fn checks(&self) -> bool {
        self.permissions == Permissions::Server
    }

    pub(super) fn op(&self, who: Caller) -> Op {
        if !self.checks() {
            return self.op_permitted(who);
        }
        let op = self.vfs.op(&Cred::user(who.uid, who.gid));
        Op { powers: Powers::asked(proc_status::known, who.pid), umask: who.umask, ..op }
    }

    /// [`Core::op`] for questions that the cache answers: it has no time, so no clock is read for it.
    pub(super) fn op_for_cache(&self, who: Caller) -> Op {
        let trusted = !self.checks();
        let powers = if trusted { proc_status::usual } else { proc_status::known };
        Op {
            cred: Cred::user(who.uid, who.gid),
            now: Time::default(),
            trusted,
            powers: Powers::asked(powers, who.pid),
            umask: who.umask,
        }
    }

    /// [`Core::op`] of a caller that has been permitted it: by the kernel, or when the file was opened. Groups and
    /// capabilities count where set-id bits may be kept. A set-group-id bit without group execute is for members of
    /// the group, and the kernel leaves that to us (HANDLE_KILLPRIV_V2) without naming the groups.
    pub(super) fn op_permitted(&self, who: Caller) -> Op {
        let op = self.vfs.op(&Cred::user(who.uid, who.gid));
        let powers = Powers::asked(proc_status::usual, who.pid);
        Op { trusted: true, powers, umask: who.umask, ..op }
    }

    /// Whether the caller is let do by its user id what it may with an inode: its owner's permissions are the first entry of
    /// a list, too. Not where a set-group-id bit stays, or is handed down, by groups, nor where the owner may be another
    /// one by now and nobody has told.
    pub(super) fn decides_alone(&self, who: Caller, inode: &Inode<'_>) -> bool {
        let attr = inode.attr();
        attr.uid == who.uid && attr.mode & mode::S_ISGID == 0 && self.vfs.watched(inode) && !inode.expired()
    }

    /// The same operation by a caller that was permitted it when the file was opened.
    pub(super) fn op_by_handle(&self, op: &Op, who: Caller) -> Op {
        Op { cred: op.cred.clone(), ..self.op_permitted(who) }
    }

    /// The operation of a write, which was permitted when the file was opened; pages that are written back come in nobody's
    /// name. A file system that works in the caller's name is told the supplementary groups where it may keep a
    /// set-group-id bit for a member.
    pub(super) fn op_to_write(&self, who: Caller, inode: &Inode<'_>) -> Result<Op> {
        let mut op = self.op_permitted(who);
        if who.uid != 0 && self.vfs.passes_through(inode) {
            let attr = inode.attr();
            if attr.mode & (mode::S_ISGID | 0o010) == mode::S_ISGID && attr.gid != who.gid {
                op.cred.groups = proc_status::of(who.pid, who.uid)?.groups;
            }
        }
        Ok(op)
    }

    /// [`Core::op`] and the inode that it is about, with the caller's supplementary groups where calls are made in the caller's
    /// name on another file system, which checks them. Where they cannot be read, nothing is done to the inode.
    pub(super) fn op_on<'c>(&self, who: Who, inode: Result<Inode<'c>>) -> (Op, Result<Inode<'c>>) {
        let (Who::Member(caller) | Who::Owner(caller) | Who::Anybody(caller)) = who;
        let mut op = self.op(caller);
        let asks = inode.as_ref().is_ok_and(|inode| match who {
            Who::Anybody(_) => false,
            Who::Owner(_) if self.decides_alone(caller, inode) => false,
            Who::Member(_) | Who::Owner(_) => caller.uid != 0 && self.vfs.passes_through(inode),
        });
        if asks {
            match proc_status::of(caller.pid, caller.uid) {
                Ok(has) => op.cred.groups = has.groups,
                Err(errno) => return (op, Err(errno)),
            }
        }
        (op, inode)
    }
}
