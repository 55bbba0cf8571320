//! Mounts: how they are made, what the system knows of them, and how they end.
//!
//! [`mounted`] composes the parts: it attaches a [`attach_device`], starts a session, and ends it. Others' mounts are read from
//! the table of mounts ([`mountinfo`]).

pub(crate) mod abort;
pub(crate) mod attach_device;
pub(crate) mod error;
pub(crate) mod mounted;
pub(crate) mod mountinfo;
pub(crate) mod options;
pub(crate) mod remount;
mod signals;
