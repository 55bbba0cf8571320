//! INIT: the agreement with the kernel before any other request, as a function of the kernel's offer and the
//! server's wishes.
//!
//! Requested, each if the kernel has it:
//!
//! - DO_READDIRPLUS without READDIRPLUS_AUTO: entries always come with their nodes. A node's id is also its inode
//!   number, so plain entries would need a lookup of each name as well. The automatic form stops after the first
//!   buffer for callers that stat late, as du and find do. (40 000 files on two cores: du 0.6 s against 6 s, find
//!   without stat 0.45 s against 0.2 s.)
//! - HANDLE_KILLPRIV_V2: without it the kernel asks for `security.capability` before every write.
//! - AUTO_INVAL_DATA only if others change files and nobody reports it.
//! - POSIX_ACL and DONT_MASK only if the root's driver keeps access control lists. The kernel then asks for the
//!   lists of inodes that the caller does not own, once for as long as it knows the inode. Both or neither: a
//!   default list replaces the umask, so the kernel must not apply the umask. DONT_MASK alone if the server checks
//!   the lists: with POSIX_ACL the kernel would check permissions too, whatever the mount says.
//! - CACHE_SYMLINKS only if the root's driver promises that a link's target does not change: only the end of the
//!   inode makes the kernel forget a target.
//! - PASSTHROUGH only if the root's driver lends files; it excludes WRITEBACK_CACHE.
//! - OVER_IO_URING only if rings are ready to be registered: a kernel with this promise answers no caller until it
//!   has the rings.
//!
//! Not requested:
//!
//! - ASYNC_DIO, because the kernel drops pages before an asynchronous direct write, and not again when it ends. A
//!   page that was read in between stays old for good (xfstests generic/451; Linux 6.18). Without it the kernel
//!   waits for each write, and drops the pages afterwards.
//! - ATOMIC_O_TRUNC would save a request. But then the kernel asks for the truncation before it checks whether the
//!   file is being executed, and a running program loses its text.
//! - WRITEBACK_CACHE: with it the kernel owns size and times of a file, unseen by other users of the VFS.
//! - POSIX and flock locks stay with the kernel.
//! - EXPORT_SUPPORT needs lookups by id of nodes that the kernel has forgotten.

use uvfs::{Errno, Result};

use super::reply_port::MAX_WRITE;
use super::request::InitIn;

/// The protocol version of this server.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;
/// Linux 4.20. Before it, requests are limited to 128 KiB; still earlier, answers to INIT have other sizes.
const OLDEST_MINOR: u32 = 28;
/// Concurrent read-ahead and other requests that nobody waits for.
const MAX_BACKGROUND: u16 = 64;
/// Bytes of `struct fuse_init_out`.
const INIT_OUT: usize = 64;

/// Bits of both words of flags (`FUSE_*` in linux/fuse.h).
pub(crate) mod flag {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const PASSTHROUGH: u64 = 1 << 37;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

const WANTED: u64 = flag::ASYNC_READ
    | flag::BIG_WRITES
    | flag::MAX_PAGES
    | flag::DO_READDIRPLUS
    | flag::PARALLEL_DIROPS
    | flag::NO_OPENDIR_SUPPORT
    | flag::HANDLE_KILLPRIV_V2;

/// Wishes besides the flags that are always requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// Bytes of a page, the unit in which the kernel counts the size of a request.
    pub page_size: u32,
    /// The kernel checks access control lists.
    pub acls: bool,
    /// The kernel leaves the umask to the server.
    pub unmasked: bool,
    /// Others change files and nobody reports it: the kernel must judge its pages by the file's times.
    pub unseen: bool,
    /// Targets of symbolic links do not change: the kernel may keep them.
    pub fixed_links: bool,
    /// The kernel may be lent files of the host, to read and write by itself.
    pub passthrough: bool,
    /// Rings are ready.
    pub uring: bool,
}

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub flags: u64,
    max_readahead: u32,
    max_pages: u16,
}

/// The answer to an INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Agreed(Agreed),
    /// The kernel also speaks a newer major version: it sends INIT again in this one.
    Again,
}

impl Greeting {
    /// The answer to `init`; EPROTO for a kernel that is too old.
    pub(crate) fn to(init: &InitIn, wishes: Wishes) -> Result<Self> {
        if init.major > MAJOR {
            return Ok(Self::Again);
        }
        if init.major < MAJOR || init.minor < OLDEST_MINOR {
            return Err(Errno::PROTO);
        }
        let mut wanted = WANTED | flag::INIT_EXT;
        let lists = flag::POSIX_ACL | flag::DONT_MASK;
        match wishes.acls {
            true if init.flags & lists == lists => wanted |= lists,
            false if wishes.unmasked => wanted |= flag::DONT_MASK,
            _ => {}
        }
        if wishes.unseen {
            wanted |= flag::AUTO_INVAL_DATA;
        }
        if wishes.fixed_links {
            wanted |= flag::CACHE_SYMLINKS;
        }
        if wishes.passthrough {
            wanted |= flag::PASSTHROUGH;
        }
        if wishes.uring {
            wanted |= flag::OVER_IO_URING;
        }
        // Not more than the largest write, or the kernel reads more than there is room for.
        let max_pages = u16::try_from(MAX_WRITE / wishes.page_size.max(1)).unwrap_or(u16::MAX);
        let (flags, max_readahead) = (wanted & init.flags, init.max_readahead.min(MAX_WRITE));
        Ok(Self::Agreed(Agreed { flags, max_readahead, max_pages }))
    }

    /// `struct fuse_init_out`.
    pub(crate) fn encode(&self) -> [u8; INIT_OUT] {
        let mut out = [0; INIT_OUT];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAJOR.to_ne_bytes());
        put(4, &MINOR.to_ne_bytes());
        let Self::Agreed(agreed) = self else { return out };
        put(8, &agreed.max_readahead.to_ne_bytes());
        put(12, &(agreed.flags as u32).to_ne_bytes());
        put(16, &MAX_BACKGROUND.to_ne_bytes());
        // With this many under way, the kernel sends no more read-ahead.
        put(18, &(MAX_BACKGROUND / 4 * 3).to_ne_bytes());
        put(20, &MAX_WRITE.to_ne_bytes());
        // Times have full nanosecond resolution.
        put(24, &1u32.to_ne_bytes());
        put(28, &agreed.max_pages.to_ne_bytes());
        put(32, &((agreed.flags >> 32) as u32).to_ne_bytes());
        // The permitted depth of stacked file systems below: with 1, lent files are on none that is itself stacked.
        // One level is left for a file system stacked on this one, such as overlayfs.
        put(36, &u32::from(agreed.passthrough()).to_ne_bytes());
        out
    }
}

impl Agreed {
    /// Whether OPENDIR may be answered with ENOSYS.
    pub(crate) fn spares_opendir(&self) -> bool {
        self.flags & flag::NO_OPENDIR_SUPPORT != 0
    }

    /// Whether files may be lent.
    pub(crate) fn passthrough(&self) -> bool {
        self.flags & flag::PASSTHROUGH != 0
    }

    /// Whether requests come by rings once those are registered.
    pub(crate) fn uring(&self) -> bool {
        self.flags & flag::OVER_IO_URING != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX_6_18: InitIn = InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: u64::MAX };

    fn agreed(init: &InitIn, wishes: Wishes) -> u64 {
        match Greeting::to(init, wishes) {
            Ok(Greeting::Agreed(agreed)) => agreed.flags,
            other => panic!("{other:?}"),
        }
    }

    const NONE: Wishes = Wishes {
        page_size: 4096,
        acls: false,
        unmasked: false,
        unseen: false,
        fixed_links: false,
        passthrough: false,
        uring: false,
    };

    /// FUSE_ASYNC_DIO; see the module's head.
    #[test]
    fn asynchronous_direct_writes_are_not_agreed() {
        assert_eq!(agreed(&InitIn { flags: 1 << 15, ..LINUX_6_18 }, NONE), 0);
        assert_eq!(agreed(&LINUX_6_18, NONE) & 1 << 15, 0);
    }

    #[test]
    fn only_what_is_offered_and_wanted_is_agreed() {
        assert_eq!(agreed(&LINUX_6_18, NONE), WANTED | flag::INIT_EXT);
        assert_eq!(agreed(&InitIn { flags: flag::ASYNC_READ, ..LINUX_6_18 }, NONE), flag::ASYNC_READ);
        let all =
            Wishes { acls: true, unmasked: true, fixed_links: true, passthrough: true, uring: true, ..NONE };
        let lists = flag::POSIX_ACL | flag::DONT_MASK;
        let wished = lists | flag::CACHE_SYMLINKS | flag::PASSTHROUGH | flag::OVER_IO_URING;
        assert_eq!(agreed(&LINUX_6_18, all), WANTED | flag::INIT_EXT | wished);
        // One without the other is worse than neither.
        let half = InitIn { flags: flag::POSIX_ACL | flag::MAX_PAGES, ..LINUX_6_18 };
        assert_eq!(agreed(&half, all), flag::MAX_PAGES);
        let ours = Wishes { unmasked: true, ..NONE };
        assert_eq!(agreed(&LINUX_6_18, ours), WANTED | flag::INIT_EXT | flag::DONT_MASK);
    }

    #[test]
    fn versions_are_sorted_out() {
        let newer = InitIn { major: 8, ..LINUX_6_18 };
        assert_eq!(Greeting::to(&newer, NONE), Ok(Greeting::Again));
        assert_eq!(Greeting::Again.encode()[..12], [7u32, 45, 0].map(u32::to_ne_bytes).concat());
        let older = InitIn { minor: OLDEST_MINOR - 1, ..LINUX_6_18 };
        assert_eq!(Greeting::to(&older, NONE), Err(Errno::PROTO));
        assert_eq!(Greeting::to(&InitIn { major: 6, ..LINUX_6_18 }, NONE), Err(Errno::PROTO));
    }

    #[test]
    fn the_answer_has_the_layout_of_the_protocol() {
        let greeting =
            Greeting::to(&LINUX_6_18, Wishes { passthrough: true, uring: true, ..NONE }).expect("agreed");
        let out = greeting.encode();
        assert_eq!(out[8..12], 131_072u32.to_ne_bytes());
        assert_eq!(out[12..16], ((WANTED | flag::INIT_EXT) as u32).to_ne_bytes());
        assert_eq!((&out[16..18], &out[18..20]), (&64u16.to_ne_bytes()[..], &48u16.to_ne_bytes()[..]));
        assert_eq!((&out[20..24], &out[24..28]), (&(1u32 << 20).to_ne_bytes()[..], &1u32.to_ne_bytes()[..]));
        assert_eq!(
            (&out[28..30], &out[32..36]),
            (&256u16.to_ne_bytes()[..], &(1u32 << 9 | 1 << 5).to_ne_bytes()[..])
        );
        assert_eq!(out[36..40], 1u32.to_ne_bytes());
        assert!(out[40..].iter().all(|byte| *byte == 0));
    }
}
