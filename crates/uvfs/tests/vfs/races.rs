//! Many threads at once: states that no thread may ever see while names change, and a consistent tree afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Mem, Store, root, touch, user, vfs, vfs_of};
use uvfs::{Context, Errno, OpenFlags, RenameFlags, Vfs, mode};

/// A small, repeatable random generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// Set when dropped, by return or by panic, so that its waiter does not wait for ever.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `change` that many times, while another thread runs `look` continuously.
fn while_changing(times: u32, mut change: impl FnMut(u32) + Send, look: impl Fn() + Sync) {
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let _done = Done(&done);
            (0..times).for_each(&mut change);
        });
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                look();
            }
        });
    });
}

#[test]
fn a_replaced_name_is_never_absent() {
    let vfs = vfs();
    let root = root(&vfs);
    root.mkdir(b"d", 0o755).unwrap();
    touch(&root, "d/f");
    while_changing(
        20_000,
        |_| {
            touch(&root, "d/new");
            root.rename(b"d/new", b"d/f", RenameFlags::empty()).unwrap();
        },
        || assert!(root.stat(b"d/f").unwrap().is_reg()),
    );
}

#[test]
fn swapped_names_are_never_absent() {
    let vfs = vfs();
    let root = root(&vfs);
    root.mkdir(b"a", 0o755).unwrap();
    root.mkdir(b"b", 0o755).unwrap();
    root.mkdir(b"a/x", 0o755).unwrap();
    touch(&root, "b/x");
    while_changing(
        20_000,
        |_| root.rename(b"a/x", b"b/x", RenameFlags::EXCHANGE).unwrap(),
        || {
            root.lstat(b"a/x").unwrap();
            root.lstat(b"b/x").unwrap();
        },
    );
}

#[test]
fn a_moved_directory_leads_to_what_is_in_it() {
    let vfs = vfs();
    let root = root(&vfs);
    for path in ["a", "b", "a/d", "a/d/e"] {
        root.mkdir(path.as_bytes(), 0o755).unwrap();
    }
    touch(&root, "a/d/e/f");
    root.symlink(b"e/f", b"a/d/l").unwrap();
    let inside = {
        let mut context = root.clone();
        context.chdir(b"a/d/e").unwrap();
        context
    };
    while_changing(
        20_000,
        |n| {
            let (from, to) = if n % 2 == 0 { (b"a/d", b"b/d") } else { (b"b/d", b"a/d") };
            root.rename(from, to, RenameFlags::empty()).unwrap();
        },
        || {
            assert!(inside.stat(b"f").unwrap().is_reg());
            assert!(inside.stat(b"../e/f").unwrap().is_reg());
            assert!(inside.stat(b"../l").unwrap().is_reg());
            assert!(inside.stat(b"../../../b").unwrap().is_dir());
        },
    );
}

#[test]
fn a_denied_search_is_denied_and_nothing_else() {
    let vfs = vfs();
    let root = root(&vfs);
    root.mkdir(b"d", 0o755).unwrap();
    touch(&root, "d/f");
    let other = user(&vfs, 9, 9);
    while_changing(
        20_000,
        |n| root.chmod(b"d", if n % 2 == 0 { 0o700 } else { 0o755 }).unwrap(),
        || match other.stat(b"d/f") {
            Ok(attr) => assert!(attr.is_reg()),
            Err(errno) => assert_eq!(errno, Errno::ACCESS),
        },
    );
}

#[test]
fn one_maker_wins() {
    let vfs = vfs();
    let flags = OpenFlags::CREATE | OpenFlags::EXCL | OpenFlags::WRITE;
    for n in 0..500 {
        let path = format!("f{n}");
        let won = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| match root(&vfs).open(path.as_bytes(), flags, 0o644) {
                    Ok(_) => drop(won.fetch_add(1, Ordering::Relaxed)),
                    Err(errno) => assert_eq!(errno, Errno::EXIST),
                });
            }
        });
        assert_eq!(won.into_inner(), 1);
    }
}

#[test]
fn the_last_name_does_not_go_under_a_link() {
    let mem = Arc::new(Mem::default());
    mem.slow_links.store(100, Ordering::Relaxed);
    let vfs = vfs_of(Arc::clone(&mem) as Arc<dyn uvfs::Driver>);
    let root = root(&vfs);
    for n in 0..300 {
        touch(&root, "f");
        let linked = std::thread::scope(|s| {
            let link = s.spawn(|| root.link(b"f", b"g"));
            match n % 2 {
                0 => root.unlink(b"f").unwrap(),
                _ => {
                    touch(&root, "new");
                    root.rename(b"new", b"f", RenameFlags::empty()).unwrap();
                    root.unlink(b"f").unwrap();
                }
            }
            link.join().unwrap()
        });
        match linked {
            Ok(()) => {
                assert_eq!(root.stat(b"g").unwrap().nlink, 1);
                root.unlink(b"g").unwrap();
            }
            Err(errno) => assert_eq!(errno, Errno::NOENT),
        }
    }
}

#[test]
fn a_directory_dies_empty() {
    let vfs = vfs();
    let root = root(&vfs);
    let lost = AtomicU64::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..20_000 {
                match root.mkdir(b"d", 0o755) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => panic!("{errno}"),
                }
                match root.rmdir(b"d") {
                    Ok(()) | Err(Errno::NOTEMPTY) => {}
                    Err(errno) => panic!("{errno}"),
                }
            }
        });
        s.spawn(|| {
            for _ in 0..20_000 {
                match root.mknod(b"d/f", 0o644, 0) {
                    // Only this thread removes it, so its directory cannot go.
                    Ok(()) => drop(root.unlink(b"d/f").inspect_err(|_| {
                        lost.fetch_add(1, Ordering::Relaxed);
                    })),
                    Err(Errno::NOENT) => {}
                    Err(errno) => panic!("{errno}"),
                }
            }
        });
    });
    assert_eq!(lost.into_inner(), 0);
}

#[test]
fn directories_do_not_swallow_each_other() {
    let vfs = vfs();
    let root = root(&vfs);
    for _ in 0..2_000 {
        root.mkdir(b"a", 0o755).unwrap();
        root.mkdir(b"b", 0o755).unwrap();
        let (first, second) = std::thread::scope(|s| {
            let first = s.spawn(|| root.rename(b"a", b"b/x", RenameFlags::empty()));
            let second = root.rename(b"b", b"a/x", RenameFlags::empty());
            (first.join().unwrap(), second)
        });
        let outer = match (first, second) {
            // Invalid: its parent was found before the other rename moved that parent below it.
            (Ok(()), Err(Errno::NOENT | Errno::INVAL)) => "b",
            (Err(Errno::NOENT | Errno::INVAL), Ok(())) => "a",
            other => panic!("{other:?}"),
        };
        root.rmdir(format!("{outer}/x").as_bytes()).unwrap();
        root.rmdir(outer.as_bytes()).unwrap();
    }
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn path(random: &mut Random) -> Vec<u8> {
    let depth = 1 + random.below(3);
    let names: Vec<&str> = (0..depth).map(|_| NAMES[random.below(6) as usize]).collect();
    names.join("/").into_bytes()
}

/// One random call; errors are expected.
fn step(root: &Context<'_>, random: &mut Random) {
    let (one, other) = (path(random), path(random));
    let result = match random.below(16) {
        0..3 => root.mkdir(&one, 0o755),
        3..6 => root.mknod(&one, 0o644, 0),
        6 => root.link(&one, &other),
        7 => root.unlink(&one),
        8 => root.rmdir(&one),
        9..12 => root.rename(&one, &other, RenameFlags::empty()),
        12 => root.rename(&one, &other, RenameFlags::EXCHANGE),
        13 => root.open(&one, OpenFlags::CREATE | OpenFlags::WRITE, 0o644).map(drop),
        14 => root.readdir(&one).map(drop),
        _ => root.stat(&one).map(drop),
    };
    if let Err(errno) = result {
        let everyday = [
            Errno::NOENT,
            Errno::EXIST,
            Errno::NOTDIR,
            Errno::ISDIR,
            Errno::NOTEMPTY,
            Errno::INVAL,
            Errno::PERM,
        ];
        assert!(everyday.contains(&errno), "{errno}");
    }
}

/// Checks everything: a file has as many links as names, and if `counts_directories`, a directory has as many as it
/// should. Returns the number of inodes.
fn check_tree(root: &Context<'_>, counts_directories: bool) -> usize {
    let mut links: HashMap<u64, (u32, u32)> = HashMap::new();
    let mut directories = HashSet::new();
    // Walks by working directories, because storms nest deeper than the longest path.
    let mut todo = vec![root.clone()];
    while let Some(here) = todo.pop() {
        let me = here.stat(b".").unwrap();
        assert!(directories.insert(me.ino), "two ways to directory {}", me.ino);
        let mut children = 0;
        for entry in here.readdir(b".").unwrap() {
            let attr = here.lstat(&entry.name).unwrap();
            assert_eq!(attr.ino, entry.ino);
            if entry.fmt == mode::S_IFDIR {
                children += 1;
                let mut below = here.clone();
                below.chdir(&entry.name).unwrap();
                assert_eq!(below.stat(b"..").unwrap().ino, me.ino);
                todo.push(below);
            } else {
                links.entry(attr.ino).or_insert((attr.nlink, 0)).1 += 1;
            }
        }
        if counts_directories {
            assert_eq!(me.nlink, children + 2, "links of directory {}", me.ino);
        }
    }
    for (ino, (nlink, names)) in &links {
        assert_eq!(nlink, names, "links of inode {ino}");
    }
    directories.len() + links.len()
}

fn storm(vfs: &Vfs, threads: u64, steps: u32) {
    std::thread::scope(|s| {
        for seed in 1..=threads {
            let root = root(vfs);
            s.spawn(move || {
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                (0..steps).for_each(|_| step(&root, &mut random));
            });
        }
    });
}

#[test]
fn a_storm_leaves_a_whole_tree() {
    let mem = Arc::new(Mem::default());
    let vfs = vfs_of(Arc::clone(&mem) as Arc<dyn uvfs::Driver>);
    for _ in 0..5 {
        storm(&vfs, 4, 10_000);
        let inodes = check_tree(&root(&vfs), true);
        assert_eq!(vfs.cache().counters().inodes, inodes as u64);
    }
    assert_eq!(mem.open.load(Ordering::Relaxed), 0);
}

/// The same while another thread keeps emptying the cache.
#[test]
fn a_storm_over_a_driver_that_is_asked() {
    let vfs = vfs_of(Arc::new(Store::default()));
    for _ in 0..5 {
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut random = Random(77);
                while !done.load(Ordering::Relaxed) {
                    vfs.cache().evict_unused(vfs.root().sb(), 3);
                    let name = NAMES[random.below(6) as usize].as_bytes();
                    vfs.cache().invalidate(&vfs.root(), name);
                }
            });
            let _done = Done(&done);
            storm(&vfs, 3, 5_000);
        });
        // By now the cache agrees with the driver.
        check_tree(&root(&vfs), false);
    }
}

/// A file that many threads keep opening is replaced repeatedly. Each one ends once, after its last user, and none
/// is left over.
#[test]
fn a_file_that_is_opened_by_many_ends_when_it_is_replaced() {
    const ROUNDS: usize = 1_000;
    let mem = Arc::new(Mem::default());
    let vfs = vfs_of(Arc::clone(&mem) as Arc<dyn uvfs::Driver>);
    let root = root(&vfs);
    touch(&root, "f");
    let (done, spread) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let mut kept = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let file = root.open(b"f", OpenFlags::READ | OpenFlags::WRITE, 0).unwrap();
                    assert!(file.attr().unwrap().is_reg());
                    kept.push(file);
                    if kept.len() > 8 {
                        kept.clear();
                    }
                }
            });
        }
        let _done = Done(&done);
        for round in 0..ROUNDS {
            // Some are replaced while they are counted per thread, most before.
            let spread_now = || vfs.cache().counters().spread;
            for _ in 0..if round % 100 == 0 { 50 } else { 0 } {
                if spread_now() > 0 {
                    break;
                }
                std::thread::yield_now();
            }
            spread.fetch_max(spread_now(), Ordering::Relaxed);
            touch(&root, "new");
            root.rename(b"new", b"f", RenameFlags::empty()).unwrap();
        }
    });
    assert!(spread.load(Ordering::Relaxed) > 0);
    assert_eq!(mem.open.load(Ordering::Relaxed), 0);
    assert_eq!((mem.evicted.lock().len(), vfs.cache().counters().inodes), (ROUNDS, 2));
}

/// A directory changes between two owners and modes that both deny the search. No walk may combine one owner with
/// the other mode, whichever way it leaves the directory.
#[test]
fn a_mode_that_is_torn_permits_nothing() {
    let vfs = vfs();
    let root = root(&vfs);
    for dir in [b"d".as_slice(), b"plain"] {
        root.mkdir(dir, 0o755).unwrap();
    }
    vfs.mount(&root.resolve(b"d").unwrap(), Arc::new(Mem::default())).unwrap();
    vfs.mount_control(Arc::new(Mem::default()), false).unwrap();
    for dir in ["d", "plain", ".uvfs"] {
        let inode = root.resolve(dir.as_bytes()).unwrap();
        touch(&root, &format!("{dir}/f"));
        root.mkdir(format!("{dir}/e").as_bytes(), 0o755).unwrap();
        // Walks begin in it, because lock-free walks do not find the control directory.
        let mut inside = user(&vfs, 9, 9);
        inside.chdir(dir.as_bytes()).unwrap();
        let deny = |n: u32| {
            inode.update(|attr| {
                (attr.uid, attr.mode) = if n.is_multiple_of(2) { (0, 0o700) } else { (9, 0o055) }
            });
        };
        deny(0);
        for way in ["..", "../plain", "e/..", "e/../../plain", "f", ".", "./f", "./..", "/d/.."] {
            while_changing(20_000, deny, || {
                let expected = if way.starts_with('/') && dir != "d" { None } else { Some(Errno::ACCESS) };
                assert_eq!(inside.stat(way.as_bytes()).err(), expected, "{way} of {dir}");
                assert_eq!(inside.resolve(way.as_bytes()).err(), expected, "{way} of {dir}");
            });
        }
        inode.update(|attr| (attr.uid, attr.mode) = (0, 0o755));
    }
}
