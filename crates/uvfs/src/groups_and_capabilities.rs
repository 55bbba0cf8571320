//! A caller's rights beyond its user and group: supplementary groups and capabilities.
//!
//! For a library's user the [`Cred`] says all, and user id 0 has every capability. A front end's requests may name
//! only a user, a group and a process ([`Powers::asked`]). Then the first check whose outcome depends on the rest
//! asks the front end. Owner and mode bits decide most checks, and asking costs as much as many operations. Nothing
//! is kept from one operation to the next.
//!
//! If asking fails, the caller has no such rights. A check that may then grant what a group was denied calls
//! [`Op::certain`](crate::Op) first.

use std::sync::OnceLock;

use crate::types::{Cred, Groups, Op, Result};

/// A capability that the checks use, with its number in capabilities(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Change owner and group of any file.
    Chown = 0,
    /// Read, write and search whatever the mode bits say; execute files that somebody may execute.
    DacOverride = 1,
    /// Read, and search directories, whatever the mode bits say.
    DacReadSearch = 2,
    /// Do what only a file's owner may.
    Fowner = 3,
    /// Keep set-id bits.
    Fsetid = 4,
    /// Use `trusted.` and `security.` attributes.
    SysAdmin = 21,
    /// Make device nodes.
    Mknod = 27,
}

/// The rights that a caller was found to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Has {
    /// Supplementary groups.
    pub groups: Groups,
    /// A bit for each capability, by its number.
    pub capabilities: u64,
}

/// Looks up the rights of a request's caller: process and user id.
pub type Ask = fn(pid: u32, uid: u32) -> Result<Has>;

/// See the module. The default is a caller about whom nothing is unknown.
#[derive(Clone, Debug, Default)]
pub struct Powers {
    ask: Option<(Ask, u32)>,
    known: OnceLock<Result<Has>>,
}

impl Powers {
    /// The rights of the process `pid`; the first check that needs them asks.
    pub fn asked(ask: Ask, pid: u32) -> Self {
        Self { ask: Some((ask, pid)), known: OnceLock::new() }
    }

    /// `None` if the user id decides.
    fn of(&self, uid: u32) -> Option<&Result<Has>> {
        let (ask, pid) = self.ask?;
        Some(self.known.get_or_init(|| ask(pid, uid)))
    }
}

/// The subject of a permission check.
pub(crate) trait Who {
    fn uid(&self) -> u32;
    /// Whether `gid` is the group or one of the supplementary groups.
    fn in_group(&self, gid: u32) -> bool;
    fn has(&self, capability: Capability) -> bool;
    /// Whether all of this is answered without asking the front end.
    fn is_known(&self) -> bool;
}

impl Who for Cred {
    #[inline]
    fn uid(&self) -> u32 {
        self.uid
    }

    #[inline]
    fn in_group(&self, gid: u32) -> bool {
        Self::in_group(self, gid)
    }

    #[inline]
    fn has(&self, _: Capability) -> bool {
        self.is_root()
    }

    #[inline]
    fn is_known(&self) -> bool {
        true
    }
}

impl Who for Op {
    fn uid(&self) -> u32 {
        self.cred.uid
    }

    fn in_group(&self, gid: u32) -> bool {
        self.cred.in_group(gid)
            || matches!(self.powers.of(self.cred.uid), Some(Ok(has)) if has.groups.contains(&gid))
    }

    fn has(&self, capability: Capability) -> bool {
        match self.powers.of(self.cred.uid) {
            None => self.cred.is_root(),
            Some(has) => has.as_ref().is_ok_and(|has| has.capabilities >> capability as u8 & 1 != 0),
        }
    }

    fn is_known(&self) -> bool {
        self.powers.ask.is_none()
    }
}

impl Op {
    /// Whether mode bits do not bind the caller, if its user id alone decides that.
    pub(crate) fn is_root(&self) -> bool {
        self.is_known() && self.cred.is_root()
    }

    /// The error, if the caller's groups and capabilities were needed and could not be looked up.
    pub(crate) fn certain(&self) -> Result<()> {
        match self.powers.known.get() {
            Some(Err(errno)) => Err(*errno),
            Some(Ok(_)) | None => Ok(()),
        }
    }
}
