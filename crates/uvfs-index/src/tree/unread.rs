//! The names and directories of a tree that could not be read: answers that they may be missing from say so.
//!
//! A directory counts until it is read, or leaves the tree. A name counts until a look at it succeeds, or its directory
//! is listed again. Of the names in one directory the first [`NAMES`] are kept; the others are only counted. A file that
//! was looked at by its number counts until the tree is read anew. The table's writer changes this, readers read it, under
//! the lock that the table is under.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use rustix::io::Errno;

use crate::table::{HostHandle, NameTable};

/// Directories that may be remembered before those that left the tree are looked for.
const FEW: usize = 16;
/// Names of a directory that are kept.
const NAMES: usize = 64;
/// Directories and names that a sentence names.
const SHOWN: usize = 3;

/// Names of a directory.
#[derive(Default)]
struct UnreadNames {
    names: Vec<(Box<[u8]>, Errno)>,
    more: u64,
}

/// See the module's head.
#[derive(Default)]
pub(super) struct Unread {
    dirs: HashMap<HostHandle, Errno, RandomState>,
    /// By their directories, which could be listed.
    names: HashMap<HostHandle, UnreadNames, RandomState>,
    /// Directories at which those that left the tree are forgotten.
    sweep_at: usize,
    files: u64,
    last_file: Option<Errno>,
}

impl Unread {
    /// A file that was looked at by its number could not be read, for this reason.
    pub(super) fn file(&mut self, errno: Errno) {
        self.files += 1;
        self.last_file = Some(errno);
    }

    /// A name in a directory could not be looked at.
    pub(super) fn name(&mut self, dir: &HostHandle, name: &[u8], errno: Errno, table: &NameTable) {
        self.sweep(table);
        let known = self.names.entry(dir.clone()).or_default();
        if let Some((_, why)) = known.names.iter_mut().find(|(known, _)| **known == *name) {
            *why = errno;
        } else if known.names.len() < NAMES {
            known.names.push((name.into(), errno));
        } else {
            known.more += 1;
        }
    }

    /// A look at a name has succeeded.
    pub(super) fn name_was_seen(&mut self, dir: &HostHandle, name: &[u8]) {
        if self.names.is_empty() {
            return;
        }
        if let Some(known) = self.names.get_mut(dir) {
            known.names.retain(|(known, _)| **known != *name);
            if known.names.is_empty() && known.more == 0 {
                self.names.remove(dir);
            }
        }
    }

    /// A new listing of a directory has begun: it looks at each name.
    pub(super) fn is_listed_anew(&mut self, dir: &HostHandle) {
        self.names.remove(dir);
    }

    /// A directory could not be read.
    pub(super) fn dir(&mut self, dir: HostHandle, errno: Errno, table: &NameTable) {
        self.sweep(table);
        self.dirs.insert(dir, errno);
    }

    /// Forgets directories that left the tree, before there are too many of them.
    fn sweep(&mut self, table: &NameTable) {
        if self.dirs.len() + self.names.len() >= self.sweep_at.max(FEW) {
            let stays = |dir: &HostHandle| table.dir_of(dir.as_bytes()).is_some();
            self.dirs.retain(|dir, _| stays(dir));
            self.names.retain(|dir, _| stays(dir));
            self.sweep_at = 2 * (self.dirs.len() + self.names.len());
        }
    }

    /// Those that could not be read.
    pub(super) fn dirs(&self) -> Vec<HostHandle> {
        self.dirs.keys().cloned().collect()
    }

    /// Whether all directories and their names were read.
    pub(super) fn is_empty(&self) -> bool {
        self.dirs.is_empty() && self.names.is_empty()
    }

    /// The directories that could not be read, or not each name in them.
    pub(super) fn places(&self) -> impl Iterator<Item = &HostHandle> {
        self.dirs.keys().chain(self.names.keys())
    }

    /// Why a directory could not be read.
    pub(super) fn why_not(&self, dir: &HostHandle) -> Option<Errno> {
        if self.dirs.is_empty() { None } else { self.dirs.get(dir).copied() }
    }

    /// Names in a directory that could not be looked at.
    pub(super) fn names_of(&self, dir: &HostHandle) -> &[(Box<[u8]>, Errno)] {
        self.names.get(dir).map_or(&[], |known| &known.names)
    }

    /// A directory was read.
    pub(super) fn was_read(&mut self, dir: &HostHandle) {
        self.dirs.remove(dir);
    }

    /// Their number, and some of them by name.
    pub(super) fn shown(&self, table: &NameTable) -> (u64, Option<String>) {
        self.shown_of(table, |_| true)
    }

    /// Those at or below a path: their number, and some of them by name. Files that were looked at by number are among them:
    /// these may have a name there.
    pub(super) fn shown_below(&self, table: &NameTable, below: &[u8]) -> (u64, Option<String>) {
        if below.is_empty() || self.is_empty() {
            return self.shown(table);
        }
        let Some(above) = table.walk(below) else { return self.shown_of(table, |_| false) };
        self.shown_of(table, |dir| table.is_below(dir, above))
    }

    fn shown_of(&self, table: &NameTable, counts: impl Fn(u32) -> bool) -> (u64, Option<String>) {
        let (mut count, mut some) = (self.files, Vec::new());
        let known = |dir: &HostHandle| table.dir_of(dir.as_bytes()).filter(|dir| counts(*dir));
        for (dir, errno) in &self.dirs {
            let Some(dir) = known(dir) else { continue };
            count += 1;
            if some.len() < SHOWN {
                some.extend(table.path_of(dir).map(|path| entry(&path, *errno)));
            }
        }
        for (dir, names) in &self.names {
            let Some(dir) = known(dir) else { continue };
            count += names.names.len() as u64 + names.more;
            for (name, errno) in names.names.iter().take(SHOWN - some.len()) {
                some.extend(table.path_in(dir, name).map(|path| entry(&path, *errno)));
            }
        }
        if count == 0 {
            return (0, None);
        }
        // The order of the maps is none.
        some.sort_unstable();
        if let Some(errno) = self.last_file.filter(|_| some.len() < SHOWN) {
            some.push(format!("a file without a known name ({})", reason(errno)));
        }
        let more = count - (some.len() as u64).min(count);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        (count, Some(some.join(", ") + &more))
    }
}

/// A path below the root of the tree, without characters that could end the line or move a cursor.
fn entry(path: &[u8], errno: Errno) -> String {
    let path = if path.is_empty() { "." } else { &*String::from_utf8_lossy(path) };
    let path: String = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    format!("{path} ({})", reason(errno))
}

/// An error without its number.
fn reason(errno: Errno) -> String {
    let text = errno.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
