//! Trees that several processes change at random, against walks of the host at quiet moments.
//!
//! As root most run twice: with capabilities, and as a user without any. `UVFS_TEST_ROUNDS` sets the number of quiet moments, and
//! `UVFS_TEST_DIR` the directory; else they run in `/dev/shm`. `UVFS_FULL` gives [`storm`] its long form.

mod changer;
#[path = "../support/form.rs"]
mod form;
mod snapshots;
mod storm;
#[path = "../support/mod.rs"]
mod support;
mod sys;
mod walk;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use uvfs_index::{IndexPhase, IndexedTree, TreeLimits};

use walk::{assert_complete, assert_same, of_host, of_index};

const MINUTE: Duration = Duration::from_secs(60);
/// Processes that change at the same time.
const CHANGERS: u64 = 4;

fn main() -> ExitCode {
    if changer::run_if_ordered() || snapshots::run_if_ordered() || storm::run_if_ordered() {
        return ExitCode::SUCCESS;
    }
    let tests: [(&str, fn()); 8] = [
        ("the_index_is_the_host_at_quiet_moments", quiet_moments),
        ("a_scan_among_changes_ends_in_the_hosts_tree", scan_among_changes),
        ("each_change_is_in_the_next_answer_alone", each_change),
        ("a_snapshot_among_changes_ends_in_the_hosts_tree", snapshots::snapshot_among_changes),
        ("a_directory_that_is_closed_for_a_while_hides_no_change", closed_directory),
        ("killed_writers_leave_a_whole_snapshot", snapshots::killed_writers),
        ("an_index_without_capabilities_is_the_host_too", without_capabilities),
        ("a_storm_leaves_the_hosts_tree_and_whole_lists", storm::storm),
    ];
    // The last three are for the program that was started first.
    let tests = if is_plain() { &tests[..5] } else { &tests[..] };
    // A process that another test starts holds this one's open files until it runs its program, so their events would
    // come later than the calls that closed them.
    support::run(tests, why_not(), true)
}

/// The variable by which this program is told that it has no capabilities.
const PLAIN: &str = "UVFS_TEST_PLAIN";
/// A user and group that own nothing.
const NOBODY: u32 = 65_534;

/// Whether each directory is watched by itself.
fn is_plain() -> bool {
    std::env::var_os(PLAIN).is_some()
}

/// The other tests, by a user who is not root. Fewer rounds: each costs as much.
fn without_capabilities() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: this user has no capabilities to begin with");
    }
    // The directory of this program may be closed to the other user: a copy's is not.
    let dir = temporary();
    let copy = dir.path().join("program");
    fs::copy(std::env::current_exe().expect("this program"), &copy).expect("a copy");
    for path in [dir.path(), &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let mut program = Command::new(copy);
    program.env(PLAIN, "1").env("UVFS_TEST_ROUNDS", rounds(3, 5).to_string()).uid(NOBODY).gid(NOBODY);
    let output = program.output().expect("this program");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("test result: ok. 5 passed"), "{said}");
}

fn temporary() -> tempfile::TempDir {
    let place = std::env::var_os("UVFS_TEST_DIR").unwrap_or("/dev/shm".into());
    let dir = tempfile::tempdir_in(place).or_else(|_| tempfile::tempdir()).expect("a directory");
    for name in ["tree", "outside"] {
        fs::create_dir(dir.path().join(name)).expect("a directory");
    }
    dir
}

fn why_not() -> Option<String> {
    IndexedTree::start(&temporary().path().join("tree"), TreeLimits::default()).err()
}

fn rounds(usual: u64, full: u64) -> u64 {
    let wanted = std::env::var("UVFS_TEST_ROUNDS").ok().and_then(|text| text.parse().ok());
    wanted.unwrap_or_else(|| form::usual_or_full(usual, full))
}

fn changers(seed: u64, changes: usize, dir: &Path) -> Vec<Child> {
    (0..CHANGERS).map(|nth| changer::start(seed * CHANGERS + nth, changes, dir)).collect()
}

fn wait(changers: Vec<Child>) {
    for mut changer in changers {
        assert!(changer.wait().expect("a changer").success());
    }
}

fn quiet_moments() {
    let dir = temporary();
    let root = dir.path().join("tree");
    let tree = IndexedTree::start(&root, TreeLimits::default()).expect("a tree");
    assert_eq!(tree.wait_scanned(MINUTE), IndexPhase::Following);
    // Clocks and walks of earlier quiet moments.
    let mut known = Vec::new();
    for round in 0..rounds(15, 25) {
        known.push((tree.changed_since(None, b"").clock, of_host(&root)));
        wait(changers(round, 600, dir.path()));
        let (index, host) = (of_index(&tree), of_host(&root));
        assert_eq!(tree.figures().by_directory, is_plain());
        let when = format!("round {round}");
        assert_same(&index, &host, &when);
        for (clock, before) in known.iter().rev().take(3) {
            let answer = tree.changed_since(Some(*clock), b"");
            let changes =
                answer.changes.unwrap_or_else(|| panic!("{when}: everything: {:?}", tree.figures()));
            assert_complete(before, &host, &changes, &when);
        }
    }
    let figures = tree.figures();
    assert_eq!((figures.scans, figures.unread.0), (1, 0), "{figures:?}");
}

/// The scan begins while the tree is changed. A reader that gets "everything" walks by itself, and the tree is changed
/// meanwhile; with the changes since its clock, it knows the tree. A clock of the time of the scan gets "everything".
fn scan_among_changes() {
    for round in 0..rounds(6, 12) {
        let dir = temporary();
        let root = dir.path().join("tree");
        wait(changers(1000 + round, 800, dir.path()));
        let changers = changers(2000 + round, 1500, dir.path());
        let tree = IndexedTree::start(&root, TreeLimits::default()).expect("a tree");
        let early = tree.changed_since(None, b"");
        let was_scanned = tree.figures().phase == IndexPhase::Following;
        assert_eq!(tree.wait_scanned(MINUTE), IndexPhase::Following);
        let first = tree.changed_since(None, b"");
        assert_eq!(first.changes, None);
        let before = of_host(&root);
        wait(changers);
        if !was_scanned {
            assert_eq!(tree.changed_since(Some(early.clock), b"").changes, None);
        }
        let (index, host) = (of_index(&tree), of_host(&root));
        assert_same(&index, &host, &format!("round {round}"));
        assert_eq!(tree.figures().unread, (0, None), "round {round}");
        let answer = tree.changed_since(Some(first.clock), b"");
        let changes = answer.changes.expect("the instance of the first answer");
        assert_complete(&before, &host, &changes, &format!("round {round}"));
    }
}

/// Every single change is in the answer to the question that follows, and nothing else is.
fn each_change() {
    let dir = temporary();
    let root = dir.path().join("tree");
    for nth in 0..50 {
        fs::write(root.join(format!("f{nth}")), "text").expect("write");
    }
    let tree = IndexedTree::start(&root, TreeLimits::default()).expect("a tree");
    assert_eq!(tree.wait_scanned(MINUTE), IndexPhase::Following);
    let mut clock = tree.changed_since(None, b"").clock;
    for nth in 0..50 {
        fs::write(root.join(format!("f{nth}")), "other text").expect("write");
        let answer = tree.changed_since(Some(clock), b"");
        let paths: Vec<_> = answer.changes.expect("changes").into_iter().map(|change| change.path).collect();
        assert_eq!(paths, [format!("f{nth}").into_bytes()]);
        clock = answer.clock;
        assert_eq!(tree.changed_since(Some(clock), b"").changes, Some(Vec::new()));
    }
}

/// A directory loses its permissions while a file in it is written, and gets them back. And another directory, which nobody
/// may search, takes the name of one in which something has just changed.
fn closed_directory() {
    let dir = temporary();
    let root = dir.path().join("tree");
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
    };
    fs::create_dir_all(root.join("d/below")).expect("directories");
    let mut open = fs::File::create(root.join("d/below/file")).expect("a file");
    let tree = IndexedTree::start(&root, TreeLimits::default()).expect("a tree");
    assert_eq!(tree.wait_scanned(MINUTE), IndexPhase::Following);
    for round in 0..10 {
        let closed = root.join(if round % 2 == 0 { "d" } else { "d/below" });
        mode(&closed, 0);
        open.write_all(b"more").expect("write");
        // The report of the write is looked at while the directory is closed.
        tree.changed_since(None, b"");
        mode(&closed, 0o755);
        assert_same(&of_index(&tree), &of_host(&root), &format!("closed, round {round}"));
    }
    for round in 0..10 {
        let (old, new) = (root.join("d"), root.join("moved"));
        open.write_all(b"more").expect("write");
        fs::write(old.join(format!("below/{round}")), "text").expect("a file");
        fs::rename(&old, &new).expect("a rename");
        fs::create_dir(&old).expect("a directory");
        mode(&old, 0);
        assert_same(&of_index(&tree), &of_host(&root), &format!("replaced, round {round}"));
        fs::remove_dir(&old).expect("removed");
        fs::rename(&new, &old).expect("a rename");
        assert_same(&of_index(&tree), &of_host(&root), &format!("moved back, round {round}"));
    }
    assert_eq!((tree.figures().scans, tree.figures().unread), (1, (0, None)));
}
