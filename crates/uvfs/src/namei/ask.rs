//! Drivers that vouch for their names at each use ([`Features::revalidates`](crate::Features)), in the
//! walk without references.
//!
//! A walk is compiled twice. [`Never`] asks nobody and leaves no instruction behind: it is what runs
//! while no file system of the tree wants to be asked, which is one flag, read once a walk. [`Always`]
//! finds out of each directory whose it is and lets the driver have its say: on the permission to
//! search it, and on each name, whether it still leads where the cache says, or is still absent. A name
//! that the driver does not vouch for is the other walk's affair, which takes it out of the cache and
//! looks it up anew.
//!
//! The driver is given numbers that were read while the position stood, so that they belong together.
//! It may wait for a lock of its own; nothing is held meanwhile. What it says was true when it said it,
//! and what the cache says was true a moment before: both during the walk.
//! Costs, for each component: a line of the inode's private half, and two calls of the driver.

use uvfs_cache::Pos;

use crate::mount::SuperRef;
use crate::namei::Walker;
use crate::namei::bailout::Bail;
use crate::namei::walk::Stop;
use crate::permission;
use crate::types::Access;

/// Who is asked on the way.
pub(crate) trait Ask {
    /// Whether anybody is.
    const ASKS: bool;

    /// Whether the directory `at` may be searched, as far as can be seen. Comes before [`Ask::vouches`]
    /// for the names in it.
    fn may_search(&mut self, walker: &Walker<'_, '_>, at: Pos) -> Result<bool, Stop>;

    /// Whether `name`, in the directory that was asked about last, still leads to the inode with the number
    /// `child`, or (none) still does not exist.
    fn vouches(&self, name: &[u8], child: Option<u64>) -> bool;
}

/// Nobody.
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

/// Each driver that wants it.
#[derive(Default)]
pub(crate) struct Always {
    /// Of the directory asked about last: kept, because most walks stay in one file system.
    sup: Option<SuperRef>,
    /// That directory's number, where its driver wants to be asked.
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
