//! The kernel's rules for kernfs, each with a test named after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use parking_lot::Mutex;
use uvfs::{Cred, Errno, Found, OpenFlags, Result};
use uvfs_drivers::kernfs::{Attribute, Call, Kernfs, KernfsOptions, Meta, Tag};

use crate::{DIR, FILE, PATIENCE, World, says, with_world};

/// An attribute whose calls report that they are inside and stay there until they are released.
struct Gate {
    inside: Sender<()>,
    go: Mutex<Receiver<()>>,
    calls: Arc<AtomicU32>,
    broken: bool,
}

/// The other side of a [`Gate`].
struct Keeper {
    inside: Receiver<()>,
    go: Sender<()>,
    calls: Arc<AtomicU32>,
}

fn gate(broken: bool) -> (Gate, Keeper) {
    let (inside, is_inside) = channel();
    let (go, may_go) = channel();
    let calls = Arc::new(AtomicU32::new(0));
    let gate = Gate { inside, go: Mutex::new(may_go), calls: Arc::clone(&calls), broken };
    (gate, Keeper { inside: is_inside, go, calls })
}

impl Attribute for Gate {
    fn show(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        if self.broken {
            call.break_protection();
        }
        self.inside.send(()).unwrap();
        self.go.lock().recv().unwrap();
        if self.broken {
            call.unbreak();
        }
        self.calls.fetch_add(1, SeqCst);
        out.extend_from_slice(b"shown");
        Ok(())
    }
}

#[test]
fn a_removal_waits_for_the_calls_that_are_inside_and_none_begins_afterwards() {
    with_world(|w| {
        let (gate, keeper) = gate(false);
        let x = w.tree.root().add_attr("x", FILE, gate).unwrap();
        let context = w.root();
        let late = context.open(b"/x", OpenFlags::READ | OpenFlags::WRITE, 0).unwrap();
        thread::scope(|s| {
            let reader = s.spawn(|| w.read("/x"));
            keeper.inside.recv_timeout(PATIENCE).unwrap();
            let calls = &keeper.calls;
            let remover = s.spawn(move || {
                x.remove();
                calls.load(SeqCst)
            });
            // The removal has begun once the node is not found.
            while w.exists("/x") {
                thread::yield_now();
            }
            assert_eq!(late.read_at(&mut [0; 8], 0), Err(Errno::NODEV));
            keeper.go.send(()).unwrap();
            assert_eq!(remover.join().unwrap(), 1, "it returned with a call inside");
            assert_eq!(reader.join().unwrap(), Ok("shown".into()));
        });
        assert_eq!(late.read_at(&mut [0; 8], 0), Err(Errno::NODEV));
        assert_eq!(late.write_at(b"x", 0), Err(Errno::NODEV));
    });
}

#[test]
fn the_tree_lock_is_not_held_while_a_removal_waits() {
    with_world(|w| {
        let (gate, keeper) = gate(false);
        let d = w.tree.root().add_dir("d", DIR).unwrap();
        d.add_attr("x", FILE, gate).unwrap();
        thread::scope(|s| {
            let reader = s.spawn(|| w.read("/d/x"));
            keeper.inside.recv_timeout(PATIENCE).unwrap();
            let remover = s.spawn(|| d.remove());
            while w.exists("/d") {
                thread::yield_now();
            }
            // Names go only after the removal has waited; everything else may be changed meanwhile.
            assert_eq!(w.tree.root().add_dir("d", DIR).err(), Some(Errno::EXIST));
            assert_eq!(d.add_dir("y", DIR).err(), Some(Errno::NOENT));
            assert_eq!(d.rename(&w.tree.root(), "e", None), Err(Errno::NOENT));
            let other = w.tree.root().add_dir("other", DIR).unwrap();
            assert_eq!(other.rename(&d, "z", None), Err(Errno::NOENT));
            assert_eq!(w.names("/").unwrap(), ["other"]);
            other.remove();
            keeper.go.send(()).unwrap();
            remover.join().unwrap();
            reader.join().unwrap().unwrap();
        });
        w.tree.root().add_dir("d", DIR).unwrap();
    });
}

#[test]
fn of_two_that_remove_themselves_one_wins_and_the_other_waits_for_it() {
    struct Both {
        first: Arc<std::sync::Barrier>,
        ends: Arc<Mutex<Vec<(bool, bool)>>>,
    }
    impl Attribute for Both {
        fn store(&self, call: &Call<'_>, data: &[u8]) -> Result<usize> {
            self.first.wait();
            let won = call.remove_self();
            // Any call that returns finds the node gone from the tree.
            self.ends.lock().push((won, call.node().path().is_err()));
            Ok(data.len())
        }
    }
    with_world(|w| {
        let ends = Arc::new(Mutex::new(Vec::new()));
        let both = Both { first: Arc::new(std::sync::Barrier::new(2)), ends: Arc::clone(&ends) };
        w.tree.root().add_attr("x", FILE, both).unwrap();
        let context = w.root();
        let files = [0, 1].map(|_| context.open(b"/x", OpenFlags::WRITE, 0).unwrap());
        thread::scope(|s| files.iter().for_each(|file| drop(s.spawn(|| file.write_at(b"1", 0).unwrap()))));
        let mut ends = ends.lock().clone();
        ends.sort_unstable();
        assert_eq!(ends, [(false, true), (true, true)]);
        assert!(!w.exists("/x"));
    });
}

#[test]
fn a_removal_does_not_wait_for_a_call_that_broke_its_protection() {
    with_world(|w| {
        let (gate, keeper) = gate(true);
        let x = w.tree.root().add_attr("x", FILE, gate).unwrap();
        thread::scope(|s| {
            let reader = s.spawn(|| w.read("/x"));
            keeper.inside.recv_timeout(PATIENCE).unwrap();
            x.remove();
            assert_eq!(keeper.calls.load(SeqCst), 0);
            keeper.go.send(()).unwrap();
            assert_eq!(reader.join().unwrap(), Ok("shown".into()));
        });
    });
}

#[test]
fn looking_up_an_inactive_node_leaves_no_negative_entry() {
    with_world(|w| {
        let d = w.tree.root().add_dir("d", DIR.hidden()).unwrap();
        let x = d.add_attr("x", FILE, says("x")).unwrap();
        assert!(!w.exists("/d") && !w.exists("/d/x") && !x.is_active());
        assert_eq!(w.vfs.cache().counters().negative, 0);
        assert!(w.names("/").unwrap().is_empty());
        d.activate().unwrap();
        assert_eq!(w.read("/d/x").unwrap(), "x");
    });
}

#[test]
fn a_negative_entry_gives_way_to_what_is_added_activated_or_moved_there() {
    with_world(|w| {
        let root = w.tree.root();
        assert!(!w.exists("/x") && !w.exists("/y") && !w.exists("/z"));
        root.add_attr("x", FILE, says("x")).unwrap();
        let y = root.add_attr("y", FILE.hidden(), says("y")).unwrap();
        assert!(w.exists("/x") && !w.exists("/y"));
        y.activate().unwrap();
        assert!(w.exists("/y"));
        y.rename(&root, "z", None).unwrap();
        assert!(!w.exists("/y") && w.exists("/z"));
    });
}

#[test]
fn no_lock_is_held_while_entries_are_handed_out_and_reading_resumes_by_the_full_key() {
    with_world(|w| {
        let root = w.tree.root();
        for index in 0..300 {
            root.add_attr(format!("n{index}"), FILE, says("")).unwrap();
        }
        let mut seen = Vec::new();
        let dir = w.vfs.root();
        let op = w.vfs.op(&Cred::root());
        // A change at each entry: an earlier name is removed, a new one is added at the end, an old one is moved.
        let mut sink = |entry: uvfs::DirEntry<'_>| {
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            let number: u32 = name[1..].parse().unwrap();
            if name.starts_with('n') && number.is_multiple_of(3) {
                root.find(format!("n{}", number + 1), None).unwrap().remove();
                root.add_dir(format!("d{number}"), DIR).unwrap();
            }
            seen.push(name);
            true
        };
        w.vfs.readdir(&op, &dir, 0, &mut sink).unwrap();
        for index in (0..300).filter(|index| index % 3 != 1) {
            let times = seen.iter().filter(|name| **name == format!("n{index}")).count();
            assert_eq!(times, 1, "n{index}, which nobody touched");
        }
        // One entry at a time, by its cookie.
        let (mut cookie, mut again) = (0, Vec::new());
        loop {
            let mut next = None;
            let mut one = |entry: uvfs::DirEntry<'_>| {
                next = Some((entry.cookie, entry.name.to_vec()));
                false
            };
            w.vfs.readdir(&op, &dir, cookie, &mut one).unwrap();
            let Some((at, name)) = next else { break };
            cookie = at;
            again.push(name);
        }
        assert_eq!(again.len(), 300);
        again.sort();
        again.dedup();
        assert_eq!(again.len(), 300);
    });
}

#[test]
fn a_view_sees_the_children_of_its_tag() {
    let tree = Kernfs::new(KernfsOptions { namespaced: true, ..KernfsOptions::default() }).unwrap();
    let one = World::of(tree.clone(), Some(Tag(1)));
    let two = World::of(tree.clone(), Some(Tag(2)));
    let none = World::of(tree.clone(), None);
    let root = tree.root();
    assert!(!one.exists("/lo") && !two.exists("/lo"));
    let first = root.add_attr("lo", FILE.tag(Tag(1)), says("first")).unwrap();
    assert_eq!(root.add_attr("lo", FILE, says("")).err(), Some(Errno::INVAL));
    assert_eq!(root.add_attr("lo", FILE.tag(Tag(1)), says("")).err(), Some(Errno::EXIST));
    assert!(one.exists("/lo") && !two.exists("/lo") && !none.exists("/lo"));
    root.add_dir("lo", DIR.tag(Tag(2))).unwrap().add_attr("x", FILE, says("second")).unwrap();
    assert_eq!((one.read("/lo"), two.read("/lo/x")), (Ok("first".into()), Ok("second".into())));
    assert_eq!(one.names("/").unwrap(), ["lo"]);
    assert!(none.names("/").unwrap().is_empty());
    // Into another namespace.
    assert_eq!(first.rename(&root, "lo", Some(Tag(2))), Err(Errno::EXIST));
    first.rename(&root, "eth0", Some(Tag(2))).unwrap();
    assert!(!one.exists("/lo") && !one.exists("/eth0"));
    assert_eq!(two.read("/eth0").unwrap(), "first");
    assert_eq!(root.find("eth0", Some(Tag(2))), Some(first));
}

#[test]
fn what_was_removed_says_so_to_who_still_has_it() {
    with_world(|w| {
        let d = w.tree.root().add_dir("d", DIR).unwrap();
        let x = d.add_attr("x", FILE, says("x")).unwrap();
        let context = w.root();
        let handle = context.open(b"/d", OpenFlags::READ | OpenFlags::DIRECTORY, 0).unwrap();
        let inode = match w.vfs.lookup(&w.vfs.op(&Cred::root()), handle.inode(), b"x") {
            Ok(Found::Node(inode, _)) => inode,
            other => panic!("{other:?}"),
        };
        d.remove();
        assert_eq!(inode.attr().nlink, 0);
        assert_eq!(handle.readdir(0, &mut |_| true), Err(Errno::NOENT));
        assert!(matches!(
            w.vfs.lookup(&w.vfs.op(&Cred::root()), handle.inode(), b"x"),
            Ok(Found::Absent(_)) | Err(Errno::NOENT)
        ));
        assert_eq!(
            w.vfs.open(&w.vfs.op(&Cred::root()), &inode, uvfs::Access::READ, false),
            Err(Errno::NODEV)
        );
        assert_eq!((x.path(), x.attr().err(), x.parent()), (Err(Errno::NOENT), Some(Errno::NOENT), None));
        assert_eq!(x.set_attr(&uvfs::SetAttr::default()), Err(Errno::NOENT));
        x.remove();
        x.notify();
    });
}

#[test]
fn a_removed_attribute_ends_when_the_last_handle_goes() {
    struct Ends(Arc<AtomicU32>);
    impl Attribute for Ends {}
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    with_world(|w| {
        let ends = Arc::new(AtomicU32::new(0));
        let root = w.tree.root();
        let handle = root.add_attr("a", FILE, Ends(Arc::clone(&ends))).unwrap();
        root.add_attr("b", FILE, Ends(Arc::clone(&ends))).unwrap();
        let dir = root.add_dir("d", Meta::new(0o755)).unwrap();
        dir.add_attr("c", FILE, Ends(Arc::clone(&ends))).unwrap();
        let context = w.root();
        let open = context.open(b"/b", OpenFlags::READ, 0).unwrap();
        assert_eq!(open.read_at(&mut [0; 8], 0), Err(Errno::IO), "it shows nothing");
        root.remove();
        assert_eq!(ends.load(SeqCst), 2, "an open file keeps nothing");
        drop(handle);
        assert_eq!(ends.load(SeqCst), 3);
        // A tree that is dropped as a whole.
        root.add_attr("e", FILE, Ends(Arc::clone(&ends))).unwrap();
        drop(open);
        drop((root, dir, context));
        let World { tree, vfs } = w;
        drop(vfs);
        drop(tree);
        assert_eq!(ends.load(SeqCst), 4);
    });
}
