//! The names that satisfy a test, found in the order of their records.
//!
//! A walk goes from record to record along the lists of directories, and most steps are a miss of the processor's cache.
//! Here the records are read from the first to the last, by several threads: memory delivers them as fast as it can.
//! Each thread takes the next part that nobody has. The calling thread asks before each of its own whether to go on; when no
//! part is left, the others end with the one that they have.
//! Names that lead nowhere are passed over. Names below a nameless directory are not: the caller comes down from the root,
//! and does not reach them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use super::{FileFacts, NONE, NameTable, ROOT};

/// Records for which another thread is worth its start.
const A_THREADS: usize = 1 << 17;
/// Records of a part.
pub(crate) const A_PART: usize = 1 << 10;
/// Names that a test is tried with.
const SAMPLE: usize = 1 << 10;

/// The parts of the records, and their test. A part is taken once: the count of those taken only grows.
struct Parts<'t, T> {
    table: &'t NameTable,
    next: AtomicUsize,
    stopped: AtomicBool,
    test: T,
}

impl<T: Fn(&Candidate<'_>) -> bool> Parts<'_, T> {
    /// Takes the next part, and adds its number and its names to those picked. False if there is none.
    fn pick_one(&self, picked: &mut Vec<(usize, Vec<u32>)>) -> bool {
        let part = self.next.fetch_add(1, Relaxed);
        let begin = part.saturating_mul(A_PART);
        let records = &self.table.names;
        if begin >= records.len() || self.stopped.load(Relaxed) {
            return false;
        }
        let records = records[begin..].iter().take(A_PART).enumerate();
        let alive = records.filter(|(_, record)| !record.dead && record.parent != NONE);
        // Fewer than 2³².
        let names = alive.map(|(nth, _)| (begin + nth) as u32);
        let of_part: Vec<u32> = names
            .take_while(|_| !self.stopped.load(Relaxed))
            .filter(|&at| (self.test)(&Candidate { table: self.table, at }))
            .collect();
        if !of_part.is_empty() {
            picked.push((part, of_part));
        }
        true
    }
}

/// A name that a test looks at.
pub(crate) struct Candidate<'t> {
    table: &'t NameTable,
    at: u32,
}

impl Candidate<'_> {
    /// The last component.
    pub(crate) fn name(&self) -> &[u8] {
        self.table.name_bytes(self.at)
    }

    /// The attributes of its file.
    pub(crate) fn facts(&self) -> FileFacts {
        self.table.facts(self.table.names[self.at as usize].file)
    }

    /// The type and the permissions of its file.
    pub(crate) fn mode(&self) -> u16 {
        self.table.files[self.table.names[self.at as usize].file as usize].mode
    }
}

impl NameTable {
    /// Of a thousand names, spread evenly, those that satisfy the test; and how many were tried.
    pub(crate) fn sample(&self, test: impl Fn(&Candidate<'_>) -> bool) -> (usize, usize) {
        let step = (self.names.len() / SAMPLE).max(1);
        let (mut kept, mut tried) = (0, 0);
        for at in (0..self.names.len()).step_by(step) {
            if !self.names[at].dead {
                tried += 1;
                kept += usize::from(test(&Candidate { table: self, at: at as u32 }));
            }
        }
        (kept, tried)
    }

    /// All names in directories that satisfy the test, in the order of their records. `goes_on` is asked before each
    /// part that the calling thread takes.
    ///
    /// # Errors
    /// Those of `goes_on`.
    pub(crate) fn pick(
        &self,
        threads: usize,
        mut goes_on: impl FnMut() -> io::Result<()>,
        test: impl Fn(&Candidate<'_>) -> bool + Sync,
    ) -> io::Result<Vec<u32>> {
        let parts = Parts { table: self, next: AtomicUsize::new(0), stopped: AtomicBool::new(false), test };
        let threads = threads.min(self.names.len() / A_THREADS).max(1);
        let mut picked = Vec::new();
        let outcome = thread::scope(|scope| {
            let other = || {
                let mut picked = Vec::new();
                while parts.pick_one(&mut picked) {}
                picked
            };
            // Without a thread, the others do its part.
            let others = (1..threads).filter_map(|_| thread::Builder::new().spawn_scoped(scope, other).ok());
            let others: Vec<_> = others.collect();
            let outcome = loop {
                if let Err(error) = goes_on() {
                    parts.stopped.store(true, Relaxed);
                    break Err(error);
                }
                if !parts.pick_one(&mut picked) {
                    break Ok(());
                }
            };
            for other in others {
                picked.extend(other.join().map_err(|_| io::Error::other("a thread ended"))?);
            }
            outcome
        });
        outcome?;
        picked.sort_unstable_by_key(|(part, _)| *part);
        Ok(picked.into_iter().flat_map(|(_, names)| names).collect())
    }

    /// Directory, text and file of a name.
    pub(crate) fn named(&self, at: u32) -> (u32, &[u8], u32) {
        let record = &self.names[at as usize];
        (record.parent, self.name_bytes(at), record.file)
    }

    /// The directory that a directory is in, and its name there; nothing for the root, and without a name.
    pub(crate) fn above(&self, dir: u32) -> Option<(u32, u32)> {
        let name = self.files[dir as usize].names;
        let above = self.names.get(name as usize)?.parent;
        (above != NONE).then_some((above, name))
    }

    /// Whether more than `most` names are below a directory, in at most so many levels. Costs `most` at most.
    pub(crate) fn is_larger(&self, dir: u32, levels: usize, most: usize) -> bool {
        if dir == ROOT && levels == usize::MAX {
            return self.alive > most as u64;
        }
        let (mut count, mut dirs) = (0, vec![(dir, 0)]);
        while let Some((dir, level)) = dirs.pop() {
            if level >= levels {
                continue;
            }
            for (_, file) in self.children(dir) {
                count += 1;
                if count > most {
                    return true;
                }
                if self.files[file as usize].dir != NONE {
                    dirs.push((file, level + 1));
                }
            }
        }
        false
    }

    /// Whether a name may lead to another file system.
    pub(crate) fn has_foreign(&self) -> bool {
        self.foreign
    }
}
