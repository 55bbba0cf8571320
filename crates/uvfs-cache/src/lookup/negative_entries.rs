//! Negative entries: their bound, and their publication.
//!
//! A late answer is refused (rule 10), and so is one for which the bound leaves no room. Runs with the name lock
//! held.

use std::ops::RangeInclusive;

use uvfs_sync::blhash::BlHash;
use uvfs_sync::primitives::Ordering;

use crate::cache::Cache;
use crate::lookup::ticket::NameGuard;
use crate::names::publish::Aftermath;
use crate::types::{SbId, Ttl};

/// Bounds on the number of negative entries, if none is configured: as many as other names, within these
/// bounds.
const NEGATIVES: RangeInclusive<u64> = 1 << 13..=1 << 16;
/// Bytes of one negative entry: both halves, and a place in the hash.
const NEGATIVE_BYTES: u64 = 96;

impl Cache {
    /// Whether one more negative entry may be kept. Makes room by sweeping a few old ones, from another
    /// superblock if this one has none at hand.
    pub(super) fn room_for_negative(&self, sb: SbId) -> bool {
        let now = self.dentries.negatives();
        let most = self.most_negatives(now);
        if now < most {
            return true;
        }
        let others =
            self.superblocks().filter(|other| *other != sb && !self.superblock(*other).is_resident());
        let _ = std::iter::once(sb).chain(others).any(|sb| self.sweep_negatives(sb, 8) > 0);
        self.dentries.negatives() < most
    }

    /// The bound on negative entries while there are `now`. It sums over all superblocks only if there are
    /// more than a few.
    fn most_negatives(&self, now: u64) -> u64 {
        let fit = match self.memory_limit() {
            0 => u64::MAX,
            limit => limit / 10 / NEGATIVE_BYTES,
        };
        let most = match self.dentries.max_negative() {
            0 if now < *NEGATIVES.start() => *NEGATIVES.start(),
            0 => {
                let names: u64 = self.superblocks().map(|sb| self.superblock(sb).dentries().in_use()).sum();
                names.saturating_sub(now).clamp(*NEGATIVES.start(), *NEGATIVES.end())
            }
            most => most,
        };
        most.min(fit)
    }

    /// Cache that a name does not exist. False: the directory's revision moved, or no slot is left.
    pub(super) fn publish_negative(&self, guard: &NameGuard<'_>, ttl: Ttl) -> bool {
        let sb = guard.dir.sb();
        let words = guard.words();
        let Ok(tail) = self.alloc_tail(sb, &words) else { return false };
        let Ok(dentry) = self.alloc_dentry(sb) else {
            self.dentries.free_tail(tail);
            return false;
        };
        let d = self.dentries.get(dentry);
        let deadline = self.deadline(sb, ttl, guard.asked.epoch);
        let mut after = Aftermath::default();
        let mut spare = false;
        // Counted before it can be found: a thread that finds it may count it out.
        self.dentries.count_negative();
        let published = loop {
            let (mut locked, [h]) = self.lock_names_bucket([(guard.dir.index(), &words)], spare);
            if guard.is_late() {
                break false;
            }
            let old = self.find_locked(&locked, 0, guard.dir.index(), &words);
            d.seq.write(|| {
                d.set_name(guard.dir.index(), &words, tail);
                d.set_target(0, 0, deadline);
                // Inside the sequence: a reader of the slot's last use must not take this entry for its
                // own.
                let parent_generation = &self.dentries.private(dentry).parent_generation;
                parent_generation.store(guard.dir.id().generation(), Ordering::Relaxed);
            });
            d.hash.store(BlHash::to_store(&h), Ordering::Relaxed);
            if locked.insert(0, &h, dentry).is_ok() {
                if let Some(old) = old {
                    self.kill(&mut locked, 0, old, &mut after);
                }
                break true;
            }
            d.seq.write(|| d.clear());
            spare = true;
        };
        if !published {
            self.dentries.uncount_negative();
            self.free_dentry(dentry, tail);
        }
        self.finish(after);
        self.dentries.maintain();
        published
    }
}
