//! One tree that is followed: the watch, the worker that keeps the table, and questions.
//!
//! # Why no change is missed
//!
//! The file system gets a fanotify mark before the first directory is read. Each change either ends before the mark is
//! there, or queues an event. In the first case every later look shows it. In the second case the worker looks at the
//! place *after* the event, and its look shows that change or a later one. It looks at names and files, and never
//! believes an event: events may come late, merged, and in another order than the changes.
//!
//! Reports wait while the tree is scanned, and are looked at afterwards. So a name that was made after its directory
//! was read is found by its report. A directory that moved out of a part not yet read, into a part already read, is
//! found by the report of its new name; it is read then. If it was read at both places, the last listing decides, and
//! the reports of both names then lead to looks at both. A report about an unknown directory is dropped. If the worker
//! drops the report before it looks at the name under which the directory arrived, that later look reads the
//! directory's content. If it looked at that name first, the directory is known when the report comes, and the report
//! is not dropped.
//!
//! A directory in the table is never below itself. If a look shows such a loop, a name above is out of date. The worker
//! looks at each name above, and then repeats the look. If that does not help, the tree is read anew.
//!
//! A directory whose own listing was missed, because it seemed to be gone for a moment, is read when the scan has ended.
//!
//! Without capabilities, directories are marked one by one and opened by path: see [`by_path`].
//!
//! With a snapshot, the scan finds a table that has names already: see [`snapshot`](crate::snapshot).
//!
//! # Why an answer is complete
//!
//! The kernel queues an event before the system call that makes the change returns. For each question, the watcher
//! first reads as many events as the kernel has queued ([`Watcher::drain`]). The question then waits until the worker
//! has looked at all reports that were queued by then. So each change that ended before the question has its tick
//! when the answer is made. Unlike watchman, the index needs no cookie file for this.
//!
//! Mounts and unmounts inside the tree queue no event. A question compares the table of mounts with that of the
//! question before, and puts in a report for each path that differs. So the first question after a mount or unmount
//! puts in the report of that mount or unmount. If an earlier question was answered before the mount or unmount, the
//! clock of that answer is older than the report's tick. If the earlier question was answered after the mount or
//! unmount, its answer shows the present mounts already. Without capabilities, directories are opened by path. A mount
//! over a directory may come and go between two questions. A look by path in that time sees the mounted file system.
//! So names that lead to other file systems are looked at again whenever the table of mounts has changed.
//!
//! A scan notes no changes, and it may show the outcome of a change whose report waits. A client with a clock from
//! before that change would miss it, because the report's look finds nothing new. So the end of a scan begins a new
//! instance. For every older clock the answer is "all".
//!
//! # Locks
//!
//! `mounts` is held while the table of mounts is compared with the last one and reports are put in. The queue's lock
//! is taken under it. A question's second read of the table is under `content`, without `mounts`. `missed` has the
//! directories that were not found, and the files that could not be opened. A thread that holds it takes no lock but
//! `content`. The worker writes `content` (table, instance, phase), and questions read it. Under it the worker makes
//! no system call. Other threads do make system calls under it. A question reads the table of mounts, and the link
//! targets and devices that a search wants. A snapshot writes its blocks to a file, and changes wait until they are
//! written (see `save`). `done` is the number of the last report that was looked at; its condition variable wakes the
//! questions. `content` may be taken under `done`, never the other way round. `saved` is a leaf.

mod by_path;
mod narrow;
mod save;
mod search;
mod unread;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use rustix::io::Errno;
use uvfs_drivers::watch::{WatchRefused, Watcher};

use self::by_path::{AllMissed, Objects};
use self::narrow::NarrowTree;
use self::search::SearchedTree;
use self::unread::Unread;
use crate::clock::ChangeClock;
use crate::find::{Expression, FindSink, SearchEnd, StartingPoint, search};
use crate::host::{Cover, Covered, HostTree, Refused};
use crate::queue::{Report, ReportQueue};
use crate::snapshot::SnapshotFile;
use crate::table::changes::ChangedName;
use crate::table::{FileFacts, HostHandle, NameTable, ROOT};

/// The limits of a tree.
#[derive(Clone, Copy, Debug, Default)]
pub struct TreeLimits {
    /// Threads of the first scan; 0 for as many as processors.
    pub threads: usize,
    /// Bytes of memory of the table; 0 for no limit.
    pub memory: usize,
    /// Remember the names below a directory that is removed or renamed, for questions that want each of them.
    pub names_below: bool,
}

impl TreeLimits {
    fn table(&self, root: &FileFacts, handle: &HostHandle) -> NameTable {
        self.noting(NameTable::new(root, handle.clone()))
    }

    fn noting(&self, table: NameTable) -> NameTable {
        if self.names_below { table.noting_names_below() } else { table }
    }
}

/// How far a tree is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexPhase {
    /// It is read from the host.
    Scanning,
    /// Its names are those of a snapshot, and are being compared with the host.
    Checking,
    /// All of it is known, and followed.
    Following,
    /// It is not known any more, for this reason.
    Lost(String),
}

/// The figures of a tree.
#[derive(Clone, Debug)]
pub struct TreeFigures {
    /// How far it is.
    pub phase: IndexPhase,
    /// Names, the root among them.
    pub names: u64,
    /// Bytes of the table.
    pub bytes: usize,
    /// Whether each directory is watched by itself, for lack of capabilities.
    pub by_directory: bool,
    /// The present moment.
    pub clock: ChangeClock,
    /// Times that it was read from the host.
    pub scans: u64,
    /// The number of names and directories that could not be read, and some of them.
    pub unread: (u64, Option<String>),
    /// Events that the kernel has reported, those of other parts of the file system among them.
    pub events: u64,
    /// Times that events were lost.
    pub overflows: u64,
    /// When the snapshot was written that a server would start with.
    pub snapshot: Option<SystemTime>,
    /// Why the last snapshot was not written or not used.
    pub snapshot_failure: Option<String>,
}

/// The answer to "what changed since".
#[derive(Clone, Debug)]
pub struct ChangesSince {
    /// The moment up to which the answer goes: for the next question.
    pub clock: ChangeClock,
    /// The changes, the oldest first; nothing if everything may have changed.
    pub changes: Option<Vec<ChangedName>>,
    /// A sentence about gaps in the answer.
    pub warning: Option<String>,
}

/// How [`IndexedTree::visit_changes`] ended.
pub(crate) struct ChangesVisited<E> {
    pub(crate) clock: ChangeClock,
    /// Everything may have changed, and nothing was visited.
    pub(crate) fresh: bool,
    pub(crate) warning: Option<String>,
    /// Whether all was visited.
    pub(crate) changes: Result<(), E>,
}

/// A starting point of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindStart {
    /// As it is written.
    pub written: Vec<u8>,
    /// The path below the root of its tree, without a slash in front.
    pub below: Vec<u8>,
}

/// How a search of a tree ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindOutcome {
    /// Whether all was visited.
    pub end: SearchEnd,
    /// Whether the starting point exists.
    pub exists: bool,
    /// Directories below the root that something is mounted on, and that the search would have gone into. The index does
    /// not know the names that users see there.
    pub mounted_on: Vec<Vec<u8>>,
    /// Names are from a snapshot of this time, and may be out of date.
    pub unchecked: Option<SystemTime>,
}

/// A file of a tree, with one of its names.
#[derive(Debug)]
pub struct IndexedName<'a> {
    /// The path below the root, without a slash in front; empty for the root.
    pub path: &'a [u8],
    /// Directories above it, up to the start of the walk.
    pub depth: usize,
    /// The attributes.
    pub facts: FileFacts,
    /// Names in it, of a directory.
    pub children: Option<u64>,
}

/// The warning about a path that the index does not see.
const ELSEWHERE: &str = "another file system is mounted there, whose changes this index does not see";

/// Times that a question looks at the tables of names and mounts while the mounts move.
const MOVING: u32 = 64;

/// The name that another mount covers and that a path leads through; with `whole`, also one that it is.
fn cover_above<'c>(covers: &'c Covered, below: &[u8], whole: bool) -> Option<&'c Cover> {
    covers.names.iter().find(|cover| {
        let rest = below.strip_prefix(&cover.path[..]);
        rest.is_some_and(|rest| rest.first().map_or(whole, |byte| *byte == b'/'))
    })
}

/// A name below a path that another mount covers.
fn cover_inside<'c>(covers: &'c Covered, below: &[u8]) -> Option<&'c Cover> {
    covers.names.iter().find(|cover| {
        below.is_empty() || cover.path.strip_prefix(below).is_some_and(|rest| rest.starts_with(b"/"))
    })
}

/// A sentence about mounts below a path.
///
/// # Errors
/// A sentence if users do not see the index's names at the path, or may not.
fn seen_at(covers: &Result<Arc<Covered>, String>, below: &[u8]) -> Result<Option<String>, String> {
    let covers = covers.as_ref().map_err(String::clone)?;
    let elsewhere = |cover: &Cover| format!("{}: {ELSEWHERE}", String::from_utf8_lossy(&cover.path));
    match cover_above(covers, below, true) {
        None => Ok(cover_inside(covers, below).map(elsewhere)),
        Some(cover) => Err(elsewhere(cover)),
    }
}

fn no_mounts(errno: Errno) -> String {
    format!("the table of mounts cannot be read: {errno}")
}

struct Content {
    table: NameTable,
    instance: u64,
    phase: IndexPhase,
    scans: u64,
    unread: Unread,
    objects: Objects,
    /// The time of the snapshot that the names are from.
    loaded: Option<SystemTime>,
}

impl Content {
    fn clock(&self) -> ChangeClock {
        ChangeClock { instance: self.instance, tick: self.table.tick() }
    }

    /// Bytes of memory.
    fn bytes(&self) -> usize {
        self.table.bytes() + self.objects.bytes()
    }

    /// A sentence if something at or below a path could not be read.
    fn unread_below(&self, below: &[u8]) -> Option<String> {
        let (count, some) = self.unread.shown_below(&self.table, below);
        some.map(|some| format!("{count} could not be read: {some}"))
    }

    /// Why the table does not have all names.
    fn is_known(&self) -> Result<(), String> {
        match &self.phase {
            IndexPhase::Lost(why) => Err(why.clone()),
            IndexPhase::Scanning => Err("the tree is being read".into()),
            IndexPhase::Following | IndexPhase::Checking => Ok(()),
        }
    }
}

struct Shared {
    host: HostTree,
    queue: Arc<ReportQueue>,
    limits: TreeLimits,
    content: RwLock<Content>,
    /// The number of the last report that is done; moves also when the phase does.
    done: Mutex<u64>,
    moved: Condvar,
    /// The number of the worker's own last report: up to there, `done` stays behind. Only the worker uses it.
    owed: AtomicU64,
    /// Directories that were not found, and how often. Only the worker uses it.
    missed: Mutex<AllMissed>,
    /// The mounts inside the tree at the last question.
    mounts: Mutex<Arc<Covered>>,
    snapshot: Option<Arc<SnapshotFile>>,
    saved: Mutex<Saved>,
}

/// The last snapshot.
#[derive(Default)]
struct Saved {
    /// When it was written.
    written: Option<SystemTime>,
    /// When one was written, or could not be.
    tried: Option<Instant>,
    /// The moment that it had then.
    clock: Option<ChangeClock>,
    failure: Option<String>,
}

impl Shared {
    /// Puts in reports of places that may have changed without an event. Returns the mounts inside the tree.
    ///
    /// # Errors
    /// Of reading the table of mounts. A question that needs it says so.
    fn look_around(&self) -> Result<Arc<Covered>, Errno> {
        self.look_outside();
        // Held to the end: another question must find neither an older table than the last one, nor an equal one before the
        // reports are in.
        let mut mounts = self.mounts.lock();
        let now = self.host.covers()?;
        let before = std::mem::replace(&mut *mounts, Arc::clone(&now));
        let differ = |one: &Covered, other: &Covered| -> Vec<Report> {
            let only = one.names.iter().filter(|cover| !other.names.contains(cover));
            only.map(|cover| Report::Mount(cover.path.as_slice().into())).collect()
        };
        if before != now {
            let differ = [differ(&before, &now), differ(&now, &before)];
            differ.into_iter().flatten().for_each(|report| self.queue.report(report));
            self.queue.report(Report::Foreign);
        }
        Ok(now)
    }
}

/// The parts of a tree before its scan: its file system, or its root, is marked.
struct OpenedTree {
    host: HostTree,
    queue: Arc<ReportQueue>,
    watcher: Watcher,
}

impl OpenedTree {
    /// As a whole with capabilities, else directory by directory.
    fn new(path: &Path) -> Result<Self, String> {
        let whole = Self::whole(path);
        let Err(Refused { why, is_for_root: true }) = whole else { return whole.map_err(|error| error.why) };
        let by_path = Self::by_directory(path);
        // A kernel that does not let users watch: the capability that is missing says more.
        by_path.map_err(|error| if error.is_for_root { why } else { error.why })
    }

    fn refused(why: &WatchRefused) -> Refused {
        Refused { why: format!("its changes are not seen: {why}"), is_for_root: why.is_for_root() }
    }

    fn whole(path: &Path) -> Result<Self, Refused> {
        let host = HostTree::open(path)?;
        let queue = Arc::new(ReportQueue::new(host.root_handle().clone()));
        let watcher = Watcher::of_all(host.seen(), Arc::clone(&queue) as Arc<_>);
        Ok(Self { host, queue, watcher: watcher.map_err(|why| Self::refused(&why))? })
    }

    fn by_directory(path: &Path) -> Result<Self, Refused> {
        let mut host = HostTree::open_by_path(path)?;
        let queue = Arc::new(ReportQueue::new(host.root_handle().clone()));
        let watcher = Watcher::of_directories(host.seen(), Arc::clone(&queue) as Arc<_>);
        let (watcher, marks) = watcher.map_err(|why| Self::refused(&why))?;
        host.mark_with(marks);
        Ok(Self { host, queue, watcher })
    }
}

/// A tree that is followed; dropping it ends that.
pub struct IndexedTree {
    shared: Arc<Shared>,
    watcher: Watcher,
    worker: Option<JoinHandle<()>>,
}

impl Drop for IndexedTree {
    fn drop(&mut self) {
        self.shared.queue.stop();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

impl IndexedTree {
    /// Follows the tree below a directory. Returns when its file system is marked; the scan goes on in the
    /// background.
    ///
    /// # Errors
    /// A phrase that says why it cannot be followed.
    pub fn start(path: &Path, limits: TreeLimits) -> Result<Self, String> {
        Self::start_with(path, limits, None)
    }

    /// As [`IndexedTree::start`]. The names of the snapshot, if there is one that can be used, are there after some
    /// seconds, and are then compared with the host.
    ///
    /// # Errors
    /// A phrase that says why it cannot be followed. A snapshot that cannot be used is no error.
    pub fn start_with(
        path: &Path,
        limits: TreeLimits,
        snapshot: Option<Arc<SnapshotFile>>,
    ) -> Result<Self, String> {
        Self::of(OpenedTree::new(path)?, limits, snapshot)
    }

    fn of(
        OpenedTree { host, queue, watcher }: OpenedTree,
        limits: TreeLimits,
        snapshot: Option<Arc<SnapshotFile>>,
    ) -> Result<Self, String> {
        let root = |errno: Errno| format!("its attributes cannot be read: {errno}");
        let content = Content {
            table: limits.table(&host.root_facts().map_err(root)?, host.root_handle()),
            instance: ChangeClock::new_instance()?,
            phase: IndexPhase::Scanning,
            scans: 0,
            unread: Unread::default(),
            objects: Objects::default(),
            loaded: None,
        };
        // If it cannot be read, the first question reports all that is mounted.
        let mounts = host.covers().unwrap_or_default();
        let shared = Arc::new(Shared {
            host,
            queue,
            limits,
            content: RwLock::new(content),
            done: Mutex::new(0),
            moved: Condvar::new(),
            owed: AtomicU64::new(0),
            missed: Mutex::default(),
            mounts: Mutex::new(mounts),
            snapshot,
            saved: Mutex::default(),
        });
        let work = Arc::clone(&shared);
        let worker = thread::Builder::new()
            .name("uvfs-index".into())
            .spawn(move || work.work())
            .map_err(|error| format!("no thread to follow it with: {error}"))?;
        Ok(Self { shared, watcher, worker: Some(worker) })
    }

    /// The path that it was started with.
    pub fn path(&self) -> &Path {
        self.shared.host.path()
    }

    /// Whether its path still leads to it: it may have been renamed, or unmounted.
    pub fn is_there(&self) -> bool {
        self.shared.host.is_there()
    }

    /// Its figures now.
    pub fn figures(&self) -> TreeFigures {
        let (snapshot, snapshot_failure) = {
            let saved = self.shared.saved.lock();
            (saved.written, saved.failure.clone())
        };
        let counts = self.watcher.counts();
        let content = self.shared.content.read();
        TreeFigures {
            phase: content.phase.clone(),
            names: content.table.len(),
            bytes: content.bytes(),
            by_directory: self.shared.host.is_by_path(),
            clock: content.clock(),
            scans: content.scans,
            unread: content.unread.shown(&content.table),
            events: counts.events,
            overflows: counts.overflows + self.shared.queue.overflows_of_its_own(),
            snapshot,
            snapshot_failure,
        }
    }

    /// Waits until the tree is not being scanned, at most for `patience`. Returns the phase then: names of a snapshot
    /// may still be compared with the host.
    pub fn wait_scanned(&self, patience: Duration) -> IndexPhase {
        let deadline = Instant::now() + patience;
        let mut done = self.shared.done.lock();
        loop {
            // The phase moves before `moved` is notified under `done`, so no move is missed.
            let phase = self.phase();
            let scanning = phase == IndexPhase::Scanning;
            if !scanning || self.shared.moved.wait_until(&mut done, deadline).timed_out() {
                return phase;
            }
        }
    }

    fn phase(&self) -> IndexPhase {
        self.shared.content.read().phase.clone()
    }

    /// Waits until all that was changed before this call is in the table, or the tree is being scanned or lost.
    pub fn settle(&self) {
        let _ = self.settle_and_look();
    }

    /// [`IndexedTree::settle`]. Returns the mounts inside the tree at a moment of this call.
    fn settle_and_look(&self) -> Result<Arc<Covered>, Errno> {
        // Events come first, so that a name that was made before something was mounted there is known.
        self.watcher.drain();
        let mounts = self.shared.look_around();
        let wanted = self.shared.queue.put_in();
        let mut done = self.shared.done.lock();
        while *done < wanted && self.phase() == IndexPhase::Following {
            self.shared.moved.wait(&mut done);
        }
        mounts
    }

    /// The names after [`IndexedTree::settle`], and the mounts that cover some of them. If the tree was followed only after
    /// that began, its reports may wait still, so it is settled again.
    ///
    /// A directory above a mount may be renamed meanwhile. Then the table of mounts, read anew under the lock, differs, or has a
    /// path that the table of names has not, and both are looked at again. If nothing has changed since the last look, the name
    /// is missing for another reason: it could not be read. A directory that was renamed and renamed back leaves the table of
    /// names as it was, but not the count of events. Others' events count too, so after all looks an equal table is enough.
    fn settled(&self) -> (RwLockReadGuard<'_, Content>, Result<Arc<Covered>, String>) {
        let following =
            |content: &Content| (content.phase == IndexPhase::Following).then_some(content.instance);
        let (mut looks, mut last) = (0, None::<(Vec<Cover>, ChangeClock, u64)>);
        loop {
            let before = following(&self.shared.content.read());
            let mounts = self.settle_and_look();
            let events = self.watcher.counts().events;
            let content = self.shared.content.read();
            let now = following(&content);
            if now.is_some() && now != before {
                continue;
            }
            let again = match mounts {
                Ok(mounts) if mounts.names.is_empty() => return (content, Ok(mounts)),
                Ok(mounts) => self.shared.host.covers().map(|again| (again.names == mounts.names, again)),
                Err(errno) => Err(errno),
            };
            let clock = content.clock();
            match again {
                Err(errno) => return (content, Err(no_mounts(errno))),
                Ok((true, covers))
                    if last.as_ref().is_some_and(|(names, then, before)| {
                        *then == clock && (looks == MOVING || *before == events && *names == covers.names)
                    }) || covers.names.iter().all(|cover| content.table.may_have(&cover.path)) =>
                {
                    return (content, Ok(covers));
                }
                Ok(_) if looks == MOVING => {
                    return (content, Err("mounts inside the tree are being moved".into()));
                }
                Ok((_, covers)) => (looks, last) = (looks + 1, Some((covers.names.clone(), clock, events))),
            }
        }
    }

    /// [`IndexedTree::settle`], at most until `deadline`. Returns whether the table is right now: not so while the tree
    /// is being scanned, or is lost.
    pub(crate) fn settle_until(&self, deadline: Instant) -> bool {
        if self.wait_scanned(deadline.saturating_duration_since(Instant::now())) != IndexPhase::Following {
            return false;
        }
        self.watcher.drain();
        // The reader asks no question about mounts.
        let _ = self.shared.look_around();
        let wanted = self.shared.queue.put_in();
        let mut done = self.shared.done.lock();
        while *done < wanted && self.phase() == IndexPhase::Following {
            if self.shared.moved.wait_until(&mut done, deadline).timed_out() {
                return false;
            }
        }
        drop(done);
        self.phase() == IndexPhase::Following
    }

    /// A sentence if something at or below a path could not be read.
    pub(crate) fn unread_below(&self, below: &[u8]) -> Option<String> {
        self.shared.content.read().unread_below(below)
    }

    /// A sentence if something is mounted below a path at this moment.
    ///
    /// # Errors
    /// A sentence if users see other names at the path than the index has, or may see them.
    pub(crate) fn mounted_below(&self, below: &[u8]) -> Result<Option<String>, String> {
        seen_at(&self.shared.host.covers().map_err(no_mounts), below)
    }

    /// Calls `look` with the table, its moment, and the host. Changes wait meanwhile, so `look` must not.
    ///
    /// # Errors
    /// The reason if the tree is not known.
    pub(crate) fn look<R>(
        &self,
        look: impl FnOnce(&NameTable, ChangeClock, &HostTree) -> R,
    ) -> Result<R, String> {
        let content = self.shared.content.read();
        content.is_known()?;
        Ok(look(&content.table, content.clock(), &self.shared.host))
    }

    /// The changes since a moment, at or below a path. Every change that ended before this call is in the answer.
    /// Without `since`, or if that moment is not known, everything may have changed. O(changes since then), whatever
    /// the size of the tree.
    pub fn changed_since(&self, since: Option<ChangeClock>, below: &[u8]) -> ChangesSince {
        let mut changes = Vec::new();
        let visited = self.visit_changes(since, below, |change| {
            changes.extend(Some(change).filter(|change| change.is_near(below)));
            Ok::<(), std::convert::Infallible>(())
        });
        let ChangesVisited { clock, fresh, warning, changes: Ok(()) } = visited;
        ChangesSince { clock, changes: (!fresh).then_some(changes), warning }
    }

    /// As [`IndexedTree::changed_since`]: visits all changes of the tree since a moment, the oldest first, unless
    /// everything below the path may have changed. The table is locked meanwhile, so `each` must not wait.
    pub(crate) fn visit_changes<E>(
        &self,
        since: Option<ChangeClock>,
        below: &[u8],
        each: impl FnMut(ChangedName) -> Result<(), E>,
    ) -> ChangesVisited<E> {
        let (content, covers) = self.settled();
        let warning = match &content.phase {
            IndexPhase::Lost(why) => Some(why.clone()),
            _ => content.unread_below(below),
        };
        let (seen, warning) = match seen_at(&covers, below) {
            Ok(mounted) => (true, mounted.or(warning)),
            Err(why) => (false, Some(why)),
        };
        let known = since.filter(|since| {
            seen && since.instance == content.instance
                && content.phase == IndexPhase::Following
                && content.table.knows_changes_since(since.tick)
        });
        let changes = known.map_or(Ok(()), |since| content.table.visit_changes(since.tick, each));
        ChangesVisited { clock: content.clock(), fresh: known.is_none(), warning, changes }
    }

    /// Waits for a change after a moment, at most for `patience`. Returns whether the table has moved.
    pub fn wait_for_change(&self, since: ChangeClock, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let _ = self.shared.look_around();
        let mut done = self.shared.done.lock();
        loop {
            let moved = {
                let content = self.shared.content.read();
                content.clock() != since || content.phase != IndexPhase::Following
            };
            if moved {
                return true;
            }
            if self.shared.moved.wait_until(&mut done, deadline).timed_out() {
                return false;
            }
        }
    }

    /// Searches a starting point and everything below it. The search sees the names of one moment, after every change
    /// that ended before this call. Changes wait meanwhile, so `sink` must not.
    ///
    /// # Errors
    /// The reason if the tree is not known; the sink's error.
    pub fn find(
        &self,
        expression: &Expression,
        start: &FindStart,
        sink: &mut dyn FindSink,
    ) -> Result<FindOutcome, String> {
        let (content, covers) = self.settled();
        let covers = covers?;
        if let Some(cover) = cover_above(&covers, &start.below, false) {
            let (end, mounted_on) = (SearchEnd::Complete, vec![cover.path.clone()]);
            return Ok(FindOutcome { end, exists: true, mounted_on, unchecked: None });
        }
        content.is_known()?;
        let unchecked = content.loaded.filter(|_| content.phase == IndexPhase::Checking);
        let tree = SearchedTree::new(&self.shared.host, &content.table, &content.unread, &covers.names);
        let Some(node) = tree.at(&start.below) else {
            let (end, mounted_on) = (SearchEnd::Complete, Vec::new());
            return Ok(FindOutcome { end, exists: false, mounted_on, unchecked });
        };
        let from = StartingPoint { path: start.written.clone(), node };
        let failed = |error: std::io::Error| error.to_string();
        let narrow = NarrowTree::if_worth(expression, &tree, &node, self.shared.threads(), sink);
        let narrow = narrow.map_err(failed)?;
        let end = match &narrow {
            Some(narrow) => search(expression, narrow, [from], sink),
            None => search(expression, &tree, [from], sink),
        };
        let end = end.map_err(failed)?;
        drop(narrow);
        Ok(FindOutcome { end, exists: true, mounted_on: tree.mounted_on(), unchecked })
    }

    /// Visits a file and everything below it, each directory before its content, in no order otherwise. The visitor
    /// sees the names of one moment; changes wait meanwhile. `visit` returns whether to go into a directory.
    ///
    /// # Errors
    /// The reason if the tree is not known, ENOENT in words if the path is not.
    pub fn visit(&self, below: &[u8], mut visit: impl FnMut(&IndexedName<'_>) -> bool) -> Result<(), String> {
        let (content, _) = self.settled();
        content.is_known()?;
        let table = &content.table;
        let start = table.walk(below).ok_or("there is no such name in the index")?;
        debug_assert!(start != ROOT || below.is_empty());
        let mut stack = vec![(below.to_vec(), start, 0)];
        while let Some((path, file, depth)) = stack.pop() {
            let facts = table.facts(file);
            let known = facts.is_dir().then(|| table.children(file));
            let children = known.map(|children| children.count() as u64);
            let into = visit(&IndexedName { path: &path, depth, facts, children });
            if into && children.is_some_and(|children| children > 0) {
                stack.extend(table.children(file).map(|(name, child)| {
                    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                    ([&path[..], slash, name].concat(), child, depth + 1)
                }));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_by_path;
#[cfg(test)]
mod tests_mounts;
#[cfg(test)]
mod tests_search;
