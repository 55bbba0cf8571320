//! Symbolic link targets, read without references if the cache has them.
//!
//! The walk is that of `stat`, and copies the target in the same look as the attributes. The driver is asked in
//! three cases: it has not promised fixed links, nobody has read the target yet, or the access time must move,
//! which is the driver's task.

use uvfs_cache::machinery::TARGET_MAX;

use crate::driver::Inode;
use crate::namei::lock_free_walk::{Seen, Stop};
use crate::namei::{Goal, Walker};
use crate::types::Result;
use crate::vfs::now;

/// The source of a link's target.
pub(crate) enum Target<'v> {
    /// The caller's buffer has it: this many bytes.
    Kept(usize),
    /// The driver must be asked, if this is a link at all.
    Ask(Inode<'v>),
}

impl<'v> Walker<'_, 'v> {
    /// The target of the link at `path`.
    pub(crate) fn target(&self, path: &[u8], out: &mut [u8; TARGET_MAX]) -> Result<Target<'v>> {
        let goal = Goal::Node { follow: false };
        let start = self.start(self.cwd, path)?;
        let cache = &self.vfs.cache;
        let seen =
            self.lockless(start, path, 0, |links| match self.walk_lockless(start, path, goal, links)? {
                Seen::Child(at, child) => match cache.child_target(at, &child, now, out)? {
                    Some(found) => Ok(Target::Kept(found.len)),
                    None => Ok::<_, Stop>(Target::Ask(cache.hold(self.enter(at, &child)?)?)),
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
