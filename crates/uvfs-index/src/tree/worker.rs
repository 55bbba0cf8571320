//! The worker of a tree: it scans, looks where reports say, and changes the table. See the head of the module above.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::by_path::{Objects, no_marks};
use super::unread::Unread;
use super::{Content, IndexPhase, Shared};
use crate::clock::ChangeClock;
use crate::host::{FoundName, facts_of};
use crate::queue::{Report, ToDo};
use crate::scan::{DirListing, ListingPart, is_shortage, passes, read_below, scan};
use crate::table::{HostHandle, Note, PutError, ROOT};

/// Looks at the way up before the tree is read anew, and at a directory before it counts as gone.
const TRIES: usize = 3;

/// Why the whole tree is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Nothing is known.
    First,
    /// The names of a snapshot are known.
    Compare,
    /// The table is not right any more: another instance begins.
    Anew,
}

/// Begins of listings whose last part has not come, by their reading.
type Begun = HashMap<u64, u32>;

/// Why following cannot go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// The tree must be read anew.
    Again,
    /// There are no more marks for directories: some may be on directories that left the tree.
    NoMarks,
    /// It is not known any more.
    Lost(String),
}

/// The directory that was opened last: events come in runs.
pub(super) type LastDir = Option<(HostHandle, OwnedFd)>;

impl Shared {
    /// The thread.
    pub(super) fn work(&self) {
        let first = if self.load() { Reading::Compare } else { Reading::First };
        let mut outcome = self.scan_all(first);
        let (mut last, mut reached) = (None, 0);
        loop {
            match std::mem::replace(&mut outcome, Ok(())) {
                // A name that is to be looked at again is not right yet.
                Ok(()) if self.owed.load(Ordering::Relaxed) > reached => {}
                Ok(()) => self.is_done(reached),
                Err(Stop::Again | Stop::NoMarks) => {
                    outcome = self.scan_all(Reading::Anew);
                    continue;
                }
                Err(Stop::Lost(why)) => self.lose(why),
            }
            match self.queue.take() {
                ToDo::Stop => return self.lose("the index has ended".into()),
                ToDo::Ended(why) => outcome = Err(Stop::Lost(why)),
                ToDo::Overflow(number) => {
                    reached = number;
                    outcome = self.scan_all(Reading::Anew);
                }
                ToDo::Look(reports, number) => {
                    reached = number;
                    // A tree that is lost stays so: the table is not right any more.
                    if !self.is_lost() {
                        outcome = self.look_at(&reports, &mut last);
                        let surplus = self.content.write().table.end_batch();
                        let mut surplus = surplus.into_iter();
                        outcome =
                            outcome.and_then(|()| surplus.try_for_each(|file| self.look_at_links(file)));
                        self.content.write().table.purge();
                        self.end_misses();
                    }
                }
            }
        }
    }

    /// Puts in a report of the worker's own. Questions wait for its look, as for that of the report that led to it.
    pub(super) fn look_later(&self, report: Report) {
        self.queue.report(report);
        self.owed.store(self.queue.put_in(), Ordering::Relaxed);
    }

    fn is_lost(&self) -> bool {
        matches!(self.content.read().phase, IndexPhase::Lost(_))
    }

    fn lose(&self, why: String) {
        {
            let mut content = self.content.write();
            // Nobody is answered from the table any more.
            content.table = self.limits.table(&content.table.facts(ROOT), self.host.root_handle());
            content.phase = IndexPhase::Lost(why);
        }
        drop(self.done.lock());
        self.moved.notify_all();
    }

    fn is_done(&self, number: u64) {
        *self.done.lock() = number;
        self.moved.notify_all();
    }

    /// Reads the whole tree.
    fn scan_all(&self, why: Reading) -> Result<(), Stop> {
        let failed = |errno: Errno| Stop::Lost(format!("the directory cannot be read: {errno}"));
        let facts = self.host.root_facts().map_err(failed)?;
        // If this fails, marks stay that nobody needs.
        let _ = self.host.unmark_all();
        self.missed.lock().clear();
        // Not under the lock: it is a system call.
        let instance = ChangeClock::new_instance().map_err(Stop::Lost)?;
        {
            let mut content = self.content.write();
            if why == Reading::Anew {
                content.instance = instance;
                content.table = self.limits.table(&facts, self.host.root_handle());
            }
            let compares = why == Reading::Compare;
            content.phase = if compares { IndexPhase::Checking } else { IndexPhase::Scanning };
            content.unread = Unread::default();
            if !compares {
                content.objects = Objects::default();
            }
            content.scans += 1;
        }
        drop(self.done.lock());
        self.moved.notify_all();
        let (mut outcome, mut begun) = (Ok(()), Begun::new());
        scan(&self.host, self.threads(), &|dir| self.way_to(dir), |listing| {
            outcome = if self.queue.interrupts() {
                Err(Stop::Again)
            } else {
                self.apply(listing, Note::Silent, &mut begun).map(drop)
            };
            outcome.is_ok()
        });
        match outcome.and_then(|()| self.read_the_rest()) {
            // The queue says whether to end, or to begin anew.
            Err(Stop::Again) if self.queue.interrupts() => Ok(()),
            Err(Stop::NoMarks) => Err(Stop::Lost(no_marks())),
            Ok(()) => {
                let instance = ChangeClock::new_instance().map_err(Stop::Lost)?;
                let mut content = self.content.write();
                content.table.purge();
                // Clocks of the scan's time are not valid any more: see the head of the module above.
                (content.phase, content.instance) = (IndexPhase::Following, instance);
                drop(content);
                drop(self.done.lock());
                self.moved.notify_all();
                Ok(())
            }
            stopped => stopped,
        }
    }

    pub(super) fn threads(&self) -> usize {
        match self.limits.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    /// Reads the directories that the scan has missed. If that fails, the names of a snapshot in them go.
    fn read_the_rest(&self) -> Result<(), Stop> {
        for tries in (0..TRIES).rev() {
            let unread: Vec<HostHandle> = {
                let table = &self.content.read().table;
                table.unread_dirs().into_iter().filter_map(|dir| table.handle(dir).cloned()).collect()
            };
            for handle in unread {
                let known = |content: &Content| {
                    let dir = content.table.dir_of(handle.as_bytes());
                    dir.filter(|dir| content.table.is_unread(*dir))
                };
                if known(&self.content.read()).is_none() {
                    continue;
                }
                self.read_new(handle.clone(), Note::Silent)?;
                let mut content = self.content.write();
                if let Some(dir) = known(&content).filter(|_| tries == 0) {
                    content.table.forget_content(dir);
                }
            }
        }
        Ok(())
    }

    /// Puts a listing into the table. Returns the directories in it that have not been read.
    pub(super) fn apply(
        &self,
        listing: DirListing,
        note: Note,
        begun: &mut Begun,
    ) -> Result<Vec<HostHandle>, Stop> {
        let mut new = Vec::new();
        if let Some(errno) = listing.failed {
            return self.cannot_read(&listing.dir, errno).map(|()| new);
        }
        self.is_found(&listing.dir);
        let mut content = self.content.write();
        if matches!(listing.part, ListingPart::Whole | ListingPart::First(_)) {
            content.unread.is_listed_anew(&listing.dir);
        }
        for (name, errno) in listing.unseen {
            if passes(errno) {
                // One that is being changed has a report too. It is looked at once.
                self.look_later(Report::Name(listing.dir.clone(), name));
            } else {
                content.unseen(&listing.dir, &name, errno);
            }
        }
        let began = match listing.part {
            ListingPart::Whole | ListingPart::First(_) => content.table.begin_listing().ok_or(Stop::Again)?,
            ListingPart::Middle(reading) | ListingPart::Last(reading) => {
                *begun.get(&reading).ok_or(Stop::Again)?
            }
        };
        match listing.part {
            ListingPart::First(reading) => drop(begun.insert(reading, began)),
            ListingPart::Last(reading) => drop(begun.remove(&reading)),
            ListingPart::Whole | ListingPart::Middle(_) => {}
        }
        // A directory that was dropped since: a report says where it is.
        let Some(mut dir) = content.table.dir_of(listing.dir.as_bytes()) else { return Ok(new) };
        if let Some(facts) = &listing.facts {
            content.table.refresh_dir(dir, facts, note);
        }
        for (name, found) in listing.names {
            let handle = found.handle.clone();
            match content.table.put(dir, &name, &found.facts, found.handle, note) {
                Ok(put) => {
                    content.note_object(put.file, (&found.facts, found.object));
                    new.extend(handle.filter(|_| put.new_dir));
                }
                Err(PutError::Full) => return Err(full()),
                // Looked at once all is read.
                Err(PutError::Cycle) => self.look_later(Report::Name(listing.dir.clone(), name)),
                Err(PutError::NoDirectory) => return Ok(new),
            }
            match content.table.dir_of(listing.dir.as_bytes()) {
                Some(now) => dir = now,
                None => return Ok(new),
            }
        }
        if matches!(listing.part, ListingPart::Whole | ListingPart::Last(_)) {
            content.table.end_listing(dir, began, note);
            content.unread.was_read(&listing.dir);
        }
        self.within_limit(&content).map(|()| new)
    }

    /// A directory could not be opened or listed.
    fn cannot_read(&self, dir: &HostHandle, errno: Errno) -> Result<(), Stop> {
        if errno == Errno::NOSPC && self.host.is_by_path() {
            return Err(Stop::NoMarks);
        }
        if passes(errno) {
            // One that left the table meanwhile has a report of its new place, or none.
            let known = self.content.read().table.dir_of(dir.as_bytes()).is_some();
            return if known { self.misses(dir, errno, Report::Unread(dir.clone())) } else { Ok(()) };
        }
        // It stays unread: the next report of it, like that of a change of its permissions, leads to a new try.
        self.stays_unread(dir, errno);
        Ok(())
    }

    fn within_limit(&self, content: &Content) -> Result<(), Stop> {
        let (limit, bytes) = (self.limits.memory, content.bytes());
        if limit == 0 || bytes <= limit {
            return Ok(());
        }
        let names = content.table.len();
        Err(Stop::Lost(format!("{names} names take {bytes} bytes, more than the limit of {limit}")))
    }

    fn look_at(&self, reports: &[Arc<Report>], last: &mut LastDir) -> Result<(), Stop> {
        let outcome = reports.iter().try_for_each(|report| match &**report {
            Report::Name(dir, name) => self.look_at_name(dir, name, last),
            Report::Object(file) => self.look_at_file(file),
            Report::Unsure(dir, name) => self.look_at_unsure(dir, name, last),
            Report::Unread(dir) => self.read_again(dir),
            Report::Mount(path) => self.look_at_mount(path, last),
            Report::Foreign => self.look_at_foreign(last),
        });
        *last = None;
        outcome?;
        self.within_limit(&self.content.read())
    }

    /// A file whose attributes or content changed: known by its number, whatever its names are.
    fn look_at_file(&self, file: &HostHandle) -> Result<(), Stop> {
        if self.host.is_by_path() {
            let is_dir = self.content.read().table.dir_of(file.as_bytes()).is_some();
            return if is_dir { self.look_at_directory(file) } else { self.look_at_object(file) };
        }
        match self.open_patiently(file).and_then(|fd| facts_of(fd.as_fd())) {
            Ok(facts) => {
                let unread = {
                    let table = &mut self.content.write().table;
                    table.refresh(&facts);
                    let dir = table.dir_of(file.as_bytes());
                    dir.is_some_and(|dir| table.is_unread(dir))
                };
                self.is_found(file);
                // It could not be read before.
                if unread { self.read_new(file.clone(), Note::Tick) } else { Ok(()) }
            }
            // Its names are reported too.
            Err(Errno::STALE | Errno::NOENT) => {
                self.is_found(file);
                Ok(())
            }
            Err(errno) if is_shortage(errno) => self.misses(file, errno, Report::Object(file.clone())),
            Err(errno) => {
                self.content.write().unread.file(errno);
                Ok(())
            }
        }
    }

    /// Opens a file by its handle. While a directory above it is being renamed, one that exists may seem to be gone.
    pub(super) fn open_patiently(&self, handle: &HostHandle) -> Result<OwnedFd, Errno> {
        let mut tries = (0..TRIES).map(|_| self.host.open_handle(handle, &|| self.way_to(handle)));
        let opened = tries.find(|opened| !matches!(opened, Err(Errno::STALE)));
        opened.unwrap_or(Err(Errno::STALE))
    }

    pub(super) fn look_at_name(
        &self,
        handle: &HostHandle,
        name: &[u8],
        last: &mut LastDir,
    ) -> Result<(), Stop> {
        for _ in 0..TRIES {
            // Outside the tree, or gone.
            if self.content.read().table.dir_of(handle.as_bytes()).is_none() {
                return Ok(());
            }
            match self.put(handle, name, last)? {
                PutStep::Done => return Ok(()),
                PutStep::NewDirectory(new) => return self.read_new(new, Note::Tick),
                PutStep::Surplus(file) => return self.look_at_links(file),
                PutStep::Cycle(way) => {
                    for (dir, name) in way {
                        self.confirm(&dir, &name)?;
                    }
                }
            }
        }
        Err(Stop::Again)
    }

    /// Looks at a name, and puts it into the table.
    fn put(&self, handle: &HostHandle, name: &[u8], last: &mut LastDir) -> Result<PutStep, Stop> {
        if last.as_ref().is_none_or(|(known, _)| known != handle) {
            match self.open_patiently(handle) {
                Ok(fd) => {
                    self.is_found(handle);
                    *last = Some((handle.clone(), fd));
                }
                Err(errno) if errno != Errno::NOENT && self.may_pass(errno) => {
                    let report = Report::Name(handle.clone(), name.into());
                    return self.misses(handle, errno, report).map(|()| PutStep::Done);
                }
                // The directory is gone; its own name is reported too.
                Err(Errno::STALE | Errno::NOENT) => return Ok(PutStep::Done),
                Err(errno) => {
                    self.content.write().unseen(handle, name, errno);
                    return Ok(PutStep::Done);
                }
            }
        }
        let Some((_, fd)) = last else { return Ok(PutStep::Done) };
        let found = self.host.look(fd.as_fd(), name);
        let of_dir = facts_of(fd.as_fd());
        let failed = |errno: &Errno| {
            let changed = matches!(*errno, Errno::AGAIN | Errno::STALE);
            !changed && (passes(*errno) || self.is_refused(*errno))
        };
        let short = of_dir.as_ref().err().filter(|errno| is_shortage(**errno));
        if let Some(errno) = found.as_ref().err().filter(|errno| failed(errno)).or(short) {
            let report = Report::Name(handle.clone(), name.into());
            return self.misses(handle, *errno, report).map(|()| PutStep::Done);
        }
        let mut content = self.content.write();
        let Some(dir) = content.table.dir_of(handle.as_bytes()) else { return Ok(PutStep::Done) };
        if let Ok(facts) = &of_dir {
            content.table.refresh_dir(dir, facts, Note::Tick);
        }
        let before = content.table.child(dir, name).map(|file| (file, content.table.generation(file)));
        if found.is_ok() {
            content.unread.name_was_seen(handle, name);
        }
        let step = match found {
            Ok(Some(found)) => content.put(dir, name, found)?,
            Ok(None) => match content.table.gone(dir, name) {
                Ok(()) => PutStep::Done,
                Err(_) => return Err(full()),
            },
            Err(errno) => {
                content.unseen(handle, name, errno);
                PutStep::Done
            }
        };
        let lost = before.filter(|(file, _)| content.table.child(dir, name) != Some(*file));
        drop(content);
        if let Some(file) = lost.filter(|_| self.host.is_by_path()) {
            self.lost_a_name(file);
        }
        Ok(step)
    }

    /// Whether an error of opening a known directory may be over soon.
    fn may_pass(&self, errno: Errno) -> bool {
        match errno {
            Errno::STALE => self.host.is_by_path(),
            errno => passes(errno) || self.is_refused(errno),
        }
    }

    /// By path, a directory above may refuse: another one may have its old name, or its owner opens it later.
    fn is_refused(&self, errno: Errno) -> bool {
        self.host.is_by_path() && matches!(errno, Errno::ACCESS | Errno::PERM)
    }

    /// Looks whether a name still leads to a directory, and removes it if not. Whether it stays. A look that is refused
    /// proves nothing.
    pub(super) fn confirm(&self, handle: &HostHandle, name: &[u8]) -> Result<bool, Stop> {
        let found = match self.open_patiently(handle) {
            Ok(fd) => self.host.look(fd.as_fd(), name),
            Err(Errno::STALE | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(_) => return Ok(true),
        };
        let found = match found {
            Ok(found) => found.and_then(|found| found.handle),
            Err(Errno::AGAIN | Errno::STALE) => None,
            Err(_) => return Ok(true),
        };
        let mut content = self.content.write();
        let Some(dir) = content.table.dir_of(handle.as_bytes()) else { return Ok(false) };
        let known = content.table.child(dir, name).and_then(|file| content.table.handle(file));
        if known != found.as_ref() {
            content.table.gone(dir, name).map_err(|_| full())?;
            // Its present state, whatever that is, is looked at in its turn.
            self.look_later(Report::Name(handle.clone(), name.into()));
            return Ok(false);
        }
        Ok(true)
    }

    /// More names of a file are known than it has: those that lead elsewhere by now go.
    pub(super) fn look_at_links(&self, file: u32) -> Result<(), Stop> {
        let links: Vec<(HostHandle, Vec<u8>)> = {
            let table = &self.content.read().table;
            let links = table.links(file);
            links.filter_map(|(dir, name)| Some((table.handle(dir)?.clone(), name.to_vec()))).collect()
        };
        for (handle, name) in links {
            let found = match self.open_patiently(&handle) {
                Ok(fd) => self.host.look(fd.as_fd(), &name),
                Err(errno) if self.host.is_by_path() => {
                    self.misses(&handle, errno, Report::Name(handle.clone(), name.into()))?;
                    continue;
                }
                Err(errno) if is_shortage(errno) => Err(errno),
                Err(_) => Ok(None),
            };
            if let Err(errno) = &found
                && is_shortage(*errno)
            {
                // It may well be there.
                self.misses(&handle, *errno, Report::Name(handle.clone(), name.into()))?;
                continue;
            }
            let mut content = self.content.write();
            let Some(dir) = content.table.dir_of(handle.as_bytes()) else { continue };
            let Some(known) = content.table.child(dir, &name).filter(|known| *known == file) else {
                continue;
            };
            let ino = content.table.facts(known).ino;
            if !matches!(&found, Ok(Some(found)) if found.facts.ino == ino) {
                content.table.gone(dir, &name).map_err(|_| full())?;
                self.look_later(Report::Name(handle, name.into()));
            }
        }
        Ok(())
    }

    /// Reads a directory that has just come into the tree, and everything below it.
    pub(super) fn read_new(&self, handle: HostHandle, note: Note) -> Result<(), Stop> {
        let (mut outcome, mut begun) = (Ok(()), Begun::new());
        read_below(&self.host, handle, &|dir| self.way_to(dir), &mut |listing| {
            // A directory that was known is followed already, and what is below it with it.
            let applied = if self.queue.interrupts() {
                Err(Stop::Again)
            } else {
                self.apply(listing, note, &mut begun)
            };
            applied.map_err(|stop| outcome = Err(stop)).ok()
        });
        outcome
    }
}

/// The consequence of a look.
enum PutStep {
    Done,
    NewDirectory(HostHandle),
    Surplus(u32),
    /// The names on the way up, each with its directory.
    Cycle(Vec<(HostHandle, Vec<u8>)>),
}

fn full() -> Stop {
    Stop::Lost(
        "there is more than an index can hold: 2^32 names, 32 GiB of names, or a name of 256 bytes".into(),
    )
}

impl Content {
    fn put(&mut self, dir: u32, name: &[u8], found: FoundName) -> Result<PutStep, Stop> {
        let handle = found.handle.clone();
        let put = self.table.put(dir, name, &found.facts, found.handle, Note::Tick);
        if let Ok(put) = &put {
            self.note_object(put.file, (&found.facts, found.object));
        }
        match put {
            Ok(put) if put.new_dir => Ok(handle.map_or(PutStep::Done, PutStep::NewDirectory)),
            Ok(put) if put.surplus => Ok(PutStep::Surplus(put.file)),
            Ok(_) | Err(PutError::NoDirectory) => Ok(PutStep::Done),
            Err(PutError::Cycle) => {
                let way = self.table.way_up(dir).into_iter();
                let known = way.filter_map(|(dir, name)| Some((self.table.handle(dir)?.clone(), name)));
                Ok(PutStep::Cycle(known.collect()))
            }
            Err(PutError::Full) => Err(full()),
        }
    }

    /// A name's state was not seen. If it changed at that moment, its report comes.
    fn unseen(&mut self, dir: &HostHandle, name: &[u8], errno: Errno) {
        if errno != Errno::AGAIN && errno != Errno::STALE {
            self.unread.name(dir, name, errno, &self.table);
        }
    }
}
