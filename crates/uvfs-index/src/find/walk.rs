//! The walk of a search over a tree.
//!
//! A directory comes before its children, or after them with `-depth`. The stack is our own, so deep trees need no
//! deep calls. One path buffer serves all files: a child's name is appended to its directory's path.

use super::eval::{Evaluation, FindSink, Stop};
use super::parse::Expression;
use super::{FileAttributes, FileKind, FoundFile};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::io;

/// Steps of visiting a file.
const A_FILE: u64 = 16;

/// A tree of names that can be searched.
pub trait SearchTree {
    /// A file, by name: the walk keeps one for each level.
    type Node;
    /// A directory's children.
    type Children<'a>: Iterator<Item = Self::Node>
    where
        Self: 'a;

    /// The name in its directory. Not asked of starting points.
    fn name<'a>(&'a self, node: &'a Self::Node) -> &'a [u8];
    /// The type. Asked once or more for each file, so it should be cheap.
    fn kind(&self, node: &Self::Node) -> FileKind;
    /// The inode's numbers. Asked at most once for each file, if a test or action needs them.
    fn attributes(&self, node: &Self::Node) -> FileAttributes;
    /// Target of a symbolic link.
    ///
    /// # Errors
    /// Those of reading it.
    fn target<'a>(&'a self, node: &'a Self::Node) -> io::Result<Cow<'a, [u8]>>;
    /// Whether a directory has entries.
    ///
    /// # Errors
    /// Those of reading it.
    fn has_children(&self, node: &Self::Node) -> io::Result<bool>;
    /// A directory's children, in any order.
    fn children<'a>(&'a self, node: &Self::Node) -> Self::Children<'a>;
    /// The names in a directory that could not be read, with the reason of each; an empty name for the directory
    /// itself. Asked when a search goes into it.
    fn unread(&self, node: &Self::Node) -> Vec<(Vec<u8>, io::Error)> {
        let _ = node;
        Vec::new()
    }
}

/// Where a search begins.
#[derive(Clone, Debug)]
pub struct StartingPoint<N> {
    /// The path as written.
    pub path: Vec<u8>,
    /// The file that it leads to.
    pub node: N,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchEnd {
    /// All files were visited.
    Complete,
    /// `-quit` was reached.
    Quit,
}

/// Searches the trees below the starting points, in their order.
///
/// # Errors
/// Those of the sink. Nothing is visited after one.
pub fn search<T: SearchTree>(
    expression: &Expression,
    tree: &T,
    starts: impl IntoIterator<Item = StartingPoint<T::Node>>,
    sink: &mut dyn FindSink,
) -> io::Result<SearchEnd> {
    let evaluation = Evaluation::new(sink);
    let mut walk = Walk {
        expression,
        tree,
        evaluation,
        path: Vec::new(),
        start_len: 0,
        frames: Vec::new(),
        device: None,
    };
    for start in starts {
        match walk.from(start) {
            Ok(()) => {}
            Err(Stop::Quit) => return Ok(SearchEnd::Quit),
            Err(Stop::Failed(error)) => return Err(error),
        }
    }
    match walk.evaluation.tell_work() {
        Err(Stop::Failed(error)) => Err(error),
        _ => Ok(SearchEnd::Complete),
    }
}

/// An open directory.
struct Frame<'t, T: SearchTree + 't> {
    children: T::Children<'t>,
    node: T::Node,
    path_len: usize,
    name_at: usize,
}

struct Walk<'t, 's, T: SearchTree> {
    expression: &'t Expression,
    tree: &'t T,
    evaluation: Evaluation<'s>,
    path: Vec<u8>,
    start_len: usize,
    frames: Vec<Frame<'t, T>>,
    /// The starting point's device, with `-xdev`.
    device: Option<u64>,
}

impl<'t, T: SearchTree> Walk<'t, '_, T> {
    fn from(&mut self, start: StartingPoint<T::Node>) -> Result<(), Stop> {
        self.path = start.path;
        self.start_len = self.path.len();
        self.device = self.expression.one_device.then(|| self.tree.attributes(&start.node).dev);
        self.frames.clear();
        self.enter(start.node, 0)?;
        while let Some(frame) = self.frames.last_mut() {
            self.path.truncate(frame.path_len);
            if let Some(child) = frame.children.next() {
                if self.path.last() != Some(&b'/') {
                    self.path.push(b'/');
                }
                let name_at = self.path.len();
                self.path.extend_from_slice(self.tree.name(&child));
                self.enter(child, name_at)?;
            } else if let Some(Frame { node, name_at, .. }) = self.frames.pop()
                && self.expression.depth_first
            {
                self.visit(&node, name_at)?;
            }
        }
        Ok(())
    }

    /// Visits a file whose path is complete, and opens it if it is a directory to descend into.
    fn enter(&mut self, node: T::Node, name_at: usize) -> Result<(), Stop> {
        let deep = self.expression.max_depth.is_some_and(|max| self.frames.len() >= max);
        let descends = !deep && self.tree.kind(&node) == FileKind::Directory && self.is_on_device(&node);
        let mut pruned = false;
        if !(self.expression.depth_first && descends) {
            pruned = self.visit(&node, name_at)? && !self.expression.depth_first;
        }
        if descends && !pruned {
            for (name, error) in self.tree.unread(&node) {
                self.tell_unread(&name, &error);
            }
            let children = self.tree.children(&node);
            self.frames.push(Frame { children, node, path_len: self.path.len(), name_at });
        }
        Ok(())
    }

    /// A name in the directory of the present path, or that itself, could not be read.
    fn tell_unread(&mut self, name: &[u8], error: &io::Error) {
        let len = self.path.len();
        if !name.is_empty() {
            if self.path.last() != Some(&b'/') {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name);
        }
        self.evaluation.sink.unreadable(&self.path, error);
        self.path.truncate(len);
    }

    fn is_on_device(&self, node: &T::Node) -> bool {
        self.device.is_none_or(|device| self.tree.attributes(node).dev == device)
    }

    /// Tests a file. Returns whether it was pruned.
    fn visit(&mut self, node: &T::Node, name_at: usize) -> Result<bool, Stop> {
        self.evaluation.works(A_FILE)?;
        let depth = self.frames.len();
        if depth < self.expression.min_depth {
            return Ok(false);
        }
        let file = Visited {
            tree: self.tree,
            node,
            path: &self.path,
            start_len: self.start_len,
            name: if depth == 0 { last_component(&self.path) } else { &self.path[name_at..] },
            depth,
            attributes: OnceCell::new(),
        };
        self.evaluation.pruned = false;
        self.evaluation.test(&self.expression.root, &file)?;
        Ok(self.evaluation.pruned)
    }
}

/// The last component without slashes behind it; `/` of a path that is nothing else.
fn last_component(path: &[u8]) -> &[u8] {
    let slashes = path.iter().rev().take_while(|b| **b == b'/').count();
    if slashes == path.len() {
        return &path[..slashes.min(1)];
    }
    let end = path.len() - slashes;
    let begin = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    &path[begin..end]
}

struct Visited<'w, T: SearchTree> {
    tree: &'w T,
    node: &'w T::Node,
    path: &'w [u8],
    start_len: usize,
    name: &'w [u8],
    depth: usize,
    attributes: OnceCell<FileAttributes>,
}

impl<T: SearchTree> FoundFile for Visited<'_, T> {
    fn path(&self) -> &[u8] {
        self.path
    }

    fn start_len(&self) -> usize {
        self.start_len
    }

    fn name(&self) -> &[u8] {
        self.name
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn kind(&self) -> FileKind {
        self.tree.kind(self.node)
    }

    fn attributes(&self) -> &FileAttributes {
        self.attributes.get_or_init(|| self.tree.attributes(self.node))
    }

    fn target(&self) -> io::Result<Cow<'_, [u8]>> {
        self.tree.target(self.node)
    }

    fn is_empty_directory(&self) -> io::Result<bool> {
        Ok(!self.tree.has_children(self.node)?)
    }
}
