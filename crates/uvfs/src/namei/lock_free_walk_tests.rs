//! Every exit from a directory checks the mode that the walk trusted. Each step of the lock-free walk is taken
//! while the directory's mode changes just after the walk read it.

use std::cell::RefCell;
use std::sync::Arc;

use super::lock_free_walk::{Seen, Stop};
use super::{Goal, Walker};
use crate::driver::{Driver, Inode};
use crate::types::{Answer, Attr, Cred, Errno, Features, NewInode, Op, Result, StatFs, Ttl, mode};
use crate::vfs::{Vfs, VfsConfig};
use uvfs_cache::InodeId;
use uvfs_cache::machinery::Pos;

/// A file system in which each directory has the directories `d` and `e`, the file `f`, and the links `l`
/// to `e` and `up` to `../e`.
struct Same;

fn node(ino: u64, fmt: u32) -> NewInode {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 2, ..Attr::default() };
    NewInode { attr, private: 0, ttl: Ttl::Forever }
}

impl Driver for Same {
    fn name(&self) -> &'static str {
        "same"
    }

    fn features(&self) -> Features {
        Features { fixed_links: true, timeless_links: true, ..Features::default() }
    }

    fn root(&self, _: &Op) -> Result<NewInode> {
        Ok(node(1, mode::S_IFDIR))
    }

    fn lookup(&self, _: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        let (number, fmt) = match name {
            b"d" => (0, mode::S_IFDIR),
            b"e" => (1, mode::S_IFDIR),
            b"f" => (2, mode::S_IFREG),
            b"l" => (3, mode::S_IFLNK),
            b"up" => (4, mode::S_IFLNK),
            _ => return Ok(Answer::Absent(Ttl::Forever)),
        };
        Ok(Answer::Found(node(dir.ino() * 5 + number, fmt)))
    }

    fn readlink(&self, _: &Op, link: &Inode<'_>) -> Result<Vec<u8>> {
        Ok(if link.ino() % 5 == 3 { b"e".to_vec() } else { b"../e".to_vec() })
    }

    fn statfs(&self, _: &Op) -> Result<StatFs> {
        Err(Errno::NOSYS)
    }
}

/// Trusts what the walk reads of each directory, and changes one of them right afterwards, as if a writer had been
/// active during the read.
struct Late {
    /// The index, in the order of the walk, of the directory that changes.
    which: usize,
    asked: usize,
    changed: Option<InodeId>,
}

thread_local! {
    /// Set while a walk of this thread is tested.
    static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
}

/// Called by [`Walker::may_search`] before it reads a permission. True: a test makes the walk trust the directory.
pub(super) fn changes_now(walker: &Walker<'_, '_>, at: Pos) -> bool {
    LATE.with_borrow_mut(|late| {
        let Some(late) = late else { return false };
        if late.asked == late.which {
            late.changed = Some(at.id());
            walker.vfs.inode(at.id()).unwrap().update(|attr| attr.mode ^= 0o010);
        }
        late.asked += 1;
        true
    })
}

/// The kind of walk, and how its caller ends it. True: a link at the end is followed.
#[derive(Clone, Copy, Debug)]
enum How {
    Node(bool),
    Parent,
    Attr(bool),
}

fn walk(walker: &Walker<'_, '_>, how: How, path: &[u8]) -> std::result::Result<(), Stop> {
    let links = &mut 0;
    match how {
        How::Node(follow) => {
            let seen = walker.walk_lockless(walker.cwd, path, Goal::Node { follow }, links)?;
            walker.hold_end(seen).map(drop)
        }
        How::Parent => match walker.walk_lockless(walker.cwd, path, Goal::Parent, links)? {
            Seen::Parent { pos, .. } => Ok(walker.vfs.cache.hold(pos).map(drop)?),
            seen => panic!("{seen:?}"),
        },
        How::Attr(follow) => walker.attr_lockless(walker.cwd, path, follow, links, &mut Attr::default()),
    }
}

/// Walks `path` once for each directory whose permission it reads, and changes that directory. Returns their number.
fn changing_each(walker: &Walker<'_, '_>, how: How, path: &str) -> usize {
    for which in 0.. {
        LATE.set(Some(Late { which, asked: 0, changed: None }));
        let outcome = walk(walker, how, path.as_bytes());
        let Some(changed) = LATE.take().unwrap().changed else {
            assert!(!matches!(outcome, Err(Stop::Bail(_))), "{path}: {how:?}: {outcome:?}");
            return which;
        };
        let stopped = match outcome {
            Err(Stop::Bail(bail)) => bail.may_pass(),
            // A caller would continue from there if it could hold that directory.
            Err(Stop::BailAt(_, at, _)) => at.id() == changed && walker.vfs.cache.hold(at).is_err(),
            Ok(()) | Err(Stop::Final(_)) => false,
        };
        assert!(stopped, "{path}: {how:?}: directory {which} had changed: {outcome:?}");
    }
    0
}

const PATHS: [&str; 28] = [
    "..", "../", ".", "./", "./..", "../.", "f", "f/", "e", "e/", "x", "x/y", "l", "l/", "l/f", "./f",
    "../e", "e/f", "l/..", "l/l", "l/l/f", "up/f", "e/..", "e/.", "e/../f", "d/..", "d/../f", "e/../..",
];

/// Planted bugs: rule8-a-mounted-root-is-left-unchecked, rule8-the-control-root-is-left-unchecked,
/// rule8-dot-at-the-end-unchecked, rule8-a-held-end-unchecked, rule8-an-entered-child-unchecked,
/// rule8-an-absence-unchecked.
#[test]
fn a_mode_that_was_believed_is_checked_on_every_way_out() {
    let vfs = Vfs::new(VfsConfig::default(), Arc::new(Same)).unwrap();
    let context = vfs.context(Cred::root());
    let root = vfs.root();
    // Mounts twice, so that a root is mounted on a root.
    for _ in 0..2 {
        vfs.mount(&context.resolve(b"d").unwrap(), Arc::new(Same)).unwrap();
    }
    vfs.mount_control(Arc::new(Same), false).unwrap();
    let cred = Cred::user(9, 9);
    for start in ["/", "/d", "/e", "/d/e", "/.uvfs", "/.uvfs/e"] {
        let mut context = vfs.context(Cred::root());
        context.chdir(start.as_bytes()).unwrap();
        let cwd = context.resolve(b".").unwrap();
        for root in [&root, &cwd] {
            let walker = Walker { vfs: &vfs, cred: &cred, who: super::cred_numbers::NOBODY, root, cwd: &cwd };
            for path in PATHS {
                // Fills the cache.
                let _ = context.stat(path.as_bytes());
                for how in [How::Node(false), How::Node(true), How::Parent, How::Attr(false), How::Attr(true)]
                {
                    assert!(changing_each(&walker, how, path) > 0, "{start}: {path}: no permission was read");
                }
            }
        }
    }
}
