//! All names of one tree, with the attributes of their files, and the order of their changes.
//!
//! A *name* is an entry of a directory; several names may lead to one *file*. Files are found by inode number,
//! directories by handle, names by directory and text. A change of a name or its file takes the next *tick*, and
//! [`changes`] lists the names by the tick of their last change, so an answer costs only what changed. Names that
//! have not changed since the scan have tick 0 and are in no list.
//!
//! A file that loses its last name stays *nameless* until [`NameTable::purge`]: it may just have been renamed. Its
//! directory content then comes back with one step, whatever its size.
//!
//! One thread changes the table (the tree's worker); readers and it share a lock outside. Nothing here makes a
//! system call. A name takes 40 bytes, its file 80, its text 8 to 256, and two hash tables 8 to 16 each.

pub(crate) mod changes;
mod dump;
mod links;
pub(crate) mod pick;
mod records;
mod relisting;
pub(crate) mod restore;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod watched;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

pub(crate) use dump::{BLOCK_MAX, Dumped};
pub(crate) use records::NONE;
use records::{DirRecord, FileRecord, NameRecord};
pub use records::{FileFacts, HostHandle};

use changes::Change;

/// Whether a change is noted. During the scan nothing is: its reader gets everything anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// Takes a tick.
    Tick,
    /// Takes none.
    Silent,
}

/// The outcome of [`NameTable::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    /// The file that the name leads to.
    pub(crate) file: u32,
    /// A directory whose content has not been read: it must be.
    pub(crate) new_dir: bool,
    /// More names are known than the file has: one at least is out of date. Never set by a scan, nor for a file with many
    /// names, which are counted at the end of the batch.
    pub(crate) surplus: bool,
}

/// Why a name was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutError {
    /// The directory would be below itself: what is known about a directory on the way is out of date.
    Cycle,
    /// The directory itself was below something that is out of date, and is no longer known.
    NoDirectory,
    /// 2³² names or files, 32 GiB of names, or a name of more than 255 bytes.
    Full,
}

/// The names of a tree.
pub(crate) struct NameTable {
    names: Vec<NameRecord>,
    files: Vec<FileRecord>,
    dirs: Vec<DirRecord>,
    text: text::NameBytes,
    by_name: HashTable<u32>,
    by_ino: HashTable<u32>,
    by_handle: HashTable<u32>,
    free_name: u32,
    free_file: u32,
    free_dirs: Vec<u32>,
    /// Files without a name, with their generations.
    nameless: Vec<(u32, u32)>,
    changes: BTreeMap<u64, Change>,
    /// Files with many names that have changed in this batch, with their generations, and whether to count their names.
    touched: HashMap<(u32, u32), bool, RandomState>,
    vanished: Option<watched::VanishedNames>,
    /// The last tick given.
    tick: u64,
    /// Changes up to this tick are not all known any more.
    floor: u64,
    alive: u64,
    /// The last listing that was begun.
    listing: u32,
    dev: u64,
    /// Whether a name may lead to another file system.
    foreign: bool,
    hash: RandomState,
}

/// The root's file and name.
pub(crate) const ROOT: u32 = 0;

impl NameTable {
    /// A table with the root alone.
    pub(crate) fn new(facts: &FileFacts, handle: HostHandle) -> Self {
        let mut table = Self {
            names: Vec::new(),
            files: Vec::new(),
            dirs: Vec::new(),
            text: text::NameBytes::default(),
            by_name: HashTable::new(),
            by_ino: HashTable::new(),
            by_handle: HashTable::new(),
            free_name: NONE,
            free_file: NONE,
            free_dirs: Vec::new(),
            nameless: Vec::new(),
            changes: BTreeMap::new(),
            touched: HashMap::default(),
            vanished: None,
            tick: 0,
            floor: 0,
            alive: 1,
            listing: 0,
            dev: facts.dev,
            foreign: false,
            hash: RandomState::default(),
        };
        // The first of each, so that both are at `ROOT`.
        if let Some(root) = table.add_file(facts, Some(handle), false)
            && let Some(name) = table.add_name_record(NONE, b"")
        {
            table.names[name as usize].file = root;
            table.files[root as usize].names = name;
        }
        table
    }

    /// Names that lead somewhere, the root among them.
    pub(crate) fn len(&self) -> u64 {
        self.alive
    }

    /// The tick of the last change.
    pub(crate) fn tick(&self) -> u64 {
        self.tick
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        // A vector's memory beyond its length was never written, so the system has given none.
        let records = self.names.len() * size_of::<NameRecord>()
            + self.files.len() * size_of::<FileRecord>()
            + self.dirs.len() * size_of::<DirRecord>()
            + self.free_dirs.capacity() * 4
            + self.nameless.capacity() * 8;
        // A directory's handle is an allocation of its own. A B-tree's nodes are two thirds full.
        let apart = self.dirs.len() * 32 + self.changes.len() * 48;
        let hashes = [&self.by_name, &self.by_ino, &self.by_handle];
        let vanished = self.vanished.as_ref().map_or(0, watched::VanishedNames::bytes);
        records
            + apart
            + vanished
            + self.text.bytes()
            + hashes.iter().map(|hash| hash.allocation_size()).sum::<usize>()
    }

    /// The directory with this handle, as a file.
    pub(crate) fn dir_of(&self, handle: &[u8]) -> Option<u32> {
        let found = self
            .by_handle
            .find(self.hash.hash_one(handle), |&dir| self.dirs[dir as usize].handle.as_bytes() == handle);
        found.map(|&dir| self.dirs[dir as usize].file)
    }

    /// The handle of a directory.
    pub(crate) fn handle(&self, file: u32) -> Option<&HostHandle> {
        let dir = self.files.get(file as usize)?.dir;
        Some(&self.dirs.get(dir as usize)?.handle)
    }

    /// The attributes of a file.
    pub(crate) fn facts(&self, file: u32) -> FileFacts {
        self.files[file as usize].facts(self.dev)
    }

    /// Type and permissions of a file.
    pub(crate) fn mode(&self, file: u32) -> u16 {
        self.files[file as usize].mode
    }

    fn name_bytes(&self, name: u32) -> &[u8] {
        let record = &self.names[name as usize];
        self.text.get(record.text, record.len)
    }

    fn name_hash(&self, dir: u32, name: &[u8]) -> u64 {
        self.hash.hash_one((dir, name))
    }

    /// The name in a directory, dead or not.
    fn lookup(&self, dir: u32, name: &[u8]) -> Option<u32> {
        let same = |&at: &u32| self.names[at as usize].parent == dir && self.name_bytes(at) == name;
        self.by_name.find(self.name_hash(dir, name), same).copied()
    }

    /// The file that a name leads to.
    pub(crate) fn child(&self, dir: u32, name: &[u8]) -> Option<u32> {
        let record = &self.names[self.lookup(dir, name)? as usize];
        (!record.dead).then_some(record.file)
    }

    /// The names in a directory, with their files.
    pub(crate) fn children(&self, dir: u32) -> impl Iterator<Item = (&[u8], u32)> {
        let record = self.dirs.get(self.files[dir as usize].dir as usize);
        let mut at = record.map_or(NONE, |record| record.first);
        std::iter::from_fn(move || {
            while at != NONE {
                let (name, record) = (at, &self.names[at as usize]);
                at = record.next;
                if !record.dead {
                    return Some((self.name_bytes(name), record.file));
                }
            }
            None
        })
    }

    /// The names of a file: directory and text.
    pub(crate) fn links(&self, file: u32) -> impl Iterator<Item = (u32, &[u8])> {
        self.links_of(file).map(|name| (self.names[name as usize].parent, self.name_bytes(name)))
    }

    /// The names that lead to other file systems: directory, text and file. O(files) if there has been one.
    pub(crate) fn foreign_names(&self) -> impl Iterator<Item = (u32, &[u8], u32)> {
        let files = if self.foreign { self.files.len() as u32 } else { 0 };
        let foreign = (0..files).filter(|&file| {
            let record = &self.files[file as usize];
            record.foreign && !record.free
        });
        foreign.flat_map(|file| self.links(file).map(move |(dir, name)| (dir, name, file)))
    }

    fn links_of(&self, file: u32) -> impl Iterator<Item = u32> {
        let mut at = self.files[file as usize].names;
        std::iter::from_fn(move || {
            let name = (at != NONE).then_some(at)?;
            at = self.names[name as usize].next_link;
            Some(name)
        })
    }

    /// The path of a name below the root, without a slash in front; nothing if a directory above it is nameless.
    fn path(&self, name: u32) -> Option<Vec<u8>> {
        let mut parts = Vec::new();
        let (mut at, mut len) = (name, 0);
        while self.names[at as usize].parent != NONE {
            let part = self.name_bytes(at);
            len += part.len() + 1;
            parts.push(part);
            at = self.files[self.names[at as usize].parent as usize].names;
            if at == NONE {
                return None;
            }
        }
        let mut path = Vec::with_capacity(len);
        for part in parts.iter().rev() {
            path.extend_from_slice(part);
            path.push(b'/');
        }
        path.pop();
        Some(path)
    }

    /// Whether a name has a path: no directory above it is nameless.
    fn has_path(&self, mut name: u32) -> bool {
        while self.names[name as usize].parent != NONE {
            name = self.files[self.names[name as usize].parent as usize].names;
            if name == NONE {
                return false;
            }
        }
        true
    }

    /// The path of a name in a directory; nothing if a directory above it is nameless.
    pub(crate) fn path_in(&self, dir: u32, name: &[u8]) -> Option<Vec<u8>> {
        let above = self.files.get(dir as usize)?.names;
        let mut path = if above == NONE { return None } else { self.path(above)? };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(path)
    }

    /// The path of a directory below the root; nothing if it, or one above it, is nameless.
    pub(crate) fn path_of(&self, dir: u32) -> Option<Vec<u8>> {
        let name = self.files.get(dir as usize)?.names;
        if name == NONE { None } else { self.path(name) }
    }

    /// A number that moves when a file's record is used for another one.
    pub(crate) fn generation(&self, file: u32) -> u32 {
        self.files[file as usize].generation
    }

    /// Whether the record is still that of the same file.
    pub(crate) fn is_file(&self, file: u32, generation: u32) -> bool {
        self.files.get(file as usize).is_some_and(|record| record.generation == generation && !record.free)
    }

    /// The file at a path below the root.
    pub(crate) fn walk(&self, path: &[u8]) -> Option<u32> {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(ROOT, |dir, part| self.child(dir, part))
    }

    /// Whether a name is at this path, or may be: below a directory whose names are not known.
    pub(crate) fn may_have(&self, path: &[u8]) -> bool {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        let last = parts.into_iter().try_fold(ROOT, |dir, part| self.child(dir, part).ok_or(dir));
        last.map_or_else(|dir| self.files[dir as usize].dir == NONE || self.is_unread(dir), |_| true)
    }

    /// The file that the host shows with these attributes and this handle.
    fn same(&self, facts: &FileFacts, handle: Option<&HostHandle>) -> Option<u32> {
        let file = self.by_number(facts.ino)?;
        let known = &self.files[file as usize].facts(self.dev);
        let matches = known.same_file(facts) && (!facts.is_dir() || self.handle(file) == handle);
        matches.then_some(file)
    }

    fn by_number(&self, ino: u64) -> Option<u32> {
        self.by_ino.find(self.hash.hash_one(ino), |&at| self.files[at as usize].ino == ino).copied()
    }

    /// Whether `dir` is `above` or below it.
    pub(crate) fn is_below(&self, mut dir: u32, above: u32) -> bool {
        loop {
            if dir == above {
                return true;
            }
            let name = self.files[dir as usize].names;
            if name == NONE || self.names[name as usize].parent == NONE {
                return false;
            }
            dir = self.names[name as usize].parent;
        }
    }

    /// The directories from `dir` up to the root, each with the one above it and its name there.
    pub(crate) fn way_up(&self, mut dir: u32) -> Vec<(u32, Vec<u8>)> {
        let mut way = Vec::new();
        loop {
            let name = self.files[dir as usize].names;
            if name == NONE || self.names[name as usize].parent == NONE {
                return way;
            }
            dir = self.names[name as usize].parent;
            way.push((dir, self.name_bytes(name).to_vec()));
        }
    }

    /// The host shows that `name` in the directory `dir` leads to a file with these attributes; a directory with its
    /// handle.
    pub(crate) fn put(
        &mut self,
        dir: u32,
        name: &[u8],
        facts: &FileFacts,
        handle: Option<HostHandle>,
        note: Note,
    ) -> Result<Put, PutError> {
        let foreign = facts.dev != self.dev;
        let known = if foreign { None } else { self.same(facts, handle.as_ref()) };
        let at = self.lookup(dir, name);
        if let Some(at) = at.filter(|&at| !self.names[at as usize].dead) {
            let file = self.names[at as usize].file;
            let old = &self.files[file as usize];
            if known == Some(file) || (foreign && old.foreign && old.ino == facts.ino) {
                self.files[file as usize].set(facts);
                self.names[at as usize].seen = self.listing;
                match note {
                    // The name was made or moved, and leads where it did. Meanwhile it may have led to another
                    // directory, whose names a reader saw; or the scan was faster than the look at this report.
                    Note::Tick if facts.is_dir() => {
                        self.touch(at, changes::Touch::Led { born: false, whole: true })
                    }
                    Note::Tick => self.touch_file(file),
                    Note::Silent => {}
                }
                return Ok(Put { file, new_dir: self.is_unread(file), surplus: false });
            }
        }
        if let Some(file) = known.filter(|_| facts.is_dir())
            && self.is_below(dir, file)
        {
            return Err(PutError::Cycle);
        }
        let file = match known {
            Some(file) => file,
            None => {
                if !foreign {
                    self.vacate(facts.ino, note);
                    if self.files[dir as usize].dir == NONE {
                        return Err(PutError::NoDirectory);
                    }
                }
                self.add_file(facts, handle, foreign).ok_or(PutError::Full)?
            }
        };
        if known.is_some() && facts.is_dir() {
            // It has one place, and this is it.
            self.kill_links(file, note);
        }
        self.files[file as usize].set(facts);
        self.lead(dir, name, file, note).ok_or(PutError::Full)?;
        if known.is_some() && note == Note::Tick {
            self.touch_file(file);
        }
        // The scan takes no notice, and would count the names of a file again for each of them.
        let counts = note == Note::Tick && !foreign && !facts.is_dir();
        let many = counts && self.has_many_names(file);
        if many {
            self.touch_later(file, true);
        }
        let surplus = counts && !many && self.links_of(file).nth(facts.nlink as usize).is_some();
        Ok(Put { file, new_dir: self.is_unread(file), surplus })
    }

    /// The host shows that the name does not exist. Takes a tick even if it was not known: another reader of the
    /// directory may have seen it.
    pub(crate) fn gone(&mut self, dir: u32, name: &[u8]) -> Result<(), PutError> {
        match self.lookup(dir, name) {
            Some(at) if !self.names[at as usize].dead => self.kill(at, Note::Tick),
            Some(at) => self.touch(at, changes::Touch::Changed),
            None => self.add_dead(dir, name).ok_or(PutError::Full)?,
        }
        Ok(())
    }

    /// The host shows these attributes of a file that is not looked for by name. Returns whether it is known. Takes a
    /// tick even if all are the same: the clock of the file system may be coarser than the change.
    pub(crate) fn refresh(&mut self, facts: &FileFacts) -> bool {
        if facts.dev != self.dev {
            return false;
        }
        let Some(file) = self.by_number(facts.ino) else { return false };
        if !self.files[file as usize].facts(self.dev).same_file(facts) {
            return false;
        }
        self.files[file as usize].set(facts);
        self.touch_file(file);
        true
    }

    /// The host shows these attributes of a directory in which something changed. Takes a tick if they differ.
    pub(crate) fn refresh_dir(&mut self, dir: u32, facts: &FileFacts, note: Note) {
        if self.facts(dir) == *facts || facts.ino != self.files[dir as usize].ino {
            return;
        }
        self.files[dir as usize].set(facts);
        if note == Note::Tick {
            self.touch_file(dir);
        }
    }

    /// Drops the files that have no name, and all that is below them. To be called when no rename is half seen.
    pub(crate) fn purge(&mut self) {
        while let Some((file, generation)) = self.nameless.pop() {
            let record = &self.files[file as usize];
            if record.generation == generation && !record.free && record.names == NONE {
                self.drop_file(file);
            }
        }
    }
}
