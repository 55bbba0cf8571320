//! A path that is walked repeatedly: every change on the way shows at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Mem, errno, root, touch, user, vfs};
use uvfs::{Context, Errno, RenameFlags, Vfs};

const DIRS: [&str; 4] = ["/first", "/first/second", "/first/second/third", "/first/second/third/fourth"];
const FILE: &str = "/first/second/third/fourth/file";

fn tree() -> Arc<Vfs> {
    let vfs = vfs();
    {
        let root = root(&vfs);
        for dir in DIRS {
            root.mkdir(dir.as_bytes(), 0o755).unwrap();
        }
        touch(&root, FILE);
    }
    vfs
}

/// Walks a path often enough that its directory part is cached.
fn warm(context: &Context<'_>) -> u64 {
    (0..4).map(|_| context.stat(FILE.as_bytes()).unwrap().ino).fold(0, |_, ino| ino)
}

#[test]
fn a_rename_anywhere_above_shows() {
    for dir in DIRS {
        let vfs = tree();
        let root = root(&vfs);
        let ino = warm(&root);
        root.rename(dir.as_bytes(), b"/away", RenameFlags::empty()).unwrap();
        assert_eq!(errno(root.stat(FILE.as_bytes())), Some(Errno::NOENT), "{dir}");
        let moved = FILE.replacen(dir, "/away", 1);
        assert_eq!(root.stat(moved.as_bytes()).unwrap().ino, ino);
        // Something else is under the old name.
        for dir in DIRS {
            let _ = root.mkdir(dir.as_bytes(), 0o755);
        }
        touch(&root, FILE);
        assert_ne!(warm(&root), ino);
        root.rename(dir.as_bytes(), b"/away", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(root.stat(FILE.as_bytes()).unwrap().ino, ino, "{dir}");
    }
}

#[test]
fn a_chmod_anywhere_above_shows_and_is_each_callers_own() {
    let vfs = tree();
    let (root, owner, other) = (root(&vfs), user(&vfs, 5, 5), user(&vfs, 6, 6));
    for dir in DIRS {
        root.chown(dir.as_bytes(), Some(5), Some(5)).unwrap();
    }
    for dir in DIRS {
        for context in [&root, &owner, &other] {
            warm(context);
        }
        root.chmod(dir.as_bytes(), 0o700).unwrap();
        for _ in 0..4 {
            assert_eq!(errno(other.stat(FILE.as_bytes())), Some(Errno::ACCESS), "{dir}");
            warm(&owner);
            warm(&root);
        }
        root.chmod(dir.as_bytes(), 0o755).unwrap();
    }
    let mut changes = other.clone();
    warm(&changes);
    root.chmod(DIRS[1].as_bytes(), 0o700).unwrap();
    warm(&owner);
    changes.set_cred(owner.cred().clone());
    warm(&changes);
    changes.set_cred(other.cred().clone());
    assert_eq!(errno(changes.stat(FILE.as_bytes())), Some(Errno::ACCESS));
}

#[test]
fn a_mount_and_an_unmount_on_the_way_show() {
    for dir in DIRS {
        let vfs = tree();
        let root = root(&vfs);
        let ino = warm(&root);
        let at = root.resolve(dir.as_bytes()).unwrap();
        vfs.mount(&at, Arc::new(Mem::default())).unwrap();
        assert_eq!(errno(root.stat(FILE.as_bytes())), Some(Errno::NOENT), "{dir}");
        for dir in DIRS {
            let _ = root.mkdir(dir.as_bytes(), 0o755);
        }
        touch(&root, FILE);
        assert!(root.stat(FILE.as_bytes()).unwrap().size == 0);
        warm(&root);
        vfs.unmount(&root.resolve(dir.as_bytes()).unwrap()).unwrap();
        assert_eq!(root.stat(FILE.as_bytes()).unwrap().ino, ino, "{dir}");
    }
}

#[test]
fn the_same_text_from_elsewhere_is_another_path() {
    let vfs = tree();
    let root = root(&vfs);
    let ino = warm(&root);
    root.mkdir(b"/jail", 0o755).unwrap();
    for dir in DIRS {
        root.mkdir(format!("/jail{dir}").as_bytes(), 0o755).unwrap();
    }
    touch(&root, &format!("/jail{FILE}"));
    let mut inside = root.clone();
    inside.chroot(b"/jail").unwrap();
    assert_ne!(warm(&inside), ino);
    let mut below = root.clone();
    below.chdir(b"/jail").unwrap();
    let relative = &FILE.as_bytes()[1..];
    let there = (0..4).map(|_| below.stat(relative).unwrap().ino).fold(0, |_, ino| ino);
    assert_ne!(there, ino);
    below.chdir(b"/").unwrap();
    assert_eq!(below.stat(relative).unwrap().ino, ino);
}

/// One thread moves a directory to and fro, while another looks for a file in it by both names. If two reads of the
/// move count agree, exactly one of the names existed between them.
#[test]
fn a_path_leads_where_it_led_at_some_moment_of_the_walk() {
    let vfs = tree();
    let (moves, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let away = FILE.replacen(DIRS[1], "/first/elsewhere", 1);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let context = root(&vfs);
            let mut seen = [0u64; 2];
            while seen.iter().any(|n| *n < 5_000) {
                let before = moves.load(Ordering::SeqCst);
                let here = context.stat(FILE.as_bytes()).is_ok();
                let there = context.stat(away.as_bytes()).is_ok();
                if before.is_multiple_of(2) && moves.load(Ordering::SeqCst) == before {
                    let at_home = before.is_multiple_of(4);
                    assert_eq!((here, there), (at_home, !at_home), "after {} moves", before / 2);
                    seen[usize::from(at_home)] += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        let context = root(&vfs);
        let names = [DIRS[1].as_bytes(), &b"/first/elsewhere"[..]];
        let mut at = 0;
        while !stop.load(Ordering::Relaxed) && !reader.is_finished() {
            moves.fetch_add(1, Ordering::SeqCst);
            context.rename(names[at], names[1 - at], RenameFlags::empty()).unwrap();
            at = 1 - at;
            moves.fetch_add(1, Ordering::SeqCst);
            for _ in 0..200 {
                std::hint::spin_loop();
            }
        }
        reader.join().unwrap();
    });
}
