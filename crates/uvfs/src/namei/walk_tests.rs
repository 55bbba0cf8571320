//! Every exit from a directory checks the mode that the walk trusted. Each step of the lock-free walk is taken
//! while the directory's mode changes just after the walk read it.

use std::sync::Arc;

use super::ask::Ask;
use super::walk::{Seen, Stop};
use super::{Goal, Walker};
use crate::driver::{Driver, Inode};
use crate::types::{Answer, Attr, Cred, Errno, Features, NewInode, Op, Result, StatFs, Ttl, mode};
use crate::vfs::{Vfs, VfsConfig};
use uvfs_cache::{InodeId, Pos};

/// A file system in which each directory has the directories `d` and `e`, the file `f`, and the link `l` to `e`.
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
        Features::default()
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
            _ => return Ok(Answer::Absent(Ttl::Forever)),
        };
        Ok(Answer::Found(node(dir.ino() * 4 + number, fmt)))
    }

    fn readlink(&self, _: &Op, _: &Inode<'_>) -> Result<Vec<u8>> {
        Ok(b"e".to_vec())
    }

    fn statfs(&self, _: &Op) -> Result<StatFs> {
        Err(Errno::NOSYS)
    }
}

/// Trusts what it reads of each directory, and changes one of them right afterwards, as if a writer had been active
/// during the read.
struct Late<const ASKS: bool> {
    /// The index, in the order of the walk, of the directory that changes.
    which: usize,
    asked: usize,
    changed: Option<InodeId>,
}

impl<const ASKS: bool> Ask for Late<ASKS> {
    const ASKS: bool = ASKS;

    fn may_search(&mut self, walker: &Walker<'_, '_>, at: Pos) -> std::result::Result<bool, Stop> {
        if self.asked == self.which {
            self.changed = Some(at.id());
            walker.vfs.inode(at.id()).unwrap().update(|attr| attr.mode ^= 0o010);
        }
        self.asked += 1;
        Ok(true)
    }

    fn vouches(&self, _: &[u8], _: Option<u64>) -> bool {
        true
    }
}

/// The kind of walk, and how its caller ends it.
#[derive(Clone, Copy, Debug)]
enum How {
    Node,
    Parent,
    Attr,
}

fn walk<const ASKS: bool>(
    walker: &Walker<'_, '_>,
    how: How,
    path: &[u8],
    late: &mut Late<ASKS>,
) -> std::result::Result<(), Stop> {
    match how {
        How::Node => {
            let seen = walker.walk_asking(walker.cwd, path, Goal::Node { follow: false }, late)?;
            walker.hold_end(seen).map(drop)
        }
        How::Parent => match walker.walk_asking(walker.cwd, path, Goal::Parent, late)? {
            Seen::Parent { pos, .. } => Ok(walker.vfs.cache.hold(pos).map(drop)?),
            seen => panic!("{seen:?}"),
        },
        How::Attr => {
            let start = walker.vfs.cache.pos_of(walker.cwd).unwrap();
            walker.attr_asking(start, path, false, &mut Attr::default(), late)
        }
    }
}

/// Walks `path` once for each directory that it asks about, and changes that directory. Returns their number.
fn changing_each<const ASKS: bool>(walker: &Walker<'_, '_>, how: How, path: &str) -> usize {
    for which in 0.. {
        let mut late = Late::<ASKS> { which, asked: 0, changed: None };
        let outcome = walk(walker, how, path.as_bytes(), &mut late);
        let Some(changed) = late.changed else {
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

const PATHS: [&str; 24] = [
    "..", "../", ".", "./", "./..", "../.", "f", "f/", "e", "e/", "x", "x/y", "l", "l/", "l/f", "./f",
    "../e", "e/f", "e/..", "e/.", "e/../f", "d/..", "d/../f", "e/../..",
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
            let walker = Walker { vfs: &vfs, cred: &cred, who: super::who::NOBODY, root, cwd: &cwd };
            for path in PATHS {
                // Fills the cache.
                let _ = context.stat(path.as_bytes());
                for how in [How::Node, How::Parent, How::Attr] {
                    let asked = changing_each::<false>(&walker, how, path);
                    assert!(asked > 0, "{start}: {path}: nobody was asked");
                    assert_eq!(changing_each::<true>(&walker, how, path), asked);
                }
            }
        }
    }
}
