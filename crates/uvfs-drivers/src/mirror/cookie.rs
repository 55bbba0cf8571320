//! Conversion between the host's directory cookies and the mirror's.
//!
//! Counts (most file systems) are shifted, since 0 to 2 are not for entries. Hashes of 63 bits (ext4) are passed on
//! unchanged. Several entries in a row may share a hash of 32 bits (ext4 for NFS' sake, some servers), and the host
//! cannot resume between them. Each but the first then gets a *tag* of its name in the bits above. A reader that
//! resumes at such a cookie seeks to the first one and looks for the tag. If that entry was removed, all remaining
//! entries of the hash are listed.
//!
//! Tags have a place only as long as no plain cookie needs those bits. If one does, hashes have 63 bits, and no two
//! entries are expected to share one. Nothing is locked.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use foldhash::fast::FixedState;

/// Cookies 0 to 2 are not for entries.
pub(super) const SHIFT: u64 = 3;
/// Cookies larger than any count, that is hashes, are passed on unchanged.
const LARGE: u64 = 1 << 62;
/// Position of the tag.
const TAG: u32 = 46;
/// Tags are 1 to this.
const TAGS: u64 = (1 << 15) - 1;

/// See the module.
#[derive(Default)]
pub(super) struct Cookies {
    /// A plain cookie was returned that looks as if it had a tag.
    wide: AtomicBool,
}

impl Cookies {
    /// The mirror's form of the host's cookie. Two hashes of 2^63 just above [`LARGE`] look like a count.
    pub(super) fn tell(&self, host: u64) -> u64 {
        if host >= LARGE {
            return host;
        }
        let told = host + SHIFT;
        if told >> TAG != 0 && !self.wide.load(Relaxed) {
            self.wide.store(true, Relaxed);
        }
        told
    }

    /// The same for a named entry that follows others with the same cookie. `None` if there is no space for a tag.
    pub(super) fn tag(&self, host: u64, name: &[u8]) -> Option<u64> {
        let plain = host.checked_add(SHIFT).filter(|plain| plain >> TAG == 0)?;
        let tag = FixedState::default().hash_one(name) % TAGS + 1;
        (!self.wide.load(Relaxed)).then_some(tag << TAG | plain)
    }

    /// Another tag for the same cookie.
    pub(super) fn next_tag(&self, told: u64) -> u64 {
        let tag = (told >> TAG) % TAGS + 1;
        tag << TAG | told & ((1 << TAG) - 1)
    }

    /// The host's cookie (0: the start), and whether there was a tag.
    pub(super) fn untell(&self, told: u64) -> (u64, bool) {
        if told >= LARGE + SHIFT {
            return (told, false);
        }
        let tagged = told < LARGE && told >> TAG != 0 && !self.wide.load(Relaxed);
        let plain = if tagged { told & ((1 << TAG) - 1) } else { told };
        (plain.saturating_sub(SHIFT), tagged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_come_back_as_they_were() {
        let cookies = Cookies::default();
        for host in [0, 1, 2, 3, 4096, LARGE - 1, LARGE + SHIFT, i64::MAX as u64 - 1, i64::MAX as u64] {
            let told = cookies.tell(host);
            assert!(told >= SHIFT && told <= i64::MAX as u64);
            assert_eq!(cookies.untell(told), (host, false));
        }
        assert_eq!(cookies.tag(5, b"name"), None, "cookies of 63 bits have been told");
    }

    #[test]
    fn tags_are_told_from_cookies_and_from_each_other() {
        let cookies = Cookies::default();
        for host in [0, 5, u64::from(u32::MAX), (1 << TAG) - SHIFT - 1] {
            let mut told = cookies.tag(host, b"name").unwrap();
            for _ in 0..=TAGS {
                assert!(told >> TAG != 0 && told < LARGE);
                assert_eq!(cookies.untell(told), (host, true));
                let next = cookies.next_tag(told);
                assert_ne!(next, told);
                told = next;
            }
        }
        assert_eq!(cookies.tag((1 << TAG) - SHIFT, b"name"), None);
    }
}
