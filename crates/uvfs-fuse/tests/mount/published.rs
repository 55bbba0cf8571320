//! Trees that a program publishes: the kernel keeps their names and attributes, and is notified of each change.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use uvfs::SetAttr;
use uvfs_drivers::kernfs::{Kernfs, KernfsOptions, Meta, Node, read_write};

use crate::Test;
use crate::fixture::{Fixture, Needs, within};

pub const TESTS: &[Test] = &[
    ("published_a_second_walk_asks_for_nothing", Needs::Mount, a_second_walk_asks_for_nothing),
    ("published_each_change_is_seen", Needs::Mount, each_change_is_seen),
    ("published_changes_beside_walks_are_seen", Needs::Mount, changes_beside_walks_are_seen),
    ("published_links_follow_what_they_lead_to", Needs::Mount, links_follow_what_they_lead_to),
    ("published_a_file_that_removes_itself", Needs::Mount, a_file_that_removes_itself),
];

const SOON: Duration = Duration::from_secs(20);

fn tree() -> (Fixture, Node) {
    let tree = Kernfs::new(KernfsOptions::default()).expect("a tree");
    let mnt = Fixture::new(tree.view(None), &uvfs_fuse::Options::default());
    (mnt, tree.root())
}

fn add(dir: &Node, name: &str) -> Node {
    dir.add_attr(name, Meta::new(0o444), show).expect("an attribute")
}

fn show(out: &mut Vec<u8>) -> uvfs::Result<()> {
    out.extend_from_slice(b"x\n");
    Ok(())
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("a listing");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

fn told(mnt: &Fixture) {
    assert!(mnt.mounted.settle(SOON), "the kernel was not notified");
}

fn a_second_walk_asks_for_nothing() {
    let (mnt, root) = tree();
    for dir in ["a", "b", "c"] {
        let dir = root.add_dir(dir, Meta::new(0o755)).expect("a directory");
        (0..20).for_each(|n| drop(add(&dir, &n.to_string())));
    }
    let walk = || {
        for dir in ["a", "b", "c"] {
            assert_eq!(names(&mnt.path(dir)).len(), 20);
            for n in 0..20 {
                assert!(fs::metadata(mnt.path(&format!("{dir}/{n}"))).expect("stat").is_file());
            }
            assert!(fs::metadata(mnt.path(&format!("{dir}/none"))).is_err());
        }
    };
    let asked = || {
        let requests = mnt.mounted.requests();
        [requests.lookup, requests.getattr, requests.readdir]
    };
    // The first reader of a directory may have got entries that were not cached yet, and the kernel may drop pages
    // with entries. So repeat until a walk causes no request.
    let unasked = within(SOON, || {
        let before = asked();
        walk();
        asked() == before
    });
    assert!(unasked, "lookups, getattrs, readdirs: {:?}", asked());
    let before = asked();
    assert_eq!(fs::read(mnt.path("a/7")).expect("read"), b"x\n");
    assert_eq!(asked(), before, "content is asked for, the way to it is not");
}

fn each_change_is_seen() {
    let (mnt, root) = tree();
    let (one, two) = (root.add_dir("one", Meta::new(0o755)), root.add_dir("two", Meta::new(0o755)));
    let (one, two) = (one.expect("a directory"), two.expect("a directory"));
    for round in 0..20 {
        let (old, new) = (mnt.path("one/n"), mnt.path("two/m"));
        assert!(!old.exists() && !new.exists() && names(&mnt.path("one")).is_empty(), "{round}");
        let node = add(&one, "n");
        told(&mnt);
        assert!(fs::metadata(&old).expect("it was added").is_file());
        assert_eq!(names(&mnt.path("one")).len(), 1);
        let set = SetAttr { mode: Some(0o400 + round), uid: Some(7), ..SetAttr::default() };
        node.set_attr(&set).expect("a change of mode");
        told(&mnt);
        let meta = fs::metadata(&old).expect("stat");
        assert_eq!((meta.permissions().mode() & 0o777, meta.uid()), (0o400 + round, 7));
        node.rename(&two, "m", None).expect("a rename");
        told(&mnt);
        assert!(!old.exists() && names(&mnt.path("one")).is_empty());
        assert_eq!(fs::metadata(&new).expect("it was moved").permissions().mode() & 0o777, 0o400 + round);
        let file = File::open(&new).expect("open");
        node.remove();
        told(&mnt);
        assert!(!new.exists() && names(&mnt.path("two")).is_empty());
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);

        let dir = one.add_dir("d", Meta::new(0o755).hidden()).expect("a directory");
        let below = add(&dir, "below");
        told(&mnt);
        assert!(!mnt.path("one/d").exists() && !below.is_active());
        dir.activate().expect("an activation");
        told(&mnt);
        assert!(
            mnt.path("one/d/below").exists() && fs::metadata(mnt.path("one")).expect("stat").nlink() == 3
        );
        dir.remove();
        told(&mnt);
        assert!(!mnt.path("one/d").exists() && !mnt.path("one/d/below").exists());
        assert_eq!(fs::metadata(mnt.path("one")).expect("stat").nlink(), 2);
    }
}

/// Requests on their way when a name goes or comes leave nothing behind.
fn changes_beside_walks_are_seen() {
    let (mnt, root) = tree();
    let dir = root.add_dir("d", Meta::new(0o755)).expect("a directory");
    let (end, path) = (AtomicBool::new(false), mnt.path("d"));
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    let _ = fs::read_dir(&path).map(Iterator::count);
                    let _ = fs::metadata(path.join("n"));
                    let _ = fs::read(path.join("n"));
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..300 {
                let node = add(&dir, "n");
                told(&mnt);
                assert!(path.join("n").exists() && names(&path).len() == 1, "round {round}: it is there");
                node.remove();
                told(&mnt);
                assert!(!path.join("n").exists() && names(&path).is_empty(), "round {round}: it is gone");
            }
        }));
        end.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// A request makes the change in the directory of which the kernel is notified.
fn a_file_that_removes_itself() {
    let (mnt, root) = tree();
    for _ in 0..20 {
        let delete = read_write(show, |call, _| {
            call.remove_self();
            Ok(())
        });
        root.add_attr("delete", Meta::new(0o644), delete).expect("an attribute");
        told(&mnt);
        fs::write(mnt.path("delete"), "1").expect("a write");
        told(&mnt);
        assert!(!mnt.path("delete").exists() && names(&mnt).is_empty());
    }
}

fn links_follow_what_they_lead_to() {
    let (mnt, root) = tree();
    let [one, two] = ["one", "two"].map(|name| root.add_dir(name, Meta::new(0o755)).expect("a directory"));
    let node = add(&one, "n");
    root.add_symlink("link", Meta::new(0o777), &node).expect("a link");
    let link = mnt.path("link");
    for (dir, name) in [(&one, "n"), (&two, "m"), (&one, "k")] {
        node.rename(dir, name, None).expect("a rename");
        told(&mnt);
        let shown = fs::read_link(&link).expect("readlink");
        assert_eq!(shown.file_name().and_then(|name| name.to_str()), Some(name), "{}", shown.display());
        assert_eq!(fs::read(&link).expect("what it leads to"), b"x\n");
    }
    one.rename(&two, "moved", None).expect("a rename of the directory");
    told(&mnt);
    assert_eq!(fs::read_link(&link).expect("readlink"), Path::new("two/moved/k"));
    assert_eq!(fs::read(&link).expect("what it leads to"), b"x\n");
}
