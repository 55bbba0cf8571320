//! What a caller may beyond what its user and group are allowed: supplementary groups and capabilities.
//!
//! A library's user is told by its [`Cred`], and user id 0 has every capability. A front end whose requests name
//! a user, a group and a process only ([`Powers::asked`]) is asked for the rest, by the first check of an operation whose
//! outcome depends on it: most are decided by owner and mode bits, and to ask costs as much as many an operation.
//! Nothing is kept from one operation to the next.
//!
//! Where the question fails, the caller has nothing of it; a check that may then grant what a group was denied asks
//! [`Op::certain`](crate::Op) before it does.

use std::sync::OnceLock;

use crate::types::{Cred, Groups, Op, Result};

/// A capability that a check here knows, by its number in capabilities(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Change owner and group of any file.
    Chown = 0,
    /// Read, write and search whatever the mode bits say; execute what somebody may execute.
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

/// What a caller was found to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Has {
    /// Supplementary groups.
    pub groups: Groups,
    /// A bit for each capability, by its number.
    pub capabilities: u64,
}

/// Finds out what the caller of a request has: process and user id.
pub type Ask = fn(pid: u32, uid: u32) -> Result<Has>;

/// See the module. The default is a caller of whom nothing is left open.
#[derive(Clone, Debug, Default)]
pub struct Powers {
    ask: Option<(Ask, u32)>,
    known: OnceLock<Result<Has>>,
}

impl Powers {
    /// Those of the process `pid`, which are asked for by the first who has to know.
    pub fn asked(ask: Ask, pid: u32) -> Self {
        Self { ask: Some((ask, pid)), known: OnceLock::new() }
    }

    /// None where the user id says it all.
    fn of(&self, uid: u32) -> Option<&Result<Has>> {
        let (ask, pid) = self.ask?;
        Some(self.known.get_or_init(|| ask(pid, uid)))
    }
}

/// Whom a permission is asked for.
pub(crate) trait Who {
    fn uid(&self) -> u32;
    /// Whether `gid` is the group or one of the supplementary groups.
    fn in_group(&self, gid: u32) -> bool;
    fn has(&self, capability: Capability) -> bool;
    /// Whether all of this is answered without asking anybody.
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
    /// Whether no mode bits bind the caller, as far as its user id says so.
    pub(crate) fn is_root(&self) -> bool {
        self.is_known() && self.cred.is_root()
    }

    /// The error where the caller's groups and capabilities had to be known and could not be found out.
    pub(crate) fn certain(&self) -> Result<()> {
        match self.powers.known.get() {
            Some(Err(errno)) => Err(*errno),
            Some(Ok(_)) | None => Ok(()),
        }
    }
}
