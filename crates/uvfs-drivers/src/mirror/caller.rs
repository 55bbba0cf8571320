//! Working in the caller's name: what a call may do, and whom that which it makes belongs to, the host's kernel
//! decides by the user, the groups and the capabilities of who called.
//!
//! Credentials are the calling thread's own. [`Server::act_as`] puts the caller's on, and they come off again when the
//! guard goes; nothing in between may wait for another thread's work or call the VFS. A thread that did not get its
//! own credentials back would go on with somebody else's: the process then ends.
//!
//! Only who has the capabilities of root can do this. A server without them works for its own user alone.
//! Costs nothing for who is the server's own user and group, about ten short system calls otherwise.

use std::marker::PhantomData;

use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};
use rustix::{fs::Gid, process::RawGid};
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Changed {
    Nothing,
    Group,
    All,
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
        Ok(Self {
            uid,
            gid: getegid().as_raw(),
            groups: getgroups()?,
            privileged: uid == 0 && caps.effective.contains(needed | CapabilitySet::DAC_OVERRIDE),
            caps,
        })
    }

    /// Whether it can work for other users than its own.
    pub(super) fn privileged(&self) -> bool {
        self.privileged
    }

    /// Works in the name of `cred` until the guard goes, with a file that is open: what may be done with it was decided then. A server
    /// that is not root does so in its own name, whoever asks: a kernel that writes back what was stored through a mapping
    /// says no more than root.
    ///
    /// # Errors
    /// As [`Server::act_as`].
    pub(super) fn act_on_open(&self, cred: &Cred) -> Result<Option<Acting<'_>>> {
        if self.privileged { self.act_as(cred).map(Some) } else { Ok(None) }
    }

    /// Works in the name of `cred` until the guard goes.
    ///
    /// # Errors
    /// EACCES for another user where the server is not root; EPERM where the kernel does not let it.
    pub(super) fn act_as(&self, cred: &Cred) -> Result<Acting<'_>> {
        let mut acting = Acting { server: self, changed: Changed::Nothing, _thread: PhantomData };
        if cred.uid == self.uid && (cred.gid == self.gid || !self.privileged) {
            return Ok(acting);
        }
        if !self.privileged {
            return Err(Errno::ACCESS);
        }
        // Before the first call: what is half done is undone by the guard.
        if cred.uid == 0 {
            acting.changed = Changed::Group;
            sys::set_fs_gid(cred.gid)?;
            return Ok(acting);
        }
        acting.changed = Changed::All;
        let groups: Vec<Gid> = cred.groups.iter().map(|&group| gid(group)).collect();
        set_thread_groups(&groups)?;
        sys::set_fs_gid(cred.gid)?;
        sys::set_fs_uid(cred.uid)?;
        // The change of user takes those that concern files; the others override quotas and reserved space,
        // say, and are not the caller's either.
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..self.caps })?;
        Ok(acting)
    }
}

impl Acting<'_> {
    fn undo(&self) -> Result<()> {
        let Server { uid, gid, groups, caps, .. } = self.server;
        if self.changed == Changed::All {
            // First: the rest needs them.
            set_capabilities(None, *caps)?;
            sys::set_fs_uid(*uid)?;
            set_capabilities(None, *caps)?;
        }
        sys::set_fs_gid(*gid)?;
        if self.changed == Changed::All {
            set_thread_groups(groups)?;
        }
        Ok(())
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        if self.changed != Changed::Nothing && self.undo().is_err() {
            // There is no safe way on: see the module.
            std::process::abort();
        }
    }
}
