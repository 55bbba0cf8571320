//! The order of changes, and the answer to "changed since".
//!
//! Each name has at most one place in the order: that of its last change. A change is kept with the tick at which the
//! name last began to lead somewhere (*born*), and with the tick at which a directory under it was replaced, so that
//! all below it may be different (*whole*). At the bound, the oldest changes are dropped and the *floor* rises: a
//! question about a moment before it gets everything.
//!
//! The names of a file with many get their new places once in a batch of reports, however many are about the file.
//!
//! An answer costs the changes since the question's tick, each with its depth. It does not depend on the tree's size.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::{NONE, NameTable};

/// A change of a name, under its tick.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) name: u32,
    pub(super) born: u64,
    /// When it was last made to lead to another file.
    led: u64,
    pub(super) whole: u64,
}

/// The reason for a new place in the order.
#[derive(Clone, Copy)]
pub(super) enum Touch {
    /// Attributes or content, or the name died.
    Changed,
    /// It leads to another file.
    Led {
        /// It led nowhere before.
        born: bool,
        /// A directory took the name or left it, so that all below it may be different.
        whole: bool,
    },
}

/// Names of a file that get new places at each change of it. A file with more would cost all of them for each report, and
/// a new name of it is a report, too.
const FEW_NAMES: usize = 16;

/// Changes that are kept however small the tree is.
const LEAST: usize = 65_536;

/// The kind of a change, as seen from the moment of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// The name exists, and for a moment since it did not.
    Created,
    /// The name exists, and its file, or the file's attributes or content, changed.
    Changed,
    /// The name does not exist, and may have existed.
    Removed,
    /// The name exists, and its file had the name [`ChangedName::from`], which does not exist. It is the same file by
    /// inode number and time of birth.
    Renamed,
}

/// A name that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedName {
    /// The kind of change.
    pub kind: ChangeKind,
    /// The path below the root of the tree; empty for the root.
    pub path: Vec<u8>,
    /// The former path of a renamed file.
    pub from: Option<Vec<u8>>,
    /// The type of the file, as find(1) has it; none of a removed name.
    pub file_type: Option<char>,
    /// Everything below `path` and below `from` may be different: a directory is, or was, made or renamed or removed.
    /// Names below it are not always listed by themselves.
    pub whole: bool,
}

impl ChangedName {
    /// Whether the change is at or below a path, or of a directory above it that took or left its name.
    pub(crate) fn is_near(&self, below: &[u8]) -> bool {
        let concerns = |path: &Vec<u8>| is_inside(path, below) || (self.whole && is_inside(below, path));
        concerns(&self.path) || self.from.as_ref().is_some_and(concerns)
    }
}

impl NameTable {
    /// Gives a name the newest place in the order.
    pub(super) fn touch(&mut self, at: u32, why: Touch) {
        self.tick += 1;
        let tick = self.tick;
        let old = std::mem::replace(&mut self.names[at as usize].tick, tick);
        let known = if old == 0 { None } else { self.changes.remove(&old) };
        let mut change = known.unwrap_or(Change { name: at, born: 0, led: 0, whole: 0 });
        if let Touch::Led { born, whole } = why {
            change.led = tick;
            change.born = if born { tick } else { change.born };
            change.whole = if whole { tick } else { change.whole };
        }
        self.changes.insert(tick, change);
        let most = LEAST.max(self.names.len() / 4);
        while self.changes.len() > most {
            self.drop_oldest();
        }
    }

    /// Users see another file at a name, and other names below it: something was mounted there, or is no longer.
    pub(crate) fn is_replaced(&mut self, at: u32) {
        let is_dir = self.facts(self.names[at as usize].file).is_dir();
        self.touch(at, if is_dir { Touch::Led { born: false, whole: true } } else { Touch::Changed });
    }

    fn drop_oldest(&mut self) {
        let Some((tick, change)) = self.changes.pop_first() else { return };
        self.floor = tick;
        self.names[change.name as usize].tick = 0;
        if self.names[change.name as usize].dead {
            self.remove_name(change.name);
        }
    }

    /// Gives all names of a file the newest places; those of a file with many names at the end of the batch.
    pub(super) fn touch_file(&mut self, file: u32) {
        if self.has_many_names(file) {
            return self.touch_later(file, false);
        }
        self.touch_names(file);
    }

    fn touch_names(&mut self, file: u32) -> usize {
        let (mut at, mut count) = (self.files[file as usize].names, 0);
        while at != NONE {
            self.touch(at, Touch::Changed);
            at = self.names[at as usize].next_link;
            count += 1;
        }
        count
    }

    /// Whether a change of the file is too much work to be done for each report.
    pub(super) fn has_many_names(&self, file: u32) -> bool {
        self.links_of(file).nth(FEW_NAMES).is_some()
    }

    /// Notes a file for the end of the batch. `count`: its names are to be counted, too.
    pub(super) fn touch_later(&mut self, file: u32, count: bool) {
        let generation = self.files[file as usize].generation;
        *self.touched.entry((file, generation)).or_default() |= count;
    }

    /// Ends a batch of reports: [`NameTable::purge`], and places for the names of files with many. Returns the files
    /// of which more names are known than they have, among those that [`NameTable::put`] has not counted.
    ///
    /// The names get later places than their change. That is right: no question is told that the reports are done
    /// before this call, and one that is answered earlier has an earlier clock.
    pub(crate) fn end_batch(&mut self) -> Vec<u32> {
        self.purge();
        let mut surplus = Vec::new();
        for ((file, generation), count) in std::mem::take(&mut self.touched) {
            let record = &self.files[file as usize];
            if record.generation != generation || record.free {
                continue;
            }
            let most = record.nlink as usize;
            if self.touch_names(file) > most && count {
                surplus.push(file);
            }
        }
        surplus
    }

    /// Whether all changes since a tick are known.
    pub(crate) fn knows_changes_since(&self, since: u64) -> bool {
        since >= self.floor && since <= self.tick
    }

    /// Visits all names that changed since a tick, the oldest change first. Memory is that of the new names of renames.
    /// [`NameTable::knows_changes_since`] must hold.
    ///
    /// # Errors
    /// Those of `each`. Nothing is visited after one.
    pub(crate) fn visit_changes<E>(
        &self,
        since: u64,
        mut each: impl FnMut(ChangedName) -> Result<(), E>,
    ) -> Result<(), E> {
        let later = || self.changes.range(since + 1..).map(|(_, change)| change);
        // The new name of a rename is shown at the place of the former one, the first of them.
        let mut renamed = HashMap::with_hasher(RandomState::default());
        for change in later().filter(|change| self.names[change.name as usize].dead) {
            if let Some(to) = self.renamed_to(change, since).filter(|_| self.has_path(change.name)) {
                renamed.entry(to).or_insert(change.name);
            }
        }
        for change in later() {
            // It has a place of its own, later in the order.
            if renamed.contains_key(&change.name) {
                continue;
            }
            let Some(mut shown) = self.shown(change, since) else { continue };
            if shown.kind == ChangeKind::Removed
                && let Some(to) = self.renamed_to(change, since)
                && renamed.get(&to) == Some(&change.name)
                && let Some(path) = self.path(to)
            {
                let from = std::mem::replace(&mut shown.path, path);
                let target = self.changes.get(&self.names[to as usize].tick);
                shown.whole |= target.is_some_and(|target| target.whole > since);
                shown.file_type = Some(self.facts(self.names[to as usize].file).type_letter());
                (shown.kind, shown.from) = (ChangeKind::Renamed, Some(from));
            }
            each(shown)?;
        }
        Ok(())
    }

    /// All names at or below `below` that changed since a tick, the oldest change first, and directories above it that
    /// took or left their names; nothing if they are not all known any more.
    #[cfg(test)]
    pub(crate) fn changed_since(&self, since: u64, below: &[u8]) -> Option<Vec<ChangedName>> {
        if !self.knows_changes_since(since) {
            return None;
        }
        let mut found = Vec::new();
        let Ok(()) = self.visit_changes(since, |change| {
            found.extend(Some(change).filter(|change| change.is_near(below)));
            Ok::<(), std::convert::Infallible>(())
        });
        Some(found)
    }

    fn shown(&self, change: &Change, since: u64) -> Option<ChangedName> {
        let record = &self.names[change.name as usize];
        let path = self.path(change.name)?;
        let (kind, file_type, whole) = if record.dead {
            (ChangeKind::Removed, None, record.was_dir)
        } else {
            let born = change.born > since;
            let kind = if born { ChangeKind::Created } else { ChangeKind::Changed };
            (kind, Some(self.facts(record.file).type_letter()), false)
        };
        Some(ChangedName { kind, path, from: None, file_type, whole: whole || change.whole > since })
    }

    /// The name that a dead one's file has now, if it was given since.
    fn renamed_to(&self, change: &Change, since: u64) -> Option<u32> {
        let dead = &self.names[change.name as usize];
        let file = self.files.get(dead.file as usize)?;
        if file.generation != dead.next_link || file.free || file.names == NONE {
            return None;
        }
        // Another file may have got the inode number. Its content is another then, so a rename is never guessed.
        if file.dir == NONE && file.birth == 0 {
            return None;
        }
        let to = &self.names[file.names as usize];
        let given = self.changes.get(&to.tick).is_some_and(|change| change.led > since);
        (to.tick != 0 && given).then_some(file.names)
    }
}

/// Whether a path is `above` or below it.
fn is_inside(path: &[u8], above: &[u8]) -> bool {
    above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
