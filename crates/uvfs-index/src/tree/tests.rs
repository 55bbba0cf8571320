//! Trees against walks of the host, with forced overflows.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use uvfs_drivers::watch::Told;

use super::*;
use crate::scan::{DirListing, ListingPart};
use crate::table::Note;

pub(super) type Walk = BTreeMap<Vec<u8>, FileFacts>;

/// A directory that is followed; none, with a message, where that is not allowed.
pub(super) fn followed() -> Option<(tempfile::TempDir, IndexedTree)> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    match IndexedTree::start(dir.path(), TreeLimits::default()) {
        Ok(tree) => Some((dir, tree)),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

pub(super) fn of_index(tree: &IndexedTree) -> Walk {
    loop {
        assert_eq!(tree.wait_scanned(Duration::from_secs(60)), IndexPhase::Following);
        let (scans, mut walk) = (tree.figures().scans, Walk::new());
        let visited = tree.visit(b"", |name| {
            assert!(walk.insert(name.path.to_vec(), FileFacts { birth: 0, ..name.facts }).is_none());
            true
        });
        match visited {
            Ok(()) => return walk,
            // The queue has overflowed in between, as on a slow machine: the tree is read once more.
            Err(why) => assert!(tree.figures().scans > scans, "{why}"),
        }
    }
}

pub(super) fn of_host(root: &Path) -> Walk {
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
    each_single_change(&dir, &tree);
}

pub(super) fn each_single_change(dir: &tempfile::TempDir, tree: &IndexedTree) {
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
    assert_eq!(of_index(tree), of_host(dir.path()));
    for (nth, change) in changes.iter().enumerate() {
        change().expect("a change");
        assert_eq!(of_index(tree), of_host(dir.path()), "after change {nth}");
    }
    assert_eq!(tree.figures().unread.0, 0);
}

/// The worker cannot look while the test holds the table, and then has more to look at than a question takes.
#[test]
fn a_question_waits_until_all_reports_are_looked_at() {
    let Some((dir, tree)) = followed() else { return };
    of_index(&tree);
    for round in 0..3 {
        let held = tree.shared.content.write();
        for nth in 0..3000 {
            fs::write(dir.path().join(format!("f{round}-{nth}")), "text").expect("write");
        }
        tree.watcher.drain();
        drop(held);
        assert!(of_index(&tree) == of_host(dir.path()), "round {round}");
    }
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

/// A directory whose listing failed is read at the next report of it, and there is no warning any more. One that leaves
/// the tree is not warned of either.
#[test]
fn a_directory_that_could_not_be_read_is_read_later() {
    use std::os::unix::fs::PermissionsExt;
    let Some((dir, tree)) = followed() else { return };
    for name in ["read", "removed"] {
        fs::create_dir(dir.path().join(name)).expect("a directory");
    }
    of_index(&tree);
    let fails = |name: &str| {
        let handle = {
            let table = &tree.shared.content.read().table;
            let file = table.walk(name.as_bytes()).expect("known");
            table.handle(file).expect("a directory").clone()
        };
        let (names, unseen) = (Vec::new(), Vec::new());
        let part = ListingPart::Whole;
        let listing = DirListing { dir: handle, facts: None, names, unseen, failed: Some(Errno::IO), part };
        tree.shared.apply(listing, Note::Tick, &mut std::collections::HashMap::new()).expect("applied");
    };
    fails("read");
    fails("removed");
    fails("read");
    assert_eq!(tree.figures().unread.0, 2, "a directory counts once");
    assert!(tree.changed_since(None, b"").warning.is_some());
    fs::remove_dir(dir.path().join("removed")).expect("removed");
    fs::set_permissions(dir.path().join("read"), PermissionsExt::from_mode(0o711)).expect("chmod");
    assert_eq!(of_index(&tree), of_host(dir.path()));
    assert_eq!(tree.figures().unread, (0, None));
    assert_eq!(tree.changed_since(None, b"").warning, None);
}

/// A change at that moment, or a lack of memory or descriptors that passes, is neither a gap nor the end of the scan.
#[test]
fn an_error_that_passes_leaves_no_gap() {
    let Some((dir, tree)) = followed() else { return };
    fs::create_dir_all(dir.path().join("d/below")).expect("mkdir");
    fs::write(dir.path().join("d/below/f"), "text").expect("write");
    fs::create_dir(dir.path().join("removed")).expect("mkdir");
    of_index(&tree);
    let passing = [Errno::STALE, Errno::NOENT, Errno::INTR, Errno::NOMEM, Errno::MFILE, Errno::NFILE];
    let fails = |name: &str, errno| {
        let handle = {
            let table = &mut tree.shared.content.write().table;
            let file = table.walk(name.as_bytes()).expect("known");
            table.forget_content(file);
            table.handle(file).expect("a directory").clone()
        };
        let (names, unseen, part) = (Vec::new(), Vec::new(), ListingPart::Whole);
        let listing = DirListing { dir: handle, facts: None, names, unseen, failed: Some(errno), part };
        tree.shared.apply(listing, Note::Tick, &mut std::collections::HashMap::new()).expect("goes on");
    };
    for errno in passing {
        fails("d", errno);
        assert_eq!(of_index(&tree), of_host(dir.path()), "{errno}");
        assert_eq!(tree.figures().unread, (0, None), "{errno}");
    }
    // A name that could not be looked at.
    for errno in passing {
        let root = tree.shared.host.root_handle().clone();
        tree.shared.content.write().table.gone(crate::table::ROOT, b"d").expect("gone");
        tree.shared.content.write().table.purge();
        let (names, failed) = (Vec::new(), None);
        let unseen = vec![(b"d".as_slice().into(), errno)];
        // The first of two parts: the names that it does not have stay.
        let listing =
            DirListing { dir: root, facts: None, names, unseen, failed, part: ListingPart::First(1) };
        tree.shared.apply(listing, Note::Tick, &mut std::collections::HashMap::new()).expect("goes on");
        assert_eq!(of_index(&tree), of_host(dir.path()), "{errno}");
        assert_eq!(tree.figures().unread, (0, None), "{errno}");
    }
    // One that has gone before it was opened. Its removal waits to be looked at meanwhile.
    fails("removed", Errno::STALE);
    fs::remove_dir(dir.path().join("removed")).expect("rmdir");
    assert_eq!(of_index(&tree), of_host(dir.path()));
    assert_eq!(tree.figures().unread, (0, None));
}

/// A test in a process of its own, which may be short of descriptors.
fn in_another_process(test: &str) -> bool {
    const CHILD: &str = "UVFS_INDEX_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("this program");
    let mut child = std::process::Command::new(program);
    let ended =
        child.args(["--exact", &format!("tree::tests::{test}"), "--nocapture"]).env(CHILD, "1").output();
    let ended = ended.expect("a process");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && ended.stdout.windows(8).any(|word| word == b"1 passed"), "{said}");
    false
}

/// Calls `act` while this process can open nothing.
fn without_descriptors(act: impl FnOnce()) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: before.maximum }).expect("a limit");
    let fill: Vec<fs::File> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    act();
    drop(fill);
    setrlimit(Resource::Nofile, before).expect("a limit");
}

#[test]
fn a_file_that_cannot_be_opened_for_a_while_is_looked_at_again() {
    if !in_another_process("a_file_that_cannot_be_opened_for_a_while_is_looked_at_again") {
        return;
    }
    let Some((dir, tree)) = followed() else { return };
    let file = fs::File::create(dir.path().join("f")).expect("a file");
    of_index(&tree);
    without_descriptors(|| {
        std::io::Write::write_all(&mut &file, b"text").expect("write");
        tree.watcher.drain();
        let wanted = tree.shared.queue.put_in();
        while *tree.shared.done.lock() < wanted && tree.shared.missed.lock().is_empty() {
            std::thread::yield_now();
        }
    });
    assert_eq!(of_index(&tree), of_host(dir.path()));
    assert_eq!(tree.figures().unread, (0, None));
}

#[test]
fn a_name_whose_directory_cannot_be_opened_for_a_while_stays() {
    if !in_another_process("a_name_whose_directory_cannot_be_opened_for_a_while_stays") {
        return;
    }
    let Some((dir, tree)) = followed() else { return };
    fs::write(dir.path().join("f"), "text").expect("write");
    fs::hard_link(dir.path().join("f"), dir.path().join("g")).expect("link");
    of_index(&tree);
    let has_both = || {
        let table = &tree.shared.content.read().table;
        table.walk(b"f").is_some() && table.walk(b"g").is_some()
    };
    let file = tree.shared.content.read().table.walk(b"f").expect("known");
    let mut stays = false;
    without_descriptors(|| {
        tree.shared.look_at_links(file).expect("goes on");
        stays = has_both();
    });
    assert!(stays);
    assert_eq!(of_index(&tree), of_host(dir.path()));
    assert_eq!(tree.figures().unread, (0, None));
}

/// The mark is on the whole file system, so it does not matter by which name a file was opened.
#[test]
fn writes_by_a_descriptor_from_outside_the_tree_are_seen() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
    use std::os::fd::AsRawFd;
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("tree")).expect("mkdir");
    let tree = match IndexedTree::start(&at("tree"), TreeLimits::default()) {
        Ok(tree) => tree,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let linked = fs::File::create(at("outside")).expect("a file");
    fs::hard_link(at("outside"), at("tree/f")).expect("link");
    assert_eq!(of_index(&tree), of_host(&at("tree")));
    fs::remove_file(at("outside")).expect("unlink");
    assert_eq!(of_index(&tree), of_host(&at("tree")), "one name less");
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let nameless = fs::File::from(openat(CWD, dir.path(), flags, Mode::RWXU).expect("O_TMPFILE"));
    let itself = format!("/proc/self/fd/{}", nameless.as_raw_fd());
    linkat(CWD, itself, CWD, at("tree/g"), AtFlags::SYMLINK_FOLLOW).expect("link");
    for mut file in [&linked, &nameless] {
        assert_eq!(of_index(&tree), of_host(&at("tree")));
        std::io::Write::write_all(&mut file, b"text").expect("write");
        assert_eq!(of_index(&tree), of_host(&at("tree")), "written");
        file.set_len(1).expect("truncate");
        assert_eq!(of_index(&tree), of_host(&at("tree")), "cut off");
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
        assert_eq!(of_index(&tree), of_host(&at("tree")), "chmod");
    }
}

/// The end of a mount inside the tree is a change: users see other names there than at the time of the clock.
#[test]
fn a_mount_that_comes_or_goes_is_a_change() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let Some((dir, tree)) = followed() else { return };
    let at = dir.path().join("d/m");
    fs::create_dir_all(at.join("below")).expect("mkdir");
    of_index(&tree);
    let listed = |since: ChangeClock, below: &[u8]| {
        let answer = tree.changed_since(Some(since), below);
        let shown = |change: ChangedName| (String::from_utf8(change.path).expect("UTF-8"), change.whole);
        (answer.clock, answer.changes.map(|changes| changes.into_iter().map(shown).collect::<Vec<_>>()))
    };
    let (clock, nothing) = listed(tree.changed_since(None, b"").clock, b"");
    assert_eq!(nothing, Some(Vec::new()));
    if let Err(errno) = mount("none", &at, "tmpfs", MountFlags::empty(), None) {
        return eprintln!("skipped: a mount: {errno}");
    }
    let (mounted, came) = listed(clock, b"");
    let (_, again) = listed(mounted, b"");
    unmount(&at, UnmountFlags::DETACH).expect("unmount");
    let (gone, went) = listed(mounted, b"");
    let below = listed(mounted, b"d/m/below").1;
    let place = Some(vec![("d/m".to_owned(), true)]);
    assert_eq!(came, place);
    // Before Linux 6.8, a mount of another test counts as a change, too.
    assert!(again == Some(Vec::new()) || !crate::host::has_mount_numbers(), "{again:?}");
    assert_eq!((went, below), (place.clone(), place));
    assert_eq!(listed(gone, b"").1, Some(Vec::new()));
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
        tree.changed_since(Some(clock), b"d"),
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
    let warned = seen.8.warning.is_some_and(|warning| warning.starts_with("d/m o: another file system"));
    let listed: Vec<_> = seen.8.changes.into_iter().flatten().map(|change| change.path).collect();
    assert!(warned && listed == [b"d/m o"], "the mount itself is the only change");
    // The mount has gone, and the index is told so.
    assert_eq!(find(&[], "d").0, "d\nd/m o\nd/m o/below\n");
}

/// A directory with a snapshot of its tree, and the tree's end.
struct Kept {
    dir: tempfile::TempDir,
    file: Arc<SnapshotFile>,
}

impl Kept {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        for name in ["tree", "state"] {
            fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        let state = crate::SnapshotDir::open(&dir.path().join("state")).expect("a directory");
        let file = Arc::new(state.of(&dir.path().join("tree")).expect("free"));
        match IndexedTree::start(&dir.path().join("tree"), TreeLimits::default()) {
            Ok(_) => Some(Self { dir, file }),
            Err(why) => {
                eprintln!("skipped: {why}");
                None
            }
        }
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("tree").join(name)
    }

    fn start(&self) -> IndexedTree {
        let file = Some(Arc::clone(&self.file));
        IndexedTree::start_with(&self.at(""), TreeLimits::default(), file).expect("a tree")
    }

    fn followed(&self) -> IndexedTree {
        let tree = self.start();
        while tree.figures().phase != IndexPhase::Following {
            std::thread::yield_now();
        }
        tree
    }

    /// Starts with the snapshot, and looks whether the tree is the host's when it is followed.
    fn restart(&self, when: &str) -> IndexedTree {
        let tree = self.followed();
        assert!(tree.figures().snapshot.is_some(), "{when}: {:?}", tree.figures());
        assert_eq!(of_index(&tree), of_host(&self.at("")), "{when}");
        let figures = tree.figures();
        assert!(figures.unread.0 == 0 && (figures.scans == 1 || figures.overflows > 0), "{figures:?}");
        tree
    }
}

/// Writes a snapshot. If others of this file system make more events than the kernel keeps, the tree is read anew first.
fn saves(tree: &IndexedTree) {
    let until = Instant::now() + Duration::from_secs(60);
    while !tree.save(true).expect("written") {
        assert!(Instant::now() < until, "{:?}", tree.figures());
        std::thread::yield_now();
    }
}

#[test]
fn a_snapshot_is_compared_with_what_changed_without_a_server() {
    let Some(kept) = Kept::new() else { return };
    let at = |name: &str| kept.at(name);
    fs::create_dir_all(at("d/e/f")).expect("mkdir");
    for nth in 0..10_000 {
        // More than one part of a listing.
        fs::write(at(&format!("d/e/n{nth}")), "text").expect("write");
    }
    fs::hard_link(at("d/e/n1"), at("link")).expect("link");
    let changes: [&dyn Fn() -> std::io::Result<()>; 12] = [
        &|| Ok(()),
        &|| fs::rename(at("d/e"), at("e")),
        &|| fs::rename(at("d"), at("e/f/d")),
        &|| fs::remove_file(at("e/n1")),
        &|| (0..5000).try_for_each(|nth| fs::remove_file(at(&format!("e/n{}", nth + 2)))),
        // The new files have inode numbers of the old ones.
        &|| (0..5000).try_for_each(|nth| fs::write(at(&format!("e/f/d/m{nth}")), "other text")),
        &|| fs::remove_dir_all(at("e/f/d")).and_then(|()| fs::write(at("e/f/d"), "no directory")),
        // A directory and the one above it change places.
        &|| fs::create_dir_all(at("x/y")),
        &|| {
            fs::rename(at("x/y"), at("y"))?;
            fs::rename(at("x"), at("y/x"))
        },
        &|| fs::set_permissions(at(""), std::os::unix::fs::PermissionsExt::from_mode(0o711)),
        &|| fs::remove_dir_all(at("e")),
        &|| fs::remove_dir_all(at("y")),
    ];
    let tree = kept.followed();
    saves(&tree);
    drop(tree);
    for (nth, change) in changes.iter().enumerate() {
        change().expect("a change");
        let tree = kept.restart(&format!("change {nth}"));
        // And it is followed, as ever.
        fs::write(at("later"), format!("{nth}")).expect("write");
        assert_eq!(of_index(&tree), of_host(&at("")), "after change {nth}");
        saves(&tree);
        assert_eq!(tree.save(true), Ok(false));
    }
}

#[test]
fn names_of_a_snapshot_are_unchecked_and_their_clocks_unknown() {
    let Some(kept) = Kept::new() else { return };
    for nth in 0..3000 {
        fs::create_dir(kept.at(&format!("d{nth}"))).expect("mkdir");
    }
    let tree = kept.followed();
    let clock = tree.changed_since(None, b"").clock;
    tree.save(true).expect("written");
    drop(tree);
    let expression = Expression::parse(&["-maxdepth", "0"]).expect("an expression");
    let start = FindStart { written: b".".to_vec(), below: Vec::new() };
    let (mut unchecked, mut valid) = (0, 0);
    let enough = crate::usual_or_full(3, 50);
    for _ in 0..50 {
        // Each start is a race of the walk with the question.
        if unchecked >= enough && valid >= enough {
            break;
        }
        let tree = kept.start();
        tree.wait_scanned(Duration::from_secs(60));
        let answer = tree.changed_since(Some(clock), b"");
        assert!(answer.changes.is_none() && answer.clock.instance != clock.instance);
        let mut printer =
            crate::find::FindPrinter::new(Vec::new(), false, &crate::find::FindContext::of_this_process());
        // Other tests change files of the same file system: if their events overflow the queue, the tree is read anew.
        let is_read_anew = || tree.figures().scans > 1;
        let found = match tree.find(&expression, &start, &mut printer) {
            Ok(found) => found,
            Err(why) => {
                assert!(is_read_anew(), "{why}");
                continue;
            }
        };
        let names = tree.figures().names;
        let following = tree.phase() == IndexPhase::Following;
        if found.unchecked.is_some() {
            unchecked += 1;
            assert_eq!(names, 3001);
            // The walk may have been faster than the look at a report, so the clock is not valid after it.
            while tree.phase() == IndexPhase::Checking {
                std::thread::yield_now();
            }
            let later = tree.changed_since(Some(answer.clock), b"");
            assert_eq!(later.changes, None);
            let now = tree.changed_since(Some(later.clock), b"").changes;
            if !is_read_anew() {
                assert_eq!(now, Some(Vec::new()));
                valid += 1;
            }
        } else {
            assert!(following || is_read_anew());
        }
    }
    assert!(unchecked > 0 && valid > 0);
}

#[test]
fn a_snapshot_that_cannot_be_used_costs_a_scan_only() {
    let Some(kept) = Kept::new() else { return };
    fs::write(kept.at("f"), "text").expect("write");
    let tree = kept.followed();
    tree.save(true).expect("written");
    drop(tree);
    let good = fs::read(kept.file.path()).expect("a snapshot");
    let starts = |why: &str| {
        let tree = kept.followed();
        let figures = tree.figures();
        assert!(figures.snapshot.is_none(), "{figures:?}");
        assert!(figures.snapshot_failure.as_ref().is_some_and(|said| said.contains(why)), "{figures:?}");
        assert_eq!(of_index(&tree), of_host(&kept.at("")));
    };
    let mut damaged = good.clone();
    *damaged.last_mut().expect("a byte") ^= 1;
    fs::write(kept.file.path(), &damaged).expect("write");
    starts("a checksum is wrong");
    fs::write(kept.file.path(), &good[..good.len() / 2]).expect("write");
    starts("it is cut off");
    // Another directory has the path.
    fs::write(kept.file.path(), &good).expect("write");
    fs::rename(kept.at(""), kept.dir.path().join("old")).expect("rename");
    fs::create_dir(kept.at("")).expect("mkdir");
    starts("it is of another directory");
}
