//! Working in the caller's name. The host's kernel decides what a call may do, and to whom a new file belongs, by the
//! caller's user, groups and capabilities.
//!
//! Credentials are the calling thread's own. [`Server::act_as`] puts the caller's on, and the guard takes them off
//! when it is dropped. Between the two the thread must not wait for another thread's work or call the VFS. A thread
//! that did not get its own credentials back would go on with somebody else's: the process then ends.
//!
//! Only a server with the capabilities of root can do this. A server without them works for its own user alone.
//!
//! The guard changes the user id for file access (setfsuid(2)), not the effective one. A process with the thread's
//! effective user id could change the thread's scheduling (sched_setscheduler(2), sched_setaffinity(2),
//! setpriority(2)), and the thread would stay slow for everybody. Nor may users send signals to the thread or trace
//! it. Of the group ids the effective one is changed, because none of these permissions depends on it.
//!
//! This costs nothing for a caller that is the server's own user and group, and six short system calls for another
//! user. A group, and supplementary groups, that are not the server's cost two more each.
//!
//! Between two calls a thread always has the server's own credentials: it also reads requests and looks for files
//! with them.

use std::marker::PhantomData;

use rustix::fs::Gid;
use rustix::process::RawGid;
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
};
use uvfs::types::{Cred, Errno, Result};

use super::sys;

/// The server's own credentials, as they were when it started.
pub(super) struct Server {
    uid: u32,
    gid: u32,
    groups: Vec<Gid>,
    caps: CapabilitySets,
    privileged: bool,
}

/// While it lives, this thread works in the caller's name.
pub(super) struct Acting<'s> {
    server: &'s Server,
    changed: Changed,
    /// Credentials are the thread's.
    _thread: PhantomData<*const ()>,
}

/// The credentials that are not the server's own now.
#[derive(Clone, Copy, Default)]
struct Changed {
    groups: bool,
    group: bool,
    user: bool,
    capabilities: bool,
}

fn gid(raw: RawGid) -> Gid {
    Gid::from_raw(raw)
}

impl Server {
    /// The credentials of this thread.
    pub(super) fn new() -> Result<Self> {
        let caps = capabilities(None)?;
        let needed =
            CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN | CapabilitySet::FOWNER;
        let uid = geteuid().as_raw();
        let groups = getgroups()?;
        Ok(Self {
            uid,
            gid: getegid().as_raw(),
            // A user namespace may refuse to set groups, or have no name for some of these: there would be no way
            // back.
            privileged: uid == 0
                && caps.effective.contains(needed | CapabilitySet::DAC_OVERRIDE)
                && set_thread_groups(&groups).is_ok(),
            groups,
            caps,
        })
    }

    /// Whether it can work for other users than its own.
    pub(super) fn privileged(&self) -> bool {
        self.privileged
    }

    /// Works in the name of `cred` until the guard goes, with a file that is open: its access was decided at the
    /// open. A server that is not root works in its own name for every caller: a kernel that writes back stores
    /// through a mapping names only root.
    ///
    /// # Errors
    /// As [`Server::act_as`].
    pub(super) fn act_on_open(&self, cred: &Cred, rooted: bool) -> Result<Option<Acting<'_>>> {
        if self.privileged { self.act_with(cred, rooted, CapabilitySet::empty()).map(Some) } else { Ok(None) }
    }

    /// Whether files may be lent: see [`Server::lend_as`].
    pub(super) fn can_lend(&self) -> bool {
        self.privileged && self.caps.effective.contains(CapabilitySet::SYS_ADMIN)
    }

    /// Works in the name of `cred` until the guard goes, with one capability: to lend a file to a kernel. That kernel
    /// reads and writes the file in this name for every user. So the thread has none of root's other capabilities: a
    /// writer that is not the file's owner removes its set-id bits, and nobody exceeds quotas.
    ///
    /// # Errors
    /// EPERM without the right to lend, and as [`Server::act_as`].
    pub(super) fn lend_as(&self, cred: &Cred, rooted: bool) -> Result<Acting<'_>> {
        if !self.can_lend() {
            return Err(Errno::PERM);
        }
        let mut acting = self.act_with(cred, rooted, CapabilitySet::empty())?;
        acting.leave(CapabilitySet::SYS_ADMIN)?;
        Ok(acting)
    }

    /// Works in the name of `cred` until the guard goes.
    ///
    /// # Errors
    /// EACCES for another user if the server is not root; EPERM if the kernel refuses.
    pub(super) fn act_as(&self, cred: &Cred) -> Result<Acting<'_>> {
        self.act_with(cred, cred.is_root(), CapabilitySet::empty())
    }

    /// The same with these capabilities. If the caller is root (`rooted`), all of the server's stay, whatever its user
    /// is on the host; else none, even if that is root.
    ///
    /// # Errors
    /// As [`Server::act_as`].
    pub(super) fn act_with(&self, cred: &Cred, rooted: bool, grant: CapabilitySet) -> Result<Acting<'_>> {
        let mut acting = Acting { server: self, changed: Changed::default(), _thread: PhantomData };
        let same = cred.uid == self.uid && cred.gid == self.gid && rooted;
        if same || !self.privileged && cred.uid == self.uid {
            return Ok(acting);
        }
        if !self.privileged {
            return Err(Errno::ACCESS);
        }
        if cred.uid == u32::MAX || cred.gid == u32::MAX {
            // They would mean that nothing is to be changed.
            return Err(Errno::INVAL);
        }
        // The guard undoes the steps that were done. A refused step was not done, and undoing it might be refused
        // too.
        if !rooted && !self.has_groups(&cred.groups) {
            let groups: Vec<Gid> = cred.groups.iter().map(|&group| gid(group)).collect();
            set_thread_groups(&groups)?;
            acting.changed.groups = true;
        }
        if cred.gid != self.gid {
            set_thread_res_gid(None, gid(cred.gid), None)?;
            acting.changed.group = true;
        }
        if cred.uid != 0 {
            sys::set_fs_uid(cred.uid)?;
            acting.changed.user = true;
        }
        if !rooted {
            // Not only those for files, which go with root's id: others override quotas and reserved space, for
            // example.
            acting.leave(grant)?;
        } else if acting.changed.user {
            acting.leave(self.caps.effective)?;
        }
        Ok(acting)
    }

    fn has_groups(&self, groups: &[u32]) -> bool {
        self.groups.len() == groups.len()
            && self.groups.iter().zip(groups).all(|(ours, theirs)| ours.as_raw() == *theirs)
    }
}

impl Acting<'_> {
    /// Takes away all capabilities but these.
    fn leave(&mut self, effective: CapabilitySet) -> Result<()> {
        self.changed.capabilities = true;
        set_capabilities(None, CapabilitySets { effective, ..self.server.caps })
    }

    fn undo(&self) -> Result<()> {
        let (server, changed) = (self.server, self.changed);
        // First, because setting the groups needs the capabilities. Setting the user needs none: the effective user
        // is still the server's.
        if changed.user {
            sys::set_fs_uid(server.uid)?;
        }
        if changed.capabilities || changed.user {
            set_capabilities(None, server.caps)?;
        }
        if changed.group {
            set_thread_res_gid(None, gid(server.gid), None)?;
        }
        if changed.groups {
            set_thread_groups(&server.groups)?;
        }
        Ok(())
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        if self.undo().is_err() {
            // There is no safe way on: see the module.
            std::process::abort();
        }
    }
}
