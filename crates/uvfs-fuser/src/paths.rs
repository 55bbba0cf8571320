//! Paths in use: the exclusion between calls of the back end that name a file by its path, and changes of that path.
//!
//! A path from [`Nodes::path`] is right until a directory on the way is renamed. [`Nodes::with_path`] *uses* the node: the
//! path stays right until its closure has returned. A rename or a removal is a *move*: it waits for uses of the nodes that
//! it moves and of nodes below them, and new uses of these wait for its end. Other nodes are not affected.
//!
//! Use against move: both are entered under the one mutex. If the use comes first, the move waits for it. If the move comes
//! first, the use waits.
//!
//! No cycle can arise. A change takes its locks (rename lock, name locks) first, then uses its directories, then begins its
//! move. A thread that uses something already waits only for moves that have begun, and these wait for the back end only.
//! The thread of a move does not wait for it.
//!
//! The mutex is a leaf. While something moves, a use costs O(depth) more. A move costs O(depth) for each use.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::thread::{self, ThreadId};

use fuser::{Errno, INodeNo};
use parking_lot::{Condvar, Mutex};
use uvfs_cache::OwnedNode;

use crate::nodes::Nodes;

thread_local! {
    /// Uses of this thread, in all tables.
    static USES: Cell<usize> = const { Cell::new(0) };
}

/// Nodes that are being moved.
struct Move<T: Send + Sync + 'static> {
    thread: ThreadId,
    nodes: Vec<OwnedNode<T>>,
    /// Nothing uses the nodes any more: the back end is being asked.
    begun: bool,
}

struct State<T: Send + Sync + 'static> {
    /// Nodes in use, and by how many calls. The calls hold them.
    used: HashMap<INodeNo, (OwnedNode<T>, usize)>,
    moves: Vec<Move<T>>,
}

/// All uses and moves of a table.
pub(crate) struct Paths<T: Send + Sync + 'static> {
    state: Mutex<State<T>>,
    /// A use or a move has ended.
    ended: Condvar,
}

/// Whether a node is `top`, or below it.
fn is_within<T: Send + Sync + 'static>(node: &OwnedNode<T>, top: &OwnedNode<T>) -> bool {
    node == top || node.name().is_some_and(|(dir, _)| dir.is_below(top))
}

impl<T: Send + Sync + 'static> Move<T> {
    fn takes(&self, node: &OwnedNode<T>) -> bool {
        self.nodes.iter().any(|top| is_within(node, top))
    }
}

impl<T: Send + Sync + 'static> Default for Paths<T> {
    fn default() -> Self {
        let state = State { used: HashMap::new(), moves: Vec::new() };
        Self { state: Mutex::new(state), ended: Condvar::new() }
    }
}

/// A node whose path a call uses.
struct PathUse<'a, T: Send + Sync + 'static> {
    nodes: &'a Nodes<T>,
    number: INodeNo,
}

impl<T: Send + Sync + 'static> Drop for PathUse<'_, T> {
    fn drop(&mut self) {
        USES.set(USES.get() - 1);
        let paths = self.nodes.paths();
        let mut state = paths.state.lock();
        let last = match state.used.get_mut(&self.number) {
            Some((_, count)) if *count > 1 => {
                *count -= 1;
                None
            }
            _ => state.used.remove(&self.number),
        };
        drop(state);
        paths.ended.notify_all();
        // The table may drop the node's data here, so not under the mutex.
        drop(last);
    }
}

/// A move, and the uses of the directories of the change. Dropped when the table has the new names, or the change has
/// failed.
pub(crate) struct PathMove<'a, T: Send + Sync + 'static> {
    nodes: &'a Nodes<T>,
    moves: bool,
    _dirs: Vec<PathUse<'a, T>>,
}

impl<T: Send + Sync + 'static> Drop for PathMove<'_, T> {
    fn drop(&mut self) {
        if !self.moves {
            return;
        }
        let (paths, own) = (self.nodes.paths(), thread::current().id());
        let mut state = paths.state.lock();
        // A thread changes one thing at a time, or the inner change ends first.
        let at = state.moves.iter().rposition(|moving| moving.thread == own);
        let ended = at.map(|at| state.moves.remove(at));
        drop(state);
        paths.ended.notify_all();
        drop(ended);
    }
}

impl<T: Send + Sync + 'static> Nodes<T> {
    /// Call `f` with the path of a node below the root. The path stays right until `f` returns: renames and removals of
    /// the node, and of directories on the way, wait for it. So a server that asks its back end by path does so in `f`,
    /// in every closure and every other method, or a rename could come between and the table would remember a false ENOENT.
    ///
    /// `f` may call `with_path` again, for a second path. It must not call a method of the table that takes a closure.
    ///
    /// # Errors
    /// As [`Nodes::path`]; those of `f`.
    pub fn with_path<R>(
        &self,
        node: &OwnedNode<T>,
        f: impl FnOnce(&Path) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let _use = self.use_path(node);
        f(&self.path(node)?)
    }

    /// The path below the root, right across renames of any directory on the way. O(depth). It is the path of this moment:
    /// to ask the back end by it, see [`Nodes::with_path`].
    ///
    /// # Errors
    /// ESTALE: the node, or a directory on the way, was removed.
    pub fn path(&self, node: &OwnedNode<T>) -> Result<PathBuf, Errno> {
        loop {
            match node.path() {
                Ok(Some(path)) => return Ok(OsString::from_vec(path).into()),
                Ok(None) => return Err(Errno::ESTALE),
                // Directories on the way moved during each attempt: their movers come first.
                Err(_) => thread::yield_now(),
            }
        }
    }

    /// [`Nodes::path`] of the node with a number.
    ///
    /// # Errors
    /// As there.
    pub fn path_of(&self, ino: INodeNo) -> Result<PathBuf, Errno> {
        self.path(&self.node(ino)?)
    }

    /// Use a node, once it is not being moved.
    fn use_path(&self, node: &OwnedNode<T>) -> PathUse<'_, T> {
        let (paths, number) = (self.paths(), self.number_of(node));
        let mut state = paths.state.lock();
        if !state.moves.is_empty() {
            let (own, nested) = (thread::current().id(), USES.get() != 0);
            let waits = |state: &mut State<T>| {
                let mut moves = state.moves.iter().filter(|of| of.thread != own && (of.begun || !nested));
                moves.any(|of| of.takes(node))
            };
            paths.ended.wait_while(&mut state, waits);
        }
        state.used.entry(number).or_insert_with(|| (node.clone(), 0)).1 += 1;
        drop(state);
        USES.set(USES.get() + 1);
        PathUse { nodes: self, number }
    }

    /// Use these directories, then move these nodes: no other thread uses them or a node below them until the result is
    /// dropped. The caller holds the locks of its change, and moves no directory below itself.
    pub(crate) fn begin_move<'a>(
        &'a self,
        dirs: &[&OwnedNode<T>],
        nodes: Vec<OwnedNode<T>>,
    ) -> PathMove<'a, T> {
        let used = dirs.iter().map(|dir| self.use_path(dir)).collect();
        let moves = !nodes.is_empty();
        if moves {
            let (paths, own) = (self.paths(), thread::current().id());
            let mut state = paths.state.lock();
            state.moves.push(Move { thread: own, nodes, begun: false });
            loop {
                let State { used, moves } = &mut *state;
                let Some(moving) = moves.iter_mut().rfind(|of| of.thread == own) else { break };
                moving.begun = !used.values().any(|(node, _)| moving.takes(node));
                if moving.begun {
                    break;
                }
                paths.ended.wait(&mut state);
            }
        }
        PathMove { nodes: self, moves, _dirs: used }
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Paths<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "Paths({} in use, {} moving)", state.used.len(), state.moves.len())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use fuser::{FileAttr, FileType, RenameFlags};
    use uvfs_cache::Ttl;

    use super::*;
    use crate::attr::host_attr;
    use crate::lookup::LookedUp;
    use crate::nodes::NodesOptions;

    const ROOT: INodeNo = INodeNo::ROOT;

    fn found(number: u64) -> Result<(FileAttr, ()), Errno> {
        Ok((host_attr(number, &std::fs::symlink_metadata("/")?), ()))
    }

    /// `/a/b` and `/other`.
    fn world(options: NodesOptions) -> (Nodes<()>, [OwnedNode<()>; 3]) {
        let nodes = Nodes::new(options, |_| found(1)).unwrap();
        let dir = |parent, name: &str, number| {
            let made = nodes.make(parent, OsStr::new(name), FileType::Directory, |_| found(number));
            made.unwrap().node().clone()
        };
        let a = dir(ROOT, "a", 2);
        let (b, other) = (dir(nodes.number_of(&a), "b", 3), dir(ROOT, "other", 4));
        (nodes, [a, b, other])
    }

    fn rename(nodes: &Nodes<()>, from: &str, to: &str, f: impl FnOnce()) {
        let (from, to) = ((ROOT, OsStr::new(from)), (ROOT, OsStr::new(to)));
        let rename = |_: &OwnedNode<()>, _: &OwnedNode<()>| {
            f();
            Ok(())
        };
        nodes.rename(from, to, RenameFlags::empty(), rename).unwrap();
    }

    #[test]
    fn a_rename_waits_for_paths_below_and_new_ones_wait_for_it() {
        let (nodes, [_, b, other]) = world(NodesOptions::default());
        let (ended, renamed) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|s| {
            let (nodes, ended, renamed) = (&nodes, &ended, &renamed);
            let used = nodes.with_path(&b, |path| {
                s.spawn(|| {
                    rename(nodes, "a", "z", || {
                        assert!(ended.load(Ordering::SeqCst), "the path is in use");
                        // The back end has renamed, and the table has not: this thread alone may use the path.
                        let path = nodes.with_path(&b, |path| Ok(path.to_owned()));
                        assert_eq!(path.unwrap(), Path::new("a/b"));
                        renamed.store(true, Ordering::SeqCst);
                    });
                });
                while nodes.paths().state.lock().moves.is_empty() {
                    thread::yield_now();
                }
                // Other nodes are not affected, and a second use by the same thread does not wait.
                s.spawn(|| nodes.with_path(&other, |_| Ok(())).unwrap()).join().unwrap();
                nodes.with_path(&b, |_| Ok(()))?;
                assert_eq!(path, Path::new("a/b"));
                s.spawn(|| {
                    nodes.with_path(&b, |path| {
                        assert!(renamed.load(Ordering::SeqCst), "a new use waits");
                        assert_eq!(path, Path::new("z/b"));
                        Ok(())
                    })
                });
                ended.store(true, Ordering::SeqCst);
                Ok(())
            });
            used.unwrap();
        });
        assert_eq!(format!("{:?}", nodes.paths()), "Paths(0 in use, 0 moving)");
    }

    #[test]
    fn with_numbers_an_expired_name_is_moved_and_keeps_its_children() {
        let (nodes, [a, b, _]) = world(NodesOptions { name_ttl: Ttl::ZERO, ..NodesOptions::default() });
        rename(&nodes, "a", "z", || ());
        assert_eq!(nodes.path(&b).unwrap(), Path::new("z/b"));
        // The next lookup asks. If the back end has renamed another directory, the name leads to that.
        let asked = |number| match nodes.start_lookup(ROOT, OsStr::new("z")).unwrap() {
            LookedUp::Ask(question) => question.answer(found(number)).unwrap().node().clone(),
            known => panic!("{known:?}"),
        };
        assert!(asked(2) == a && asked(9) != a);
    }

    #[test]
    fn a_late_answer_leaves_its_node_a_path() {
        let (nodes, _) = world(NodesOptions::default());
        let Ok(LookedUp::Ask(question)) = nodes.start_lookup(ROOT, OsStr::new("late")) else {
            panic!("known")
        };
        nodes.node(ROOT).unwrap().invalidate(b"late");
        let node = question.answer(found(5)).unwrap().node().clone();
        assert_eq!(nodes.path(&node).unwrap(), Path::new("late"));
    }
}
