//! Changes made behind the mount: the driver notifies the cache, the cache the front end, the front end the kernel.
//! Until the notification the kernel asks for nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use uvfs::driver::{Driver, File, Inode};
use uvfs::{
    Access, Answer, Attr, Cred, DirEntry, Errno, Features, Found, NewInode, Op, Result, SbId, StatFs, Time,
    Ttl, Vfs, mode,
};

use crate::Test;
use crate::fixture::{Fixture, Needs, tmpfs, within};

pub const TESTS: &[Test] = &[
    ("changes_from_elsewhere_are_seen", Needs::Mount, changes_from_elsewhere_are_seen),
    ("changes_in_what_is_mounted_inside_are_seen", Needs::Mount, changes_in_what_is_mounted_inside_are_seen),
    ("directories_inside_are_made_durable", Needs::Mount, directories_inside_are_made_durable),
    (
        "after_lost_changes_everything_is_asked_for_again",
        Needs::Mount,
        after_lost_changes_everything_is_asked_for_again,
    ),
    ("a_change_is_seen_while_a_lookup_waits", Needs::Mount, a_change_is_seen_while_a_lookup_waits),
];

/// How long a change may take to be seen before the test fails.
const PATIENCE: Duration = Duration::from_secs(20);

struct Node {
    ino: u64,
    mode: u32,
    content: Vec<u8>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<Vec<u8>, Node>,
    changes: u32,
    next: u64,
    /// Whether a lookup of "slow" waits.
    stuck: bool,
    waiting: bool,
}

/// A directory of files that another party changes.
#[derive(Default)]
struct Elsewhere {
    state: Mutex<State>,
    moved: Condvar,
    asked: AtomicU64,
    synced: AtomicU64,
    vfs: OnceLock<(Weak<Vfs>, SbId)>,
}

impl Elsewhere {
    fn attr(state: &State, name: Option<&[u8]>) -> Option<Attr> {
        let time = Time::new(1_000_000 + i64::from(state.changes), 0);
        let root = Attr { ino: 1, mode: mode::S_IFDIR | 0o755, nlink: 2, mtime: time, ..Attr::default() };
        let Some(name) = name else { return Some(root) };
        let node = state.nodes.get(name)?;
        let size = node.content.len() as u64;
        Some(Attr { ino: node.ino, mode: mode::S_IFREG | node.mode, nlink: 1, size, ..root })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        state.changes += 1;
        change(&mut state);
        self.moved.notify_all();
    }

    fn tell(&self, tell: impl FnOnce(&Vfs, SbId)) {
        let (vfs, sb) = self.vfs.get().expect("mounted");
        tell(&vfs.upgrade().expect("a VFS"), *sb);
    }

    fn put(state: &mut State, name: &str, content: &str) -> u64 {
        state.next += 1;
        let ino = 100 + state.next;
        let node = Node { ino, mode: 0o644, content: content.into() };
        state.nodes.insert(name.into(), node).map_or(ino, |old| {
            let node = state.nodes.get_mut(name.as_bytes()).expect("just put");
            node.ino = old.ino;
            old.ino
        })
    }

    fn write(&self, name: &str, content: &str) {
        let mut ino = 0;
        self.change(|state| ino = Self::put(state, name, content));
        self.tell(|vfs, sb| {
            vfs.cache().name_changed(sb, 1, name.as_bytes());
            vfs.cache().inode_changed(sb, ino, mode::S_IFREG, true);
        });
    }

    fn chmod(&self, name: &str, bits: u32) {
        let mut ino = 0;
        self.change(|state| {
            let node = state.nodes.get_mut(name.as_bytes()).expect("there");
            (ino, node.mode) = (node.ino, bits);
        });
        self.tell(|vfs, sb| assert!(vfs.cache().inode_changed(sb, ino, mode::S_IFREG, false)));
    }

    fn remove(&self, name: &str) {
        self.change(|state| drop(state.nodes.remove(name.as_bytes())));
        self.tell(|vfs, sb| assert!(vfs.cache().name_changed(sb, 1, name.as_bytes())));
    }

    fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }
}

impl Driver for Elsewhere {
    fn name(&self) -> &'static str {
        "elsewhere"
    }
    fn features(&self) -> Features {
        Features { may_block: true, watched: true, ..Features::default() }
    }
    fn root(&self, _: &Op) -> Result<NewInode> {
        let attr = Self::attr(&self.state.lock(), None).ok_or(Errno::NOENT)?;
        Ok(NewInode { attr, private: 0, ttl: Ttl::Forever })
    }
    fn ttl(&self) -> Ttl {
        Ttl::Forever
    }
    fn lookup(&self, _: &Op, _: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        self.asked.fetch_add(1, SeqCst);
        let mut state = self.state.lock();
        if name == b"slow" {
            state.waiting = true;
            self.moved.notify_all();
            while state.stuck {
                self.moved.wait(&mut state);
            }
        }
        Ok(match Self::attr(&state, Some(name)) {
            Some(attr) => Answer::Found(NewInode { attr, private: 0, ttl: Ttl::Forever }),
            None => Answer::Absent(Ttl::Forever),
        })
    }
    fn getattr(&self, _: &Op, inode: &Inode<'_>) -> Result<Attr> {
        self.asked.fetch_add(1, SeqCst);
        let state = self.state.lock();
        let name = state.nodes.iter().find(|(_, node)| node.ino == inode.ino()).map(|(name, _)| name.clone());
        match name {
            None if inode.ino() == 1 => Self::attr(&state, None).ok_or(Errno::NOENT),
            None => Ok(Attr { nlink: 0, ..inode.attr() }),
            Some(name) => Self::attr(&state, Some(&name)).ok_or(Errno::STALE),
        }
    }
    fn readdir(
        &self,
        _: &Op,
        _: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.asked.fetch_add(1, SeqCst);
        let entries: Vec<_> =
            self.state.lock().nodes.iter().map(|(name, node)| (name.clone(), node.ino)).collect();
        for (i, (name, ino)) in entries.iter().enumerate().skip(cookie.saturating_sub(100) as usize) {
            if !sink(DirEntry { name, ino: *ino, fmt: mode::S_IFREG, cookie: 101 + i as u64 }) {
                break;
            }
        }
        Ok(())
    }
    fn open(&self, _: &Op, _: &Inode<'_>, _: Access) -> Result<u64> {
        Ok(0)
    }
    fn read(&self, _: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.asked.fetch_add(1, SeqCst);
        let state = self.state.lock();
        let node = state.nodes.values().find(|node| node.ino == file.inode.ino()).ok_or(Errno::STALE)?;
        let rest = node.content.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
    fn fsync_dir(&self, _: &Op, _: &Inode<'_>, _: bool) -> Result<()> {
        self.synced.fetch_add(1, SeqCst);
        Ok(())
    }
    fn statfs(&self, _: &Op) -> Result<StatFs> {
        Ok(StatFs::default())
    }
}

fn elsewhere() -> Arc<Elsewhere> {
    let driver = Arc::<Elsewhere>::default();
    driver.change(|state| {
        for i in 0..50 {
            Elsewhere::put(state, &format!("file{i}"), "first");
        }
    });
    driver
}

fn mounted() -> (Arc<Elsewhere>, Fixture) {
    let driver = elsewhere();
    let mnt = Fixture::new(driver.clone(), &uvfs_fuse::Options::default());
    assert!(driver.vfs.set((Arc::downgrade(&mnt.vfs), mnt.vfs.root().sb())).is_ok());
    (driver, mnt)
}

/// Names, modes, sizes and contents, as the mount shows them.
fn shown(dir: &Path) -> Vec<(String, u32, u64, String)> {
    let entries = fs::read_dir(dir).expect("a listing").map(|entry| entry.expect("an entry"));
    let mut all: Vec<_> = entries
        .filter_map(|entry| {
            let meta = entry.metadata().ok()?;
            let content = fs::read_to_string(entry.path()).ok()?;
            Some((entry.file_name().into_string().ok()?, meta.mode(), meta.size(), content))
        })
        .collect();
    all.sort();
    all
}

fn truth(driver: &Elsewhere) -> Vec<(String, u32, u64, String)> {
    let state = driver.state.lock();
    let nodes = state.nodes.iter().map(|(name, node)| {
        let (name, content) = (name.clone(), node.content.clone());
        let size = content.len() as u64;
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(name), mode::S_IFREG | node.mode, size, text(content))
    });
    nodes.collect()
}

/// The kernel keeps names, attributes, entries and pages, and changes are seen.
fn changes_from_elsewhere_are_seen() {
    let (driver, mnt) = mounted();
    assert_eq!(shown(&mnt), truth(&driver));
    shown(&mnt);
    let asked = driver.asked();
    assert_eq!(shown(&mnt), truth(&driver));
    assert!(!mnt.path("none").exists() && !mnt.path("none").exists());
    assert!(driver.asked() <= asked + 1, "{} questions on a second walk", driver.asked() - asked);
    driver.write("file7", "second, and longer");
    driver.write("none", "there now");
    driver.chmod("file8", 0o600);
    driver.remove("file9");
    assert!(within(PATIENCE, || mnt.path("none").exists()));
    assert!(
        within(PATIENCE, || fs::metadata(mnt.path("file8")).unwrap().permissions().mode() & 0o777 == 0o600)
    );
    assert!(within(PATIENCE, || shown(&mnt) == truth(&driver)), "{:?}", shown(&mnt));
    // A file that is open the whole time.
    let open = fs::File::open(mnt.path("file3")).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 5);
    driver.write("file3", "written while it was open");
    assert!(within(PATIENCE, || open.metadata().unwrap().len() == 25));
    assert_eq!(std::io::read_to_string(&open).unwrap(), "written while it was open");
    let notices = mnt.mounted.notices();
    assert!(notices.names >= 3 && notices.nodes >= 5, "{notices:?}");
}

/// Mounts a driver with changes by others on a directory of a tmpfs that is already mounted.
fn mounted_inside() -> (Arc<Elsewhere>, Fixture) {
    let mnt = Fixture::new(tmpfs(), &uvfs_fuse::Options::default());
    let driver = elsewhere();
    let (vfs, op) = (&mnt.vfs, mnt.vfs.op(&Cred::root()));
    // Not through the mount: the kernel would then know the directory, and not the file system that covers it.
    vfs.mkdir(&op, &vfs.root(), b"inside", 0o755).map(drop).unwrap();
    let inside = || match vfs.lookup(&op, &vfs.root(), b"inside") {
        Ok(Found::Node(inode, _)) => inode,
        _ => panic!("it was made"),
    };
    vfs.mount(&inside(), driver.clone()).unwrap();
    assert!(driver.vfs.set((Arc::downgrade(vfs), inside().sb())).is_ok());
    (driver, mnt)
}

/// The kernel also keeps data of a file system that is not the first one, and is notified of its changes.
fn changes_in_what_is_mounted_inside_are_seen() {
    let (driver, mnt) = mounted_inside();
    let dir = mnt.path("inside");
    assert!(within(PATIENCE, || shown(&dir) == truth(&driver)), "{:?}", shown(&dir));
    // Not each time: another test may make the kernel drop its caches.
    let without_asking = || {
        let asked = driver.asked();
        shown(&dir) == truth(&driver) && driver.asked() == asked
    };
    assert!(within(PATIENCE, without_asking), "each walk asks");
    driver.remove("file1");
    driver.write("file2", "written elsewhere");
    driver.chmod("file3", 0o600);
    driver.write("new", "made elsewhere");
    assert!(within(PATIENCE, || shown(&dir) == truth(&driver)), "{:?}", shown(&dir));
    driver.change(|state| {
        Elsewhere::put(state, "file4", "changed in secret");
    });
    driver.tell(|vfs, sb| vfs.cache().all_suspect(sb));
    assert!(within(PATIENCE, || shown(&dir) == truth(&driver)), "{:?}", shown(&dir));
}

/// The answer for one directory does not hold for another: the kernel would not ask again.
fn directories_inside_are_made_durable() {
    let (driver, mnt) = mounted_inside();
    let sync = |path: &Path| fs::File::open(path).unwrap().sync_all().unwrap();
    sync(&mnt);
    assert_eq!(driver.synced.load(SeqCst), 0);
    sync(&mnt.path("inside"));
    sync(&mnt.path("inside"));
    assert_eq!(driver.synced.load(SeqCst), 2);
}

/// Changes that were not reported one by one.
fn after_lost_changes_everything_is_asked_for_again() {
    let (driver, mnt) = mounted();
    assert_eq!(shown(&mnt), truth(&driver));
    let open = fs::File::open(mnt.path("file3")).unwrap();
    assert!(!mnt.path("none").exists());
    driver.change(|state| {
        for name in ["none", "file3", "file4", "file40"] {
            Elsewhere::put(state, name, "changed in secret");
        }
        state.nodes.remove(&b"file5"[..]);
    });
    assert_ne!(shown(&mnt), truth(&driver), "no change was reported");
    driver.tell(|vfs, sb| vfs.cache().all_suspect(sb));
    assert!(within(PATIENCE, || shown(&mnt) == truth(&driver)), "{:?}", shown(&mnt));
    assert!(within(PATIENCE, || open.metadata().unwrap().len() == 17));
    assert!(within(PATIENCE, || mnt.mounted.notices().all == 1));
}

/// A name cannot be invalidated while a request waits in its directory. The change is seen all the same.
fn a_change_is_seen_while_a_lookup_waits() {
    let (driver, mnt) = mounted();
    assert_eq!(shown(&mnt), truth(&driver));
    driver.change(|state| state.stuck = true);
    let slow = mnt.path("slow");
    let waiting = std::thread::spawn(move || slow.exists());
    assert!(within(PATIENCE, || driver.state.lock().waiting));
    driver.remove("file1");
    driver.write("file2", "changed");
    let seen = within(PATIENCE, || {
        !mnt.path("file1").exists() && fs::metadata(mnt.path("file2")).is_ok_and(|meta| meta.len() == 7)
    });
    let still = driver.state.lock().stuck && !waiting.is_finished();
    driver.change(|state| state.stuck = false);
    assert!(!waiting.join().unwrap());
    assert!(seen && still, "seen: {seen}, while the lookup waited: {still}");
    assert!(within(PATIENCE, || shown(&mnt) == truth(&driver)));
}
