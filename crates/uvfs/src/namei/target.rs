//! What a symbolic link points to, read without references where the cache keeps it.
//!
//! The walk is the one of `stat`; the target is copied in the same look as the attributes. The
//! driver is asked where it has not promised that its links are fixed, where nobody asked yet, and
//! where the access time is to be moved, which is its affair.

use uvfs_cache::TARGET_MAX;

use crate::driver::Inode;
use crate::namei::walk::{Seen, Stop};
use crate::namei::{Goal, Walker};
use crate::types::Result;
use crate::vfs::now;

/// Who has a link's target.
pub(crate) enum Target<'v> {
    /// The caller, in its buffer: so many bytes.
    Kept(usize),
    /// The driver, if this is a link at all.
    Ask(Inode<'v>),
}

impl<'v> Walker<'_, 'v> {
    /// The target of the link at `path`.
    pub(crate) fn target(&self, path: &[u8], out: &mut [u8; TARGET_MAX]) -> Result<Target<'v>> {
        let goal = Goal::Node { follow: false };
        let start = self.start(self.cwd, path)?;
        let cache = &self.vfs.cache;
        let seen = self.lockless(start, path, || match self.walk_lockless(start, path, goal)? {
            Seen::Child(at, child) => match cache.child_target(at, &child, out)? {
                Some((attr, len)) if !attr.atime_is_due(now()) => Ok(Target::Kept(len)),
                _ => Ok::<_, Stop>(Target::Ask(cache.hold(self.enter(at, &child)?)?)),
            },
            Seen::Node(at) | Seen::Parent { pos: at, .. } => Ok(Target::Ask(cache.hold(at)?)),
        });
        match seen {
            Ok(target) => Ok(target),
            Err(fallback) => {
                self.held(start, path, goal, fallback, 0).map(|arrived| Target::Ask(arrived.inode))
            }
        }
    }
}
