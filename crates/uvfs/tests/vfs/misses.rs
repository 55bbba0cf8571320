//! Drivers with a tree of their own: which calls they get, when, and how often.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Store, errno, root, user, vfs_of};
use uvfs::{Cred, Errno, Found, OpenFlags, RenameFlags, Ttl, Vfs, mode};

const FILE: u32 = mode::S_IFREG | 0o644;
const DIR: u32 = mode::S_IFDIR | 0o755;

fn stored(store: Store) -> (Arc<Store>, Arc<Vfs>) {
    let store = Arc::new(store);
    let vfs = vfs_of(Arc::clone(&store) as Arc<dyn uvfs::Driver>);
    (store, vfs)
}

#[test]
fn a_name_is_asked_for_once() {
    let (store, vfs) = stored(Store::default());
    let dir = store.plant(1, "d", DIR);
    store.plant(dir, "f", FILE);
    let root = root(&vfs);
    for _ in 0..3 {
        assert!(root.stat(b"d/f").unwrap().is_reg());
        assert_eq!(errno(root.stat(b"d/x")), Some(Errno::NOENT));
    }
    for (name, times) in [("d", 1), ("f", 1), ("x", 1)] {
        assert_eq!(store.asked(name), times, "{name}");
    }
}

/// Others change the file system, and every change is reported.
#[test]
fn an_empty_directory_that_was_made_is_known_until_others_change_it() {
    let (store, vfs) = stored(Store::watched(Ttl::Forever, None));
    let root = root(&vfs);
    root.mkdir(b"d", 0o755).unwrap();
    root.mknod(b"d/ours", FILE, 0).unwrap();
    root.unlink(b"d/ours").unwrap();
    assert_eq!(errno(root.stat(b"d/theirs")), Some(Errno::NOENT));
    assert_eq!((store.asked("ours"), store.asked("theirs")), (0, 0));
    let dir = root.resolve(b"d").unwrap();
    store.plant(dir.ino(), "theirs", FILE);
    vfs.cache().name_changed(dir.sb(), dir.ino(), b"theirs");
    assert!(root.stat(b"d/theirs").unwrap().is_reg());
    assert_eq!(errno(root.stat(b"d/ours")), Some(Errno::NOENT));
    assert_eq!(store.asked("ours"), 1);
}

#[test]
fn a_directory_that_was_made_is_not_empty_for_all_drivers() {
    let full = Store::watched(Ttl::Forever, Some("inner"));
    let unreported = Store::watched(Ttl::For(Duration::from_secs(3600)), None);
    for store in [full, unreported] {
        let (store, vfs) = stored(store);
        let root = root(&vfs);
        root.mkdir(b"d", 0o755).unwrap();
        if store.planted.is_none() {
            store.plant(root.resolve(b"d").unwrap().ino(), "inner", FILE);
        }
        assert!(root.stat(b"d/inner").unwrap().is_reg());
    }
}

#[test]
fn an_error_is_not_an_answer() {
    let (store, vfs) = stored(Store::default());
    let root = root(&vfs);
    // An absence returned as an error is not cached.
    assert_eq!(errno(root.stat(b"untold")), Some(Errno::NOENT));
    assert_eq!(errno(root.stat(b"untold")), Some(Errno::NOENT));
    assert_eq!(store.asked("untold"), 2);
    store.broken.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(errno(root.stat(b"f")), Some(Errno::IO));
    assert_eq!(errno(root.mkdir(b"f", 0o755)), Some(Errno::IO));
    assert_eq!(errno(root.unlink(b"f")), Some(Errno::IO));
    assert_eq!(errno(root.rename(b"f", b"g", RenameFlags::empty())), Some(Errno::IO));
    store.broken.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(errno(root.stat(b"f")), Some(Errno::NOENT));
    store.plant(1, "g", FILE);
    root.stat(b"g").unwrap();
}

#[test]
fn changes_ask_for_names_that_are_not_cached() {
    let (store, vfs) = stored(Store::default());
    for name in ["a", "b", "c", "e"] {
        store.plant(1, name, FILE);
    }
    let dir = store.plant(1, "d", DIR);
    store.plant(dir, "inner", FILE);
    let root = root(&vfs);
    assert_eq!(errno(root.mkdir(b"a", 0o755)), Some(Errno::EXIST));
    assert_eq!(
        errno(root.open(b"b", OpenFlags::CREATE | OpenFlags::EXCL | OpenFlags::READ, 0)),
        Some(Errno::EXIST)
    );
    root.rename(b"c", b"e", RenameFlags::empty()).unwrap();
    assert_eq!(errno(root.stat(b"c")), Some(Errno::NOENT));
    root.unlink(b"e").unwrap();
    assert_eq!(errno(root.stat(b"e")), Some(Errno::NOENT));
    // The cache knows of no entry in it, but the driver does.
    assert_eq!(errno(root.rmdir(b"d")), Some(Errno::NOTEMPTY));
    assert!(root.stat(b"d/inner").unwrap().is_reg());
    root.unlink(b"d/inner").unwrap();
    // A negative entry is not an entry of the directory.
    assert_eq!(errno(root.stat(b"d/inner")), Some(Errno::NOENT));
    assert_eq!(errno(root.stat(b"d/never")), Some(Errno::NOENT));
    root.rmdir(b"d").unwrap();
    let names: Vec<_> = root.readdir(b".").unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, [b"a".to_vec(), b"b".to_vec()]);
}

#[test]
fn concurrent_misses_make_one_call() {
    for present in [true, false] {
        let (store, vfs) = stored(Store::default());
        if present {
            store.plant(1, "f", FILE);
        }
        store.shut();
        std::thread::scope(|s| {
            let threads: Vec<_> = (0..6).map(|_| s.spawn(|| root(&vfs).stat(b"f").is_ok())).collect();
            store.until_waiting(1);
            store.unshut();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), present);
            }
        });
        assert_eq!(store.asked("f"), 1);
    }
}

/// A driver's answer from before a change must not overwrite the change.
#[test]
fn late_answers_change_nothing() {
    let (store, vfs) = stored(Store::default());
    let (one, other) = (store.plant(1, "one", DIR), store.plant(1, "other", DIR));
    let ino = store.plant(one, "f", FILE);
    // In another directory, whose revision does not move with the first one's.
    let far = store.plant(1, "far", DIR);
    store.plant_link(ino, far, "g");
    store.plant(other, "h", FILE);
    let context = root(&vfs);
    assert_eq!(context.stat(b"one/f").unwrap().nlink, 2);
    context.stat(b"other").unwrap();
    context.stat(b"far").unwrap();
    store.shut();
    std::thread::scope(|s| {
        let g = s.spawn(|| root(&vfs).stat(b"far/g").map(|a| a.ino));
        let h = s.spawn(|| root(&vfs).stat(b"other/h").map(|a| a.ino));
        store.until_waiting(2);
        context.unlink(b"one/f").unwrap();
        store.uproot(other, "h");
        vfs.cache().invalidate(&context.resolve(b"other").unwrap(), b"h");
        store.unshut();
        // These lookups began before the changes, so the old answers are right for their callers.
        assert_eq!(g.join().unwrap(), Ok(ino));
        h.join().unwrap().unwrap();
    });
    assert_eq!(context.stat(b"far/g").unwrap().nlink, 1);
    assert_eq!(errno(context.stat(b"other/h")), Some(Errno::NOENT));
}

#[test]
fn a_slow_answer_delays_no_other_name() {
    let (store, vfs) = stored(Store::default());
    store.plant(1, "slow", FILE);
    root(&vfs).mkdir(b"d", 0o755).unwrap();
    store.shut();
    std::thread::scope(|s| {
        let slow = s.spawn(|| root(&vfs).stat(b"slow").is_ok());
        store.until_waiting(1);
        // The same directory, while one of its names is being looked up.
        let root = root(&vfs);
        root.stat(b"d").unwrap();
        let op = vfs.op(&Cred::root());
        assert!(vfs.lookup_cached(&op, &vfs.root(), b"slow").is_none());
        assert!(matches!(vfs.lookup_cached(&op, &vfs.root(), b"d"), Some(Ok(Found::Node(..)))));
        store.unshut();
        assert!(slow.join().unwrap());
    });
}

#[test]
fn answers_for_one_caller_do_not_serve_another() {
    let (store, vfs) = stored(Store::new(Ttl::Forever, true));
    store.plant(1, "f", FILE);
    let (even, odd) = (user(&vfs, 2, 2), user(&vfs, 3, 3));
    for _ in 0..2 {
        even.stat(b"f").unwrap();
        assert_eq!(errno(odd.stat(b"f")), Some(Errno::NOENT));
    }
    assert_eq!(store.asked("f"), 4);
    even.mkdir(b"d", 0o755).unwrap();
    assert_eq!(errno(odd.stat(b"d")), Some(Errno::NOENT));
    assert!(even.stat(b"d").unwrap().is_dir());
    // They ask at the same time: two calls wait together.
    store.shut();
    std::thread::scope(|s| {
        let asks: Vec<_> = (2..4)
            .map(|uid| {
                s.spawn({
                    let vfs = &vfs;
                    move || user(vfs, uid, 1).stat(b"f").is_ok()
                })
            })
            .collect();
        store.until_waiting(2);
        store.unshut();
        let seen: Vec<bool> = asks.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(seen, [true, false]);
    });
    even.rename(b"f", b"d/g", RenameFlags::empty()).unwrap();
    assert_eq!(errno(even.stat(b"f")), Some(Errno::NOENT));
    even.unlink(b"d/g").unwrap();
    even.rmdir(b"d").unwrap();
    assert_eq!(errno(even.stat(b"d")), Some(Errno::NOENT));
}

/// If answers depend on the caller, no name lock is held while the driver looks a name up. Its view of an inode
/// must not overwrite a later change.
#[test]
fn late_answers_for_one_caller_change_nothing() {
    let (store, vfs) = stored(Store::new(Ttl::Forever, true));
    let ino = store.plant(1, "f", FILE);
    let held = user(&vfs, 2, 2).resolve(b"f").unwrap();
    store.shut();
    std::thread::scope(|s| {
        let late = s.spawn(|| user(&vfs, 4, 4).stat(b"f").map(|attr| attr.size));
        store.until_waiting(1);
        store.resize(ino, 10);
        held.update(|attr| attr.size = 10);
        store.unshut();
        assert_eq!(late.join().unwrap(), Ok(0), "the state when it was requested");
    });
    assert_eq!(held.attr().size, 10);
}

#[test]
fn answers_expire() {
    let ttl = Ttl::For(Duration::from_millis(1000));
    let (store, vfs) = stored(Store::new(ttl, false));
    let ino = store.plant(1, "f", FILE);
    let root = root(&vfs);
    let inode = root.resolve(b"f").unwrap();
    store.resize(ino, 10);
    assert_eq!(root.stat(b"f").unwrap().size, 0);
    assert_eq!(errno(root.stat(b"x")), Some(Errno::NOENT));
    store.plant(1, "x", FILE);
    assert_eq!(errno(root.stat(b"x")), Some(Errno::NOENT));
    vfs.cache().advance_clock(1500);
    assert_eq!(vfs.getattr(&vfs.op(&Cred::root()), &inode).unwrap().size, 10);
    assert_eq!(root.stat(b"f").unwrap().size, 10);
    assert!(root.stat(b"x").unwrap().is_reg());
    store.uproot(1, "f");
    vfs.cache().advance_clock(1500);
    assert_eq!(errno(root.stat(b"f")), Some(Errno::NOENT));
    assert_eq!(vfs.ttl(&inode), ttl);
}

/// No name leads to the start of a walk, so no lookup of a name renews the start's attributes.
#[test]
fn permission_to_search_a_working_directory_expires() {
    let (store, vfs) = stored(Store::new(Ttl::For(Duration::from_millis(1000)), false));
    let dir = store.plant(1, "d", DIR);
    store.plant(dir, "f", FILE);
    let (mut root, mut somebody) = (root(&vfs), user(&vfs, 1000, 1000));
    root.chdir(b"d").unwrap();
    somebody.chdir(b"d").unwrap();
    somebody.stat(b"f").unwrap();
    store.change_mode(dir, mode::S_IFDIR | 0o700);
    vfs.cache().advance_clock(1500);
    // Root may search the directory, and asks only for the name.
    root.stat(b"f").unwrap();
    assert_eq!(errno(somebody.stat(b"f")), Some(Errno::ACCESS));
    assert_eq!(errno(somebody.open(b"f", OpenFlags::READ, 0)), Some(Errno::ACCESS));
    store.change_mode(dir, DIR);
    assert_eq!(errno(somebody.stat(b"f")), Some(Errno::ACCESS), "trusted for its TTL");
    vfs.cache().advance_clock(1500);
    somebody.stat(b"f").unwrap();
}

#[test]
fn answers_that_do_not_hold_at_all() {
    let (store, vfs) = stored(Store::new(Ttl::For(Duration::ZERO), false));
    let dir = store.plant(1, "d", DIR);
    let ino = store.plant(dir, "f", FILE);
    let root = root(&vfs);
    for size in [1, 2, 3] {
        store.resize(ino, size);
        assert_eq!(root.stat(b"d/f").unwrap().size, size);
    }
    assert_eq!(store.asked("f"), 3);
    store.uproot(dir, "f");
    assert_eq!(errno(root.stat(b"d/f")), Some(Errno::NOENT));
    root.mkdir(b"d/e", 0o755).unwrap();
    root.rename(b"d/e", b"e", RenameFlags::empty()).unwrap();
    root.rmdir(b"e").unwrap();
    root.rmdir(b"d").unwrap();
    assert!(root.readdir(b"/").unwrap().is_empty());
}

#[test]
fn what_is_invalidated_is_asked_for_again() {
    let (store, vfs) = stored(Store::default());
    store.plant(1, "f", FILE);
    let root = root(&vfs);
    root.stat(b"f").unwrap();
    store.uproot(1, "f");
    root.stat(b"f").unwrap();
    vfs.cache().invalidate(&vfs.root(), b"f");
    assert_eq!(errno(root.stat(b"f")), Some(Errno::NOENT));
}

#[test]
fn unused_inodes_are_let_go_and_found_again() {
    let (store, vfs) = stored(Store::default());
    for n in 0..100 {
        store.plant(1, &format!("f{n}"), FILE);
    }
    let root = root(&vfs);
    let held = root.resolve(b"f7").unwrap();
    for n in 0..100 {
        root.stat(format!("f{n}").as_bytes()).unwrap();
    }
    // The first sweep may only clear second-chance marks.
    let gone: usize = (0..3).map(|_| vfs.cache().evict_unused(vfs.root().sb(), 1000)).sum();
    assert!(gone >= 99, "{gone}");
    assert_eq!(store.evicted.load(std::sync::atomic::Ordering::Relaxed) as usize, gone);
    assert_eq!(root.resolve(b"f7").unwrap().id(), held.id());
    root.stat(b"f8").unwrap();
    assert!(store.asked("f8") >= 2);
}

/// A tree over a cache that holds a few thousand inodes.
fn small() -> (Arc<Store>, Arc<Vfs>) {
    let store = Arc::new(Store::default());
    let config = uvfs::VfsConfig {
        cache: uvfs_cache::Config { max_inodes: 1 << 12, ..uvfs_cache::Config::default() },
        ..uvfs::VfsConfig::default()
    };
    let vfs = Vfs::new(config, Arc::clone(&store) as Arc<dyn uvfs::Driver>).unwrap();
    (store, vfs)
}

#[test]
fn what_cannot_be_cached_is_let_go() {
    let (store, vfs) = small();
    let root = root(&vfs);
    let mut held = Vec::new();
    let full = loop {
        let name = format!("f{}", held.len());
        store.plant(1, &name, FILE);
        match root.resolve(name.as_bytes()) {
            Ok(inode) => held.push(inode),
            Err(errno) => break errno,
        }
        assert!(held.len() < 1 << 20, "no limit");
    };
    assert_eq!(full, Errno::NOMEM);
    // The driver learns that one inode was not kept.
    assert_eq!(store.evicted.load(std::sync::atomic::Ordering::Relaxed), 1);
    held.truncate(held.len() / 2);
    let last = format!("f{}", held.len() * 2);
    root.resolve(last.as_bytes()).unwrap();
}

#[test]
fn the_cache_makes_room_for_itself() {
    let (store, vfs) = small();
    let root = root(&vfs);
    for n in 0..20_000 {
        let name = format!("f{n}");
        store.plant(1, &name, FILE);
        root.stat(name.as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    assert!(store.evicted.load(std::sync::atomic::Ordering::Relaxed) > 0);
}

const SECOND: Ttl = Ttl::For(Duration::from_secs(1));

/// Rule 14: `path` leads `somebody` through a directory that is closed behind the cache with `close`, and whose answer
/// expires. The names on the way stay fresh, because `refresh` asks for them. Then neither stat nor open succeeds.
fn closes(
    vfs: &Arc<Vfs>,
    somebody: &uvfs::Context<'_>,
    path: &[u8],
    close: impl Fn(u32),
    refresh: impl Fn(),
) {
    // More than once: a prefix entry is used only after it was noted.
    for _ in 0..3 {
        somebody.stat(path).unwrap();
    }
    somebody.open(path, OpenFlags::READ, 0).unwrap();
    close(0o700);
    vfs.cache().advance_clock(1500);
    refresh();
    assert_eq!(errno(somebody.stat(path)), Some(Errno::ACCESS));
    vfs.cache().advance_clock(1500);
    refresh();
    assert_eq!(errno(somebody.open(path, OpenFlags::READ, 0)), Some(Errno::ACCESS));
    // Opened again, it leads on.
    close(0o755);
    vfs.cache().advance_clock(1500);
    refresh();
    somebody.stat(path).unwrap();
}

/// No name leads to a mounted root, so no lookup renews its attributes. Planted bugs:
/// rule14-a-mounted-root-stays-open, rule14-an-entry-of-a-mounted-root-stays-open.
#[test]
fn rule14_the_permission_of_a_mounted_root_expires() {
    let vfs = crate::common::vfs();
    let store = Arc::new(Store::new(SECOND, false));
    let (root, somebody) = (root(&vfs), user(&vfs, 1000, 1000));
    root.mkdir(b"/m", 0o755).unwrap();
    vfs.mount(&root.resolve(b"/m").unwrap(), Arc::clone(&store) as Arc<dyn uvfs::Driver>).unwrap();
    store.plant(1, "f", FILE);
    let close = |mode| store.change_mode(1, mode::S_IFDIR | mode);
    let refresh = || assert!(root.stat(b"/m/f").unwrap().is_reg());
    for path in [&b"/m/f"[..], b"/./././././././././m/f"] {
        closes(&vfs, &somebody, path, close, refresh);
    }
}

/// `..` asks for no name either. Planted bugs: rule14-a-parent-stays-open, rule14-a-links-parent-stays-open.
#[test]
fn rule14_the_permission_of_a_parent_expires() {
    let mut store = Store::new(SECOND, false);
    store.fixed_links = true;
    let (store, vfs) = stored(store);
    let d = store.plant(1, "d", DIR);
    store.plant(d, "e", DIR);
    store.plant(d, "f", FILE);
    let (mut root, mut somebody) = (root(&vfs), user(&vfs, 1000, 1000));
    root.symlink(b"../f", b"d/e/l").unwrap();
    root.chdir(b"d").unwrap();
    somebody.chdir(b"d/e").unwrap();
    let close = |mode| store.change_mode(d, mode::S_IFDIR | mode);
    let refresh = || {
        assert!(root.stat(b"e").unwrap().is_dir());
        root.lstat(b"e/l").unwrap();
        root.stat(b"f").unwrap();
    };
    for path in [&b"../f"[..], b"l"] {
        closes(&vfs, &somebody, path, close, refresh);
    }
}

/// A walk by a prefix entry does not look at the root that an absolute link led to. Planted bug:
/// rule14-an-entry-of-a-links-root-stays-open.
#[test]
fn rule14_the_permission_of_a_root_behind_a_link_expires() {
    let (store, vfs) = stored(Store::new(SECOND, false));
    store.plant(1, "m", DIR);
    store.plant(1, "f", FILE);
    let (mut root, mut somebody) = (root(&vfs), user(&vfs, 1000, 1000));
    let inner = Arc::new(crate::common::Mem::default());
    vfs.mount(&root.resolve(b"/m").unwrap(), inner).unwrap();
    root.chdir(b"/m").unwrap();
    root.symlink(b"/", b"root").unwrap();
    somebody.chdir(b"/m").unwrap();
    let close = |mode| store.change_mode(1, mode::S_IFDIR | mode);
    let refresh = || assert!(root.stat(b"/f").unwrap().is_reg());
    for path in [&b"root/f"[..], b"./././././././root/f"] {
        closes(&vfs, &somebody, path, close, refresh);
    }
}
