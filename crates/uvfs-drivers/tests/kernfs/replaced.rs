//! Replaced and unlinked nodes: no operation waits for calls, and no name is absent meanwhile.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use parking_lot::Mutex;
use uvfs::{Access, Cred, Errno, Found, OpenFlags, Result};
use uvfs_drivers::kernfs::{Attribute, Call};

use crate::{DIR, FILE, PATIENCE, says, with_world};

/// An attribute whose one call reports that it is inside and stays there until it is released.
struct Slow(Sender<()>, Mutex<Receiver<()>>);

impl Attribute for Slow {
    fn show(&self, _: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        self.0.send(()).unwrap();
        self.1.lock().recv().unwrap();
        out.extend_from_slice(b"slow");
        Ok(())
    }
}

#[test]
fn a_replaced_name_is_never_absent() {
    with_world(|w| {
        let dir = w.tree.root().add_dir("d", DIR).unwrap();
        dir.add_attr("x", FILE, says("text")).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    let context = w.root();
                    while !done.load(SeqCst) {
                        assert!(context.stat(b"/d/x").is_ok());
                        assert_eq!(w.names("/d").unwrap(), ["x"]);
                        // ESTALE: a kernel looks the name up again.
                        let file = match context.open(b"/d/x", OpenFlags::READ, 0) {
                            Err(Errno::STALE) => continue,
                            file => file.unwrap(),
                        };
                        let mut text = [0; 8];
                        assert_eq!(file.read_at(&mut text, 0), Ok(4));
                        assert_eq!(&text[..4], b"text");
                        assert_eq!(file.read_at(&mut text, 4), Ok(0));
                    }
                });
            }
            for _ in 0..300 {
                dir.add_attr("x", FILE.replacing(), says("text")).unwrap();
            }
            done.store(true, SeqCst);
        });
    });
}

/// The node's slot in the table has since held other nodes, which were replaced too.
#[test]
fn a_node_that_was_looked_up_before_several_replacements_is_stale() {
    with_world(|w| {
        let root = w.tree.root();
        root.add_attr("x", FILE, says("text")).unwrap();
        let op = w.vfs.op(&Cred::root());
        let Found::Node(old, _) = w.vfs.lookup(&op, &w.vfs.root(), b"x").unwrap() else { panic!("no x") };
        for _ in 0..10 {
            root.add_attr("x", FILE.replacing(), says("text")).unwrap();
            assert_eq!(w.vfs.open(&op, &old, Access::READ, false).err(), Some(Errno::STALE));
        }
    });
}

#[test]
fn a_reader_of_the_old_node_is_not_waited_for_and_finishes_on_it() {
    with_world(|w| {
        let (root, context) = (w.tree.root(), w.root());
        for unlinked in [false, true] {
            let ((inside, is_inside), (go, may_go)) = (channel(), channel());
            let old = root.add_attr("x", FILE, Slow(inside, Mutex::new(may_go))).unwrap();
            let (file, unread) = (context.open(b"/x", OpenFlags::READ, 0).unwrap(), w.root());
            let unread = unread.open(b"/x", OpenFlags::READ | OpenFlags::WRITE, 0).unwrap();
            thread::scope(|s| {
                let reader = s.spawn(|| {
                    let mut text = [0; 8];
                    (file.read_at(&mut text, 0), text)
                });
                is_inside.recv_timeout(PATIENCE).unwrap();
                if unlinked {
                    old.unlink();
                    assert_eq!(context.stat(b"/x").err(), Some(Errno::NOENT));
                } else {
                    root.add_attr("x", FILE.replacing(), says("new")).unwrap();
                    assert_eq!(w.read("/x"), Ok("new".into()));
                }
                assert!(!old.is_active());
                // Only now does the reader of the old node continue.
                go.send(()).unwrap();
                assert_eq!(reader.join().unwrap(), (Ok(4), *b"slow\0\0\0\0"));
            });
            assert_eq!(file.read_at(&mut [0; 8], 4), Ok(0), "the end of its text");
            assert_eq!(file.read_at(&mut [0; 8], 0), Err(Errno::NODEV), "a second text");
            assert_eq!(unread.write_at(b"x", 0), Err(Errno::NODEV), "a write would be lost");
            go.send(()).unwrap();
            assert_eq!(unread.read_at(&mut [0; 8], 0), Ok(4), "it was open before");
            old.unlink();
            old.remove();
            root.children().iter().for_each(uvfs_drivers::kernfs::Node::remove);
        }
    });
}

#[test]
fn another_kind_of_node_takes_the_place_and_nothing_is_left_below() {
    with_world(|w| {
        let root = w.tree.root();
        for name in ["a", "b", "c"] {
            root.add_attr(name, FILE, says(name)).unwrap();
        }
        let dir = root.add_dir("b", DIR.replacing()).unwrap();
        let below = dir.add_dir("e", DIR).unwrap().add_attr("f", FILE, says("f")).unwrap();
        assert_eq!(w.read("/b/e/f"), Ok("f".into()));
        assert_eq!(w.root().stat(b"/").unwrap().nlink, 3);
        root.add_symlink("b", FILE.replacing(), "a").unwrap();
        assert_eq!(w.read("/b"), Ok("a".into()));
        assert!(!below.is_active() && !dir.is_active());
        assert_eq!(dir.add_dir("g", DIR).err(), Some(Errno::NOENT));
        assert_eq!(w.names("/").unwrap(), ["a", "b", "c"], "it keeps its place");
        assert_eq!(w.root().stat(b"/").unwrap().nlink, 2);
        assert_eq!(
            root.add_attr("b", FILE, says("")).err(),
            Some(Errno::EXIST),
            "only where it is asked for"
        );
        root.unlink();
        assert_eq!(w.names("/").unwrap().len(), 3, "the root stays as it is");
    });
}

#[test]
fn what_has_no_write_bit_is_not_opened_for_writing_by_root_either() {
    with_world(|w| {
        let root = w.tree.root();
        for (mode, read, write) in
            [(0o444, true, false), (0o200, false, true), (0o640, true, true), (0, false, false)]
        {
            let node = root.add_attr("x", crate::Meta::new(mode), says("x")).unwrap();
            let open = |flags| w.root().open(b"/x", flags, 0).map(drop);
            let expected = |may| if may { Ok(()) } else { Err(Errno::ACCESS) };
            assert_eq!(open(OpenFlags::READ), expected(read), "{mode:o}");
            assert_eq!(open(OpenFlags::WRITE), expected(write), "{mode:o}");
            assert_eq!(open(OpenFlags::READ | OpenFlags::WRITE), expected(read && write), "{mode:o}");
            node.remove();
        }
    });
}
