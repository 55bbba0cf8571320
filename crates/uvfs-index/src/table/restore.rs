//! A table from the blocks of [`dump`](super::dump).
//!
//! The bytes may be anything: whatever they are, the outcome is an error or a table that is whole. Each name is in a
//! directory that was named before, so there is no cycle. Names, inode numbers and handles that occur twice are found
//! when the hash tables are built, at the end and by two threads. Memory grows with the bytes that were read, never
//! with a number among them.
//!
//! No directory counts as read: the host has not confirmed the names yet.

use std::hash::BuildHasher;
use std::thread;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::dump::{
    AGAIN, CONTENT, DIRECTORY, Dumped, FILE, FOREIGN, KIND, LINKED, ONE_LINK, ONE_TIME, Previous, SAME_OWNER,
    USUAL_BLOCKS, usual_blocks,
};
use super::{DirRecord, FileFacts, FileRecord, HostHandle, NONE, NameTable, ROOT};

/// Why the bytes are no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Parts of a hash table that are filled one after the other.
const PARTS: usize = 256;

const CUT: Malformed = Malformed("a record is cut off");

/// A table that is being read.
pub(crate) struct Restorer {
    table: NameTable,
    /// Files of the directories, by number.
    dirs: Vec<u32>,
    /// Files with several names, by number.
    linked: Vec<u32>,
    names: u64,
}

/// The rest of a block.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(CUT)?;
        self.0 = rest;
        Ok(first)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (first, rest) = self.0.split_at_checked(len).ok_or(CUT)?;
        self.0 = rest;
        Ok(first)
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed("a number has more than 64 bits"))
    }

    fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        T::try_from(self.number()?).map_err(|_| Malformed("a number is too large"))
    }

    fn nanoseconds(&mut self) -> Result<u32, Malformed> {
        let value = self.number()?;
        let fits = u32::try_from(value).ok().filter(|value| *value < 1_000_000_000);
        fits.ok_or(Malformed("a time has more than a second of nanoseconds"))
    }

    fn facts(&mut self, tag: u8, previous: &mut Previous) -> Result<FileFacts, Malformed> {
        let ino = previous.ino.wrapping_add(self.signed()? as u64);
        let birth = self.bytes(4)?.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let size = self.number()?;
        let blocks = if tag & USUAL_BLOCKS == 0 { self.number()? } else { usual_blocks(size) };
        let mtime = (previous.mtime.wrapping_add(self.signed()?), self.nanoseconds()?);
        let ctime = match tag & ONE_TIME {
            0 => (mtime.0.wrapping_add(self.signed()?), self.nanoseconds()?),
            _ => mtime,
        };
        let nlink = if tag & ONE_LINK == 0 { self.small()? } else { 1 };
        let owner = match tag & SAME_OWNER {
            0 => (self.small()?, self.small()?, self.small()?),
            _ => previous.owner,
        };
        *previous = Previous { ino, mtime: mtime.0, owner };
        let (uid, gid, mode) = owner;
        Ok(FileFacts { ino, dev: 0, birth, size, blocks, mtime, ctime, nlink, uid, gid, mode })
    }
}

impl Restorer {
    /// A table with the root alone. `names`: about as many are expected.
    pub(crate) fn new(root: &FileFacts, handle: HostHandle, names: usize) -> Self {
        let mut table = NameTable::new(root, handle);
        // An expectation only: without so much memory, it grows as it is read.
        let _ = table.names.try_reserve(names).and_then(|()| table.files.try_reserve(names));
        Self { table, dirs: vec![ROOT], linked: Vec::new(), names: 0 }
    }

    /// Bytes of the table, without the hash tables.
    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The counts of this table so far.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Dumped {
        Dumped { names: self.names, dirs: self.dirs.len() as u64 }
    }

    /// Reads a block.
    pub(crate) fn block(&mut self, block: &[u8]) -> Result<(), Malformed> {
        let (mut rest, mut previous, mut dir) = (Rest(block), Previous::default(), None);
        while let Ok(tag) = rest.byte() {
            if tag == CONTENT {
                let number = usize::try_from(rest.number()?).map_err(|_| CUT)?;
                let known = self.dirs.get(number).copied();
                dir = Some(known.ok_or(Malformed("a directory is unknown"))?);
                continue;
            }
            let dir = dir.ok_or(Malformed("names of no directory"))?;
            let len = rest.byte()?.into();
            let name = rest.bytes(len)?;
            if name.is_empty() || name == b"." || name == b".." || name.iter().any(|b| matches!(b, 0 | b'/'))
            {
                return Err(Malformed("a name that no file can have"));
            }
            let file = match tag & KIND {
                AGAIN if tag == AGAIN => {
                    let number = usize::try_from(rest.number()?).map_err(|_| CUT)?;
                    *self.linked.get(number).ok_or(Malformed("a file is unknown"))?
                }
                FILE | DIRECTORY => {
                    let facts = rest.facts(tag, &mut previous)?;
                    self.file(tag, &facts, &mut rest)?
                }
                _ => return Err(Malformed("a record of no known kind")),
            };
            self.name(dir, name, file)?;
        }
        Ok(())
    }

    fn file(&mut self, tag: u8, facts: &FileFacts, rest: &mut Rest<'_>) -> Result<u32, Malformed> {
        let (is_dir, foreign) = (tag & KIND == DIRECTORY, tag & FOREIGN != 0);
        let fits =
            if is_dir { facts.is_dir() && !foreign && tag & LINKED == 0 } else { foreign || !facts.is_dir() };
        if !fits {
            return Err(Malformed("a file's type is not that of its record"));
        }
        let table = &mut self.table;
        let at = u32::try_from(table.files.len()).ok().filter(|at| *at != NONE);
        let at = at.ok_or(Malformed("more files than a table holds"))?;
        table.files.push(FileRecord::new(facts, foreign));
        table.foreign |= foreign;
        if is_dir {
            let len = rest.byte()?.into();
            let handle = rest.bytes(len)?;
            // The type, and one byte at least.
            if handle.len() <= 4 {
                return Err(Malformed("a directory without a handle"));
            }
            table.files[at as usize].dir = table.dirs.len() as u32;
            let handle = HostHandle::from_bytes(handle);
            table.dirs.push(DirRecord { file: at, first: NONE, read: false, handle });
            self.dirs.push(at);
        }
        if tag & LINKED != 0 {
            self.linked.push(at);
        }
        Ok(at)
    }

    fn name(&mut self, dir: u32, name: &[u8], file: u32) -> Result<(), Malformed> {
        let table = &mut self.table;
        let full = Malformed("more names than a table holds");
        let at = table.add_name_record(dir, name).ok_or(full)?;
        let list = table.files[dir as usize].dir as usize;
        let next = std::mem::replace(&mut table.dirs[list].first, at);
        if next != NONE {
            table.names[next as usize].prev = at;
        }
        let next_link = std::mem::replace(&mut table.files[file as usize].names, at);
        let record = &mut table.names[at as usize];
        (record.next, record.file, record.next_link) = (next, file, next_link);
        self.names += 1;
        Ok(())
    }

    /// The table, if it has as many names and directories as it should.
    pub(crate) fn finish(mut self, dumped: Dumped) -> Result<NameTable, Malformed> {
        if (self.names, self.dirs.len() as u64) != (dumped.names, dumped.dirs) {
            return Err(Malformed("not as many names as it should have"));
        }
        self.table.alive = self.names + 1;
        let table = &self.table;
        let (by_name, others) = thread::scope(|scope| {
            // The hash tables of files beside that of names, if the system has a thread.
            let spawned = thread::Builder::new().spawn_scoped(scope, || by_file(table));
            let by_name = by_name(table);
            let others = spawned.map_or_else(
                |_| by_file(table),
                |other| other.join().unwrap_or(Err(Malformed("a thread ended"))),
            );
            (by_name, others)
        });
        let (by_name, (by_ino, by_handle)) = (by_name?, others?);
        (self.table.by_name, self.table.by_ino, self.table.by_handle) = (by_name, by_ino, by_handle);
        Ok(self.table)
    }
}

/// A hash table of records, none of which is the same as another.
fn hashed(
    records: impl Iterator<Item = u32>,
    count: usize,
    twice: Malformed,
    hash: impl Fn(u32) -> u64,
    same: impl Fn(u32, u32) -> bool,
) -> Result<HashTable<u32>, Malformed> {
    let mut table = HashTable::with_capacity(count);
    // A record's place is in the low bits of its hash. By parts of the table, the places that are written are near each
    // other; as the records come, each would be a miss of the cache.
    let places = (count * 8 / 7).max(1).next_power_of_two();
    let shift = places.trailing_zeros().saturating_sub(PARTS.trailing_zeros());
    let mut parts: Vec<Vec<(u64, u32)>> = vec![Vec::new(); PARTS];
    for at in records {
        let hash = hash(at);
        parts[(hash >> shift) as usize % PARTS].push((hash, at));
    }
    for (hash_of, at) in parts.into_iter().flatten() {
        match table.entry(hash_of, |&other| same(at, other), |&at| hash(at)) {
            Entry::Occupied(_) => return Err(twice),
            Entry::Vacant(place) => drop(place.insert(at)),
        }
    }
    Ok(table)
}

fn by_name(table: &NameTable) -> Result<HashTable<u32>, Malformed> {
    // The root's name is in no directory.
    let names = 1..table.names.len() as u32;
    let twice = Malformed("a name is there twice");
    let hash = |at: u32| table.name_hash(table.names[at as usize].parent, table.name_bytes(at));
    hashed(names, table.names.len(), twice, hash, |at, other| {
        let parent = |at: u32| table.names[at as usize].parent;
        parent(at) == parent(other) && table.name_bytes(at) == table.name_bytes(other)
    })
}

type ByFile = (HashTable<u32>, HashTable<u32>);

fn by_file(table: &NameTable) -> Result<ByFile, Malformed> {
    let hasher: &RandomState = &table.hash;
    let ino = |at: u32| table.files[at as usize].ino;
    let own = (0..table.files.len() as u32).filter(|&at| !table.files[at as usize].foreign);
    let twice = Malformed("an inode number is there twice");
    let by_ino = hashed(
        own,
        table.files.len(),
        twice,
        |at| hasher.hash_one(ino(at)),
        |at, other| ino(at) == ino(other),
    )?;
    let handle = |at: u32| table.dirs[at as usize].handle.as_bytes();
    let dirs = 0..table.dirs.len() as u32;
    let twice = Malformed("a handle is there twice");
    let by_handle = hashed(
        dirs,
        table.dirs.len(),
        twice,
        |at| hasher.hash_one(handle(at)),
        |at, other| handle(at) == handle(other),
    )?;
    Ok((by_ino, by_handle))
}
