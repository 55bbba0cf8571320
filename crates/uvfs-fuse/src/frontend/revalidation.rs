//! Answers that revalidate a name of the kernel for ever: the only ones that the kernel may store after it was
//! notified that the name leads elsewhere.
//!
//! The kernel looks a name up under its directory's lock, and takes that lock to invalidate it, with one exception.
//! If the kernel has the name and its TTL is over (which an expiry causes), it asks without the lock, and stores
//! the new TTL whenever it gets to it. A notification between the answer and that moment has no effect, and the
//! name would stay for ever. So such answers are noted, by name. If one was given at most [`LATE`] before a
//! notification, `notify.rs` makes up for it. LATE bounds the time from the answer, which wakes the caller, to its
//! store. READDIRPLUS stores under the directory's lock, and INC_EPOCH reaches names that are being asked for.
//!
//! **An answer against a change.** The answering thread notes the answer and then looks the name up again; if the
//! cache no longer agrees, the TTL becomes zero. The changing thread changes the cache, and then reads the note. A
//! full fence is on either side. If the note comes first, the changing thread sees it. If the change comes first,
//! the second look sees it.
//!
//! Such an answer concerns a node that the kernel already holds. Others are not noted, and one line is written at
//! most once in a millisecond. Names that share a slot cause harmless repeated notifications of each other.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use uvfs::{Cached, Found, Inode, Op, mode};

use super::Core;
use crate::notify::{LATE, Late};
use crate::transport::{Entry, NodeId};

/// A power of two.
const PLACES: usize = 1024;

/// See the module.
pub(super) struct Revalidated {
    began: Instant,
    hash: RandomState,
    /// A millisecond, counted from 1, with the lowest bit set for a directory; 0 if nothing was noted.
    places: Box<[AtomicU64]>,
}

impl Default for Revalidated {
    fn default() -> Self {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Self { began: Instant::now(), hash: RandomState::new(), places }
    }
}

impl Revalidated {
    fn place(&self, dir: NodeId, name: &[u8]) -> &AtomicU64 {
        &self.places[self.hash.hash_one((dir, name)) as usize % PLACES]
    }

    fn note(&self, dir: NodeId, name: &[u8], is_dir: bool, now: Instant) {
        let stamp = (self.ms(now) + 1) << 1 | u64::from(is_dir);
        let place = self.place(dir, name);
        if place.load(Relaxed) != stamp {
            place.store(stamp, Relaxed);
        }
    }

    /// Whether the name was noted within [`LATE`] before `now`; if so, whether it led to a directory.
    fn noted(&self, dir: NodeId, name: &[u8], now: Instant) -> Option<bool> {
        let stamp = self.place(dir, name).load(Relaxed);
        let at = (stamp >> 1).checked_sub(1)?;
        (self.ms(now).saturating_sub(at) <= LATE.as_millis() as u64).then_some(stamp & 1 != 0)
    }

    fn ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_millis() as u64
    }
}

impl Core {
    /// Handles the answer to a lookup of `name` in `dir` whose node the kernel already holds: see the module.
    pub(super) fn revalidated(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        name: &[u8],
        inode: &Inode<'_>,
        entry: &mut Entry,
    ) {
        if entry.entry_ttl <= LATE || !self.vfs.watched(dir) {
            return;
        }
        let is_dir = inode.fmt() == mode::S_IFDIR;
        self.revalidated.note(self.node_of(dir.id()), name, is_dir, Instant::now());
        fence(SeqCst);
        let again = self.vfs.peek(op, dir, name);
        if !matches!(again, Some(Ok(Cached::Node(ref found))) if found.id() == inode.id()) {
            entry.entry_ttl = Duration::ZERO;
        }
    }

    /// The possible effect of such an answer, now that `name` in `dir` leads elsewhere.
    pub(super) fn late(&self, dir: NodeId, name: &[u8]) -> Late {
        fence(SeqCst);
        match self.revalidated.noted(dir, name, Instant::now()) {
            None => Late::Nothing,
            Some(is_dir) if is_dir || !self.leads_nowhere(dir, name) => Late::Name,
            Some(_) => Late::Dead,
        }
    }

    /// Whether the name is certainly absent, as far as can be said without waiting for a driver.
    fn leads_nowhere(&self, dir: NodeId, name: &[u8]) -> bool {
        let Ok(dir) = self.inode(dir) else { return false };
        let op = self.op_permitted(crate::transport::Caller { uid: 0, gid: 0, pid: 0, umask: 0 });
        let found = match self.vfs.lookup_cached(&op, &dir, name) {
            Some(found) => found,
            None if self.vfs.may_block(&dir) => return false,
            None => self.vfs.lookup(&op, &dir, name),
        };
        matches!(found, Ok(Found::Absent(_)))
    }
}

#[cfg(test)]
mod tests {
    use uvfs::{Cred, Features};

    use super::super::test_frontend::Fixture;
    use super::*;
    use crate::transport::ROOT;

    #[test]
    fn only_answers_of_what_is_held_are_noted() {
        for watched in [true, false] {
            let fixture = Fixture::with(Features { watched, ..Features::default() });
            let core = &fixture.frontend.core;
            let (first, second) = (Fixture::name(1), Fixture::name(2));
            fixture.look(1).expect("a node");
            fixture.look(2).expect("a node");
            assert_eq!(core.late(ROOT, &first), Late::Nothing, "the kernel did not hold it before");
            fixture.look(1).expect("a node");
            let late = if watched { Late::Name } else { Late::Nothing };
            assert_eq!((core.late(ROOT, &first), core.late(ROOT, &second)), (late, Late::Nothing));
        }
    }

    #[test]
    fn it_is_over_after_a_while() {
        let noted = Revalidated::default();
        let now = noted.began + Duration::from_secs(5);
        noted.note(7, b"n", false, now);
        assert_eq!(noted.noted(7, b"n", now - LATE), Some(false), "a note of a later answer");
        assert_eq!(noted.noted(7, b"n", now + LATE), Some(false));
        assert_eq!(noted.noted(7, b"n", now + LATE + Duration::from_millis(2)), None);
        noted.note(7, b"n", true, now);
        assert_eq!(noted.noted(7, b"n", now), Some(true));
    }

    #[test]
    fn an_answer_that_the_cache_does_not_give_any_more_is_not_kept() {
        let fixture = Fixture::with(Features { watched: true, ..Features::default() });
        let core = &fixture.frontend.core;
        let name = Fixture::name(1);
        let node = fixture.look(1).expect("a node");
        let (root, inode) = (core.inode(ROOT).expect("the root"), core.inode(node).expect("a node"));
        let op = fixture.vfs.op(&Cred::root());
        let kept = || {
            let mut entry = core.describe(&inode, inode.attr());
            core.revalidated(&op, &root, &name, &inode, &mut entry);
            !entry.entry_ttl.is_zero()
        };
        assert!(kept());
        fixture.vfs.cache().invalidate(&root, &name);
        assert!(!kept());
    }
}
