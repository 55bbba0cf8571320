//! `-o preload`: reads the whole mount in the background, so that its names and attributes are in the cache when a
//! user asks.
//!
//! Some threads take directories and parts of directories from a list, and look up each name as a user would. They
//! stop for good when the cache's memory begins to run short: nothing is evicted for names that nobody has asked for
//! yet. They end with the mount, each after its present name; nobody waits for them.
//!
//! The mutex protects the list and the number of busy threads; nothing is called with it held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use parking_lot::{Condvar, Mutex};
use uvfs::{CONTROL_NAME, Cred, Errno, Found, Inode, InodeId, Op, Vfs};

/// Names that a thread takes at a time.
const PART: usize = 256;
/// Most parts of directories on the list: a thread that lists a directory looks up further parts itself.
const PARTS: usize = 64;
/// Most threads.
const THREADS: usize = 8;
/// The time between two lines in the log.
const SAY: Duration = Duration::from_secs(10);

/// A piece of work to be done.
enum Work {
    Directory(InodeId),
    Names(InodeId, Vec<Box<[u8]>>),
}

#[derive(Default)]
struct List {
    directories: Vec<Work>,
    names: Vec<Work>,
    busy: usize,
    begun: Option<Instant>,
    ended: Option<(Duration, End)>,
}

/// How the preload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Full,
    Unmounted,
}

/// See the module.
#[derive(Default)]
pub struct Preload {
    list: Mutex<List>,
    /// There is more to do, or it has ended.
    more: Condvar,
    ended: Condvar,
    files: AtomicU64,
    failed: AtomicU64,
    stop: AtomicBool,
}

impl Preload {
    /// Reads `vfs` from now on, with two threads for each processor, [`THREADS`] at most.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(self: &Arc<Self>, vfs: &Arc<Vfs>) -> io::Result<()> {
        let mut list = self.list.lock();
        list.begun = Some(Instant::now());
        list.directories.push(Work::Directory(vfs.root().id()));
        drop(list);
        // Most of the time they wait for the disk, or for the kernel.
        let threads = thread::available_parallelism().map_or(2, |n| 2 * n.get()).min(THREADS);
        for nth in 0..threads {
            let (this, vfs) = (Arc::clone(self), Arc::clone(vfs));
            let started = thread::Builder::new().name("uvfs-preload".into()).spawn(move || this.run(&vfs));
            // Fewer will do.
            if nth == 0 {
                started?;
            }
        }
        let this = Arc::clone(self);
        let say = move || this.say();
        thread::Builder::new().name("uvfs-preload".into()).spawn(say).map(drop)
    }

    /// The mount has ended: nothing is looked up any more.
    pub fn stop(&self) {
        self.end(End::Unmounted);
    }

    fn end(&self, end: End) {
        self.stop.store(true, Relaxed);
        let mut list = self.list.lock();
        if let (Some(begun), None) = (list.begun, list.ended) {
            list.ended = Some((begun.elapsed(), end));
        }
        (list.directories, list.names) = Default::default();
        drop(list);
        self.more.notify_all();
        self.ended.notify_all();
    }

    /// A line in the log now and then, and one at the end.
    fn say(&self) {
        let mut list = self.list.lock();
        while list.ended.is_none() {
            if self.ended.wait_for(&mut list, SAY).timed_out() {
                drop(list);
                tracing::info!(progress = %self, "preload");
                list = self.list.lock();
            }
        }
        drop(list);
        tracing::info!(progress = %self, "preload");
    }

    fn run(&self, vfs: &Vfs) {
        let op = Op { trusted: true, ..vfs.op(&Cred::root()) };
        while let Some(work) = self.next() {
            let outcome = match work {
                Work::Directory(id) => vfs.inode(id).and_then(|dir| self.list(vfs, &op, &dir)),
                Work::Names(id, names) => vfs.inode(id).map(|dir| self.look_up(vfs, &op, &dir, &names)),
            };
            // The directory may have been removed, or reading it has failed.
            if outcome.is_err() {
                self.failed.fetch_add(1, Relaxed);
            }
            self.done();
        }
    }

    /// Parts of directories first: the list stays short.
    fn next(&self) -> Option<Work> {
        let mut list = self.list.lock();
        loop {
            if self.stop.load(Relaxed) {
                return None;
            }
            if let Some(work) = list.names.pop().or_else(|| list.directories.pop()) {
                list.busy += 1;
                return Some(work);
            }
            self.more.wait(&mut list);
        }
    }

    fn done(&self) {
        let mut list = self.list.lock();
        list.busy -= 1;
        let all = list.busy == 0 && list.names.is_empty() && list.directories.is_empty();
        drop(list);
        if all {
            self.end(End::Done);
        }
    }

    /// Looks up the names of a directory, together with other threads.
    fn list(&self, vfs: &Vfs, op: &Op, dir: &Inode<'_>) -> Result<(), Errno> {
        let mut cookie = 0;
        while !self.stop.load(Relaxed) {
            let mut names = Vec::<Box<[u8]>>::new();
            vfs.readdir(op, dir, cookie, &mut |entry| {
                cookie = entry.cookie;
                names.push(entry.name.into());
                names.len() < PART
            })?;
            if names.is_empty() {
                break;
            }
            let mut list = self.list.lock();
            if list.names.len() < PARTS {
                list.names.push(Work::Names(dir.id(), names));
                drop(list);
                self.more.notify_one();
            } else {
                drop(list);
                self.look_up(vfs, op, dir, &names);
            }
        }
        Ok(())
    }

    fn look_up(&self, vfs: &Vfs, op: &Op, dir: &Inode<'_>, names: &[Box<[u8]>]) {
        let is_root = dir.id() == vfs.root().id();
        for name in names.iter().filter(|name| !is_root || ***name != *CONTROL_NAME) {
            if self.stop.load(Relaxed) {
                return;
            }
            if !vfs.cache().has_spare_room(dir.sb()) {
                return self.end(End::Full);
            }
            match vfs.lookup(op, dir, name) {
                Ok(Found::Node(inode, attr)) => {
                    self.files.fetch_add(1, Relaxed);
                    if attr.is_dir() {
                        self.list.lock().directories.push(Work::Directory(inode.id()));
                        self.more.notify_one();
                    }
                }
                // It has gone since.
                Ok(Found::Absent(_)) | Err(Errno::NOENT) => {}
                Err(_) => {
                    self.failed.fetch_add(1, Relaxed);
                }
            }
        }
    }
}

impl fmt::Display for Preload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (begun, ended) = {
            let list = self.list.lock();
            (list.begun, list.ended)
        };
        let Some(begun) = begun else { return f.write_str("not begun") };
        let (time, how) = match ended {
            None => (begun.elapsed(), "running"),
            Some((time, End::Done)) => (time, "done"),
            Some((time, End::Full)) => (time, "stopped where memory runs short"),
            Some((time, End::Unmounted)) => (time, "ended with the mount"),
        };
        let (files, failed) = (self.files.load(Relaxed), self.failed.load(Relaxed));
        let seconds = time.as_secs_f64();
        let rate = files as f64 / seconds.max(1e-3);
        write!(f, "{how}: {files} files in {seconds:.1} s, {rate:.0} a second, {failed} failed")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use uvfs::VfsConfig;
    use uvfs_drivers::generated::{FaultCall, Generated};
    use uvfs_drivers::mirror::Mirror;

    use super::*;

    const FILES: usize = 3000;

    fn source(files: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for nth in 0..files {
            let sub = dir.path().join(format!("a/b{}", nth % 7));
            if nth < 7 {
                fs::create_dir_all(&sub).unwrap();
            }
            fs::write(sub.join(format!("file{nth}")), "").unwrap();
        }
        dir
    }

    fn mirror(source: &tempfile::TempDir, memory_limit: u64) -> (Arc<Mirror>, Arc<Vfs>) {
        let mirror = Mirror::new(source.path(), Duration::from_secs(24 * 3600)).expect("a mirror");
        let mut config = VfsConfig::default();
        config.cache.memory_limit = memory_limit;
        (Arc::clone(&mirror), Vfs::new(config, mirror).expect("a file system"))
    }

    fn wait(preload: &Preload) -> End {
        let deadline = Instant::now() + Duration::from_secs(300);
        let mut list = preload.list.lock();
        loop {
            if let Some((_, end)) = list.ended {
                return end;
            }
            assert!(!preload.ended.wait_until(&mut list, deadline).timed_out(), "it takes too long");
        }
    }

    #[test]
    fn nothing_is_asked_for_after_it() {
        let dir = source(FILES);
        let (mirror, vfs) = mirror(&dir, 0);
        let preload = Arc::<Preload>::default();
        preload.start(&vfs).unwrap();
        assert_eq!(wait(&preload), End::Done);
        assert_eq!(preload.files.load(Relaxed), FILES as u64 + 8);
        assert!(preload.to_string().starts_with("done: 3008 files"), "{preload}");
        let before = mirror.operations();
        let me = vfs.context(Cred::root());
        for nth in 0..FILES {
            me.stat(format!("/a/b{}/file{nth}", nth % 7).as_bytes()).unwrap();
        }
        assert_eq!(mirror.operations(), before);
    }

    #[test]
    fn it_stops_where_memory_runs_short_and_evicts_nothing() {
        let dir = source(16_000);
        let (_mirror, vfs) = mirror(&dir, 4 << 20);
        let preload = Arc::<Preload>::default();
        preload.start(&vfs).unwrap();
        assert_eq!(wait(&preload), End::Full);
        let files = preload.files.load(Relaxed);
        assert!((1000..16_000).contains(&files), "{preload}");
        assert_eq!(vfs.cache().counters().evicted, 0);
        assert!(vfs.cache().committed() <= 4 << 20);
    }

    #[test]
    fn it_ends_with_the_mount() {
        let spec = format!("depth=0,files={FILES}").parse().expect("a specification");
        let driver = Arc::new(Generated::new(spec).expect("a driver"));
        let control = driver.control();
        let vfs = Vfs::new(VfsConfig::default(), driver).expect("a file system");
        let gate = control.gate(FaultCall::Readdir, 1);
        let preload = Arc::<Preload>::default();
        preload.start(&vfs).unwrap();
        assert!(gate.reached(Duration::from_secs(300)), "nothing is listed");
        preload.stop();
        assert_eq!(wait(&preload), End::Unmounted);
        let released = Arc::downgrade(&vfs);
        drop(vfs);
        gate.open();
        // The threads hold the file system no longer than it takes to end the call that one of them is in.
        let deadline = Instant::now() + Duration::from_secs(300);
        while released.strong_count() > 0 {
            assert!(Instant::now() < deadline, "a thread goes on");
            thread::yield_now();
        }
        let (asked, found) = (control.calls(FaultCall::Lookup), preload.files.load(Relaxed));
        assert_eq!((asked, found), (0, 0), "{preload}");
    }
}
