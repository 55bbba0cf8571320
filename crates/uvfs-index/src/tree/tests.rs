//! Trees against walks of the host, with forced overflows.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use uvfs_drivers::watch::Told;

use super::*;

type Walk = BTreeMap<Vec<u8>, FileFacts>;

/// A directory that is followed; none, with a message, where that is not allowed.
fn followed() -> Option<(tempfile::TempDir, IndexedTree)> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    match IndexedTree::start(dir.path(), TreeLimits::default()) {
        Ok(tree) => Some((dir, tree)),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn of_index(tree: &IndexedTree) -> Walk {
    assert_eq!(tree.wait_scanned(Duration::from_secs(60)), IndexPhase::Following);
    let mut walk = Walk::new();
    let visited = tree.visit(b"", |name| {
        assert!(walk.insert(name.path.to_vec(), FileFacts { birth: 0, ..name.facts }).is_none());
        true
    });
    visited.expect("a tree");
    walk
}

fn of_host(root: &Path) -> Walk {
    let mut walk = Walk::new();
    let mut below = vec![root.to_owned()];
    while let Some(path) = below.pop() {
        use std::os::unix::ffi::OsStrExt;
        let meta = fs::symlink_metadata(&path).expect("quiet");
        let facts = FileFacts {
            ino: meta.ino(),
            dev: meta.dev(),
            size: meta.size(),
            blocks: meta.blocks(),
            mtime: (meta.mtime(), meta.mtime_nsec() as u32),
            ctime: (meta.ctime(), meta.ctime_nsec() as u32),
            nlink: meta.nlink() as u32,
            uid: meta.uid(),
            gid: meta.gid(),
            mode: meta.mode() as u16,
            birth: 0,
        };
        if meta.is_dir() {
            below.extend(fs::read_dir(&path).expect("quiet").map(|entry| entry.expect("quiet").path()));
        }
        let inner = path.strip_prefix(root).expect("below").as_os_str().as_bytes().to_vec();
        walk.insert(inner, facts);
    }
    walk
}

#[test]
fn a_tree_is_the_hosts_after_each_single_change() {
    let Some((dir, tree)) = followed() else { return };
    let at = |name: &str| dir.path().join(name);
    let changes: [&dyn Fn() -> std::io::Result<()>; 14] = [
        &|| fs::create_dir(at("d")),
        &|| fs::write(at("d/f"), "text"),
        &|| fs::hard_link(at("d/f"), at("g")),
        &|| fs::write(at("g"), "more text"),
        &|| fs::rename(at("d"), at("e")),
        &|| fs::remove_file(at("g")),
        &|| fs::create_dir_all(at("x/y/z")),
        &|| fs::rename(at("x/y"), at("e/y")),
        &|| fs::rename(at("e"), at("x/e")),
        &|| fs::File::options().write(true).open(at("x/e/f"))?.set_len(2),
        &|| std::os::unix::fs::symlink("nowhere", at("x/link")),
        &|| fs::set_permissions(at("x"), std::os::unix::fs::PermissionsExt::from_mode(0o700)),
        &|| fs::rename(at("x/e/f"), at("x/link")),
        &|| fs::remove_dir_all(at("x")),
    ];
    assert_eq!(of_index(&tree), of_host(dir.path()));
    for (nth, change) in changes.iter().enumerate() {
        change().expect("a change");
        assert_eq!(of_index(&tree), of_host(dir.path()), "after change {nth}");
    }
    assert_eq!(tree.figures().unread.0, 0);
}

#[test]
fn an_overflow_makes_everything_suspect_and_the_tree_right_again() {
    let Some((dir, tree)) = followed() else { return };
    fs::write(dir.path().join("f"), "text").expect("write");
    of_index(&tree);
    let clock = tree.changed_since(None, b"").clock;
    assert_eq!(tree.changed_since(Some(clock), b"").changes, Some(Vec::new()));
    for round in 0..10 {
        fs::write(dir.path().join(format!("f{round}")), "text").expect("write");
        tree.shared.queue.overflow();
        fs::write(dir.path().join(format!("g{round}")), "text").expect("write");
        assert_eq!(tree.changed_since(Some(clock), b"").changes, None);
        assert_eq!(of_index(&tree), of_host(dir.path()));
    }
    assert_eq!(tree.changed_since(Some(clock), b"").changes, None);
}

#[test]
fn a_lost_watch_is_never_silence() {
    let Some((dir, tree)) = followed() else { return };
    of_index(&tree);
    let clock = tree.changed_since(None, b"").clock;
    tree.shared.queue.ended("reading failed");
    fs::write(dir.path().join("f"), "text").expect("write");
    let answer = tree.changed_since(Some(clock), b"");
    assert_eq!((answer.changes, answer.warning.as_deref()), (None, Some("reading failed")));
    assert!(tree.visit(b"", |_| true).is_err());
}

/// Users see another file system there. Names below the mount are neither found nor said to be unchanged.
#[test]
fn what_a_mount_covers_is_not_shown() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let Some((dir, tree)) = followed() else { return };
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("d/m o/below")).expect("mkdir");
    fs::create_dir(at("e")).expect("mkdir");
    of_index(&tree);
    let find = |words: &[&str], start: &str| -> (String, bool, Vec<Vec<u8>>) {
        let expression = Expression::parse(words).expect("an expression");
        let context = crate::find::FindContext::of_this_process();
        let mut printer = crate::find::FindPrinter::new(Vec::new(), false, &context);
        let start = FindStart { written: start.into(), below: start.into() };
        let found = tree.find(&expression, &start, &mut printer).expect("a search");
        let failed = printer.unreadable_files() > 0;
        (String::from_utf8(printer.into_inner()).expect("UTF-8"), failed, found.mounted_on)
    };
    let clock = tree.changed_since(None, b"").clock;
    if let Err(errno) = mount("none", at("d/m o"), "tmpfs", MountFlags::empty(), None) {
        eprintln!("skipped: a mount: {errno}");
        return;
    }
    let seen = (
        find(&[], "d"),
        find(&["-xdev"], "d"),
        find(&[], "d/m o"),
        find(&[], "d/m o/below"),
        find(&["-empty"], "d/m o"),
        tree.changed_since(Some(clock), b"d/m o"),
        tree.changed_since(Some(clock), b"d/m o/x"),
        tree.changed_since(Some(clock), b"d/m"),
    );
    unmount(at("d/m o"), UnmountFlags::DETACH).expect("unmount");
    let covered = vec![b"d/m o".to_vec()];
    assert_eq!(seen.0, ("d\nd/m o\n".into(), false, covered.clone()));
    assert_eq!(seen.1, ("d\nd/m o\n".into(), false, Vec::new()));
    assert_eq!(seen.2, ("d/m o\n".into(), false, covered.clone()));
    assert_eq!(seen.3, (String::new(), false, covered.clone()));
    assert!(seen.4.1, "nobody knows whether it is empty");
    for unseen in [seen.5, seen.6] {
        assert_eq!(unseen.changes, None);
        assert!(unseen.warning.is_some_and(|warning| warning.starts_with("d/m o: another file system")));
    }
    assert_eq!((seen.7.changes, seen.7.warning), (Some(Vec::new()), None));
    // The mount has gone, and the index is told so.
    assert_eq!(find(&[], "d").0, "d\nd/m o\nd/m o/below\n");
}
