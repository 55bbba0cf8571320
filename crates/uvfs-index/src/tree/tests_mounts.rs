//! Mounts inside a tree that come, go, are replaced, or get another path. As root, in both ways to follow a tree.

use std::fs;
use std::path::PathBuf;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::tests::{of_host, of_index};
use super::*;
use crate::find::{FindContext, FindPrinter};

/// A directory that is followed; none, with a message, where that is not allowed.
fn followed(by_path: bool) -> Option<(tempfile::TempDir, IndexedTree)> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    let opened = if by_path { OpenedTree::by_directory(dir.path()) } else { OpenedTree::whole(dir.path()) };
    let tree = opened
        .map_err(|error| error.why)
        .and_then(|opened| IndexedTree::of(opened, TreeLimits::default(), None));
    tree.map_err(|why| eprintln!("skipped: {why}")).ok().map(|tree| (dir, tree))
}

/// A mount, and where it is. Dropping it ends it.
struct Mounted(PathBuf);

impl Mounted {
    /// `source` is a directory for a bind mount; without one, a new tmpfs is mounted.
    fn at(path: PathBuf, source: Option<PathBuf>) -> Option<Self> {
        let outcome = match source {
            Some(source) => mount(&source, &path, "", MountFlags::BIND, None),
            None => mount("none", &path, "tmpfs", MountFlags::empty(), None),
        };
        outcome.map_err(|errno| eprintln!("skipped: a mount: {errno}")).ok().map(|()| Self(path))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// All reports are looked at, and no question was asked.
pub(super) fn without_a_question(tree: &IndexedTree) {
    tree.watcher.drain();
    let wanted = tree.shared.queue.put_in();
    let mut done = tree.shared.done.lock();
    while *done < wanted {
        tree.shared.moved.wait(&mut done);
    }
}

/// The paths that a search of the whole finds, and those on which it says that something is mounted.
fn found(tree: &IndexedTree) -> (Vec<String>, Vec<String>) {
    try_to_find(tree).expect("an answer")
}

fn try_to_find(tree: &IndexedTree) -> Option<(Vec<String>, Vec<String>)> {
    try_to_print(tree, &[])
}

fn try_to_print(tree: &IndexedTree, words: &[&str]) -> Option<(Vec<String>, Vec<String>)> {
    let expression = Expression::parse(words).expect("an expression");
    let mut printer = FindPrinter::new(Vec::new(), false, &FindContext::of_this_process());
    let start = FindStart { written: b".".to_vec(), below: Vec::new() };
    let outcome = tree.find(&expression, &start, &mut printer).ok()?;
    let text = String::from_utf8(printer.into_inner()).expect("UTF-8");
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    let mounted_on = outcome.mounted_on.into_iter().map(|path| String::from_utf8(path).expect("UTF-8"));
    Some((lines, mounted_on.collect()))
}

/// The kernel does not say that a rename above a mount changes the table of mounts.
#[test]
fn a_mount_is_covered_at_its_new_path_after_a_rename_above_it() {
    for by_path in [false, true] {
        let Some((dir, tree)) = followed(by_path) else { return };
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("old/m/below")).expect("mkdir");
        of_index(&tree);
        let Some(mut mounted) = Mounted::at(at("old/m"), None) else { return };
        let clock = tree.changed_since(None, b"").clock;
        fs::rename(at("old"), at("new")).expect("rename");
        mounted.0 = at("new/m");
        fs::create_dir_all(at("old/m/shown")).expect("mkdir");
        let (lines, mounted_on) = found(&tree);
        assert_eq!(lines, [".", "./new", "./new/m", "./old", "./old/m", "./old/m/shown"], "{by_path}");
        assert_eq!(mounted_on, ["new/m"], "{by_path}");
        let covered = tree.changed_since(Some(clock), b"new/m/x");
        assert_eq!(covered.changes, None, "{by_path}");
        assert!(covered.warning.is_some_and(|warning| warning.starts_with("new/m: ")), "{by_path}");
        let uncovered = tree.changed_since(Some(clock), b"old/m/x");
        assert!(uncovered.changes.is_some() && uncovered.warning.is_none(), "{by_path}");
    }
}

/// A question sees the tables of names and of mounts of one moment.
#[test]
fn names_below_a_mount_that_moves_are_never_shown() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    for by_path in [false, true] {
        let Some((dir, tree)) = followed(by_path) else { return };
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("old/m/hidden")).expect("mkdir");
        of_index(&tree);
        let Some(_mounted) = Mounted::at(at("old/m"), None) else { return };
        let ends = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Relaxed) {
                    fs::rename(at("old"), at("new")).expect("rename");
                    fs::rename(at("new"), at("old")).expect("rename");
                }
            });
            // Not a panic, or the other thread would not end.
            let shown = (0..300).find_map(|_| {
                let (lines, _) = try_to_find(&tree)?;
                lines.iter().any(|line| line.ends_with("/hidden")).then_some(lines)
            });
            ends.store(true, Relaxed);
            shown
        });
        assert_eq!(outcome, None, "{by_path}");
    }
}

/// A look that falls into the time of a mount shows the mount, whose end has no event.
#[test]
fn names_below_a_mount_that_no_question_has_seen_come_back() {
    let Some((dir, tree)) = followed(true) else { return };
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("other")).expect("mkdir");
    fs::create_dir_all(at("made/below")).expect("mkdir");
    of_index(&tree);
    // The worker cannot look before the mount is there.
    let held = tree.shared.content.write();
    fs::rename(at("made"), at("m")).expect("rename");
    let mounted = Mounted::at(at("m"), Some(at("other")));
    drop(held);
    let Some(mounted) = mounted else { return };
    without_a_question(&tree);
    drop(mounted);
    assert_eq!(of_index(&tree), of_host(dir.path()));
    fs::write(at("m/below/f"), "text").expect("write");
    assert_eq!(of_index(&tree), of_host(dir.path()), "the directories have their marks again");
}

/// The end of a mount is told with the path that it had at the last question.
#[test]
fn names_below_a_mount_come_back_after_a_rename_above_it() {
    let Some((dir, tree)) = followed(true) else { return };
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("old/m/below")).expect("mkdir");
    of_index(&tree);
    let Some(mut mounted) = Mounted::at(at("old/m"), None) else { return };
    assert_eq!(found(&tree).1, ["old/m"]);
    fs::rename(at("old"), at("new")).expect("rename");
    mounted.0 = at("new/m");
    without_a_question(&tree);
    drop(mounted);
    assert_eq!(of_index(&tree), of_host(dir.path()));
}

/// Both mounts show the same file system, and the kernel may give the second one the number of the first.
#[test]
fn a_mount_that_is_replaced_between_two_questions_is_a_change() {
    for by_path in [false, true] {
        let Some((dir, tree)) = followed(by_path) else { return };
        let at = |name: &str| dir.path().join(name);
        for name in ["d/m", "one/a", "two/b"] {
            fs::create_dir_all(at(name)).expect("mkdir");
        }
        of_index(&tree);
        let Some(first) = Mounted::at(at("d/m"), Some(at("one"))) else { return };
        let clock = tree.changed_since(None, b"").clock;
        let listed = |since| {
            let answer = tree.changed_since(Some(since), b"");
            let changes = answer.changes.expect("known").into_iter();
            (answer.clock, changes.map(|change| (change.path, change.whole)).collect::<Vec<_>>())
        };
        drop(first);
        let Some(_second) = Mounted::at(at("d/m"), Some(at("two"))) else { return };
        let (clock, replaced) = listed(clock);
        assert_eq!(replaced, [(b"d/m".to_vec(), true)], "{by_path}");
        if !crate::host::has_mount_numbers() {
            eprintln!("skipped: a mount elsewhere counts as a change before Linux 6.8");
            continue;
        }
        // A mount elsewhere is no change of this one.
        fs::create_dir(at("one/elsewhere")).expect("mkdir");
        let (clock, _) = listed(clock);
        let Some(_elsewhere) = Mounted::at(at("one/elsewhere"), None) else { return };
        assert_eq!(listed(clock).1, [(b"one/elsewhere".to_vec(), true)], "{by_path}");
    }
}

/// A FUSE mount whose server never answers; dropping it ends that. Each look at it waits until then.
struct Dead {
    at: PathBuf,
    _device: fs::File,
}

impl Dead {
    fn at(path: PathBuf) -> Option<Self> {
        use std::os::fd::AsRawFd;
        let device = fs::File::options().read(true).write(true).open("/dev/fuse");
        let device = device.inspect_err(|error| eprintln!("skipped: /dev/fuse: {error}")).ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options).expect("no nul");
        let mounted = mount("dead", &path, "fuse", MountFlags::empty(), options.as_c_str());
        mounted.inspect_err(|errno| eprintln!("skipped: a mount: {errno}")).ok()?;
        Some(Self { at: path, _device: device })
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// The outcome of a question while the mount is there. If there is none after a while, the mount ends, so that the question does.
fn in_time<T: Send>(dead: Dead, question: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        scope.spawn(move || drop(send.send(question())));
        let outcome = receive.recv_timeout(Duration::from_secs(20));
        drop(dead);
        outcome.expect("an answer in time")
    })
}

/// Nobody looks at what is mounted below a tree under its locks, or without a bound.
#[test]
fn a_mount_that_never_answers_holds_no_question_up() {
    for (by_path, first) in [(false, false), (false, true), (true, false), (true, true)] {
        let when = format!("by path: {by_path}, mounted first: {first}");
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        fs::create_dir_all(dir.path().join("m/below")).expect("mkdir");
        let start = || {
            let opened =
                if by_path { OpenedTree::by_directory(dir.path()) } else { OpenedTree::whole(dir.path()) };
            let opened = opened.map_err(|refused| refused.why);
            opened.and_then(|opened| IndexedTree::of(opened, TreeLimits::default(), None))
        };
        let early = if first { None } else { Some(start()) };
        if let Some(Err(why)) = &early {
            return eprintln!("skipped: {why}");
        }
        early.iter().flatten().for_each(|tree| drop(of_index(tree)));
        let Some(dead) = Dead::at(dir.path().join("m")) else { return };
        let ask = || {
            let tree = early.unwrap_or_else(start).expect("a tree");
            assert_eq!(tree.wait_scanned(Duration::from_secs(15)), IndexPhase::Following, "{when}");
            let printed = try_to_print(&tree, &["-printf", "%p %y %D %m\n"]);
            let warning = tree.changed_since(None, b"").warning;
            (tree, printed, warning)
        };
        let (tree, printed, warning) = in_time(dead, ask);
        let (lines, mounted_on) = printed.expect("an answer");
        let paths: Vec<_> = lines.iter().map(|line| line.split(' ').next().unwrap_or_default()).collect();
        if by_path && first {
            // Nothing is known of the name.
            assert_eq!(paths, ["."], "{when}");
        } else {
            assert_eq!((paths, mounted_on), (vec![".", "./m"], vec!["m".to_owned()]), "{when}");
        }
        assert!(warning.is_some_and(|warning| warning.starts_with("m: ")), "{when}");
        // Its end shows the names below.
        assert_eq!(of_index(&tree), of_host(dir.path()), "{when}");
    }
}

/// A question looks whether the path of its tree still leads there.
#[test]
fn a_mount_over_the_tree_that_never_answers_holds_no_question_up() {
    let Some((dir, tree)) = followed(false) else { return };
    fs::create_dir(dir.path().join("d")).expect("mkdir");
    // One that answers says that the path leads elsewhere, even if its root is the tree's.
    for source in [None, Some(dir.path().to_owned())] {
        let Some(_mounted) = Mounted::at(dir.path().to_owned(), source) else { return };
        assert!(!tree.shared.host.is_there_at_a_glance());
    }
    // The kernel may not answer from its cache while others mount and unmount.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !tree.shared.host.is_there_at_a_glance() {
        assert!(Instant::now() < deadline, "it is never there at a glance");
        thread::yield_now();
    }
    let Some(dead) = Dead::at(dir.path().to_owned()) else { return };
    assert!(in_time(dead, || tree.is_there() && tree.is_there()));
    assert!(tree.is_there());
    assert_eq!(of_index(&tree), of_host(dir.path()));
}
