//! The attributes of an inode: from the cache, or fetched again.
//!
//! The driver is asked with no lock held. Its answer may be late, so the cache keeps it only if nothing changed since
//! the question. If the cache has attributes that have not expired, they cost no driver call.

use crate::driver::Inode;
use crate::driver_answer::believed_ttl;
use crate::types::{Attr, Errno, Op, Result, Time};
use crate::vfs::Vfs;

impl Vfs {
    /// The attributes, fresh.
    pub fn getattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        self.attr_now(op, inode)
    }

    /// The attributes, fetched again if their TTL has passed.
    pub(crate) fn attr_now(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        if !inode.expired() {
            return Ok(inode.attr());
        }
        let sup = self.sup(inode)?;
        let asked = inode.revision();
        let attr = sup.driver.getattr(op, inode)?;
        if attr.fmt() != inode.fmt() || attr.ino != inode.ino() {
            return Err(Errno::STALE);
        }
        // A late answer is returned too: it does not overwrite changes made meanwhile.
        inode.refresh_unless_changed(asked, &attr, believed_ttl(sup.features, sup.ttl()));
        Ok(attr)
    }

    /// The attributes as the driver sees them now, whatever the cache has. For a file that is [lent](Vfs::lend) for
    /// writing, whose changes nobody reports. The cache stores nothing of the answer.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn look(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        self.sup(inode)?.driver.getattr(op, inode)
    }

    /// The time of birth of a file; none if it is not known.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn birth(&self, op: &Op, inode: &Inode<'_>) -> Result<Option<Time>> {
        let sup = self.sup(inode)?;
        if sup.features.births { sup.driver.birth(op, inode) } else { Ok(None) }
    }
}
