//! The lists that records are in: names of a directory, names of a file, free records.
//!
//! Every function leaves each list whole. A record's index is reused only after nothing leads to it any more.

use std::hash::BuildHasher;

use hashbrown::hash_table::Entry;

use super::changes::Touch;
use super::{DirRecord, FileFacts, FileRecord, HostHandle, NONE, NameRecord, NameTable, Note};

impl NameTable {
    /// A record for a name that leads nowhere yet, in no list. Nothing if there is no index or space left.
    pub(super) fn add_name_record(&mut self, parent: u32, name: &[u8]) -> Option<u32> {
        let len = u8::try_from(name.len()).ok()?;
        let text = self.text.put(name)?;
        let record = NameRecord {
            tick: 0,
            parent,
            file: NONE,
            next_link: NONE,
            next: NONE,
            prev: NONE,
            text,
            seen: self.listing,
            len,
            dead: false,
            was_dir: false,
            was_type: 0,
        };
        if self.free_name != NONE {
            let at = self.free_name;
            self.free_name = self.names[at as usize].next;
            self.names[at as usize] = record;
            return Some(at);
        }
        let at = u32::try_from(self.names.len()).ok().filter(|&at| at != NONE)?;
        self.names.push(record);
        Some(at)
    }

    /// A name in a directory, in its list and found by its text, that leads nowhere yet.
    fn add_name(&mut self, dir: u32, name: &[u8]) -> Option<u32> {
        let at = self.add_name_record(dir, name)?;
        let list = self.files[dir as usize].dir as usize;
        let first = self.dirs.get(list)?.first;
        self.names[at as usize].next = first;
        if first != NONE {
            self.names[first as usize].prev = at;
        }
        self.dirs[list].first = at;
        let hash = self.name_hash(dir, name);
        let (names, text, hasher) = (&self.names, &self.text, &self.hash);
        self.by_name.insert_unique(hash, at, |&at| {
            let record = &names[at as usize];
            hasher.hash_one((record.parent, text.get(record.text, record.len)))
        });
        Some(at)
    }

    /// A dead name that was never seen to lead anywhere. It may have led to a directory.
    pub(super) fn add_dead(&mut self, dir: u32, name: &[u8]) -> Option<()> {
        let at = self.add_name(dir, name)?;
        let record = &mut self.names[at as usize];
        (record.dead, record.was_dir) = (true, true);
        self.touch(at, Touch::Changed);
        Some(())
    }

    /// Takes a name out of its directory. It must be in no file's list.
    pub(super) fn remove_name(&mut self, at: u32) {
        let NameRecord { tick, parent, next, prev, text, len, .. } = self.names[at as usize];
        let hash = self.name_hash(parent, self.name_bytes(at));
        if let Ok(found) = self.by_name.find_entry(hash, |&found| found == at) {
            found.remove();
        }
        let list = self.files[parent as usize].dir as usize;
        match prev {
            NONE => self.dirs[list].first = next,
            prev => self.names[prev as usize].next = next,
        }
        if next != NONE {
            self.names[next as usize].prev = prev;
        }
        self.text.free(text, len);
        if tick != 0 {
            self.changes.remove(&tick);
        }
        let record = &mut self.names[at as usize];
        (record.next, record.parent, record.file, record.dead) = (self.free_name, NONE, NONE, true);
        self.free_name = at;
    }

    /// A file without a name. One on this file system is found by its number from now on, a directory by its handle.
    pub(super) fn add_file(
        &mut self,
        facts: &FileFacts,
        handle: Option<HostHandle>,
        foreign: bool,
    ) -> Option<u32> {
        let mut record = FileRecord::new(facts, foreign);
        let at = if self.free_file != NONE {
            let at = self.free_file;
            let old = &self.files[at as usize];
            record.generation = old.generation;
            self.free_file = old.names;
            self.files[at as usize] = record;
            at
        } else {
            let at = u32::try_from(self.files.len()).ok().filter(|&at| at != NONE)?;
            self.files.push(record);
            at
        };
        if foreign {
            self.foreign = true;
            return Some(at);
        }
        let (files, hasher) = (&self.files, &self.hash);
        let hash = hasher.hash_one(facts.ino);
        let number = |&at: &u32| files[at as usize].ino;
        match self.by_ino.entry(hash, |at| number(at) == facts.ino, |at| hasher.hash_one(number(at))) {
            Entry::Occupied(mut found) => *found.get_mut() = at,
            Entry::Vacant(place) => drop(place.insert(at)),
        }
        if let Some(handle) = handle.filter(|_| facts.is_dir()) {
            self.add_dir(at, handle);
        }
        Some(at)
    }

    fn add_dir(&mut self, file: u32, handle: HostHandle) {
        let hash = self.hash.hash_one(handle.as_bytes());
        let record = DirRecord { file, first: NONE, read: false, handle };
        let at = match self.free_dirs.pop() {
            Some(at) => {
                self.dirs[at as usize] = record;
                at
            }
            // As many as files at the most.
            None => {
                self.dirs.push(record);
                (self.dirs.len() - 1) as u32
            }
        };
        self.files[file as usize].dir = at;
        let (dirs, hasher) = (&self.dirs, &self.hash);
        self.by_handle.insert_unique(hash, at, |&at| hasher.hash_one(dirs[at as usize].handle.as_bytes()));
    }

    /// Frees a file that no name leads to, and is no directory any more.
    fn free_file(&mut self, file: u32) {
        let record = &mut self.files[file as usize];
        let (ino, dir, foreign) = (record.ino, record.dir, record.foreign);
        record.generation = record.generation.wrapping_add(1);
        (record.free, record.names, record.dir) = (true, self.free_file, NONE);
        self.free_file = file;
        if !foreign && let Ok(found) = self.by_ino.find_entry(self.hash.hash_one(ino), |&at| at == file) {
            found.remove();
        }
        if dir != NONE {
            let hash = self.hash.hash_one(self.dirs[dir as usize].handle.as_bytes());
            if let Ok(found) = self.by_handle.find_entry(hash, |&at| at == dir) {
                found.remove();
            }
            self.dirs[dir as usize].handle = HostHandle::from_bytes(&[]);
            self.free_dirs.push(dir);
        }
    }

    /// Takes a name out of its file's list.
    fn unlink(&mut self, at: u32) {
        let (file, next) = (self.names[at as usize].file, self.names[at as usize].next_link);
        if self.files[file as usize].names == at {
            self.files[file as usize].names = next;
            return;
        }
        let mut before = self.files[file as usize].names;
        while before != NONE {
            let after = self.names[before as usize].next_link;
            if after == at {
                self.names[before as usize].next_link = next;
                return;
            }
            before = after;
        }
    }

    /// The name leads nowhere any more. If it was the file's last, the file is nameless.
    pub(super) fn kill(&mut self, at: u32, note: Note) {
        let NameRecord { file, parent, .. } = self.names[at as usize];
        if parent == NONE {
            // The root's: the server notices that by itself.
            return;
        }
        if note == Note::Tick {
            self.note_names_below(at);
        }
        self.unlink(at);
        self.alive -= 1;
        let old = &self.files[file as usize];
        let (generation, was_dir, was_type) = (old.generation, old.dir != NONE, (old.mode >> 12) as u8);
        if old.names == NONE {
            self.nameless.push((file, generation));
        }
        if note == Note::Silent {
            self.remove_name(at);
            return;
        }
        let record = &mut self.names[at as usize];
        (record.dead, record.next_link) = (true, generation);
        (record.was_dir, record.was_type) = (was_dir, was_type);
        self.touch(at, Touch::Changed);
    }

    pub(super) fn kill_links(&mut self, file: u32, note: Note) {
        let links: Vec<u32> = self.links_of(file).collect();
        links.into_iter().for_each(|at| self.kill(at, note));
    }

    /// Another file has this number now, so the former one's names are out of date.
    pub(super) fn vacate(&mut self, ino: u64, note: Note) {
        if let Some(file) = self.by_number(ino).filter(|&file| file != super::ROOT) {
            self.kill_links(file, note);
            if self.files[file as usize].names == NONE {
                self.drop_file(file);
            }
        }
    }

    /// Lets a name lead to a file.
    pub(super) fn lead(&mut self, dir: u32, name: &[u8], file: u32, note: Note) -> Option<()> {
        let known = self.lookup(dir, name);
        let (at, was_dir, was_dead) = match known {
            None => (self.add_name(dir, name)?, false, true),
            Some(at) if self.names[at as usize].dead => (at, self.names[at as usize].was_dir, true),
            Some(at) => {
                let old = self.names[at as usize].file;
                if note == Note::Tick {
                    self.note_names_below(at);
                }
                self.unlink(at);
                let record = &self.files[old as usize];
                if record.names == NONE {
                    self.nameless.push((old, record.generation));
                }
                (at, record.dir != NONE, false)
            }
        };
        let next = self.files[file as usize].names;
        let record = &mut self.names[at as usize];
        (record.file, record.dead, record.was_dir, record.next_link) = (file, false, false, next);
        record.seen = self.listing;
        self.files[file as usize].names = at;
        if was_dead {
            self.alive += 1;
        }
        if note == Note::Tick {
            // Content of the directory that is here now, or was here before, may not be reported by itself.
            let whole = was_dir || self.files[file as usize].dir != NONE;
            self.touch(at, Touch::Led { born: was_dead, whole });
        }
        Some(())
    }

    /// Drops a file without a name, and everything below it. A file below it that has another name stays.
    pub(super) fn drop_file(&mut self, file: u32) {
        let mut nameless = vec![file];
        while let Some(file) = nameless.pop() {
            let dir = self.files[file as usize].dir;
            while dir != NONE && self.dirs[dir as usize].first != NONE {
                let at = self.dirs[dir as usize].first;
                if !self.names[at as usize].dead {
                    let child = self.names[at as usize].file;
                    self.unlink(at);
                    self.alive -= 1;
                    if self.files[child as usize].names == NONE {
                        nameless.push(child);
                    }
                }
                self.remove_name(at);
            }
            self.free_file(file);
        }
    }
}
