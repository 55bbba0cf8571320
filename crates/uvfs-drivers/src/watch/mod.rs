//! Watching a file system for changes that others make: fanotify(7), one thread.
//!
//! The whole file system of the source is marked, so that a newly known directory needs no call. Events of other
//! parts arrive too: the listener drops those about files that it does not know, at the cost of one look into a
//! table. Events name files by handle, and directories by handle with the name in them. They arrive after the change,
//! merged. An event says where to look again, never what happened.
//!
//! Changes by this process itself are not reported to a mirror: the caller that makes one knows it. (fanotify merges no
//! events of different processes, so this loses no event of others.) [`Watcher::of_all`] reports them too. The kernel may have no space for events, and some cannot
//! be understood. Both are reported as *overflow*: anything may have changed.
//!
//! Each watch is **proven** before it counts. The source is opened, and an event must report that, and name the
//! source by the handle that the mirror knows. For that moment the mark reports opens too. This writes nothing, so it
//! works where nothing may be written, and no program that uses the source sees it.
//!
//! Without CAP_SYS_ADMIN, [`Watcher::of_directories`] marks directories one by one (Linux 5.17). The listener marks each
//! before it lists it. Such a mark reports changes of the names in the directory, and changes of a file that go through
//! one of these names. A file's own link count may change without an event.
//!
//! Another watch is **refused** without CAP_SYS_ADMIN, and on a file system without handles or whose changes are made
//! elsewhere (network, FUSE, overlays). It is also refused by a kernel that cannot name the directory of an event
//! (before 5.9), and if it is not proven.
//!
//! [`Watcher::drain`] returns once every change that ended before the call is reported. The kernel queues an event
//! before the system call that made the change returns. So the thread asks for the queue's length, and reads until it
//! has read as much or nothing is left. Events that are queued meanwhile cannot keep it there.
//!
//! The thread holds no lock while it reports. It ends with the [`Watcher`]. If it ends before, because reading
//! failed, it calls [`Told::ended`], and nothing is known from then on.

mod fanotify_event;
mod sys;

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{Mode, OFlags, Timespec, openat};
use rustix::io::Errno;

pub use fanotify_event::WatchedHandle;
use fanotify_event::{Event, Events, Place};
use sys::Marked;

/// Bytes of events that are read at a time: some thousand.
const BUFFER: usize = 256 << 10;

/// How long events gather after a batch of only our own: a millisecond for each such batch in a row, up to this many.
/// Otherwise a program that changes much through the mirror would wake this thread for each change. If only others
/// change something, the events are read at once.
const GATHER: u32 = 4;

/// How long the proof of a watch may take. Its event is in the queue before the call that it is about returns.
const PATIENCE: Duration = Duration::from_secs(5);

/// The listener for changes. Called from the watcher's thread, one call at a time.
pub trait Told: Send + Sync + 'static {
    /// `name` in the directory `dir` was made, removed, or leads elsewhere.
    fn name(&self, dir: WatchedHandle<'_>, name: &[u8]);
    /// A rename has given this file `name` in the directory `dir`. Both names are reported too.
    fn moved(&self, handle: WatchedHandle<'_>, dir: WatchedHandle<'_>, name: &[u8]);
    /// Attributes were changed; with `content`, the file's content too. Returns whether that was to be expected, like
    /// a user's write to a lent file through the mount. Events gather then as after our own.
    fn object(&self, handle: WatchedHandle<'_>, content: bool) -> bool;
    /// Whether the mirror knows the source itself by this handle.
    fn is_source(&self, dir: WatchedHandle<'_>) -> bool;
    /// Events were lost: anything may have changed.
    fn overflow(&self);
    /// No event will come any more.
    fn ended(&self, why: &str);
}

/// Why a file system cannot be watched, as the rest of a sentence that begins with "changes by others are not seen:
/// ".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRefused(String);

impl WatchRefused {
    pub(crate) fn no_handles() -> Self {
        Self("the file system has no handles of its own that files could be told by".into())
    }

    pub(crate) fn made() -> Self {
        Self("the kernel makes up what is in it, and tells of no change".into())
    }

    pub(crate) fn other(why: String) -> Self {
        Self(why)
    }

    fn not_proven() -> Self {
        Self("no event came that names the directory by its handle, when it was opened to see whether one would".into())
    }

    /// Whether it is for lack of CAP_SYS_ADMIN.
    pub fn is_for_root(&self) -> bool {
        self.0 == FOR_ROOT
    }

    pub(crate) fn errno(errno: Errno) -> Self {
        Self(format!("it cannot be opened: {errno}"))
    }
}

const FOR_ROOT: &str = "a file system can be watched by root only (CAP_SYS_ADMIN)";

impl fmt::Display for WatchRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WatchRefused {}

/// The counts of events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events of others.
    pub events: u64,
    /// Events of this process.
    pub own: u64,
    /// Times that events were lost.
    pub overflows: u64,
}

#[derive(Default)]
struct Tally {
    events: AtomicU64,
    own: AtomicU64,
    overflows: AtomicU64,
}

/// The watch of a file system; dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    stop: Arc<OwnedFd>,
    drain: Arc<Drain>,
    tally: Arc<Tally>,
    own: Arc<AtomicI32>,
    thread: Option<JoinHandle<()>>,
}

/// Requests to read the whole queue, numbered from 1.
#[derive(Debug)]
struct Drain {
    /// Wakes the thread. Written after `asked` has moved.
    wake: OwnedFd,
    asked: AtomicU64,
    /// The last request that is done; all of them once the thread has ended.
    done: Mutex<u64>,
    moved: Condvar,
}

impl Drain {
    const ENDED: u64 = u64::MAX;

    fn new() -> Result<Self, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wake, asked: AtomicU64::new(0), done: Mutex::new(0), moved: Condvar::new() })
    }

    fn is_done(&self, nth: u64) {
        *self.done.lock() = nth;
        self.moved.notify_all();
    }
}

/// Whether an event has come that names the source by its handle.
#[derive(Default)]
struct Proof {
    come: Mutex<bool>,
    moved: Condvar,
}

impl Proof {
    fn comes(&self) {
        *self.come.lock() = true;
        self.moved.notify_all();
    }

    fn within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut come = self.come.lock();
        while !*come && !self.moved.wait_until(&mut come, deadline).timed_out() {}
        *come
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tally")
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Watcher {
    /// Watches the file system of `source`. Changes made after this returns are reported.
    ///
    /// # Errors
    /// The reason why it cannot be watched.
    pub fn start(source: BorrowedFd<'_>, told: Arc<dyn Told>) -> Result<Self, WatchRefused> {
        Self::start_for(mark(source)?, source, told, std::process::id(), PATIENCE)
    }

    /// As [`Watcher::start`], with the changes of this process among those that are reported.
    ///
    /// # Errors
    /// The reason why it cannot be watched.
    pub fn of_all(source: BorrowedFd<'_>, told: Arc<dyn Told>) -> Result<Self, WatchRefused> {
        Self::start_for(mark(source)?, source, told, 0, PATIENCE)
    }

    /// As [`Watcher::of_all`], for any user: only changes in directories that are marked are reported. `source` itself is
    /// marked.
    ///
    /// # Errors
    /// The reason why it cannot be watched.
    pub fn of_directories(
        source: BorrowedFd<'_>,
        told: Arc<dyn Told>,
    ) -> Result<(Self, DirectoryMarks), WatchRefused> {
        let marks = mark_directory(source)?;
        let group = (Arc::clone(&marks.group), Marked::Directory);
        Ok((Self::start_for(group, source, told, 0, PATIENCE)?, marks))
    }

    /// Waits until every change that ended before this call has been reported. Returns false if the watch has ended
    /// by itself. Must not be called by a [`Told`]. Costs two switches of threads.
    pub fn drain(&self) -> bool {
        // The number moves before the thread is woken. If the thread loads it earlier, it is woken once more.
        let nth = self.drain.asked.fetch_add(1, SeqCst) + 1;
        let _ = rustix::io::write(&self.drain.wake, &1u64.to_ne_bytes());
        let mut done = self.drain.done.lock();
        while *done < nth {
            self.drain.moved.wait(&mut done);
        }
        *done != Drain::ENDED
    }

    /// [`Watcher::start`], with the process `own` whose events are left out (0: none), and the time that the proof
    /// may take.
    fn start_for(
        (group, marked): (Arc<OwnedFd>, Marked),
        source: BorrowedFd<'_>,
        told: Arc<dyn Told>,
        own: u32,
        patience: Duration,
    ) -> Result<Self, WatchRefused> {
        let proof = Arc::<Proof>::default();
        let os = |error: Errno| WatchRefused(format!("no thread to watch with: {error}"));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(os)?);
        let drain = Arc::new(Drain::new().map_err(os)?);
        let tally = Arc::<Tally>::default();
        let own = Arc::new(AtomicI32::new(i32::try_from(own).unwrap_or(0)));
        let thread = Thread {
            group: Arc::clone(&group),
            stop: Arc::clone(&stop),
            drain: Arc::clone(&drain),
            tally: Arc::clone(&tally),
            told,
            own: Arc::clone(&own),
            proof: Arc::clone(&proof),
            hash: RandomState::default(),
        };
        let thread = thread::Builder::new()
            .name("uvfs-watch".into())
            .spawn(move || thread.run())
            .map_err(|error| WatchRefused(format!("no thread to watch with: {error}")))?;
        let watcher = Self { stop, drain, tally, own, thread: Some(thread) };
        open_and_tell(&group, marked, source)?;
        if proof.within(patience) { Ok(watcher) } else { Err(WatchRefused::not_proven()) }
    }

    /// No events are left out any more.
    pub(crate) fn hear_own(&self) {
        self.own.store(0, Relaxed);
    }

    /// The counts of events so far.
    pub fn counts(&self) -> Counts {
        let t = &self.tally;
        let [events, own, overflows] = [&t.events, &t.own, &t.overflows].map(|count| count.load(Relaxed));
        Counts { events, own, overflows }
    }
}

/// File systems whose files are not only changed by this kernel, or whose events are about other files than they
/// show.
const ELSEWHERE: [(u32, &str); 14] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x7375_7245, "Coda"),
    (0x794c_7630, "overlayfs"),
];

/// The name of the file system of `source`, if it is one of [`ELSEWHERE`].
fn elsewhere(source: BorrowedFd<'_>) -> Result<Option<&'static str>, Errno> {
    let kind = rustix::fs::fstatfs(source)?.f_type;
    Ok(ELSEWHERE.iter().find(|(magic, _)| *magic == kind as u32).map(|(_, name)| *name))
}

/// Marks of directories, each of which its listener has opened.
#[derive(Clone, Debug)]
pub struct DirectoryMarks {
    group: Arc<OwnedFd>,
}

impl DirectoryMarks {
    /// Marks an open directory. Changes made after this returns are reported. Costs nothing but a call if it is marked.
    ///
    /// # Errors
    /// ENOSPC at the user's limit (fs.fanotify.max_user_marks); others as of fanotify_mark(2).
    pub fn add(&self, dir: BorrowedFd<'_>) -> Result<(), Errno> {
        sys::mark(&self.group, Marked::Directory, dir, true)
    }

    /// Removes all marks. `dir` is any open directory.
    ///
    /// # Errors
    /// As of fanotify_mark(2).
    pub fn remove_all(&self, dir: BorrowedFd<'_>) -> Result<(), Errno> {
        sys::unmark_directories(&self.group, dir)
    }
}

fn is_ours(source: BorrowedFd<'_>) -> Result<(), WatchRefused> {
    match elsewhere(source).map_err(|errno| WatchRefused(format!("statfs: {errno}")))? {
        Some(name) => Err(WatchRefused(format!("on {name} this kernel does not learn of all of them"))),
        None => Ok(()),
    }
}

/// A group with a mark on the directory `source`.
fn mark_directory(source: BorrowedFd<'_>) -> Result<DirectoryMarks, WatchRefused> {
    is_ours(source)?;
    let group = sys::group(Marked::Directory, true).map_err(|errno| match errno {
        // Before Linux 5.17; before 5.13 it is EPERM.
        Errno::INVAL => WatchRefused(FOR_ROOT.into()),
        errno => no_group(errno),
    })?;
    let marks = DirectoryMarks { group: Arc::new(group) };
    marks.add(source).map_err(no_mark)?;
    Ok(marks)
}

/// A group with a mark on the file system of `source`.
fn mark(source: BorrowedFd<'_>) -> Result<(Arc<OwnedFd>, Marked), WatchRefused> {
    is_ours(source)?;
    let on = Marked::FileSystem;
    let with_target = sys::group(on, true).map(|group| (group, true));
    let (group, renames) = match with_target {
        // Before Linux 5.17.
        Err(Errno::INVAL) => (sys::group(on, false).map_err(no_group)?, false),
        outcome => outcome.map_err(no_group)?,
    };
    sys::mark(&group, on, source, renames).map_err(no_mark)?;
    Ok((Arc::new(group), on))
}

fn no_mark(errno: Errno) -> WatchRefused {
    WatchRefused(match errno {
        Errno::OPNOTSUPP | Errno::NODEV => return WatchRefused::no_handles(),
        Errno::XDEV => "it is a subvolume, of whose files the file system has several identities".into(),
        Errno::INVAL => "this kernel's fanotify is too old (Linux 5.9 is needed)".into(),
        Errno::PERM => FOR_ROOT.into(),
        errno => format!("fanotify_mark: {errno}"),
    })
}

/// Opens `source`, and lets the group get an event for that. The group gets events of opens no longer than this
/// takes.
fn open_and_tell(group: &OwnedFd, marked: Marked, source: BorrowedFd<'_>) -> Result<(), WatchRefused> {
    let refused = |errno: Errno| WatchRefused(format!("whether events come cannot be found out: {errno}"));
    sys::tell_of_opens(group, marked, source, true).map_err(refused)?;
    let opened = openat(source, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    sys::tell_of_opens(group, marked, source, false).map_err(refused)?;
    opened.map(drop).map_err(refused)
}

fn no_group(errno: Errno) -> WatchRefused {
    WatchRefused(match errno {
        Errno::PERM => FOR_ROOT.into(),
        Errno::NOSYS => "this kernel has no fanotify".into(),
        Errno::INVAL => "this kernel's fanotify is too old (Linux 5.9 is needed)".into(),
        Errno::MFILE => "too many fanotify groups (/proc/sys/fs/fanotify/max_user_groups)".into(),
        errno => format!("fanotify_init: {errno}"),
    })
}

struct Thread {
    group: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    drain: Arc<Drain>,
    tally: Arc<Tally>,
    told: Arc<dyn Told>,
    /// The process whose events are left out; 0: none.
    own: Arc<AtomicI32>,
    proof: Arc<Proof>,
    hash: RandomState,
}

impl Thread {
    fn run(self) {
        if let Err(error) = self.watch() {
            self.told.ended(&format!("reading events failed: {error}"));
        }
        self.drain.is_done(Drain::ENDED);
    }

    fn watch(&self) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        let mut seen = HashSet::default();
        // Batches in a row with nothing but our own doing.
        let mut own = 0;
        loop {
            if own > 0 && self.stops_within(own)? {
                return Ok(());
            }
            let mut fds = [
                PollFd::new(&self.group, PollFlags::IN),
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
                PollFd::new(&self.drain.wake, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if !fds[1].revents().is_empty() {
                return Ok(());
            }
            if !fds[2].revents().is_empty() {
                self.drain_queue(&mut buffer, &mut seen)?;
                own = 0;
                continue;
            }
            match self.read(&mut buffer, &mut seen)? {
                Some(true) => own = GATHER.min(own + 1),
                Some(false) => own = 0,
                None => {}
            }
        }
    }

    /// Reads once and reports. Returns whether all was our own or to be expected; nothing if no event is queued.
    fn read(&self, buffer: &mut [u8], seen: &mut HashSet<u64, RandomState>) -> io::Result<Option<bool>> {
        match rustix::io::read(&self.group, &mut *buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => Ok(Some(self.batch(&buffer[..len], seen))),
            Err(Errno::INTR | Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reports all that is queued now, for the requests made until now.
    fn drain_queue(&self, buffer: &mut [u8], seen: &mut HashSet<u64, RandomState>) -> io::Result<()> {
        let _ = rustix::io::read(&self.drain.wake, &mut [0; 8]);
        let nth = self.drain.asked.load(SeqCst);
        // The kernel counts an event's metadata alone. If it counted more, this would read more than it must.
        let mut queued = rustix::io::ioctl_fionread(&*self.group)?;
        while queued > 0 {
            match rustix::io::read(&self.group, &mut *buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    let events = Events::new(&buffer[..len]).count();
                    self.batch(&buffer[..len], seen);
                    queued = queued.saturating_sub((events * fanotify_event::METADATA) as u64);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.drain.is_done(nth);
        Ok(())
    }

    /// Waits for so many milliseconds. Returns whether the end was asked for meanwhile.
    fn stops_within(&self, millis: u32) -> io::Result<bool> {
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(millis) * 1_000_000 };
        let mut stop = [PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
        match poll(&mut stop, Some(&time)) {
            Ok(stopped) => Ok(stopped != 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reports the events of one read. All of them happened before the first is reported, so each change is reported
    /// once. Returns whether all were our own or to be expected.
    fn batch(&self, bytes: &[u8], seen: &mut HashSet<u64, RandomState>) -> bool {
        seen.clear();
        let mut own_only = true;
        let own = self.own.load(Relaxed);
        for event in Events::new(bytes) {
            let Some(event) = event.filter(|event| !event.overflow()) else {
                own_only = false;
                self.tally.overflows.fetch_add(1, Relaxed);
                self.told.overflow();
                continue;
            };
            if event.of_open() && self.names_source(&event) {
                self.proof.comes();
            }
            if event.of_open_only() {
                continue;
            }
            if event.pid == own && own != 0 {
                self.tally.own.fetch_add(1, Relaxed);
                continue;
            }
            self.tally.events.fetch_add(1, Relaxed);
            own_only &= self.tell(&event, seen);
        }
        own_only
    }

    fn names_source(&self, event: &Event<'_>) -> bool {
        event.places().any(|place| matches!(place, Some(Place::Object(dir)) if self.told.is_source(dir)))
    }

    /// Whether it was to be expected.
    fn tell(&self, event: &Event<'_>, seen: &mut HashSet<u64, RandomState>) -> bool {
        let mut expected = !event.of_names();
        if let Some((handle, dir, name)) = event.moved() {
            self.told.moved(handle, dir, name);
        }
        for place in event.places() {
            let Some(place) = place else {
                self.tally.overflows.fetch_add(1, Relaxed);
                self.told.overflow();
                return false;
            };
            match place {
                // If only a file's attributes or content changed, the event names it too, and the name leads where it
                // did.
                Place::Name(..) if !event.of_names() => {}
                Place::Name(dir, name) => {
                    if seen.insert(self.hash.hash_one((dir, name))) {
                        self.told.name(dir, name);
                    }
                }
                Place::Object(handle) => {
                    let content = event.of_content();
                    if seen.insert(self.hash.hash_one((handle, content))) {
                        expected &= self.told.object(handle, content);
                    }
                }
            }
        }
        expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::path::Path;
    use std::process::Command;

    #[derive(Default)]
    struct Heard {
        all: Mutex<Vec<String>>,
        moved: Condvar,
        /// Knows the source by another handle than events name it by.
        deaf: bool,
    }

    impl Heard {
        fn note(&self, what: String) {
            self.all.lock().push(what);
            self.moved.notify_all();
        }

        /// Waits until this was heard; a minute is longer than it ever takes.
        fn until(&self, what: &str) -> Vec<String> {
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut all = self.all.lock();
            while !all.iter().any(|heard| heard == what) {
                assert!(!self.moved.wait_until(&mut all, deadline).timed_out(), "no {what} in {all:?}");
            }
            all.clone()
        }
    }

    fn hex(handle: WatchedHandle<'_>) -> String {
        format!("{}:{:02x?}", handle.kind, handle.bytes)
    }

    impl Told for Heard {
        fn name(&self, dir: WatchedHandle<'_>, name: &[u8]) {
            self.note(format!("name {} {}", hex(dir), String::from_utf8_lossy(name)));
        }
        fn object(&self, handle: WatchedHandle<'_>, content: bool) -> bool {
            self.note(format!("object {} {content}", hex(handle)));
            false
        }
        fn moved(&self, handle: WatchedHandle<'_>, dir: WatchedHandle<'_>, name: &[u8]) {
            self.note(format!("moved {} {} {}", hex(handle), hex(dir), String::from_utf8_lossy(name)));
        }
        fn is_source(&self, _: WatchedHandle<'_>) -> bool {
            !self.deaf
        }
        fn overflow(&self) {
            self.note("overflow".into());
        }
        fn ended(&self, why: &str) {
            self.note(format!("ended {why}"));
        }
    }

    /// As name_to_handle_at(2) gives it.
    fn handle_of(path: &Path) -> String {
        let (kind, bytes) = sys::handle_of(path).expect("a handle");
        hex(WatchedHandle { kind, bytes: &bytes })
    }

    fn sh(dir: &Path, script: &str) {
        let status = Command::new("sh").args(["-ec", script]).current_dir(dir).status().expect("sh");
        assert!(status.success(), "{script}");
    }

    /// A watched directory; none, with a message, if it cannot be watched.
    fn watched(own: u32) -> Option<(tempfile::TempDir, Arc<Heard>, Watcher)> {
        // A place with files of the host: the usual place for temporary ones may be an overlay.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let heard = Arc::<Heard>::default();
        let source = File::open(dir.path()).expect("open");
        match mark(source.as_fd())
            .and_then(|group| Watcher::start_for(group, source.as_fd(), heard.clone(), own, PATIENCE))
        {
            Ok(watcher) => Some((dir, heard, watcher)),
            Err(why) => {
                eprintln!("skipped: changes by others are not seen: {why}");
                None
            }
        }
    }

    #[test]
    fn what_another_process_does_is_told_of() {
        let Some((dir, heard, watcher)) = watched(std::process::id()) else { return };
        let root = handle_of(dir.path());
        sh(dir.path(), "mkdir d; echo text > d/f; chmod 600 d/f; ln d/f g; mv g d/h; rm d/h; touch last");
        let all = heard.until(&format!("name {root} last"));
        let (d, f) = (handle_of(&dir.path().join("d")), handle_of(&dir.path().join("d/f")));
        for wanted in [
            format!("name {root} d"),
            format!("name {d} f"),
            format!("object {f} true"),
            format!("object {f} false"),
            format!("name {root} g"),
            format!("name {d} h"),
        ] {
            assert!(all.contains(&wanted), "no {wanted} in {all:#?}");
        }
        assert!(watcher.counts().events >= 6 && watcher.counts().overflows == 0);
        // A directory's own attributes.
        sh(dir.path(), "chmod 700 d; touch last2");
        assert!(heard.until(&format!("name {root} last2")).contains(&format!("object {d} false")));
    }

    /// A program that has it open goes by its link count. That holds also where the name was in another directory, or
    /// something took its place.
    #[test]
    fn that_a_file_or_directory_lost_a_name_is_told_of_it() {
        let Some((dir, heard, _watcher)) = watched(std::process::id()) else { return };
        let (root, open) = (handle_of(dir.path()), |name: &str| File::open(dir.path().join(name)).unwrap());
        sh(dir.path(), "mkdir d e e2 other; echo text > f; ln f g; ln f other/h; echo x > over; touch ready");
        heard.until(&format!("name {root} ready"));
        let file = handle_of(&dir.path().join("f"));
        let dirs = ["d", "e"].map(|name| handle_of(&dir.path().join(name)));
        let _held = ["f", "d", "e"].map(open);
        let steps = [
            ("rm g", &file),
            ("rm other/h", &file),
            ("mv over f", &file),
            ("rmdir d", &dirs[0]),
            ("mv -T e2 e", &dirs[1]),
        ];
        for (nth, (step, whose)) in steps.into_iter().enumerate() {
            heard.all.lock().clear();
            sh(dir.path(), &format!("{step}; touch done{nth}"));
            let all = heard.until(&format!("name {root} done{nth}"));
            assert!(all.contains(&format!("object {whose} false")), "{step}: {all:#?}");
        }
    }

    /// Without any wait: each change that ended before the call is heard when it returns.
    #[test]
    fn a_drained_watch_has_told_of_all_that_ended() {
        let Some((dir, heard, watcher)) = watched(0) else { return };
        let root = handle_of(dir.path());
        for nth in 0..500 {
            let name = format!("f{nth}");
            std::fs::write(dir.path().join(&name), "text").unwrap();
            assert!(watcher.drain());
            let wanted = format!("name {root} {name}");
            assert!(heard.all.lock().contains(&wanted), "no {wanted}");
        }
    }

    #[test]
    fn what_this_process_does_is_not_told_of() {
        let Some((dir, heard, watcher)) = watched(std::process::id()) else { return };
        std::fs::write(dir.path().join("own"), "text").unwrap();
        sh(dir.path(), "touch other");
        let root = handle_of(dir.path());
        let all = heard.until(&format!("name {root} other"));
        assert!(!all.contains(&format!("name {root} own")), "{all:?}");
        assert!(watcher.counts().own > 0);
    }

    /// Bytes that are no events count as overflow, not as nothing. Then the watch continues.
    #[test]
    fn lost_events_are_overflow() {
        let Some((dir, heard, _watcher)) = watched(std::process::id()) else { return };
        let group = File::open(dir.path()).unwrap();
        let thread = Thread {
            group: Arc::new(group.into()),
            stop: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
            drain: Arc::new(Drain::new().expect("a descriptor")),
            tally: Arc::default(),
            told: heard.clone(),
            own: Arc::default(),
            proof: Arc::default(),
            hash: RandomState::default(),
        };
        thread.batch(&[1; 30], &mut HashSet::default());
        heard.until("overflow");
        // Reading from a descriptor that is no group fails, and the failure is reported.
        thread.run();
        assert!(heard.all.lock().iter().any(|heard| heard.starts_with("ended ")));
    }

    #[test]
    fn a_watch_whose_events_do_not_name_the_source_is_refused() {
        let Some((dir, ..)) = watched(0) else { return };
        let source = File::open(dir.path()).unwrap();
        let heard = Arc::new(Heard { deaf: true, ..Heard::default() });
        // The event is in the queue when the waiting begins; a second is for the thread to read it.
        let group = mark(source.as_fd()).expect("marked before");
        let why =
            Watcher::start_for(group, source.as_fd(), heard, std::process::id(), Duration::from_secs(1));
        assert_eq!(why.expect_err("nothing is proven"), WatchRefused::not_proven());
    }

    /// Opens by others are not reported, and changes of directories are reported as before.
    #[test]
    fn opens_are_not_told_of_once_the_watch_is_proven() {
        let Some((dir, heard, _watcher)) = watched(0) else { return };
        let root = handle_of(dir.path());
        sh(dir.path(), "mkdir d; touch ready");
        heard.until(&format!("name {root} ready"));
        let d = handle_of(&dir.path().join("d"));
        heard.all.lock().clear();
        sh(dir.path(), "ls >/dev/null; ls d; ls d; touch last");
        let all = heard.until(&format!("name {root} last"));
        assert!(
            !all.contains(&format!("object {root} false")) && !all.contains(&format!("object {d} false")),
            "{all:?}"
        );
        sh(dir.path(), "chmod 700 d; touch done");
        assert!(heard.until(&format!("name {root} done")).contains(&format!("object {d} false")));
    }

    #[test]
    fn a_watcher_ends_when_it_is_dropped() {
        let Some((dir, heard, watcher)) = watched(0) else { return };
        drop(watcher);
        sh(dir.path(), "touch after");
        assert!(!heard.all.lock().iter().any(|heard| heard.ends_with(" after")));
    }

    #[test]
    fn file_systems_that_others_change_are_refused() {
        let proc = File::open("/proc").unwrap();
        let why = Watcher::start(proc.as_fd(), Arc::<Heard>::default()).expect_err("proc has no handles");
        assert!(!why.to_string().is_empty());
    }
}
