//! The names that satisfy a test, found in the order of their records.
//!
//! A walk goes from record to record along the lists of directories, and most steps are a miss of the processor's cache.
//! Here the records are read from the first to the last, by several threads: memory delivers them as fast as it can.
//! Names that lead nowhere are passed over. Names below a nameless directory are not: the caller comes down from the root,
//! and does not reach them.

use std::ops::Range;
use std::thread;

use super::{FileFacts, NONE, NameTable, ROOT};

/// Records for which another thread is worth its start.
const A_THREADS: usize = 1 << 17;
/// Names that a test is tried with.
const SAMPLE: usize = 1 << 10;

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

    /// All names in directories that satisfy the test, in the order of their records.
    pub(crate) fn pick(&self, threads: usize, test: impl Fn(&Candidate<'_>) -> bool + Sync) -> Vec<u32> {
        let of = |range: Range<usize>| -> Vec<u32> {
            let base = range.start;
            let records = self.names[range].iter().enumerate();
            let alive = records.filter(|(_, record)| !record.dead && record.parent != NONE);
            // Fewer than 2³².
            let picked = alive.map(|(nth, _)| (base + nth) as u32);
            picked.filter(|&at| test(&Candidate { table: self, at })).collect()
        };
        let all = self.names.len();
        let threads = threads.min(all / A_THREADS).max(1);
        let part = all.div_ceil(threads).max(1);
        let mut parts = (0..threads).map(|nth| (nth * part).min(all)..((nth + 1) * part).min(all));
        let Some(first) = parts.next() else { return Vec::new() };
        thread::scope(|scope| {
            let others: Vec<_> = parts
                .map(|range| {
                    let (own, of) = (range.clone(), &of);
                    let spawned = thread::Builder::new().spawn_scoped(scope, move || of(own));
                    (range, spawned)
                })
                .collect();
            let mut picked = of(first);
            for (range, spawned) in others {
                // Without a thread, this one does it.
                let more = spawned.ok().and_then(|other| other.join().ok());
                picked.extend(more.unwrap_or_else(|| of(range)));
            }
            picked
        })
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
