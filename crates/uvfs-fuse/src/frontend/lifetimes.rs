//! For how long the kernel may believe an answer: the TTLs of names and attributes in replies.
//!
//! The driver's TTL holds, unless `-o timeout=` takes its place. Names get less where the kernel cannot be told at once
//! that others have changed them. Attributes get none in answers to changes where others change the file too. The
//! parts of a reply that depend on the count of lookups are composed above ([`Core::describe_counted`],
//! [`Core::hand_out_cached`]), which set the TTL of attributes to zero in further cases. Nothing here takes a lock. A driver
//! is asked only whether a set-id file was lent.

use std::time::Duration;

use uvfs::types::mode;
use uvfs::{Attr, Inode, Ttl};

use super::Core;
use crate::transport::{Attributes, Entry};

/// As long as a time to live can be in all kernels (136 years).
pub(super) const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

impl Core {
    /// The TTL that the kernel is told if the driver says `ttl`.
    pub(super) fn lifetime(&self, ttl: Ttl) -> Duration {
        match (self.timeout, ttl) {
            (Some(timeout), _) => timeout.min(FOREVER),
            (None, Ttl::Forever) => FOREVER,
            (None, Ttl::For(time)) => time.min(FOREVER),
        }
    }

    /// For how long of `ttl` the kernel may believe names of an inode's file system.
    pub(super) fn names_lifetime(&self, inode: &Inode<'_>, ttl: Duration) -> Duration {
        match self.names_at_most.get() {
            Some(most) if self.vfs.watched(inode) => ttl.min(*most),
            _ => ttl,
        }
    }

    /// Whether the kernel may keep for ever what it is told of this inode.
    pub(super) fn is_coherent(&self, inode: &Inode<'_>) -> bool {
        self.timeout.is_none() && self.vfs.ttl(inode) == Ttl::Forever
    }

    /// Describes a node without handing it out.
    pub(super) fn describe(&self, inode: &Inode<'_>, attr: Attr) -> Entry {
        let node = self.node_of(inode.id());
        let ttl = self.lifetime(self.vfs.ttl(inode));
        let entry_ttl = self.names_lifetime(inode, ttl);
        let attr_ttl = if self.may_lose_set_id(inode, &attr) { Duration::ZERO } else { ttl };
        Entry { node, generation: node >> 32, attr, entry_ttl, attr_ttl }
    }

    pub(super) fn attributes(&self, inode: &Inode<'_>, attr: Attr) -> Attributes {
        let lost = self.may_lose_set_id(inode, &attr);
        let ttl = if lost { Duration::ZERO } else { self.lifetime(self.vfs.ttl(inode)) };
        Attributes { node: self.node_of(inode.id()), attr, ttl }
    }

    /// Whether the kernel must ask for the mode each time, because a write of its own may have cleared set-id bits. A write to
    /// a lent file clears them in the driver's file only. The kernel would run the program as its owner until an event or
    /// the RELEASE corrects the mode. It asks before it runs a program whose attributes it may not believe.
    pub(super) fn may_lose_set_id(&self, inode: &Inode<'_>, attr: &Attr) -> bool {
        attr.mode & (mode::S_ISUID | mode::S_ISGID) != 0
            && self.backings.is_agreed()
            && inode.fmt() == mode::S_IFREG
            && self.vfs.was_lent(inode)
    }

    /// The answer to a change of attributes. The kernel takes them as they are, also where it was told that they have changed
    /// again before it came to it; with those of LOOKUP and GETATTR it sees that they are older. So where others
    /// change the file too it must not believe them, or it might for ever.
    pub(super) fn attributes_of_changed(&self, inode: &Inode<'_>, attr: Attr) -> Attributes {
        let mut attributes = self.attributes(inode, attr);
        if self.vfs.watched(inode) {
            attributes.ttl = Duration::ZERO;
        }
        attributes
    }
}
