//! Listings: an open directory that reads its back end as the kernel asks, and fills the table on the way.
//!
//! A [`DirReader`] keeps the entries of the last reply, because the kernel goes back into it when its caller's buffer
//! is full. Anything earlier is read again, and so is everything after an error. If the back end was read to its end in
//! one go, the directory is complete: a miss in it is an absence without a call.
//!
//! Offsets count entries; `.` and `..` are the first two. Entries may have gone since, so a new reading cannot count. It
//! passes over the names that came before the offset. For that, each name that was read costs a hash of 8 bytes. (Two
//! names of one hash are taken for one, in a new reading only: of a million names, in fewer than one of 10 million.)
//! One mutex for each open directory: the kernel sends one request at a time.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use parking_lot::Mutex;
use uvfs_cache::{CacheError, NodeAnswer, NodeListing, OwnedNode};

use crate::entry::NodeEntry;
use crate::limit::PendingRequest;
use crate::nodes::{Nodes, errno};

/// The back end's entries of one directory, `.` and `..` not among them: name, attributes, data. An entry that is ENOENT is
/// passed over: it was removed since its name was read.
pub type DirEntries<T> = Box<dyn Iterator<Item = Result<(OsString, FileAttr, T), Errno>> + Send>;

type Open<T> = Box<dyn Fn(&OwnedNode<T>) -> Result<DirEntries<T>, Errno> + Send + Sync>;

/// An open directory.
pub struct DirReader<T: Send + Sync + 'static> {
    nodes: Nodes<T>,
    dir: OwnedNode<T>,
    open: Open<T>,
    at: Mutex<Position<T>>,
}

/// A name, and its node.
struct Listed<T: Send + Sync + 'static> {
    name: OsString,
    node: OwnedNode<T>,
}

struct Position<T: Send + Sync + 'static> {
    /// The reading; `None` before the first one, and after an error, which may have cost an entry.
    entries: Option<DirEntries<T>>,
    /// Until the directory is complete, or is known not to become so.
    listing: Option<NodeListing<T>>,
    /// Entries that were read and are kept.
    kept: VecDeque<Listed<T>>,
    /// Entries before those.
    before: u64,
    /// Hashes of all names since the last rewind, in the order of their offsets.
    names: Vec<u64>,
    /// Those that this reading passes over.
    passed: HashSet<u64>,
    hash: RandomState,
}

impl<T: Send + Sync + 'static> Default for Position<T> {
    fn default() -> Self {
        Self {
            entries: None,
            listing: None,
            kept: VecDeque::new(),
            before: 0,
            names: Vec::new(),
            passed: HashSet::new(),
            hash: RandomState::new(),
        }
    }
}

impl<T: Send + Sync + 'static> Position<T> {
    /// Whether the reading leads to the entry after `n` others. An offset beyond all names is of another open directory
    /// (NFS); then all that is left is to count.
    fn leads_to(&self, n: u64) -> bool {
        let read = self.before + self.kept.len() as u64;
        self.entries.is_some() && self.before <= n && (n <= read || n > self.names.len() as u64)
    }

    /// Begin a reading that passes over the first `n` names.
    fn begin(&mut self, n: u64, listing: NodeListing<T>, entries: DirEntries<T>) {
        let known = usize::try_from(n).unwrap_or(usize::MAX).min(self.names.len());
        self.passed = self.names[..known].iter().copied().collect();
        (self.entries, self.listing) = (Some(entries), Some(listing));
        self.kept.clear();
        self.before = known as u64;
    }

    /// The entry after `n` others. `None`: that is the end.
    fn nth(&mut self, nodes: &Nodes<T>, n: u64) -> Result<Option<&Listed<T>>, Errno> {
        while self.before + self.kept.len() as u64 <= n {
            if !self.read(nodes)? {
                return Ok(None);
            }
        }
        Ok(self.kept.get((n - self.before) as usize))
    }

    /// Drop the entries before the `n`th, and read those that were not read yet, one at a time: a kept entry holds
    /// its node in the table.
    fn skip_to(&mut self, nodes: &Nodes<T>, n: u64) -> Result<(), Errno> {
        self.drop_before(n);
        while self.before < n && self.read(nodes)? {
            self.drop_before(n);
        }
        Ok(())
    }

    /// Read one entry. False: that was the end.
    fn read(&mut self, nodes: &Nodes<T>) -> Result<bool, Errno> {
        loop {
            let Some(entry) = self.entries.as_mut().and_then(Iterator::next) else {
                if let Some(listing) = self.listing.take().filter(|_| self.passed.is_empty()) {
                    listing.complete(nodes.options().listing_ttl);
                }
                return Ok(false);
            };
            let (name, attr, data) = match entry {
                // Removed since its name was read.
                Err(error) if error.code() == Errno::ENOENT.code() => continue,
                entry => entry?,
            };
            let hash = self.hash.hash_one(&name);
            if self.passed.contains(&hash) {
                continue;
            }
            // After the end there is no listing.
            let listing = self.listing.as_ref().ok_or(Errno::EIO)?;
            let answer = nodes.answer(|| None, (attr, data));
            let node = nodes.list(listing, name.as_bytes(), answer).map_err(errno)?;
            let at = self.before as usize + self.kept.len();
            self.kept.push_back(Listed { name, node });
            match self.names.get_mut(at) {
                Some(known) => *known = hash,
                None => self.names.push(hash),
            }
            return Ok(true);
        }
    }

    /// Give entries to a reply from offset `next` on, which moves.
    fn give(&mut self, nodes: &Nodes<T>, next: &mut u64, add: Add<'_, T>) -> Result<(), Errno> {
        self.skip_to(nodes, *next - 2)?;
        while let Some(listed) = self.nth(nodes, *next - 2)? {
            if add(&listed.node, *next + 1, &listed.name) {
                break;
            }
            *next += 1;
        }
        Ok(())
    }

    fn drop_before(&mut self, n: u64) {
        let gone = (n.saturating_sub(self.before) as usize).min(self.kept.len());
        self.kept.drain(..gone);
        self.before += gone as u64;
    }
}

impl<T: Send + Sync + 'static> Nodes<T> {
    /// A listed entry. If it is late, the name leads to the node all the same, for paths.
    fn list(
        &self,
        listing: &NodeListing<T>,
        name: &[u8],
        answer: NodeAnswer<T>,
    ) -> Result<OwnedNode<T>, CacheError> {
        let by_name = self.is_by_name();
        let node = if by_name {
            listing.blocking_found_by_name(name, answer)?
        } else {
            listing.blocking_found(name, answer)?
        };
        if node.name().is_some() {
            return Ok(node);
        }
        let mut lock = listing.dir().blocking_lock_name(name);
        match lock.previous() {
            // Another caller has asked meanwhile.
            Some(known) => Ok(if by_name { known } else { node }),
            None => self.link_untrusted(lock, &node).map(|()| node),
        }
    }

    /// Open a directory for listing. `open` begins a reading of the back end. It is called for the first request, and
    /// again when a caller rewinds.
    ///
    /// # Errors
    /// ESTALE: there is no such directory.
    pub fn open_dir(
        &self,
        ino: INodeNo,
        open: impl Fn(&OwnedNode<T>) -> Result<DirEntries<T>, Errno> + Send + Sync + 'static,
    ) -> Result<DirReader<T>, Errno> {
        let dir = self.node(ino)?;
        Ok(DirReader { nodes: self.clone(), dir, open: Box::new(open), at: Mutex::default() })
    }
}

/// The next entry for a reply; returns whether the reply is full.
type Add<'a, T> = &'a mut dyn FnMut(&OwnedNode<T>, u64, &OsStr) -> bool;

impl<T: Send + Sync + 'static> DirReader<T> {
    /// The directory.
    pub fn dir(&self) -> &OwnedNode<T> {
        &self.dir
    }

    /// Answer a readdir.
    pub fn readdir(&self, offset: u64, mut reply: ReplyDirectory) {
        let filled = self.fill(offset, &mut |node, next, name| {
            reply.add(self.nodes.number_of(node), next, kind_of(&self.nodes, node), name)
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    /// Answer a readdirplus. Each entry but `.` and `..` is a lookup that the kernel will forget.
    pub fn readdirplus(&self, offset: u64, mut reply: ReplyDirectoryPlus) {
        let mut given = Vec::new();
        let filled = self.fill(offset, &mut |node, next, name| {
            // Counted before the reply is sent, and taken back if the entry does not fit.
            let counted = (next > 2).then(|| NodeEntry::new(&self.nodes, node.clone()));
            let attr = self.nodes.file_attr(node);
            let full = reply.add(attr.ino, next, name, &self.nodes.attr_ttl(node), &attr, Generation(0));
            if !full {
                given.extend(counted);
            }
            full
        });
        match filled {
            Ok(()) => {
                given.iter_mut().for_each(NodeEntry::give);
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    /// [`DirReader::fill_once`], again for a while if there is no memory for the first entry.
    fn fill(&self, offset: u64, add: Add<'_, T>) -> Result<(), Errno> {
        let mut pending = self.nodes.pending(&self.dir);
        self.nodes.with_patience(|| self.fill_once(&mut pending, offset, add))
    }

    /// Entries from `offset` on, until the reply is full. An error counts only if no entry came before it. The reading
    /// has lost the entry that it is about, so another one begins.
    fn fill_once(&self, pending: &mut PendingRequest, offset: u64, add: Add<'_, T>) -> Result<(), Errno> {
        let mut at = self.at.lock();
        let n = offset.saturating_sub(2);
        // A rewind reads anew, so that the caller sees changes.
        if offset == 0 {
            *at = Position::default();
        }
        if !at.leads_to(n) {
            let listing = self.dir.begin_listing();
            let entries = pending.ask(|| (self.open)(&self.dir))?;
            at.begin(n, listing, entries);
        }
        let mut next = offset;
        while next < 2 {
            let parent = if next == 0 { None } else { self.dir.name().map(|(parent, _)| parent) };
            let node = parent.as_ref().unwrap_or(&self.dir);
            if add(node, next + 1, OsStr::new(if next == 0 { "." } else { ".." })) {
                return Ok(());
            }
            next += 1;
        }
        let filled = at.give(&self.nodes, &mut next, add);
        if filled.is_err() {
            at.entries = None;
        }
        if next == offset { filled } else { Ok(()) }
    }
}

fn kind_of<T: Send + Sync + 'static>(nodes: &Nodes<T>, node: &OwnedNode<T>) -> FileType {
    nodes.file_attr(node).kind
}

impl<T: Send + Sync + 'static> fmt::Debug for DirReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirReader({:?})", self.dir)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attr::host_attr;
    use crate::lookup::LookedUp;
    use crate::nodes::NodesOptions;

    /// A directory of the names "0" to "9", of which some are removed, and a reading may fail at some.
    struct Names {
        there: Mutex<Vec<u64>>,
        fails: Mutex<Option<u64>>,
    }

    fn reader() -> (Arc<Names>, DirReader<()>) {
        let found = |number| Ok((host_attr(number, &std::fs::symlink_metadata("/")?), ()));
        let nodes = Nodes::new(NodesOptions::default(), |_| found(1)).unwrap();
        let names = Arc::new(Names { there: Mutex::new((0..10).collect()), fails: Mutex::new(None) });
        let of = Arc::clone(&names);
        let reader = nodes.open_dir(INodeNo::ROOT, move |_| {
            let (there, of) = (of.there.lock().clone(), Arc::clone(&of));
            Ok(Box::new(there.into_iter().map(move |n| {
                if *of.fails.lock() == Some(n) {
                    return Err(Errno::ENOMEM);
                }
                let (attr, data) = found(n + 2)?;
                Ok((n.to_string().into(), attr, data))
            })))
        });
        (names, reader.unwrap())
    }

    /// A reply for `size` entries: the names, and the offset after the last one.
    fn reply(reader: &DirReader<()>, offset: u64, size: usize) -> Result<(Vec<u64>, u64), Errno> {
        let (mut names, mut end) = (Vec::new(), offset);
        let mut pending = reader.nodes.pending(&reader.dir);
        reader.fill_once(&mut pending, offset, &mut |_, next, name| {
            if names.len() == size {
                return true;
            }
            names.push(name.to_str().unwrap().parse().unwrap());
            end = next;
            false
        })?;
        Ok((names, end))
    }

    /// From an offset to the end.
    fn rest(reader: &DirReader<()>, mut offset: u64) -> Vec<u64> {
        let mut all = Vec::new();
        loop {
            let (names, end) = reply(reader, offset, 3).unwrap();
            if names.is_empty() {
                return all;
            }
            all.extend(names);
            offset = end;
        }
    }

    #[test]
    fn removals_and_an_error_meanwhile_lose_no_entry() {
        let (names, reader) = reader();
        *names.fails.lock() = Some(4);
        let (first, end) = reply(&reader, 2, 6).unwrap();
        assert_eq!(first, [0, 1, 2, 3]);
        *names.fails.lock() = None;
        names.there.lock().retain(|n| !first.contains(n));
        assert_eq!(rest(&reader, end), [4, 5, 6, 7, 8, 9]);
        // An error before the first entry of a reply is the caller's, who asks again.
        *names.fails.lock() = Some(6);
        let (first, end) = reply(&reader, 2, 2).unwrap();
        assert_eq!(first, [4, 5]);
        names.there.lock().retain(|n| !first.contains(n));
        assert_eq!(reply(&reader, end, 2).unwrap_err().code(), Errno::ENOMEM.code());
        *names.fails.lock() = None;
        assert_eq!(rest(&reader, end), [6, 7, 8, 9]);
    }

    #[test]
    fn an_entry_of_a_late_listing_has_a_path() {
        let (_, reader) = reader();
        reply(&reader, 2, 1).unwrap();
        reader.dir.invalidate(b"5");
        rest(&reader, 3);
        let node = reader.nodes.superblock().by_number(7).expect("the kernel may hold it");
        assert_eq!(reader.nodes.path(&node).unwrap().to_str(), Some("5"));
    }

    #[test]
    fn a_seek_backwards_leads_to_the_entries_that_came_after() {
        let (names, reader) = reader();
        let (_, third) = reply(&reader, 2, 3).unwrap();
        let (_, fifth) = reply(&reader, third, 2).unwrap();
        assert_eq!(rest(&reader, fifth), [5, 6, 7, 8, 9]);
        names.there.lock().retain(|n| ![0, 1, 4, 6].contains(n));
        names.there.lock().insert(0, 50);
        let mut after = rest(&reader, third);
        after.sort_unstable();
        assert_eq!(after, [3, 5, 7, 8, 9, 50]);
        // From the start, and a rewind.
        assert_eq!(rest(&reader, 2).len(), 7);
        assert_eq!(reply(&reader, 0, 0).unwrap().1, 0);
    }

    #[test]
    fn a_seek_forwards_after_one_backwards_keeps_its_place() {
        let (names, reader) = reader();
        let (_, second) = reply(&reader, 2, 2).unwrap();
        let (_, seventh) = reply(&reader, second, 5).unwrap();
        assert_eq!(rest(&reader, seventh), [7, 8, 9]);
        names.there.lock().retain(|n| ![0, 3, 4].contains(n));
        assert_eq!(reply(&reader, second, 1).unwrap().0, [2]);
        assert_eq!(rest(&reader, seventh), [7, 8, 9]);
    }

    #[test]
    fn a_reading_that_passes_over_names_does_not_complete_the_directory() {
        let (names, reader) = reader();
        *names.fails.lock() = Some(4);
        let (_, end) = reply(&reader, 2, 6).unwrap();
        *names.fails.lock() = None;
        // The table no longer has a name that the second reading passes over.
        reader.dir.invalidate(b"1");
        rest(&reader, end);
        let known = reader.nodes.start_lookup(INodeNo::ROOT, OsStr::new("1")).unwrap();
        assert!(matches!(known, LookedUp::Ask(_)), "{known:?}");
    }

    #[test]
    fn without_numbers_a_listed_name_keeps_its_node_and_a_late_one_has_a_path() {
        let found = || Ok((host_attr(0, &std::fs::symlink_metadata("/")?), ()));
        let nodes = Nodes::new(NodesOptions::default(), |_| found()).unwrap();
        let of = nodes.clone();
        let reader = nodes.open_dir(INodeNo::ROOT, move |_| {
            let of = of.clone();
            Ok(Box::new((0..3).map(move |n: u64| {
                // The answers from here on are late.
                if n == 1 {
                    of.make(INodeNo::ROOT, OsStr::new("new"), FileType::Directory, |_| found()).unwrap();
                    of.remove(INodeNo::ROOT, OsStr::new("new"), |_| Ok(())).unwrap();
                }
                let (attr, data) = found()?;
                Ok((n.to_string().into(), attr, data))
            })))
        });
        let (reader, mut listings) = (reader.unwrap(), [Vec::new(), Vec::new()]);
        for listed in &mut listings {
            let mut pending = reader.nodes.pending(&reader.dir);
            let add: Add<'_, ()> = &mut |node, next, _| {
                listed.extend((next > 2).then(|| node.clone()));
                false
            };
            reader.fill_once(&mut pending, 0, add).unwrap();
        }
        let paths = listings[0].iter().map(|node| nodes.path(node).unwrap().into_os_string());
        assert_eq!(paths.collect::<Vec<_>>(), ["0", "1", "2"]);
        assert_eq!(listings[0], listings[1]);
    }
}
