//! Answers in flight while the tree changes: the cache must not keep them.
//!
//! The view is behind a driver that, once armed, asks the view and holds its answer back until it is released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use parking_lot::Mutex;
use uvfs::driver::{Driver, File, Inode};
use uvfs::{Access, Answer, Attr, Features, NewInode, Op, Result, SetAttr, StatFs, Ttl, Vfs, VfsConfig};
use uvfs_cache::Cache;
use uvfs_drivers::kernfs::{Kernfs, KernfsOptions, Node};

use crate::{DIR, FILE, PATIENCE, World, says};

struct Slow {
    view: Arc<dyn Driver>,
    armed: AtomicBool,
    asked: Sender<()>,
    go: Mutex<Receiver<()>>,
}

impl Driver for Slow {
    fn name(&self) -> &'static str {
        self.view.name()
    }
    fn features(&self) -> Features {
        self.view.features()
    }
    fn root(&self, op: &Op) -> Result<NewInode> {
        self.view.root(op)
    }
    fn mounted(&self, cache: &Arc<Cache>, root: &Inode<'_>) {
        self.view.mounted(cache, root);
    }
    fn ttl(&self) -> Ttl {
        self.view.ttl()
    }
    fn lookup(&self, op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        let answer = self.view.lookup(op, dir, name);
        if self.armed.swap(false, SeqCst) {
            self.asked.send(()).unwrap();
            self.go.lock().recv().unwrap();
        }
        answer
    }
    fn getattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        self.view.getattr(op, inode)
    }
    fn open(&self, op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64> {
        self.view.open(op, inode, access)
    }
    fn release(&self, file: File<'_>) {
        self.view.release(file);
    }
    fn read(&self, op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.view.read(op, file, offset, buf)
    }
    fn statfs(&self, op: &Op) -> Result<StatFs> {
        self.view.statfs(op)
    }
}

/// Looks `path` up; makes `change` after the driver has answered and before the cache gets the answer.
fn while_on_its_way(path: &str, prepare: impl Fn(&Node), change: impl Fn(&Node), check: impl Fn(&World)) {
    let tree = Kernfs::new(KernfsOptions::default()).unwrap();
    prepare(&tree.root());
    let ((asked, was_asked), (go, may_go)) = (channel(), channel());
    let view = tree.view(None);
    let slow = Arc::new(Slow { view, armed: AtomicBool::new(false), asked, go: Mutex::new(may_go) });
    let vfs = Vfs::new(VfsConfig::default(), Arc::clone(&slow) as Arc<dyn Driver>).unwrap();
    let w = World { tree, vfs };
    // All but the last name are cached already.
    let above = path.rsplit_once('/').map_or("/", |(above, _)| above);
    w.root().stat(if above.is_empty() { b"/" } else { above.as_bytes() }).unwrap();
    slow.armed.store(true, SeqCst);
    thread::scope(|s| {
        let late = s.spawn(|| w.exists(path));
        was_asked.recv_timeout(PATIENCE).unwrap();
        change(&w.tree.root());
        go.send(()).unwrap();
        late.join().unwrap();
    });
    check(&w);
}

#[test]
fn an_absent_answer_is_not_kept_when_the_name_was_added_meanwhile() {
    while_on_its_way(
        "/d/x",
        |root| drop(root.add_dir("d", DIR).unwrap()),
        |root| drop(root.find("d", None).unwrap().add_attr("x", FILE, says("x")).unwrap()),
        |w| assert_eq!(w.read("/d/x"), Ok("x".into())),
    );
}

#[test]
fn an_absent_answer_is_not_kept_when_the_name_was_activated_meanwhile() {
    while_on_its_way(
        "/x",
        |root| drop(root.add_attr("x", FILE.hidden(), says("x")).unwrap()),
        |root| root.find("x", None).unwrap().activate().unwrap(),
        |w| assert_eq!(w.read("/x"), Ok("x".into())),
    );
}

#[test]
fn a_found_answer_is_not_kept_when_the_node_was_removed_meanwhile() {
    while_on_its_way(
        "/d/x",
        |root| drop(root.add_dir("d", DIR).unwrap().add_attr("x", FILE, says("x")).unwrap()),
        |root| root.find("d", None).unwrap().find("x", None).unwrap().remove(),
        |w| assert!(!w.exists("/d/x")),
    );
}

#[test]
fn a_found_answer_is_not_kept_when_the_node_was_moved_meanwhile() {
    while_on_its_way(
        "/d/x",
        |root| drop(root.add_dir("d", DIR).unwrap().add_dir("x", DIR).unwrap()),
        |root| root.find("d", None).unwrap().find("x", None).unwrap().rename(root, "y", None).unwrap(),
        |w| assert!(!w.exists("/d/x") && w.exists("/y")),
    );
}

#[test]
fn a_directory_that_moves_while_it_is_looked_for_is_found_under_its_new_name_only() {
    while_on_its_way(
        "/a",
        |root| drop(root.add_dir("a", DIR).unwrap().add_attr("x", FILE, says("x")).unwrap()),
        |root| root.find("a", None).unwrap().rename(root, "b", None).unwrap(),
        |w| {
            assert!(!w.exists("/a") && !w.exists("/a/x"));
            assert_eq!(w.read("/b/x"), Ok("x".into()));
        },
    );
}

#[test]
fn attributes_that_changed_meanwhile_are_seen() {
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    while_on_its_way(
        "/x",
        |root| drop(root.add_attr("x", FILE, says("x")).unwrap()),
        |root| root.find("x", None).unwrap().set_attr(&set).unwrap(),
        |w| assert_eq!(w.root().stat(b"/x").unwrap().mode & 0o777, 0o600),
    );
}
