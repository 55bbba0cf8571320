//! Drivers that revalidate their names at each use ([`Features::revalidates`](crate::Features)), in the lock-free
//! walk.
//!
//! The walk is compiled twice. [`Never`] asks nobody and adds no instruction. It runs while no file system of the
//! tree revalidates; one flag says so, read once per walk. [`Always`] finds each directory's file system and asks
//! its driver two things. May the directory be searched? Does each name still lead where the cache says, or is it
//! still absent? If the driver refutes a name, the walk with references drops it from the cache and looks it up
//! anew.
//!
//! The driver gets numbers that were read while the position stood, so they belong together. It may wait for a lock
//! of its own; the walk holds nothing meanwhile. The driver's answer was true when it was given, and the cache's a
//! moment before: both during the walk. Costs, per component: a line of the inode's private half, and two calls of
//! the driver.

use uvfs_cache::Pos;

use crate::mount::SuperRef;
use crate::namei::Walker;
use crate::namei::bailout::Bail;
use crate::namei::walk::Stop;
use crate::permission;
use crate::types::Access;

/// The drivers that the walk asks.
pub(crate) trait Ask {
    /// Whether it asks any.
    const ASKS: bool;

    /// Whether the directory `at` may be searched, as far as the walk can see. Comes before [`Ask::vouches`] for
    /// the names in it.
    fn may_search(&mut self, walker: &Walker<'_, '_>, at: Pos) -> Result<bool, Stop>;

    /// Whether `name` still leads to the inode with number `child`, or (`None`) still does not exist. The directory
    /// is the one of the last [`Ask::may_search`].
    fn vouches(&self, name: &[u8], child: Option<u64>) -> bool;
}

/// Asks no driver.
pub(crate) struct Never;

impl Ask for Never {
    const ASKS: bool = false;

    #[inline(always)]
    fn may_search(&mut self, walker: &Walker<'_, '_>, at: Pos) -> Result<bool, Stop> {
        Ok(walker.may_search(at))
    }

    #[inline(always)]
    fn vouches(&self, _: &[u8], _: Option<u64>) -> bool {
        true
    }
}

/// Asks each driver that revalidates.
#[derive(Default)]
pub(crate) struct Always {
    /// The superblock of the last directory. It is kept because most walks stay in one file system.
    sup: Option<SuperRef>,
    /// That directory's number, if its driver revalidates.
    dir: Option<u64>,
}

impl Ask for Always {
    const ASKS: bool = true;

    fn may_search(&mut self, walker: &Walker<'_, '_>, at: Pos) -> Result<bool, Stop> {
        self.dir = None;
        let (sb, ino) = walker.vfs.cache.number(at).ok_or(Stop::Bail(Bail::Parent))?;
        let sup = match self.sup.take().filter(|sup| sup.id == sb) {
            Some(sup) => sup,
            None => walker.vfs.mounts.super_of(sb).map_err(|_| Stop::Bail(Bail::Gone))?,
        };
        let sup = self.sup.insert(sup);
        if !sup.features.revalidates {
            return Ok(walker.may_search(at));
        }
        self.dir = Some(ino);
        let Some(perm) = sup.driver.permission(ino) else { return Ok(walker.may_search(at)) };
        let root = walker.cred.is_root();
        Ok(root || permission::granted(walker.cred, perm, Access::EXEC))
    }

    fn vouches(&self, name: &[u8], child: Option<u64>) -> bool {
        match (&self.sup, self.dir) {
            (Some(sup), Some(dir)) => sup.driver.revalidate(dir, name, child),
            _ => true,
        }
    }
}
