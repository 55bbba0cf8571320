//! The reasons for which lock-free walks gave up.
//!
//! Each reason has a name, and a count among the [`counters`](mod@crate::counters).

use uvfs_cache::machinery::Retry;

/// A reason to walk with references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bail {
    /// The name is unknown to the cache, or its entry has expired.
    NotCached,
    /// A symbolic link is to be followed.
    Symlink,
    /// No search permission, by attributes that have expired: the driver decides.
    Denied,
    /// Components come after something that is not a directory.
    NotDirectory,
    /// A component is longer than a name may be.
    LongName,
    /// A starting point, mount or directory of the path is gone.
    Gone,
    /// The hash bucket changed during the scan.
    Bucket,
    /// The name changed during the look.
    Dentry,
    /// The inode changed during the look.
    Inode,
    /// The directory moved, changed its permissions, or was removed during the look.
    Parent,
    /// The permission is left to a directory's access control list.
    Acl,
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
        Self::Acl,
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
            Self::Acl => "acl",
        }
    }

    /// Whether the next attempt may succeed: a writer was changing what the walk looked at.
    pub(crate) const fn may_pass(self) -> bool {
        match self {
            Self::Bucket | Self::Dentry | Self::Inode | Self::Parent => true,
            Self::NotCached
            | Self::Symlink
            | Self::Denied
            | Self::NotDirectory
            | Self::LongName
            | Self::Gone
            | Self::Acl => false,
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
    pub(crate) fn new(count: impl Fn(Bail) -> u64) -> Self {
        Self(Bail::ALL.map(count))
    }

    /// How often `reason` occurred.
    pub fn get(&self, reason: Bail) -> u64 {
        self.0[reason as usize]
    }

    /// Each reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Bail, u64)> + '_ {
        Bail::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 20: a reason says what moved, and each has a name of its own. Planted bugs:
    /// rule20-a-retry-has-another-reason, rule20-two-reasons-of-one-name.
    #[test]
    fn rule20_each_retry_has_its_reason() {
        let retries = [Retry::Bucket, Retry::Dentry, Retry::Inode, Retry::Parent, Retry::Dead]
            .map(|r| Bail::from(r).name());
        assert_eq!(retries, ["bucket", "dentry", "inode", "parent", "gone"]);
        let names: std::collections::HashSet<_> = Bail::ALL.into_iter().map(Bail::name).collect();
        assert_eq!(names.len(), Bail::ALL.len());
    }

    /// Rule 20: another attempt is worthwhile only after a concurrent change. Planted bug:
    /// rule20-changes-are-not-tried-again.
    #[test]
    fn rule20_only_changes_may_pass() {
        let pass: Vec<_> = Bail::ALL.into_iter().filter(|bail| bail.may_pass()).map(Bail::name).collect();
        assert_eq!(pass, ["bucket", "dentry", "inode", "parent"]);
    }

    #[test]
    fn reasons_index_their_counters() {
        for (index, reason) in Bail::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{}", reason.name());
        }
    }
}
