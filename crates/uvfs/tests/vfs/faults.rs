//! Each call of a driver fails in turn, in a script that changes what it walks through.
//!
//! The caller gets the right error. Afterwards the cache agrees with the driver. After the unmount nothing of the
//! file system is left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Mem, Store, root, vfs_of};
use uvfs::driver::{File, Rename};
use uvfs::{
    Access, Answer, Attr, Cred, DirEntry, Driver, Errno, Features, Inode, Make, NewInode, Op, OpenFlags,
    RenameFlags, Result, SetAttr, StatFs, Ttl, Vfs, XattrFlags, mode,
};

/// The planted failure: an error that nothing else here returns.
const FAULT: Errno = Errno::DQUOT;

/// A [`Store`] with bytes for its files, one of whose calls fails before it has an effect.
struct Faulty {
    store: Store,
    calls: AtomicU64,
    /// The call that fails; 0: none.
    fails: AtomicU64,
}

impl Faulty {
    fn new(ttl: Ttl, fails: u64) -> Arc<Self> {
        Arc::new(Self {
            store: Store::new(ttl, false),
            calls: AtomicU64::new(0),
            fails: AtomicU64::new(fails),
        })
    }

    fn call(&self) -> Result<()> {
        let n = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if n == self.fails.load(Ordering::Relaxed) { Err(FAULT) } else { Ok(()) }
    }
}

/// Defines the methods that fail in their turn.
macro_rules! faulty {
    ($(fn $method:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $method(&self $(, $arg: $type)*) -> $result {
            self.call()?;
            self.store.$method($($arg),*)
        })*
    };
}

impl Driver for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }
    fn features(&self) -> Features {
        self.store.features()
    }
    fn ttl(&self) -> Ttl {
        self.store.ttl()
    }
    fn evict(&self, attr: &Attr, private: u64) {
        self.store.evict(attr, private);
    }
    fn read(&self, _: &Op, _: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.call()?;
        let text = b"text".get(offset as usize..).unwrap_or_default();
        let len = text.len().min(buf.len());
        buf[..len].copy_from_slice(&text[..len]);
        Ok(len)
    }
    fn write(&self, _: &Op, _: File<'_>, _: u64, data: &[u8], _: bool) -> Result<usize> {
        self.call()?;
        Ok(data.len())
    }
    faulty! {
        fn root(&self, op: &Op) -> Result<NewInode>;
        fn lookup(&self, op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer>;
        fn getattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr>;
        fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()>;
        fn create(&self, op: &Op, dir: &Inode<'_>, name: &[u8], make: &Make<'_>) -> Result<NewInode>;
        fn link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>, name: &[u8]) -> Result<()>;
        fn unlink(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()>;
        fn rmdir(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()>;
        fn rename(&self, op: &Op, rename: &Rename<'_>) -> Result<()>;
        fn readdir(&self, op: &Op, dir: &Inode<'_>, cookie: u64,
            sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
        fn readlink(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>>;
        fn open(&self, op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64>;
        fn fsync(&self, op: &Op, file: File<'_>, datasync: bool) -> Result<()>;
        fn statfs(&self, op: &Op) -> Result<StatFs>;
        fn getxattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>>;
        fn setxattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8], value: &[u8], flags: XattrFlags)
            -> Result<()>;
    }
}

/// Opens, writes, reads, syncs, closes; returns the first error.
fn use_file(vfs: &Vfs, path: &[u8]) -> Result<()> {
    let flags = OpenFlags::CREATE | OpenFlags::READ | OpenFlags::WRITE;
    let me = root(vfs);
    let handle = me.open(path, flags, 0o644)?;
    handle.write_at(b"text", 0)?;
    handle.read_at(&mut [0; 8], 0)?;
    handle.sync(false)
}

/// The result of each step. A step may fail because an earlier one did.
fn script(vfs: &Vfs) -> Vec<Result<()>> {
    let me = root(vfs);
    let none = RenameFlags::empty();
    let file = mode::S_IFREG | 0o644;
    vec![
        me.stat(b"/m/planted").map(drop),
        me.mkdir(b"/m/d", 0o755).map(drop),
        me.mknod(b"/m/d/a", file, 0).map(drop),
        me.mknod(b"/m/d/b", file, 0).map(drop),
        me.symlink(b"a", b"/m/d/l").map(drop),
        me.readlink(b"/m/d/l").map(drop),
        me.stat(b"/m/d/l").map(drop),
        me.readdir(b"/m/d").map(drop),
        me.link(b"/m/d/a", b"/m/d/again").map(drop),
        me.rename(b"/m/d/b", b"/m/d/c", none),
        me.rename(b"/m/d/c", b"/m/d/again", none),
        me.mkdir(b"/m/d/sub", 0o755).map(drop),
        me.rename(b"/m/d/sub", b"/m/moved", none),
        me.rename(b"/m/moved", b"/m/d/a", RenameFlags::EXCHANGE),
        me.rename(b"/m/moved", b"/m/d/a", RenameFlags::EXCHANGE),
        use_file(vfs, b"/m/made"),
        me.chmod(b"/m/made", 0o600),
        me.unlink(b"/m/made"),
        me.stat(b"/m/absent").map(drop),
        me.rmdir(b"/m/moved"),
        me.unlink(b"/m/d/l"),
        me.unlink(b"/m/d/again"),
        me.unlink(b"/m/d/a"),
        me.readdir(b"/m").map(drop),
        me.rmdir(b"/m/d"),
        me.unlink(b"/m/planted"),
    ]
}

/// Everything below a directory, by path: kind, links, permissions.
fn tree(vfs: &Vfs, dir: &str) -> BTreeMap<String, (u32, u32)> {
    let me = root(vfs);
    let mut all = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in me.readdir(format!("{dir}/").as_bytes()).expect("no fault any more") {
            let path = format!("{dir}/{}", String::from_utf8_lossy(&entry.name));
            let attr = me.lstat(path.as_bytes()).expect("what is listed is there");
            if attr.is_dir() {
                left.push(path.clone());
            }
            all.insert(path, (attr.mode, attr.nlink));
        }
    }
    all
}

/// A tree with the driver on `/m`.
fn mounted(driver: &Arc<Faulty>) -> (Arc<Vfs>, Result<()>) {
    let vfs = vfs_of(Arc::new(Mem::default()));
    root(&vfs).mkdir(b"/m", 0o755).unwrap();
    driver.store.plant(1, "planted", mode::S_IFREG | 0o644);
    let point = vfs.root();
    let op = vfs.op(&Cred::root());
    let outcome = match vfs.lookup(&op, &point, b"m").unwrap() {
        uvfs::Found::Node(point, _) => vfs.mount(&point, Arc::clone(driver) as Arc<dyn Driver>),
        uvfs::Found::Absent(_) => unreachable!("it was made"),
    };
    drop(point);
    (vfs, outcome)
}

fn every_call_fails_in_turn(ttl: Ttl) {
    let sane = Faulty::new(ttl, 0);
    let expected = script(&mounted(&sane).0);
    assert_eq!(expected.iter().filter(|step| step.is_err()).count(), 1, "{expected:?}");
    let calls = sane.calls.load(Ordering::Relaxed);
    assert!(calls > 30, "{calls} calls");
    for n in 1..=calls {
        let driver = Faulty::new(ttl, n);
        let (vfs, outcome) = mounted(&driver);
        if n == 1 {
            assert_eq!(outcome, Err(FAULT), "a root that fails is no mount");
            assert_eq!(vfs.mount_count(), 1);
            continue;
        }
        let before = vfs.cache().counters();
        let outcomes = script(&vfs);
        let first = outcomes.iter().zip(&expected).find(|(now, sane)| now != sane);
        assert_eq!(first.map(|(now, _)| *now), Some(Err(FAULT)), "call {n}: {outcomes:?}");
        assert_eq!(outcomes.iter().filter(|step| **step == Err(FAULT)).count(), 1, "call {n}");
        driver.fails.store(0, Ordering::Relaxed);
        // The view of another cache over the same tree.
        let believed = tree(&vfs, "/m");
        let other = vfs_of(Arc::clone(&driver) as Arc<dyn Driver>);
        let true_tree: BTreeMap<_, _> =
            tree(&other, "").into_iter().map(|(path, node)| (format!("/m{path}"), node)).collect();
        assert_eq!(believed, true_tree, "call {n}");
        drop(other);
        vfs.unmount(&root_of(&vfs)).expect("nothing is mounted inside");
        let after = vfs.cache().counters();
        // The root of the mount was counted before, and is gone now.
        assert_eq!(after.inodes + 1, before.inodes, "call {n}: {after:?}");
        assert_eq!(after.dentries, 1, "call {n}: {after:?}");
    }
}

fn root_of(vfs: &Vfs) -> Inode<'_> {
    let op = vfs.op(&Cred::root());
    match vfs.lookup(&op, &vfs.root(), b"m").expect("the mount") {
        uvfs::Found::Node(inode, _) => inode,
        uvfs::Found::Absent(_) => panic!("the mount is gone"),
    }
}

#[test]
fn every_call_fails_in_turn_where_answers_are_kept() {
    every_call_fails_in_turn(Ttl::Forever);
}

#[test]
fn every_call_fails_in_turn_where_nothing_is_believed() {
    every_call_fails_in_turn(Ttl::For(std::time::Duration::ZERO));
}
