//! A tree that a process without capabilities follows. Each directory has a mark of its own, and is opened by path.
//!
//! # Why no change is missed
//!
//! Writers are any processes that change the tree; the reader is the worker. A directory is opened, marked, and then
//! listed, in this order.
//!
//! - *A directory is made and filled before it has its mark.* The one above it has one, so there is a report of the new name.
//!   The worker marks and lists it then. A name that was made before the mark is in the listing. One that was made after
//!   the mark has a report. The same holds for each directory in it, and for a tree that is moved into this one.
//!   Its own attributes are read after the mark too: those in the listing above it may be of before, and a name that
//!   was made in between moves its times.
//! - *A directory may not be searched for a while.* Looks into it are refused, and prove nothing. It counts as unread, which
//!   answers say. The mode of each directory has reports; once one changed, unread directories are listed again. If it
//!   changed before the look, the look succeeds; if after it, the listing shows all that the look was for.
//! - *A directory is renamed during the scan.* If it leaves a directory that is marked, there is a report of that; if not, that
//!   one is listed later, without it. If it comes into a marked directory, there is a report too; if not, it is in a later
//!   listing. The thread that was about to open it by its old path finds nothing, or a directory with another handle. It then counts as
//!   unread, and is opened again once the reports have put the table right. The paths of all below it are right with it.
//! - *A directory is removed before it has its mark.* Opening it fails. The directory that named it was marked before it was
//!   listed, so the removal has a report, which removes the name.
//! - *A directory leaves the tree.* Its name's report drops it and all below from the table. The marks below stay until the files
//!   are removed, or until the tree is read anew; their reports are about directories that nobody knows, and are dropped. If it
//!   comes back, it is unknown, so it is listed like a new one.
//! - *A directory moves inside the tree.* Marks are on inodes, so they stay right. The table has it at one place, and paths
//!   are made from the table at each look.
//!
//! A look by path that fails proves nothing: the report of a rename above may wait. So the report is put in again, and no
//! question is answered meanwhile ([`Shared::misses`]). If the table does not come right by itself, each name on the way is
//! looked at, from the root down.
//!
//! # Files with several names
//!
//! An event about a file reaches a mark through the name that the file was opened by. So it names the file too, by its
//! handle. [`Objects`] finds that file in the table, and one of its present names is looked at.
//!
//! A name outside the tree reaches no mark. Files with more links than names that are known are looked at anew for each
//! question: a mark on the file would need permission to read it, and count against the limit. One case is left: a file that
//! *gets* its first name outside: the kernel tells only a mark on the file itself. The README says so.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foldhash::fast::RandomState;
use rustix::io::Errno;

use super::worker::{LastDir, Stop};
use super::{Content, Shared};
use crate::host::{FoundName, facts_of};
use crate::queue::Report;
use crate::scan::passes;
use crate::table::{FileFacts, HostHandle, NameTable, Note, ROOT};

/// Looks by path that fail before the way is looked at.
const PATIENT: u32 = 100;
/// Looks that fail, and how long, before the tree is read anew. Both: a stopped process makes no looks, and under many
/// reports they follow one another fast.
const IMPATIENT: u32 = 400;
const LONG: Duration = Duration::from_millis(400);
/// Between two of these looks, unless a report comes: that of a rename above, which they wait for, is on its way.
const PAUSE: Duration = Duration::from_millis(1);
/// Files with names outside the tree that are looked at for each question.
const MOST_OUTSIDE: usize = 1 << 19;
/// A file that changed so shortly before a look may change again without a difference: file systems' clocks are coarse.
const COARSE: Duration = Duration::from_millis(50);

/// Directories that were not found, and files that could not be opened.
#[derive(Default)]
pub(super) struct AllMissed {
    each: HashMap<HostHandle, Missed>,
    /// Whether the present batch has waited. Many files may be missed at once, as when there are no descriptors.
    has_paused: bool,
}

impl AllMissed {
    pub(super) fn clear(&mut self) {
        self.each.clear();
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }
}

struct Missed {
    since: Instant,
    /// Batches in which it was looked for.
    batches: u32,
    /// Whether the present batch is among them.
    is_counted: bool,
    /// It was looked for as a file, which may be in no directory that is known.
    as_file: bool,
}

impl Missed {
    fn now(as_file: bool) -> Self {
        Self { since: Instant::now(), batches: 0, is_counted: false, as_file }
    }
}

/// Files by their handles, and those that may have names outside the tree.
#[derive(Default)]
pub(super) struct Objects {
    /// File and generation, by [`HostTree::object`](crate::host::HostTree::object).
    by_handle: HashMap<u64, (u32, u32), RandomState>,
    linked: HashSet<(u32, u32), RandomState>,
}

impl Objects {
    pub(super) fn bytes(&self) -> usize {
        self.by_handle.capacity() * 17 + self.linked.capacity() * 9
    }

    /// A look has shown that a name leads to this file.
    pub(super) fn note(&mut self, table: &NameTable, file: u32, object: Option<u64>, facts: &FileFacts) {
        let Some(object) = object else { return };
        let known = (file, table.generation(file));
        if self.by_handle.len().max(self.linked.len()) >= 2 * table.len() as usize + 1024 {
            self.by_handle.retain(|_, (file, generation)| table.is_file(*file, *generation));
            self.linked.retain(|(file, generation)| table.is_file(*file, *generation));
        }
        self.by_handle.insert(object, known);
        if facts.nlink > 1 {
            self.linked.insert(known);
        }
    }

    fn file(&self, table: &NameTable, object: u64) -> Option<u32> {
        let (file, generation) = *self.by_handle.get(&object)?;
        table.is_file(file, generation).then_some(file)
    }

    /// A name of each file that has more links than known names, those of one directory side by side.
    fn outside(&self, table: &NameTable) -> Vec<(u32, u32)> {
        let linked = self.linked.iter().filter(|(file, generation)| table.is_file(*file, *generation));
        let outside = linked.filter(|(file, _)| {
            let links = table.facts(*file).nlink as usize;
            links > 1 && table.links(*file).count() < links
        });
        let mut names: Vec<_> =
            outside.filter_map(|(file, _)| Some((table.links(*file).next()?.0, *file))).collect();
        names.sort_unstable();
        names
    }
}

/// Whether two looks show the same, and a change between them would show.
fn is_unchanged(known: &FileFacts, found: &FileFacts) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (sec, nsec) = found.ctime;
    let changed = Duration::new(u64::try_from(sec).unwrap_or(0), nsec);
    known == found && now.abs_diff(changed) > COARSE
}

impl Content {
    /// Notes what a look has shown.
    pub(super) fn note_object(&mut self, file: u32, found: (&FileFacts, Option<u64>)) {
        self.objects.note(&self.table, file, found.1, found.0);
    }
}

impl Shared {
    /// The path of a directory, as the table has it.
    pub(super) fn way_to(&self, dir: &HostHandle) -> Option<Vec<u8>> {
        let table = &self.content.read().table;
        table.path_of(table.dir_of(dir.as_bytes())?)
    }

    /// Puts in reports of the files that others may have changed without an event. Called by questions.
    pub(super) fn look_outside(&self) {
        if !self.host.is_by_path() {
            return;
        }
        let content = self.content.read();
        let table = &content.table;
        let outside = content.objects.outside(table);
        if outside.len() > MOST_OUTSIDE {
            drop(content);
            return self.queue.gives_up(&format!(
                "more than {MOST_OUTSIDE} files have names outside the tree, which are followed with CAP_SYS_ADMIN only"
            ));
        }
        let reports: Vec<_> = outside
            .into_iter()
            .filter_map(|(dir, file)| {
                let (_, name) = table.links(file).next()?;
                Some(Report::Unsure(table.handle(dir)?.clone(), name.into()))
            })
            .collect();
        drop(content);
        reports.into_iter().for_each(|report| self.queue.report(report));
    }

    /// A directory that the table knows was not found, or it or a file could not be looked at for another reason that may
    /// pass. Puts in the report once more.
    pub(super) fn misses(&self, dir: &HostHandle, errno: Errno, report: Report) -> Result<(), Stop> {
        {
            let table = &self.content.read().table;
            match table.dir_of(dir.as_bytes()) {
                // It is listed again once it can be, and that shows all that is reported now.
                Some(known) if table.is_unread(known) && !passes(errno) => return Ok(()),
                // Its name is gone: it goes at the end of the batch, or a report that waits gives it another one.
                Some(known) if table.path_of(known).is_none() => {
                    self.look_later(report);
                    return Ok(());
                }
                _ => {}
            }
        }
        let as_file = !self.host.is_by_path() && matches!(report, Report::Object(_));
        let (nth, long, pauses) = {
            let mut all = self.missed.lock();
            let missed = all.each.entry(dir.clone()).or_insert_with(|| Missed::now(as_file));
            if std::mem::replace(&mut missed.is_counted, true) {
                drop(all);
                self.look_later(report);
                return Ok(());
            }
            missed.batches += 1;
            let (nth, long) = (missed.batches, missed.since.elapsed());
            (nth, long, nth > 1 && !std::mem::replace(&mut all.has_paused, nth > 1))
        };
        if pauses {
            self.queue.wait_for_more(PAUSE);
        }
        if nth == PATIENT {
            self.confirm_way(dir)?;
        }
        if nth > IMPATIENT && long > LONG {
            self.missed.lock().each.remove(dir);
            if self.host.is_by_path() && errno == Errno::STALE {
                return Err(Stop::Again);
            }
            if as_file {
                self.content.write().unread.file(errno);
            } else {
                self.stays_unread(dir, errno);
            }
            return Ok(());
        }
        self.look_later(report);
        Ok(())
    }

    /// The names of a directory may be out of date: it counts as unread, and is listed again once it can be.
    pub(super) fn stays_unread(&self, dir: &HostHandle, errno: Errno) {
        let Content { table, unread, .. } = &mut *self.content.write();
        unread.dir(dir.clone(), errno, table);
        if let Some(dir) = table.dir_of(dir.as_bytes()) {
            table.is_not_read(dir);
        }
    }

    /// The permissions of a directory changed: unread directories below it may be reached now.
    pub(super) fn look_at_unread(&self) {
        let unread = self.content.read().unread.dirs();
        unread.into_iter().for_each(|dir| self.look_later(Report::Unread(dir)));
    }

    /// A directory or a file was found, or is gone.
    pub(super) fn is_found(&self, file: &HostHandle) {
        let missed = &mut self.missed.lock().each;
        if !missed.is_empty() {
            missed.remove(file);
        }
    }

    /// At the end of a batch of reports: directories that left the tree are not missed, and each batch counts once for
    /// the others.
    pub(super) fn end_misses(&self) {
        let AllMissed { each, has_paused } = &mut *self.missed.lock();
        *has_paused = false;
        if each.is_empty() {
            return;
        }
        let table = &self.content.read().table;
        each.retain(|dir, missed| {
            missed.is_counted = false;
            missed.as_file || table.dir_of(dir.as_bytes()).is_some()
        });
    }

    /// Looks at each name on the way to a directory, from the root down, and removes those that lead elsewhere.
    fn confirm_way(&self, dir: &HostHandle) -> Result<(), Stop> {
        let way: Vec<(HostHandle, Vec<u8>)> = {
            let table = &self.content.read().table;
            let Some(dir) = table.dir_of(dir.as_bytes()) else { return Ok(()) };
            let way = table.way_up(dir).into_iter().rev();
            way.filter_map(|(dir, name)| Some((table.handle(dir)?.clone(), name))).collect()
        };
        for (dir, name) in way {
            // The names below it have no path now.
            if !self.confirm(&dir, &name)? {
                break;
            }
        }
        Ok(())
    }

    /// Into a directory that could not be read.
    pub(super) fn read_again(&self, dir: &HostHandle) -> Result<(), Stop> {
        let unread = {
            let table = &self.content.read().table;
            table.dir_of(dir.as_bytes()).is_some_and(|dir| table.is_unread(dir))
        };
        if unread { self.read_new(dir.clone(), Note::Tick) } else { Ok(()) }
    }

    /// A file that an event names by its handle.
    pub(super) fn look_at_object(&self, handle: &HostHandle) -> Result<(), Stop> {
        let names: Vec<(HostHandle, Vec<u8>)> = {
            let Content { table, objects, .. } = &*self.content.read();
            // One that is not known has a report of its name, which is looked at later than now.
            let Some(file) = objects.file(table, self.host.object(handle)) else { return Ok(()) };
            let links = table.links(file);
            links.filter_map(|(dir, name)| Some((table.handle(dir)?.clone(), name.to_vec()))).collect()
        };
        for (dir, name) in names {
            let found = match self.open_patiently(&dir) {
                Ok(fd) => self.host.look(fd.as_fd(), &name),
                Err(errno) => Err(errno),
            };
            if let Err(errno) = &found
                && !matches!(*errno, Errno::NOENT | Errno::AGAIN)
            {
                self.misses(&dir, *errno, Report::Object(handle.clone()))?;
                continue;
            }
            // A name that leads elsewhere by now has a report.
            if let Ok(Some(FoundName { facts, object: Some(object), .. })) = found
                && object == self.host.object(handle)
            {
                let Content { table, objects, .. } = &mut *self.content.write();
                table.refresh(&facts);
                if let Some(file) = objects.file(table, object) {
                    // It may have got a name where no mark is.
                    objects.note(table, file, Some(object), &facts);
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// At a name whose file may have changed. Takes no tick if it has not.
    pub(super) fn look_at_unsure(
        &self,
        dir: &HostHandle,
        name: &[u8],
        last: &mut LastDir,
    ) -> Result<(), Stop> {
        if let Ok(fd) = self.open_patiently(dir)
            && let Ok(Some(found)) = self.host.look(fd.as_fd(), name)
        {
            let table = &self.content.read().table;
            let known = table.dir_of(dir.as_bytes()).and_then(|dir| table.child(dir, name));
            if known.is_some_and(|file| is_unchanged(&table.facts(file), &found.facts)) {
                return Ok(());
            }
        }
        self.look_at_name(dir, name, last)
    }

    /// At a path that another file system covers, or no longer covers: users see other names below it.
    pub(super) fn look_at_mount(&self, path: &[u8], last: &mut LastDir) -> Result<(), Stop> {
        let places: Vec<(HostHandle, Vec<u8>)> = {
            let table = &mut self.content.write().table;
            // A directory on the path may have been renamed since. Then the last one that is there stands for all below.
            let at = table.nearest_name(path);
            table.is_replaced(at);
            let (dir, name) = table.place(at);
            let known = table.handle(dir).map(|dir| (dir.clone(), name.to_vec()));
            // A name may be unknown because the mount did not answer.
            known.into_iter().chain(first_unknown(table, path)).collect()
        };
        if self.host.is_by_path() {
            places.iter().try_for_each(|(dir, name)| self.look_at_name(dir, name, last))?;
        }
        Ok(())
    }

    /// At each name that leads to another file system. By path, a look may have shown a mount that no question has seen, or
    /// that got another path since.
    pub(super) fn look_at_foreign(&self, last: &mut LastDir) -> Result<(), Stop> {
        if !self.host.is_by_path() {
            return Ok(());
        }
        let names: Vec<(HostHandle, Vec<u8>, u64)> = {
            let table = &self.content.read().table;
            let names = table.foreign_names().map(|(dir, name, file)| (table.handle(dir), name, file));
            names
                .filter_map(|(dir, name, file)| Some((dir?.clone(), name.to_vec(), table.facts(file).ino)))
                .collect()
        };
        for (dir, name, ino) in names {
            // The mount that was seen has no change here.
            let looks = self.open_patiently(&dir).and_then(|fd| self.host.look(fd.as_fd(), &name));
            if !looks.is_ok_and(|found| {
                found.is_some_and(|found| self.host.is_foreign(&found) && found.facts.ino == ino)
            }) {
                self.look_at_name(&dir, &name, last)?;
            }
        }
        Ok(())
    }

    /// Another name of a file that has just lost one: its link count has changed.
    pub(super) fn lost_a_name(&self, (file, generation): (u32, u32)) {
        let other = {
            let table = &self.content.read().table;
            let alive = table.is_file(file, generation);
            let other = alive.then(|| table.links(file).next()).flatten();
            other.and_then(|(dir, name)| Some(Report::Name(table.handle(dir)?.clone(), name.into())))
        };
        if let Some(report) = other {
            self.look_later(report);
        }
    }

    /// A directory itself: its attributes, and its content if that could not be read.
    pub(super) fn look_at_directory(&self, dir: &HostHandle) -> Result<(), Stop> {
        match self.open_patiently(dir).and_then(|fd| facts_of(fd.as_fd())) {
            Ok(facts) => {
                let opens = {
                    let table = &mut self.content.write().table;
                    let known = table.dir_of(dir.as_bytes()).map(|dir| table.facts(dir));
                    table.refresh(&facts);
                    known.is_some_and(|known| {
                        (known.mode, known.uid, known.gid) != (facts.mode, facts.uid, facts.gid)
                    })
                };
                if opens {
                    self.look_at_unread();
                }
                self.read_again(dir)
            }
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => self.misses(dir, errno, Report::Object(dir.clone())),
        }
    }
}

/// The first name on a path that the table does not have, with its directory.
fn first_unknown(table: &NameTable, path: &[u8]) -> Option<(HostHandle, Vec<u8>)> {
    let mut dir = ROOT;
    for name in path.split(|byte| *byte == b'/') {
        match table.child(dir, name) {
            Some(file) => dir = file,
            None => return Some((table.handle(dir)?.clone(), name.to_vec())),
        }
    }
    None
}

/// The sentence about the limit of marks.
pub(super) fn no_marks() -> String {
    let limit = std::fs::read_to_string("/proc/sys/fs/fanotify/max_user_marks").unwrap_or_default();
    let limit = limit.trim();
    format!(
        "its directories are more than this user may watch (fs.fanotify.max_user_marks is {limit}): raise that with \
         sysctl fs.fanotify.max_user_marks=NUMBER, or run the index with CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH"
    )
}
