//! Paths in use: the exclusion between calls of the back end and changes that take their paths away.
//!
//! A call names its file by a path, which is right only while no directory on the way is renamed. So a call *uses*
//! its nodes from before it reads their paths until the back end has answered. A rename or a removal is a *move*: new
//! uses of the nodes that it moves, and of nodes below them, wait for its end, and it waits for those that exist.
//! Other nodes are not affected. Calls with a file handle (read, write) use nothing, since the handle names the file.
//!
//! Use against move: both are entered under the one mutex. If the use comes first, the move waits for it. If the move
//! comes first, the use waits.
//!
//! No cycle can arise. A caller takes its locks (rename lock, name locks) first, then all its uses at once, then its
//! move. A use waits for nothing but the back end, unless its owner moves nodes; then it waits for uses below these.
//!
//! The mutex is a leaf, held for a few steps; never across an await or a waker. While something moves, a use costs
//! O(depth) more. The beginning of a move costs O(depth) for each use.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use uvfs_cache::{InodeId, NodeCache, OwnedNode};

use crate::table::PathNode;

type Node = OwnedNode<PathNode>;

/// Nodes that are being moved.
struct Move {
    number: u64,
    tops: Vec<Node>,
    /// Nodes at or below these that were in use when the move began, and still are. None is added: new uses wait, and
    /// a directory that comes below has no users while it is moved there.
    users: HashSet<InodeId>,
    waiting: Option<Waker>,
}

#[derive(Default)]
struct State {
    /// Nodes in use, and by how many calls.
    used: HashMap<InodeId, usize>,
    moves: Vec<Move>,
    next: u64,
    /// Calls that wait for the end of a move.
    waiting: Vec<Waker>,
}

/// All uses and moves of a file system.
#[derive(Clone, Default)]
pub(crate) struct Uses(Arc<Mutex<State>>);

/// Whether a node is `top`, or below it.
fn is_within(node: &Node, top: &Node) -> bool {
    node == top || node.name().is_some_and(|(dir, _)| dir.is_below(top))
}

impl State {
    fn is_moving(&self, node: &Node) -> bool {
        self.moves.iter().flat_map(|moving| &moving.tops).any(|top| is_within(node, top))
    }

    /// A call has ended. Returns the moves that waited for it.
    fn leave(&mut self, nodes: &[InodeId]) -> Vec<Waker> {
        let mut woken = Vec::new();
        for id in nodes {
            match self.used.get_mut(id) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    self.used.remove(id);
                    for moving in &mut self.moves {
                        if moving.users.remove(id) && moving.users.is_empty() {
                            woken.extend(moving.waiting.take());
                        }
                    }
                }
            }
        }
        woken
    }
}

impl Uses {
    /// Use these nodes, once none of them is being moved.
    pub(crate) async fn enter<const N: usize>(&self, nodes: [&Node; N]) -> PathUse<N> {
        std::future::poll_fn(|task| {
            let mut state = self.0.lock();
            if nodes.iter().any(|node| state.is_moving(node)) {
                state.waiting.push(task.waker().clone());
                return Poll::Pending;
            }
            for node in nodes {
                *state.used.entry(node.id()).or_default() += 1;
            }
            Poll::Ready(())
        })
        .await;
        PathUse { uses: self.clone(), nodes: nodes.map(Node::id) }
    }

    /// Move these nodes: no call uses them or a node below them until the result is dropped.
    pub(crate) async fn begin_move(&self, cache: &NodeCache<PathNode>, nodes: &[&Node]) -> PathMove {
        let tops: Vec<Node> = nodes.iter().map(|node| (*node).clone()).collect();
        let moving = {
            let mut state = self.0.lock();
            state.next += 1;
            let number = state.next;
            let is_user = |id: &&InodeId| {
                cache.node(**id).is_some_and(|used| tops.iter().any(|top| is_within(&used, top)))
            };
            let users = state.used.keys().filter(is_user).copied().collect();
            state.moves.push(Move { number, tops, users, waiting: None });
            PathMove { uses: self.clone(), number }
        };
        std::future::poll_fn(|task| {
            let mut state = self.0.lock();
            let own = state.moves.iter_mut().find(|of| of.number == moving.number);
            match own.filter(|of| !of.users.is_empty()) {
                Some(of) => {
                    of.waiting = Some(task.waker().clone());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            }
        })
        .await;
        moving
    }

    /// Whether a call uses the node.
    pub(crate) fn is_used(&self, id: InodeId) -> bool {
        self.0.lock().used.contains_key(&id)
    }
}

/// Nodes whose paths a call uses. Dropped when the back end has answered, or the call is cancelled.
pub(crate) struct PathUse<const N: usize> {
    uses: Uses,
    nodes: [InodeId; N],
}

impl<const N: usize> Drop for PathUse<N> {
    fn drop(&mut self) {
        let woken = self.uses.0.lock().leave(&self.nodes);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Nodes that are being moved. Dropped when the cache has their new names, or the change has failed.
pub(crate) struct PathMove {
    uses: Uses,
    number: u64,
}

impl Drop for PathMove {
    fn drop(&mut self) {
        let woken = {
            let mut state = self.uses.0.lock();
            state.moves.retain(|moving| moving.number != self.number);
            std::mem::take(&mut state.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Uses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        write!(f, "Uses({} in use, {} moving)", state.used.len(), state.moves.len())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use fuse3::FileType;
    use futures_util::FutureExt;
    use uvfs_cache::{Attr, NodeAnswer, Ttl};

    use super::*;
    use crate::attr::fmt_of;
    use crate::options::PathOptions;
    use crate::table::Table;

    fn dir(parent: &Node, name: &str, ino: u64) -> Node {
        let attr = Attr { ino, mode: fmt_of(FileType::Directory), ..Attr::default() };
        let answer =
            NodeAnswer { attr, name_ttl: Ttl::Forever, attr_ttl: Ttl::Forever, data: PathNode::default() };
        let lock = parent.lock_name(name.as_bytes()).now_or_never().unwrap();
        lock.create(answer).unwrap()
    }

    /// `/a/b` and `/other`.
    fn world() -> (Table, [Node; 3]) {
        let table = Table::new(PathOptions::default()).unwrap();
        let root = table.superblock().root();
        let a = dir(&root, "a", 2);
        let nodes = [dir(&a, "b", 3), dir(&root, "other", 4), a];
        let [b, other, a] = nodes;
        (table, [a, b, other])
    }

    #[test]
    fn a_move_waits_for_uses_below_and_new_ones_wait_for_it() {
        let (table, [a, b, other]) = world();
        let (uses, cache) = (&table.uses, table.cache());
        let task = &mut Context::from_waker(Waker::noop());
        let first = uses.enter([&b]).now_or_never().unwrap();
        let again = uses.enter([&b]).now_or_never().unwrap();
        let beside = uses.enter([&other]).now_or_never().unwrap();
        let moved = [&a];
        let mut begin = pin!(uses.begin_move(cache, &moved));
        assert!(begin.as_mut().poll(task).is_pending());
        // New uses wait, even while the move itself waits; those of other nodes do not.
        let mut late = pin!(uses.enter([&other, &b]));
        assert!(late.as_mut().poll(task).is_pending());
        assert!(uses.enter([&a]).now_or_never().is_none());
        drop(uses.enter([&other]).now_or_never().unwrap());
        drop(first);
        assert!(begin.as_mut().poll(task).is_pending());
        drop(again);
        let Poll::Ready(moving) = begin.as_mut().poll(task) else { panic!("nothing below is in use") };
        assert!(late.as_mut().poll(task).is_pending());
        drop(moving);
        let Poll::Ready(late) = late.as_mut().poll(task) else { panic!("nothing is moving") };
        assert!(uses.is_used(b.id()) && uses.is_used(other.id()) && !uses.is_used(a.id()));
        drop((late, beside));
        assert_eq!(format!("{uses:?}"), "Uses(0 in use, 0 moving)");
    }

    #[test]
    fn a_move_that_is_cancelled_while_it_waits_lets_others_on() {
        let (table, [a, b, _]) = world();
        let (uses, cache) = (&table.uses, table.cache());
        let used = uses.enter([&b]).now_or_never().unwrap();
        assert!(uses.begin_move(cache, &[&a]).now_or_never().is_none());
        drop(uses.enter([&b]).now_or_never().expect("the move was cancelled"));
        drop(used);
        assert_eq!(format!("{uses:?}"), "Uses(0 in use, 0 moving)");
    }

    #[test]
    fn a_removed_directory_is_below_nothing() {
        let (table, [a, b, _]) = world();
        a.lock_name(b"b").now_or_never().unwrap().remove();
        let used = table.uses.enter([&b]).now_or_never().unwrap();
        assert!(table.uses.begin_move(table.cache(), &[&a]).now_or_never().is_some());
        drop(used);
    }
}
