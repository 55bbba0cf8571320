//! Reading a directory whose names are known already: from a snapshot, or from reports that came first.
//!
//! A listing replaces the names that are known. Each name that it shows is put, and [`NameTable::end_listing`] then removes the
//! names that it did not show. A large directory has several parts, and two listings of one directory may be mixed
//! if it was renamed meanwhile. So listings are numbered in the order in which they begin, and a name holds the
//! number of the newest listing at the moment at which it was shown. The end of a listing removes only names that
//! nothing has shown since its own begin. A name that another listing has shown stays: two listings of one directory
//! differ only by changes, and each change has its report.

use super::{NONE, NameTable, Note};

impl NameTable {
    /// Begins a listing. Returns its number; nothing if there are no numbers left: the tree is then read anew.
    pub(crate) fn begin_listing(&mut self) -> Option<u32> {
        self.listing = self.listing.checked_add(1)?;
        Some(self.listing)
    }

    /// All names of a directory were put since the begin of this listing: no other name is in it.
    pub(crate) fn end_listing(&mut self, dir: u32, began: u32, note: Note) {
        let list = self.files[dir as usize].dir;
        let Some(record) = self.dirs.get_mut(list as usize) else { return };
        record.read = true;
        let mut at = record.first;
        let mut old = Vec::new();
        while at != NONE {
            let name = &self.names[at as usize];
            if !name.dead && name.seen < began {
                old.push(at);
            }
            at = name.next;
        }
        old.into_iter().for_each(|at| self.kill(at, note));
    }

    /// Removes all names of a directory, which stays unread.
    pub(crate) fn forget_content(&mut self, dir: u32) {
        if let Some(began) = self.begin_listing() {
            self.end_listing(dir, began, Note::Silent);
        }
        self.is_not_read(dir);
    }

    /// The host could not list this directory: its content counts as unread.
    pub(crate) fn is_not_read(&mut self, dir: u32) {
        let list = self.files[dir as usize].dir;
        if let Some(record) = self.dirs.get_mut(list as usize) {
            record.read = false;
        }
    }

    /// Whether this is a directory of the tree's file system whose content has not been read.
    pub(crate) fn is_unread(&self, file: u32) -> bool {
        self.dirs.get(self.files[file as usize].dir as usize).is_some_and(|dir| !dir.read)
    }

    /// The directories whose content has not been read.
    pub(crate) fn unread_dirs(&self) -> Vec<u32> {
        let unread = self.dirs.iter().filter(|dir| !dir.read && !dir.handle.as_bytes().is_empty());
        unread.map(|dir| dir.file).collect()
    }
}
