//! The snapshot of a tree: when it is read, and when it is written.
//!
//! A snapshot has the names of one moment. So changes wait while its blocks are made and written, as long as the disk
//! takes them; they do not wait for the sync. For many names that are seconds, so it is done seldom: after a scan, then
//! at most once in [`EVERY`] and only after many changes, and at the end. A snapshot that is old costs nothing but a
//! longer warning, because all names are compared with the host anyway.
//!
//! Only a tree that is followed is written: the names of one that is being compared are of no moment.

use std::time::{Duration, Instant, SystemTime};

use super::{Content, IndexPhase, IndexedTree, Shared};
use crate::table::ROOT;

/// How often a snapshot is written at most, besides the first and the last.
const EVERY: Duration = Duration::from_secs(3600);
/// Changes for which none is written: it may change a few names itself, if it is in the tree.
const FEW: u64 = 16;

impl IndexedTree {
    /// Writes a snapshot if it is time for one. `at_end`: also if few names have changed. Returns whether one was
    /// written.
    ///
    /// # Errors
    /// A sentence.
    pub fn save(&self, at_end: bool) -> Result<bool, String> {
        let shared = &self.shared;
        let Some(snapshot) = &shared.snapshot else { return Ok(false) };
        // Changes that wait to be looked at do not matter, except for the last one.
        if !at_end && !shared.is_due(&shared.content.read(), false) {
            return Ok(false);
        }
        self.settle();
        let root = shared.host.root_identity().map_err(|errno| {
            format!(
                "the snapshot {} cannot be written: the root cannot be read: {errno}",
                snapshot.path().display()
            )
        });
        let (clock, names) = {
            let content = shared.content.read();
            if !shared.is_due(&content, at_end) {
                return Ok(false);
            }
            (content.clock(), content.table.len())
        };
        let written = root.and_then(|root| {
            snapshot.write(&root, shared.host.path(), names, |block| {
                let content = shared.content.read();
                if content.phase != IndexPhase::Following || content.instance != clock.instance {
                    return Err(std::io::Error::other("the index began anew meanwhile"));
                }
                content.table.dump(block)
            })
        });
        let mut saved = shared.saved.lock();
        // If it failed, it is not tried again at once either.
        (saved.clock, saved.tried, saved.failure) =
            (Some(clock), Some(Instant::now()), written.as_ref().err().cloned());
        if written.is_ok() {
            saved.written = Some(SystemTime::now());
        }
        written.map(|()| true)
    }
}

impl Shared {
    fn is_due(&self, content: &Content, at_end: bool) -> bool {
        if content.phase != IndexPhase::Following {
            return false;
        }
        let saved = self.saved.lock();
        let Some(clock) = saved.clock.filter(|clock| clock.instance == content.instance) else { return true };
        let changes = content.table.tick() - clock.tick;
        if at_end {
            return changes > 0 || saved.failure.is_some();
        }
        let old = saved.tried.is_none_or(|tried| tried.elapsed() >= EVERY);
        old && changes > FEW + content.table.len() / 1000
    }

    /// Puts the names of the snapshot into the table, if there is one that can be used. Returns whether that was so.
    pub(super) fn load(&self) -> bool {
        let Some(snapshot) = &self.snapshot else { return false };
        let known = self.host.root_identity().and_then(|root| Ok((root, self.host.root_facts()?)));
        let loaded = match known {
            Ok((root, facts)) => snapshot.read(&root, &facts, |table| {
                if self.limits.memory != 0 && table.bytes() > self.limits.memory {
                    return Err(format!(
                        "its names take more than the limit of {} bytes",
                        self.limits.memory
                    ));
                }
                if self.queue.interrupts() {
                    return Err("the index ended, or events were lost, before all of it was read".into());
                }
                Ok(())
            }),
            Err(errno) => Err(format!("the root cannot be read: {errno}")),
        };
        match loaded {
            Ok(Some(loaded)) => {
                let mut content = self.content.write();
                debug_assert!(content.table.facts(ROOT).is_dir());
                content.table = self.limits.noting(loaded.table);
                content.loaded = Some(loaded.written);
                self.saved.lock().written = Some(loaded.written);
                true
            }
            Ok(None) => false,
            Err(why) => {
                tracing::warn!("{why}; the tree is read anew");
                self.saved.lock().failure = Some(why);
                false
            }
        }
    }
}
