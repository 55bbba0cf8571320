//! The symbolic links on a walk's way, for prefix entries ([`crate::walk::prefix_cache`]).
//!
//! No directory's walk sequence moves when a link goes. So the noting thread flags each link's inode as passed, then
//! checks the sequences of its name and of its attributes. A writer that removes, renames or exchanges the name, or
//! changes the attributes, first makes that sequence odd. Then it looks at the flag, and moves its group's count
//! of changes. This is the protocol of passed directories, with two other sequences.
//!
//! The target itself is fixed while the inode lives, or until the driver calls `forget_target` (kernfs). If a read of it moves the access time, the entry has the second
//! at which that is due again. From then on the caller must not use the entry: a walk asks the driver.
//!
//! A link's name holds its directory, so that directory and all above it neither end nor leave the cache before the
//! link's name. Therefore a target may begin with `..`.

use uvfs_sync::primitives::Ordering;

use crate::cache::Cache;
use crate::inodes::attr::Time;

/// Not all of them were marked as used when the entry was noted, because eviction was not armed.
const UNMARKED: u64 = 1 << 63;
/// Most links of an entry.
const MOST: usize = if cfg!(loom) { 1 } else { 8 };

/// A symbolic link that a walk followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedLink {
    pub(crate) dentry: u32,
    pub(crate) dentry_seq: u32,
    pub(crate) inode: u32,
    pub(crate) inode_seq: u32,
    /// Whether the walk has marked the link's name as used.
    pub(crate) marked: bool,
    /// The second of the time of day at which a read moves the access time again; `u32::MAX`: none does.
    pub(crate) due: u32,
}

/// The links of a walk.
#[derive(Debug)]
pub(crate) struct PassedLinks {
    links: [PassedLink; MOST],
    count: usize,
}

impl PassedLinks {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { links: [PassedLink::default(); MOST], count: 0 }
    }

    /// Add the next link; false if there are too many.
    pub(crate) fn add(&mut self, link: PassedLink) -> bool {
        match self.links.get_mut(self.count) {
            Some(place) => {
                *place = link;
                self.count += 1;
                true
            }
            None => false,
        }
    }

    fn all(&self) -> &[PassedLink] {
        &self.links[..self.count]
    }

    /// For an entry.
    pub(crate) fn summary(&self) -> Followed {
        let due = self.all().iter().map(|link| link.due).min().unwrap_or(u32::MAX);
        let unmarked = self.all().iter().any(|link| !link.marked);
        Followed(if unmarked { UNMARKED } else { 0 } | (self.count as u64) << 32 | u64::from(!due))
    }

    /// Whether a name among them has a deadline, or belongs to another epoch. True of names that [`Self::stand`]
    /// afterwards.
    pub(crate) fn expire(&self, cache: &Cache) -> bool {
        let deadline = |link: &PassedLink| cache.dentries.get(link.dentry).deadline.load(Ordering::Relaxed);
        self.all().iter().any(|link| !cache.clock.stands(deadline(link)))
    }

    /// Their inodes.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.all().iter().map(|link| link.inode)
    }

    /// Whether all are as they were.
    pub(crate) fn stand(&self, cache: &Cache) -> bool {
        self.all().iter().all(|link| {
            cache.dentries.get(link.dentry).seq.check(link.dentry_seq)
                && cache.inodes.get(link.inode).seq.check(link.inode_seq)
        })
    }
}

/// The links that a walk by a prefix entry followed: their number above, the complement of the second when one is due
/// below, and [`UNMARKED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed(pub(crate) u64);

impl Followed {
    /// None.
    pub const NONE: Self = Self(0);

    /// Their number.
    pub fn links(self) -> u32 {
        ((self.0 & !UNMARKED) >> 32) as u32
    }

    /// Whether a read of one of them moves its access time.
    fn is_due(self, now: impl FnOnce() -> Time) -> bool {
        let due = !(self.0 as u32);
        due != u32::MAX && now().sec() >= i64::from(due)
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Whether a walk may go by an entry over these links. It must not if a read of one of them moves its access time.
    /// Nor if eviction is armed and not all are marked: the walk that renews the entry marks them. From then on the
    /// eviction hand ends the entry when it clears a mark, so walks by an entry need to mark nothing.
    pub fn may_follow(&self, followed: Followed, now: impl FnOnce() -> Time) -> bool {
        let unmarked = followed.0 & UNMARKED != 0;
        !(followed.is_due(now) || unmarked && self.limit.is_armed())
    }
}
