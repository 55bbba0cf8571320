//! Trees that start with a snapshot while others change them, and writers of snapshots that are killed.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uvfs_index::{IndexPhase, IndexedTree, SnapshotDir, SnapshotFile, TreeLimits};

use super::walk::{assert_complete, assert_same, of_host, of_index};
use super::{MINUTE, changers, rounds, temporary, wait};

/// The variable by which this program is told to write snapshots for ever: the directory.
const ORDER: &str = "UVFS_TEST_SNAPSHOTS";

/// Runs as a writer if that was ordered.
pub fn run_if_ordered() -> bool {
    let Some(dir) = std::env::var_os(ORDER) else { return false };
    let dir = Path::new(&dir);
    let tree = start(dir, &snapshot(dir));
    assert_eq!(follows(&tree), IndexPhase::Following);
    for nth in 0u64.. {
        fs::write(dir.join("tree/counter"), nth.to_string()).expect("write");
        // None while the tree is read anew: others make events of this file system too, and some may be lost.
        tree.save(true).expect("written");
    }
    true
}

fn snapshot(dir: &Path) -> Arc<SnapshotFile> {
    let state = SnapshotDir::open(&dir.join("state")).expect("a directory");
    Arc::new(state.of(&dir.join("tree")).expect("a snapshot that nobody has"))
}

fn start(dir: &Path, snapshot: &Arc<SnapshotFile>) -> IndexedTree {
    let snapshot = Some(Arc::clone(snapshot));
    IndexedTree::start_with(&dir.join("tree"), TreeLimits::default(), snapshot).expect("a tree")
}

/// Waits until names of a snapshot have been compared too.
fn follows(tree: &IndexedTree) -> IndexPhase {
    let until = Instant::now() + MINUTE;
    loop {
        let phase = tree.wait_scanned(MINUTE);
        if phase != IndexPhase::Checking || Instant::now() > until {
            return phase;
        }
        std::thread::yield_now();
    }
}

/// The changes begin while no server runs, and end while the names of the snapshot are compared, or later. A reader
/// that gets "everything" then walks by itself; with the changes since its clock, it knows the tree.
pub fn snapshot_among_changes() {
    for round in 0..rounds(4, 8) {
        let dir = temporary();
        let (root, snapshot) = (dir.path().join("tree"), snapshot(dir.path()));
        wait(changers(3000 + round, 1500, dir.path()));
        let mut tree = start(dir.path(), &snapshot);
        for part in 0..4 {
            assert_eq!(follows(&tree), IndexPhase::Following);
            assert_eq!(tree.save(true), Ok(true));
            drop(tree);
            let seed = 4000 + round * 4 + part;
            wait(changers(2 * seed, 30, dir.path()));
            let changers = changers(2 * seed + 1, 200, dir.path());
            tree = start(dir.path(), &snapshot);
            assert_eq!(tree.changed_since(None, b"").changes, None);
            assert_eq!(follows(&tree), IndexPhase::Following);
            let first = tree.changed_since(None, b"");
            let before = of_host(&root);
            wait(changers);
            assert_eq!(follows(&tree), IndexPhase::Following);
            let when = format!("round {round}, part {part}");
            let (index, host) = (of_index(&tree), of_host(&root));
            assert_same(&index, &host, &when);
            let answer = tree.changed_since(Some(first.clock), b"");
            let figures = tree.figures();
            assert!(figures.snapshot.is_some(), "{when}: {figures:?}");
            match answer.changes {
                Some(changes) => assert_complete(&before, &host, &changes, &when),
                None => assert!(figures.overflows > 0, "{when}: {figures:?}"),
            }
        }
    }
}

fn writer(dir: &Path) -> Child {
    let program = std::env::current_exe().expect("this program");
    Command::new(program).env(ORDER, dir).spawn().expect("a writer")
}

/// A writer that is killed at any moment leaves the former snapshot or the new one, whole.
pub fn killed_writers() {
    let mut rng = fastrand::Rng::with_seed(17);
    let dir = temporary();
    for nth in 0..2000 {
        fs::write(dir.path().join(format!("tree/a rather long name of a file {nth}")), "").expect("write");
    }
    let mut half = 0;
    for round in 0..rounds(15, 25) {
        let mut writer = writer(dir.path());
        // It begins with the snapshot of the one before; the moment of its end is the test's variable.
        let written = || fs::read(dir.path().join("tree/counter")).is_ok_and(|count| count > b"3".to_vec());
        while !written() {
            assert!(writer.try_wait().expect("a child").is_none(), "the writer has ended");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..20_000)));
        writer.kill().expect("kill");
        writer.wait().expect("its end");
        fs::remove_file(dir.path().join("tree/counter")).expect("it had written");
        let list = fs::read_dir(dir.path().join("state")).expect("list");
        let left = list.map(|name| name.expect("a name").file_name());
        half += usize::from(left.into_iter().any(|name| name.to_string_lossy().ends_with(".new")));
        let tree = start(dir.path(), &snapshot(dir.path()));
        assert_eq!(follows(&tree), IndexPhase::Following);
        let figures = tree.figures();
        assert!(
            figures.snapshot.is_some() && figures.snapshot_failure.is_none(),
            "round {round}: {figures:?}"
        );
    }
    // Else none was killed while it wrote.
    assert!(half > 0);
}
