//! The answer to "which names changed since" for programs that know names only, and not what is below a directory.
//!
//! [`changes`](super::changes) says of a directory that was made, removed or renamed that all below it may be
//! different. Here every name below it is given by itself:
//!
//! - Names that exist now are found by a walk.
//! - Names that are gone cannot be found any more. So they are noted, with path and type, at the moment at which their
//!   directory loses its name. This costs as much as the directory is large, so [`NameTable::noting_names_below`]
//!   switches it on. Notes have a bound in bytes; at the bound the oldest are dropped, and a question about a moment
//!   before them gets everything.
//!
//! The table's writer notes, readers read, all under the lock that the table is under.

use std::collections::{HashSet, VecDeque};

use foldhash::fast::RandomState;

use super::{NONE, NameTable, ROOT};

/// Bytes of notes.
const MOST: usize = 64 << 20;
/// Bytes of a note besides its path.
const NOTE: usize = size_of::<Vanished>() + 16;

struct Vanished {
    tick: u64,
    path: Box<[u8]>,
    kind: u8,
}

/// Names that vanished with the directory that they were in, the oldest first.
#[derive(Default)]
pub(crate) struct VanishedNames {
    notes: VecDeque<Vanished>,
    bytes: usize,
    /// Notes up to this tick are not all kept.
    floor: u64,
}

impl VanishedNames {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn note(&mut self, tick: u64, path: &[u8], kind: u8, most: usize) {
        self.bytes += path.len() + NOTE;
        self.notes.push_back(Vanished { tick, path: path.into(), kind });
        while self.bytes > most {
            let Some(oldest) = self.notes.pop_front() else { return };
            self.bytes -= oldest.path.len() + NOTE;
            self.floor = oldest.tick;
        }
    }
}

/// A name of an answer.
#[derive(Debug)]
pub(crate) struct WatchedName<'a> {
    /// The path below the root of the tree.
    pub(crate) path: &'a [u8],
    /// The name's number; nothing if the table has none.
    pub(crate) name: Option<u32>,
    /// The file; nothing if the name does not exist.
    pub(crate) file: Option<u32>,
    /// The highest four bits of the mode, also of a name that does not exist; 0 if that is not known.
    pub(crate) kind: u8,
    /// The tick of the last change that is known; 0 for none.
    pub(crate) tick: u64,
    /// The tick at which it last began to exist; 0 for none that is known.
    pub(crate) born: u64,
    /// Whether the name, as a path, may not have existed at the moment of the question.
    pub(crate) new: bool,
}

impl NameTable {
    /// The same table, noting the names below directories that lose their name.
    pub(crate) fn noting_names_below(mut self) -> Self {
        self.vanished = Some(VanishedNames::default());
        self
    }

    /// A name is about to lead elsewhere: if it leads to a directory, the names below are noted.
    pub(super) fn note_names_below(&mut self, at: u32) {
        let file = self.names[at as usize].file;
        if self.vanished.is_none() || self.files[file as usize].dir == NONE {
            return;
        }
        // Without a path, a directory above it has lost its name already, and then all below was noted.
        let Some(mut path) = self.path(at) else { return };
        let Some(mut vanished) = self.vanished.take() else { return };
        // The tick that the change of the directory's name will take.
        let tick = self.tick + 1;
        self.walk_names(file, &mut path, true, &mut |name| {
            vanished.note(tick, name.path, name.kind, MOST);
            true
        });
        self.vanished = Some(vanished);
    }

    /// Whether all names are known that changed after a tick.
    pub(crate) fn knows_names_since(&self, since: u64) -> bool {
        self.vanished.is_some() && since >= self.names_known_since() && since <= self.tick
    }

    /// The tick since which all changes of names are known.
    pub(crate) fn names_known_since(&self) -> u64 {
        self.floor.max(self.vanished.as_ref().map_or(self.tick, |notes| notes.floor))
    }

    /// The name at a path, or the last one on the way that is known.
    pub(crate) fn nearest_name(&self, path: &[u8]) -> u32 {
        let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        let last = parts.try_fold((ROOT, self.files[ROOT as usize].names), |(dir, last), part| {
            let found = self.lookup(dir, part).map(|at| (&self.names[at as usize], at));
            match found.filter(|(record, _)| !record.dead) {
                Some((record, at)) => Ok((record.file, at)),
                None => Err(last),
            }
        });
        last.map_or_else(|last| last, |(_, at)| at)
    }

    /// The file and the name at a path.
    pub(crate) fn name_at(&self, path: &[u8]) -> Option<(u32, Option<u32>)> {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold((ROOT, None), |(dir, _), part| {
            let at = self.lookup(dir, part)?;
            let record = &self.names[at as usize];
            (!record.dead).then_some((record.file, Some(at)))
        })
    }

    /// A name of the table at its path.
    pub(crate) fn watched<'a>(&self, at: u32, path: &'a [u8], new: bool) -> WatchedName<'a> {
        let record = &self.names[at as usize];
        let file = (!record.dead).then_some(record.file);
        let kind = file.map_or(record.was_type, |file| (self.files[file as usize].mode >> 12) as u8);
        let change = if record.tick == 0 { None } else { self.changes.get(&record.tick) };
        let born = change.map_or(0, |change| change.born);
        WatchedName { path, name: Some(at), file, kind, tick: record.tick, born, new }
    }

    /// Directory and text of a name.
    pub(crate) fn place(&self, at: u32) -> (u32, &[u8]) {
        (self.names[at as usize].parent, self.name_bytes(at))
    }

    /// Visits the names below a directory, each directory before its content. `path` is the directory's. `each` returns
    /// whether to go into a directory. `dead`: names that lead nowhere too.
    pub(crate) fn walk_names(
        &self,
        dir: u32,
        path: &mut Vec<u8>,
        dead: bool,
        each: &mut dyn FnMut(WatchedName<'_>) -> bool,
    ) {
        let first = |file: u32| {
            let list = self.files[file as usize].dir;
            self.dirs.get(list as usize).map_or(NONE, |dir| dir.first)
        };
        let start = path.len();
        // The next name of each directory on the way, and the length of the directory's path.
        let mut way = vec![(first(dir), start)];
        while let Some((next, len)) = way.last_mut() {
            let at = *next;
            if at == NONE {
                way.pop();
                continue;
            }
            let record = &self.names[at as usize];
            *next = record.next;
            if record.dead && !dead {
                continue;
            }
            path.truncate(*len);
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(self.name_bytes(at));
            let into = each(self.watched(at, path, true));
            if into && !record.dead {
                way.push((first(record.file), path.len()));
            }
        }
        path.truncate(start);
    }

    /// Visits the names that changed after a tick, in no order that means anything. The same names may be there without
    /// a difference, but each once. [`NameTable::knows_names_since`] must hold.
    pub(crate) fn names_since(&self, since: u64, each: &mut dyn FnMut(WatchedName<'_>)) {
        let mut wholes = Vec::new();
        for change in self.changes.range(since + 1..).rev().map(|(_, change)| change) {
            let Some(path) = self.path(change.name) else { continue };
            let record = &self.names[change.name as usize];
            if !record.dead && change.whole > since && self.files[record.file as usize].dir != NONE {
                wholes.push((change.name, path.clone()));
            }
            let new = change.born > since || self.is_below_whole(change.name, since);
            each(self.watched(change.name, &path, new));
        }
        for (at, mut path) in wholes {
            // One that is below another is visited with that.
            if !self.is_below_whole(at, since) {
                self.walk_names(self.names[at as usize].file, &mut path, false, &mut |name| {
                    // The others were visited above.
                    if name.tick <= since {
                        each(name);
                    }
                    true
                });
            }
        }
        self.vanished_since(since, each);
    }

    fn vanished_since(&self, since: u64, each: &mut dyn FnMut(WatchedName<'_>)) {
        let Some(vanished) = &self.vanished else { return };
        let mut seen = HashSet::with_hasher(RandomState::default());
        for note in vanished.notes.iter().rev().take_while(|note| note.tick > since) {
            if !seen.insert(&note.path[..]) || self.is_visited(&note.path, since) {
                continue;
            }
            let (path, tick) = (&note.path[..], note.tick);
            each(WatchedName { path, name: None, file: None, kind: note.kind, tick, born: 0, new: false });
        }
    }

    /// Whether a path that vanished exists again, or its name is among the changes.
    fn is_visited(&self, path: &[u8], since: u64) -> bool {
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        let at = self.walk(above).and_then(|dir| self.lookup(dir, name));
        at.map(|at| &self.names[at as usize]).is_some_and(|record| !record.dead || record.tick > since)
    }

    /// Whether a directory above a name was made or replaced after a tick.
    pub(crate) fn is_below_whole(&self, mut at: u32, since: u64) -> bool {
        loop {
            let parent = self.names[at as usize].parent;
            if parent == NONE {
                return false;
            }
            at = self.files[parent as usize].names;
            if at == NONE {
                return false;
            }
            let tick = self.names[at as usize].tick;
            if tick > since && self.changes.get(&tick).is_some_and(|change| change.whole > since) {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{FileFacts, HostHandle, Note};
    use super::*;

    const DIR: u16 = 0o040_755;
    const FILE: u16 = 0o100_644;

    fn table() -> NameTable {
        let root = FileFacts { ino: 1, mode: DIR, nlink: 2, dev: 7, ..FileFacts::default() };
        NameTable::new(&root, HostHandle::new(1, &1u64.to_ne_bytes())).noting_names_below()
    }

    fn put(table: &mut NameTable, dir: u32, name: &str, ino: u64, mode: u16) -> u32 {
        let facts = FileFacts { ino, mode, nlink: 1, dev: 7, ..FileFacts::default() };
        let handle = (mode == DIR).then(|| HostHandle::new(1, &ino.to_ne_bytes()));
        table.put(dir, name.as_bytes(), &facts, handle, Note::Tick).expect("a name").file
    }

    fn alive(table: &NameTable) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        table.walk_names(ROOT, &mut Vec::new(), false, &mut |name| {
            all.insert(String::from_utf8_lossy(name.path).into_owned())
        });
        all
    }

    /// Path, whether it exists, and whether it is new.
    fn since(table: &NameTable, tick: u64) -> Vec<(String, bool, bool)> {
        assert!(table.knows_names_since(tick));
        let mut all = Vec::new();
        table.names_since(tick, &mut |name| {
            all.push((String::from_utf8_lossy(name.path).into_owned(), name.file.is_some(), name.new));
        });
        all.sort();
        let once = all.iter().map(|(path, ..)| path).collect::<BTreeSet<_>>().len();
        assert_eq!(once, all.len(), "{all:?}");
        all
    }

    #[test]
    fn names_below_a_renamed_and_a_removed_directory_are_listed() {
        let mut table = table();
        let a = put(&mut table, ROOT, "a", 2, DIR);
        put(&mut table, a, "x", 3, FILE);
        let b = put(&mut table, a, "b", 4, DIR);
        put(&mut table, b, "y", 5, FILE);
        let tick = table.tick();
        assert_eq!(since(&table, tick), []);
        put(&mut table, ROOT, "c", 2, DIR);
        table.gone(ROOT, b"a").expect("gone");
        table.purge();
        let is = |path: &str, there: bool| (path.to_owned(), there, there);
        let renamed = ["a", "a/b", "a/b/y", "a/x"].map(|path| is(path, false));
        let new = ["c", "c/b", "c/b/y", "c/x"].map(|path| is(path, true));
        let mut found = since(&table, tick);
        found.retain(|(path, ..)| !path.is_empty());
        assert_eq!(found, [renamed, new].concat());
        let between = table.tick();
        let c = table.walk(b"c").expect("c");
        table.gone(c, b"x").expect("gone");
        table.gone(ROOT, b"c").expect("gone");
        table.purge();
        let all = ["c", "c/b", "c/b/y", "c/x"].map(|path| is(path, false));
        let mut found = since(&table, between);
        found.retain(|(path, ..)| !path.is_empty());
        assert_eq!(found, all);
    }

    #[test]
    fn a_question_from_before_the_notes_gets_everything() {
        let mut table = table();
        let a = put(&mut table, ROOT, "a", 2, DIR);
        put(&mut table, a, "x", 3, FILE);
        let tick = table.tick();
        let mut notes = VanishedNames::default();
        notes.note(tick + 1, b"a/x", 8, 0);
        assert_eq!((notes.bytes, notes.floor, notes.notes.len()), (0, tick + 1, 0));
        table.vanished = Some(notes);
        table.gone(ROOT, b"a").expect("gone");
        assert!(!table.knows_names_since(tick));
        assert!(table.knows_names_since(table.tick()));
        table.vanished = None;
        assert!(!table.knows_names_since(table.tick()), "a table without notes");
    }

    /// Random changes: a reader that applies each answer to what it knew has the names of now.
    #[test]
    fn a_reader_that_applies_the_answers_has_the_names() {
        for seed in 0..60 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut table = table();
            let mut known = vec![(table.tick(), alive(&table))];
            for step in 0..200 {
                let mut dirs = vec![ROOT];
                table.walk_names(ROOT, &mut Vec::new(), false, &mut |name| {
                    let file = name.file.expect("alive");
                    dirs.extend((name.kind == 4).then_some(file));
                    true
                });
                let dir = dirs[random.usize(..dirs.len())];
                let name = ["p", "q", "r"][random.usize(..3)];
                // A few numbers only, so that files are found again at other names.
                let ino = random.u64(2..12);
                let mode = if ino < 7 { DIR } else { FILE };
                let facts = FileFacts { ino, mode, nlink: 9, dev: 7, ..FileFacts::default() };
                let handle = (mode == DIR).then(|| HostHandle::new(1, &ino.to_ne_bytes()));
                if random.u8(..3) == 0 {
                    table.gone(dir, name.as_bytes()).expect("gone");
                } else {
                    let _ = table.put(dir, name.as_bytes(), &facts, handle, Note::Tick);
                }
                if random.u8(..3) == 0 {
                    table.purge();
                    let now = alive(&table);
                    for (tick, before) in &known {
                        let mut names = before.clone();
                        for (path, exists, new) in since(&table, *tick) {
                            if !path.is_empty() {
                                let was =
                                    if exists { !names.insert(path.clone()) } else { names.remove(&path) };
                                assert!(was || !exists || new, "{seed} {step}: {path} is not said to be new");
                            }
                        }
                        assert_eq!(names, now, "seed {seed}, step {step}, since {tick}");
                    }
                    known.push((table.tick(), now));
                    known.drain(..known.len().saturating_sub(4));
                }
            }
        }
    }
}
