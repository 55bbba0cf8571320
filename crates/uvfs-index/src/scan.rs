//! Reading a tree from the host: every directory below one, by several threads.
//!
//! A thread takes a directory, lists it, looks at each name and passes the *listing* on. Only after that it offers
//! the directories that it found to the other threads. So the receiver, which alone changes the table, gets a
//! directory's own listing after the one that names it. Directories are opened by handle, so that renames above them
//! do not matter.
//!
//! A directory that cannot be opened or listed has one *failed* part. The receiver decides: an error may pass
//! ([`passes`]), and a directory that seems to be gone may have been renamed.
//!
//! Without capabilities, directories are opened by their paths. Then each that waits knows its *place*: the names on
//! its way. The receiver's table cannot tell it: the listing with its name may not have come there yet.
//!
//! A large directory has several listings, which are *parts* of one. An empty directory has one too.
//!
//! Listings wait in a bounded channel, so memory does not grow with the tree. A thread that waits for work while
//! others read may be given some; all end when none reads and none is left, or when the receiver is gone.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::host::{FoundName, HostTree, Way, facts_of, list};
use crate::table::{FileFacts, HostHandle};

/// Bytes that the entries of a directory are read into at a time.
const ENTRIES: usize = 64 << 10;
/// Listings that may wait for the receiver.
const WAITING: usize = 256;
/// Names of a listing; a larger directory has several.
const NAMES: usize = 4096;

/// Names of one directory, all or some of them.
pub(crate) struct DirListing {
    pub(crate) dir: HostHandle,
    /// The directory's own attributes after it was marked, where each has a mark of its own; with the first part.
    pub(crate) facts: Option<FileFacts>,
    pub(crate) names: Vec<(Box<[u8]>, FoundName)>,
    /// Names whose state could not be seen: they changed at that moment, or for the reason that is given.
    pub(crate) unseen: Vec<(Box<[u8]>, Errno)>,
    /// Why the directory could not be read; it then has this one part, without names.
    pub(crate) failed: Option<Errno>,
    pub(crate) part: ListingPart,
}

/// Which part of a directory's names a listing has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListingPart {
    /// All of them.
    Whole,
    First(u64),
    Middle(u64),
    Last(u64),
}

/// The way to a directory from the root, at the moment at which it was found.
struct Place {
    above: Option<Arc<Place>>,
    name: Box<[u8]>,
}

impl Drop for Place {
    /// Without recursion: directories may be nested deeper than a thread's stack allows calls.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(place) = above {
            above = Arc::into_inner(place).and_then(|mut place| place.above.take());
        }
    }
}

impl Place {
    fn path(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = Some(self);
        while let Some(place) = at {
            names.push(&*place.name);
            at = place.above.as_deref();
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// A directory that waits to be read.
struct ToRead {
    handle: HostHandle,
    /// None for the root, and where directories are opened by handle.
    place: Option<Arc<Place>>,
}

/// Whether an error of a look at the host may be over soon: what was looked at is being changed, or the system is short
/// of something.
pub(crate) fn passes(errno: Errno) -> bool {
    matches!(errno, Errno::STALE | Errno::NOENT | Errno::AGAIN) || is_shortage(errno)
}

/// Whether an error says nothing about what was looked at: the system is short of something, or the call was interrupted.
pub(crate) fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::NOMEM | Errno::NFILE | Errno::MFILE | Errno::BUSY)
}

/// Numbers of readings that have several parts.
static READINGS: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Work {
    dirs: VecDeque<ToRead>,
    /// Threads that read a directory.
    busy: usize,
    stopped: bool,
}

struct Scan<'a> {
    host: &'a HostTree,
    work: Mutex<Work>,
    more: Condvar,
}

/// Reads the whole tree with so many threads. `each` gets every listing, in the calling thread, and
/// returns false to end early.
pub(crate) fn scan(
    host: &HostTree,
    threads: usize,
    way: WayTo<'_>,
    mut each: impl FnMut(DirListing) -> bool,
) {
    let from = ToRead { handle: host.root_handle().clone(), place: None };
    let work = Work { dirs: [from].into(), ..Work::default() };
    let scan = Scan { host, work: Mutex::new(work), more: Condvar::new() };
    let (send, receive): (SyncSender<DirListing>, Receiver<DirListing>) = sync_channel(WAITING);
    thread::scope(|scope| {
        let spawned = (0..threads.max(1)).filter(|_| {
            let (scan, send) = (&scan, send.clone());
            thread::Builder::new()
                .name("uvfs-scan".into())
                .spawn_scoped(scope, move || scan.run(&send))
                .is_ok()
        });
        let none = spawned.count() == 0;
        drop(send);
        if none {
            // The system has no thread for us.
            drop(receive);
            read_below(host, host.root_handle().clone(), way, &mut |listing| {
                let dirs = listing.names.iter().filter_map(|(_, found)| found.handle.clone()).collect();
                each(listing).then_some(dirs)
            });
            return;
        }
        while let Ok(listing) = receive.recv() {
            if !each(listing) {
                break;
            }
        }
        // The threads find no receiver any more.
        drop(receive);
    });
}

/// Finds the path of a directory that was in a listing.
pub(crate) type WayTo<'a> = &'a dyn Fn(&HostHandle) -> Option<Vec<u8>>;

/// Reads a directory and everything below it by the calling thread alone; for those that are probably small. `each`
/// returns the directories of the listing that are to be read too, or nothing to end early. `way` finds their paths when `each` has
/// had the listing.
pub(crate) fn read_below(
    host: &HostTree,
    from: HostHandle,
    way: WayTo<'_>,
    each: &mut impl FnMut(DirListing) -> Option<Vec<HostHandle>>,
) {
    let mut dirs = vec![from];
    while let Some(dir) = dirs.pop() {
        let mut goes_on = true;
        let dir = ToRead { handle: dir, place: None };
        read(host, &dir, &|| way(&dir.handle), |listing, _| {
            let further = each(listing);
            goes_on = further.is_some();
            dirs.extend(further.into_iter().flatten());
            goes_on
        });
        if !goes_on {
            return;
        }
    }
}

impl Scan<'_> {
    fn run(&self, send: &SyncSender<DirListing>) {
        while let Some(dir) = self.next() {
            let mut received = true;
            let way = || Some(dir.place.as_ref().map_or_else(Vec::new, |place| place.path()));
            read(self.host, &dir, &way, |listing, found| {
                received = send.send(listing).is_ok();
                self.offer(found);
                received
            });
            self.finish(received);
        }
    }

    fn next(&self) -> Option<ToRead> {
        let mut work = self.work.lock();
        loop {
            if work.stopped {
                return None;
            }
            // The last one found: so the threads go down, and few directories wait.
            if let Some(dir) = work.dirs.pop_back() {
                work.busy += 1;
                return Some(dir);
            }
            if work.busy == 0 {
                return None;
            }
            self.more.wait(&mut work);
        }
    }

    fn offer(&self, found: Vec<ToRead>) {
        if !found.is_empty() {
            self.work.lock().dirs.extend(found);
            self.more.notify_all();
        }
    }

    fn finish(&self, received: bool) {
        let mut work = self.work.lock();
        work.busy -= 1;
        work.stopped |= !received;
        drop(work);
        self.more.notify_all();
    }
}

/// Reads one directory. `pass` gets its names and the directories among them, and returns false to end.
fn read(host: &HostTree, dir: &ToRead, way: Way<'_>, mut pass: impl FnMut(DirListing, Vec<ToRead>) -> bool) {
    let new = || DirListing {
        dir: dir.handle.clone(),
        facts: None,
        names: Vec::new(),
        unseen: Vec::new(),
        failed: None,
        part: ListingPart::Whole,
    };
    let names = host.open_dir(&dir.handle, way).and_then(|fd| {
        // In this order: a change before the mark is in the list, and one after it has an event.
        host.mark(fd.as_fd())?;
        // The attributes that the listing above this one has may be of before the mark.
        let facts = if host.is_by_path() { Some(facts_of(fd.as_fd())?) } else { None };
        let names = list(fd.as_fd(), &mut Vec::with_capacity(ENTRIES))?;
        Ok((fd, facts, names))
    });
    let (fd, mut facts, mut names) = match names {
        Ok(found) => found,
        Err(errno) => {
            pass(DirListing { failed: Some(errno), ..new() }, Vec::new());
            return;
        }
    };
    let place = |name: &[u8]| {
        let place = || Arc::new(Place { above: dir.place.clone(), name: name.into() });
        host.is_by_path().then(place)
    };
    // On a disk, inodes of near numbers are near each other.
    names.sort_unstable_by_key(|(ino, _)| *ino);
    let parts = names.len().div_ceil(NAMES).max(1);
    let reading = if parts > 1 { READINGS.fetch_add(1, Relaxed) } else { 0 };
    for nth in 0..parts {
        let (mut listing, mut found) = (new(), Vec::new());
        listing.facts = facts.take();
        listing.part = match nth {
            _ if parts == 1 => ListingPart::Whole,
            0 => ListingPart::First(reading),
            nth if nth + 1 == parts => ListingPart::Last(reading),
            _ => ListingPart::Middle(reading),
        };
        for (_, name) in names.chunks(NAMES).nth(nth).unwrap_or_default() {
            match host.look(fd.as_fd(), name) {
                Ok(Some(seen)) => {
                    let new = seen.handle.clone();
                    found.extend(new.map(|handle| ToRead { handle, place: place(name) }));
                    listing.names.push((name.clone(), seen));
                }
                Ok(None) => {}
                Err(errno) => listing.unseen.push((name.clone(), errno)),
            }
        }
        if !pass(listing, found) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_any_depth_has_a_path_and_an_end() {
        let mut place = None;
        for _ in 0..1_000_000 {
            place = Some(Arc::new(Place { above: place.take(), name: b"d".as_slice().into() }));
        }
        let place = place.expect("a place");
        assert_eq!(place.path().len(), 1_999_999);
        let other = Arc::clone(&place);
        drop(place);
        assert_eq!(other.path().len(), 1_999_999);
    }
}
