//! Set-id bits go when a caller that may not keep them changes a file's data.
//!
//! A write or an allocation comes here first, from [`super::file_io`]. The rule is
//! [`permission::without_privileges`]. A change of owner or size clears the bits in [`super::setattr`]. The inode
//! lock is held while the bits are cleared.

use crate::driver::{Driver, Inode};
use crate::groups_and_capabilities::{Capability, Who};
use crate::ops::setattr::BITS;
use crate::permission;
use crate::types::{Attr, Op, Result, SetAttr};
use crate::vfs::Vfs;

impl Vfs {
    /// Clears set-id bits before a caller that may not keep them changes data. Usually there are none, and this is
    /// one look. `always`: the caller is known to lack the right to keep them.
    pub(crate) fn kill_privileges(
        &self,
        op: &Op,
        driver: &dyn Driver,
        inode: &Inode<'_>,
        always: bool,
    ) -> Result<()> {
        let left = |attr: &Attr| permission::without_privileges(op, attr.mode, attr.gid);
        let attr = inode.attr();
        // A driver that calls in the caller's name clears them there.
        if left(&attr) == attr.mode || self.passes_through(inode) {
            return Ok(());
        }
        if !always && op.has(Capability::Fsetid) {
            return Ok(());
        }
        op.certain()?;
        let _locked = self.inode_locks.take(inode.id());
        let attr = inode.attr();
        let mode = left(&attr);
        if mode == attr.mode {
            return Ok(());
        }
        driver.setattr(op, inode, &SetAttr { mode: Some(mode & BITS), ..SetAttr::default() })
    }
}
