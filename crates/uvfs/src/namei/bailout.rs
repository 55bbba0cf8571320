//! Why walks without references gave up, and how often.
//!
//! Each reason has a name and a counter per thread. A thread stores only into its own counters
//! (plain load and store, no read-modify-write: nobody else writes them), so counting costs
//! nothing shared; whoever wants the figures sums over all threads. What a thread counted stays
//! when it ends. The counters are the process's: all [`Vfs`](crate::Vfs) instances share them.

use std::sync::Arc;

use parking_lot::Mutex;
use uvfs_cache::Retry;
use uvfs_sync::primitives::Tally;

/// A reason to walk with references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bail {
    /// The cache does not know the name, or what it knows has expired.
    NotCached,
    /// A symbolic link is to be followed.
    Symlink,
    /// No search permission, by attributes that have expired: the driver has the last word.
    Denied,
    /// Something other than a directory has components after it.
    NotDirectory,
    /// A component is longer than a name may be.
    LongName,
    /// A starting point, mount or directory of the path is gone.
    Gone,
    /// The hash bucket changed during the look.
    Bucket,
    /// The name changed during the look.
    Dentry,
    /// The inode changed during the look.
    Inode,
    /// The directory moved or changed its permissions during the look.
    Parent,
    /// The driver does not vouch for the name any more.
    Refuted,
}

impl Bail {
    /// Every reason, in the order of [`BailCounts`].
    pub const ALL: [Self; 11] = [
        Self::NotCached,
        Self::Symlink,
        Self::Denied,
        Self::NotDirectory,
        Self::LongName,
        Self::Gone,
        Self::Bucket,
        Self::Dentry,
        Self::Inode,
        Self::Parent,
        Self::Refuted,
    ];

    /// A short name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotCached => "not_cached",
            Self::Symlink => "symlink",
            Self::Denied => "denied",
            Self::NotDirectory => "not_directory",
            Self::LongName => "long_name",
            Self::Gone => "gone",
            Self::Bucket => "bucket",
            Self::Dentry => "dentry",
            Self::Inode => "inode",
            Self::Parent => "parent",
            Self::Refuted => "refuted",
        }
    }

    /// Whether the next attempt may do better: somebody was changing what the walk looked at.
    pub(crate) const fn may_pass(self) -> bool {
        match self {
            Self::Bucket | Self::Dentry | Self::Inode | Self::Parent => true,
            Self::NotCached
            | Self::Symlink
            | Self::Denied
            | Self::NotDirectory
            | Self::LongName
            | Self::Gone
            | Self::Refuted => false,
        }
    }
}

impl From<Retry> for Bail {
    fn from(retry: Retry) -> Self {
        match retry {
            Retry::Bucket => Self::Bucket,
            Retry::Dentry => Self::Dentry,
            Retry::Inode => Self::Inode,
            Retry::Parent => Self::Parent,
            Retry::Dead => Self::Gone,
        }
    }
}

/// How often each reason of [`Bail::ALL`] occurred in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BailCounts([u64; Bail::ALL.len()]);

impl BailCounts {
    /// How often `reason` occurred.
    pub fn get(&self, reason: Bail) -> u64 {
        self.0[reason as usize]
    }

    /// Each reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Bail, u64)> + '_ {
        Bail::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }

    fn add(&mut self, counters: &Counters) {
        for (sum, counter) in self.0.iter_mut().zip(&counters.0) {
            *sum += counter.get();
        }
    }
}

/// One thread's counters; aligned so that no two threads share a line.
#[derive(Default)]
#[repr(align(128))]
struct Counters([Tally; Bail::ALL.len()]);

/// All threads' counters, and the sum of those that have ended.
#[derive(Default)]
struct Registry {
    threads: Vec<Arc<Counters>>,
    ended: BailCounts,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { threads: Vec::new(), ended: BailCounts([0; Bail::ALL.len()]) });

/// This thread's place in the registry; leaving the thread folds it into the sum.
struct Mine(Arc<Counters>);

impl Mine {
    fn register() -> Self {
        let counters = Arc::new(Counters::default());
        REGISTRY.lock().threads.push(Arc::clone(&counters));
        Self(counters)
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        let mut registry = REGISTRY.lock();
        registry.ended.add(&self.0);
        registry.threads.retain(|counters| !Arc::ptr_eq(counters, &self.0));
    }
}

thread_local! {
    static MINE: Mine = Mine::register();
}

/// Counts one bail-out of this thread. Not counted while the thread is being torn down.
pub(crate) fn count(reason: Bail) {
    let _ = MINE.try_with(|mine| mine.0.0[reason as usize].add(1));
}

/// The sum over all threads that there are and were. Takes a lock that only threads' first and
/// last bail-outs take.
pub fn bail_counts() -> BailCounts {
    let registry = REGISTRY.lock();
    let mut sum = registry.ended;
    registry.threads.iter().for_each(|counters| sum.add(counters));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_running_and_ended_threads_are_summed() {
        // No other test of this binary bails out for this reason.
        let before = bail_counts().get(Bail::LongName);
        count(Bail::LongName);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| (0..5).for_each(|_| count(Bail::LongName)));
            }
        });
        assert_eq!(bail_counts().get(Bail::LongName) - before, 16);
    }

    #[test]
    fn reasons_index_their_counters() {
        for (index, reason) in Bail::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{}", reason.name());
        }
    }
}
