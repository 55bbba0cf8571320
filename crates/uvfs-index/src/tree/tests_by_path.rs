//! Trees without capabilities against walks of the host. Any user can run these; root opens by path here too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use uvfs_drivers::watch::Told;

use super::tests::{each_single_change, of_host, of_index};
use super::tests_mounts::without_a_question;
use super::*;

fn followed() -> Option<(tempfile::TempDir, IndexedTree)> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    fs::create_dir(dir.path().join("tree")).expect("mkdir");
    let opened = OpenedTree::by_directory(&dir.path().join("tree"));
    let tree = opened
        .map_err(|error| error.why)
        .and_then(|opened| IndexedTree::of(opened, TreeLimits::default(), None));
    match tree {
        Ok(tree) => {
            assert_eq!(tree.wait_scanned(Duration::from_secs(60)), IndexPhase::Following);
            Some((dir, tree))
        }
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn assert_same(dir: &tempfile::TempDir, tree: &IndexedTree, when: &str) {
    assert_eq!(of_index(tree), of_host(&dir.path().join("tree")), "{when}");
}

#[test]
fn a_tree_by_path_is_the_hosts_after_each_single_change() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    let opened = match OpenedTree::by_directory(dir.path()) {
        Ok(opened) => opened,
        Err(error) => return eprintln!("skipped: {}", error.why),
    };
    let tree = IndexedTree::of(opened, TreeLimits::default(), None).expect("a tree");
    each_single_change(&dir, &tree);
}

/// The worker cannot go on while the test holds the table. So the directories are made, filled, renamed and removed
/// before they have a mark.
#[test]
fn directories_that_change_before_their_mark_are_right_afterwards() {
    let Some((dir, tree)) = followed() else { return };
    let at = |name: &str| dir.path().join("tree").join(name);
    fs::create_dir_all(at("old/deep/er")).expect("mkdir");
    fs::write(at("old/deep/er/f"), "text").expect("write");
    assert_same(&dir, &tree, "before");
    let steps: [(&str, &dyn Fn() -> std::io::Result<()>); 7] = [
        ("made and filled", &|| {
            fs::create_dir_all(at("d/e"))?;
            fs::write(at("d/e/f"), "text")
        }),
        ("made, filled and renamed", &|| {
            fs::create_dir_all(at("g/h"))?;
            fs::write(at("g/h/f"), "text")?;
            fs::rename(at("g"), at("old/g"))
        }),
        ("made and removed", &|| {
            fs::create_dir_all(at("i/j"))?;
            fs::remove_dir_all(at("i"))
        }),
        ("a name given to another directory", &|| {
            fs::create_dir_all(at("k/l"))?;
            fs::rename(at("k"), at("m"))?;
            fs::create_dir(at("k"))?;
            fs::write(at("k/n"), "text")
        }),
        ("changed below a directory that is renamed", &|| {
            fs::rename(at("old"), at("new"))?;
            fs::write(at("new/deep/er/f"), "more text")?;
            fs::write(at("new/deep/h"), "text")?;
            fs::rename(at("new/deep"), at("d/deep"))?;
            fs::write(at("d/deep/er/i"), "text")
        }),
        ("moved out, changed, and moved in again", &|| {
            fs::rename(at("d"), dir.path().join("out"))?;
            fs::write(dir.path().join("out/deep/j"), "text")?;
            fs::remove_file(dir.path().join("out/deep/h"))?;
            fs::rename(dir.path().join("out"), at("in"))
        }),
        ("moved out", &|| {
            fs::rename(at("in"), dir.path().join("out"))?;
            fs::write(dir.path().join("out/k"), "text")
        }),
    ];
    for (when, step) in steps {
        let held = tree.shared.content.write();
        step().expect("a change");
        drop(held);
        assert_same(&dir, &tree, when);
        // And its directories have marks.
        let mut dirs = vec![at("")];
        while let Some(path) = dirs.pop() {
            fs::write(path.join("probe"), when).expect("write");
            let below = fs::read_dir(&path).expect("list").map(|entry| entry.expect("a name"));
            dirs.extend(below.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()));
        }
        assert_same(&dir, &tree, &format!("{when}, and then each directory was changed"));
    }
    // Changes outside the tree are no changes of the tree, whether a mark is still there or not.
    let clock = tree.changed_since(None, b"").clock;
    fs::write(dir.path().join("out/deep/l"), "text").expect("write");
    assert_eq!(tree.changed_since(Some(clock), b"").changes, Some(Vec::new()));
    assert_eq!((tree.figures().scans, tree.figures().unread.0), (1, 0));
}

/// The worker has looked at `e`, and waits for the table, which the test reads. So `e` has no mark, and no report either.
#[test]
fn a_directory_that_changes_before_its_mark_has_its_present_attributes() {
    let Some((dir, tree)) = followed() else { return };
    let outside = dir.path().join("d");
    fs::create_dir_all(outside.join("e")).expect("mkdir");
    // Listing them takes longer than the test needs to get the table again.
    (0..3000).for_each(|nth| fs::write(outside.join(format!("f{nth}")), "").expect("write"));
    assert_same(&dir, &tree, "before");
    let until = Instant::now() + Duration::from_secs(60);
    let worker_waits = || {
        // Nobody gets the table while a writer waits for it.
        while tree.shared.content.try_read().is_some() {
            assert!(Instant::now() < until, "the worker does not look");
            thread::yield_now();
        }
    };
    let held = tree.shared.content.read();
    fs::rename(&outside, dir.path().join("tree/d")).expect("rename");
    worker_waits();
    drop(held);
    // It puts `d` into the table first. Then it lists `d`.
    let held = tree.shared.content.read();
    worker_waits();
    fs::create_dir(dir.path().join("tree/d/e/new")).expect("mkdir");
    drop(held);
    assert_same(&dir, &tree, "after");
}

/// A large directory takes some milliseconds to list. A name that is made meanwhile is in no list, so the mark has to be there.
#[test]
fn names_that_are_made_while_their_directory_is_listed_are_known() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    let at = |name: String| dir.path().join("large").join(name);
    fs::create_dir(dir.path().join("large")).expect("mkdir");
    (0..20_000).for_each(|nth| fs::write(at(format!("old{nth}")), "").expect("write"));
    let opened = match OpenedTree::by_directory(dir.path()) {
        Ok(opened) => opened,
        Err(error) => return eprintln!("skipped: {}", error.why),
    };
    let (has_begun, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let tree = thread::scope(|scope| {
        scope.spawn(|| {
            for nth in 0..100_000 {
                fs::write(at(format!("new{nth}")), "").expect("write");
                has_begun.store(true, Relaxed);
                if ends.load(Relaxed) {
                    return;
                }
            }
        });
        while !has_begun.load(Relaxed) {
            thread::yield_now();
        }
        let tree = IndexedTree::of(opened, TreeLimits::default(), None);
        if let Ok(tree) = &tree {
            tree.wait_scanned(Duration::from_secs(60));
        }
        ends.store(true, Relaxed);
        tree.expect("a tree")
    });
    let (index, host) = (of_index(&tree), of_host(dir.path()));
    let missing = host.keys().filter(|path| !index.contains_key(*path)).count();
    assert_eq!((missing, index == host), (0, true));
}

/// Changes through a name outside the tree, and through a descriptor whose name is gone.
#[test]
fn a_file_with_other_names_is_looked_at_for_each_question() {
    let Some((dir, tree)) = followed() else { return };
    let (tree_dir, outside) = (dir.path().join("tree"), dir.path().join("outside"));
    fs::write(&outside, "text").expect("write");
    fs::hard_link(&outside, tree_dir.join("f")).expect("link");
    assert_same(&dir, &tree, "linked");
    let since = |clock| {
        let answer = tree.changed_since(Some(clock), b"");
        let paths: Vec<_> = answer.changes.expect("known").into_iter().map(|change| change.path).collect();
        (answer.clock, paths)
    };
    let clock = tree.changed_since(None, b"").clock;
    fs::write(&outside, "more text").expect("write");
    let (clock, paths) = since(clock);
    assert_eq!(paths, [b"f"]);
    assert_same(&dir, &tree, "written outside");
    fs::set_permissions(&outside, PermissionsExt::from_mode(0o600)).expect("chmod");
    assert_eq!(since(clock).1, [b"f"]);
    // Once the file system's clock has moved on, nothing is listed that did not change.
    let until = Instant::now() + Duration::from_secs(60);
    let mut clock = tree.changed_since(None, b"").clock;
    loop {
        let (now, paths) = since(clock);
        if paths.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "{paths:?}");
        clock = now;
    }
    fs::remove_file(&outside).expect("unlink");
    assert_same(&dir, &tree, "unlinked outside");

    fs::write(tree_dir.join("g"), "text").expect("write");
    let open = fs::File::options().append(true).open(tree_dir.join("g")).expect("open");
    fs::hard_link(tree_dir.join("g"), tree_dir.join("h")).expect("link");
    fs::remove_file(tree_dir.join("g")).expect("unlink");
    assert_same(&dir, &tree, "one of two names");
    std::io::Write::write_all(&mut &open, b"more").expect("write");
    assert_same(&dir, &tree, "written through the name that is gone");
    fs::hard_link(tree_dir.join("h"), tree_dir.join("i")).expect("link");
    fs::write(tree_dir.join("j"), "").expect("write");
    assert_same(&dir, &tree, "two names");
    fs::rename(tree_dir.join("j"), tree_dir.join("i")).expect("rename");
    // A question would look at the file in any case, once the name is gone from the table.
    without_a_question(&tree);
    let nlink = {
        let table = &tree.shared.content.read().table;
        table.walk(b"h").map(|file| table.facts(file).nlink)
    };
    assert_eq!(nlink, Some(1));
    assert_same(&dir, &tree, "one of two names was replaced");
}

#[test]
fn lost_events_are_read_anew_and_limits_are_said() {
    let Some((dir, tree)) = followed() else { return };
    let at = |name: &str| dir.path().join("tree").join(name);
    let clock = tree.changed_since(None, b"").clock;
    for round in 0..5 {
        fs::create_dir_all(at(&format!("d{round}/e"))).expect("mkdir");
        tree.shared.queue.overflow();
        fs::write(at(&format!("d{round}/e/f")), "text").expect("write");
        assert_eq!(tree.changed_since(Some(clock), b"").changes, None);
        assert_same(&dir, &tree, &format!("overflow {round}"));
    }
    // A directory that could not be marked, once in a scan. The limit itself is tested with the command.
    let why = by_path::no_marks();
    assert!(why.contains("fs.fanotify.max_user_marks") && why.contains("CAP_SYS_ADMIN"), "{why}");
}

/// By path, the mount is what a name leads to. Its end shows the names below again.
#[test]
fn a_mount_by_path_is_followed() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let Some((dir, tree)) = followed() else { return };
    let at = |name: &str| dir.path().join("tree").join(name);
    fs::create_dir_all(at("m/below")).expect("mkdir");
    fs::create_dir(at("other")).expect("mkdir");
    assert_same(&dir, &tree, "before");
    let clock = tree.changed_since(None, b"").clock;
    if let Err(errno) = mount(at("other"), at("m"), "", MountFlags::BIND, None) {
        return eprintln!("skipped: a mount: {errno}");
    }
    let mounted = tree.changed_since(Some(clock), b"");
    fs::write(at("other/f"), "text").expect("write");
    let inside = of_index(&tree);
    unmount(at("m"), UnmountFlags::DETACH).expect("unmount");
    let ended = tree.changed_since(Some(mounted.clock), b"").changes.expect("known");
    assert!(mounted.warning.is_some_and(|warning| warning.starts_with("m: another file system")));
    assert!(mounted.changes.is_some_and(|changes| changes.iter().any(|change| change.path == b"m")));
    assert!(inside.contains_key(b"other/f".as_slice()) && !inside.contains_key(b"m/f".as_slice()));
    assert!(ended.iter().any(|change| change.path == b"m" && change.whole), "{ended:?}");
    fs::write(at("m/below/f"), "text").expect("write");
    assert_same(&dir, &tree, "after");
}
