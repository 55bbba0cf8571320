//! The walk with references: it may ask drivers, it follows symbolic links, and its errors are final.
//!
//! It holds its current directory and nothing else; it holds no lock between steps. A symbolic link's target replaces
//! the link, and the walked part before it, in the text of the path. The walk goes on with the new text, from the
//! root if that is absolute. So there is one text and one position, however deep links are nested, and
//! [`MAX_SYMLINKS`](crate::types::MAX_SYMLINKS) limits their number. Each component costs two changes of a reference
//! count, and the driver's calls if it is not cached.

use std::borrow::Cow;

use crate::driver::Inode;
use crate::namei::path_components::{Component, Kind, component};
use crate::namei::symlinks::{follow, is_followed, may_be_one_more, replaced};
use crate::namei::{Goal, Last, Walker};
use crate::permission;
use crate::types::{Attr, Errno, Found, Op, Result};

/// A walk under way.
pub(crate) struct RefWalk<'w, 'v, 'p> {
    walker: &'w Walker<'w, 'v>,
    op: Op,
    dir: Inode<'v>,
    /// Attributes of `dir`, if the last step fetched them.
    attr: Option<Attr>,
    text: Cow<'p, [u8]>,
    offset: usize,
    links: u32,
}

/// The end of a walk.
#[derive(Debug)]
pub(crate) struct Arrived<'v, 'p> {
    /// The inode that the path leads to, or the directory of its last component.
    pub(crate) inode: Inode<'v>,
    /// Its attributes, if the last step fetched them.
    pub(crate) attr: Option<Attr>,
    /// The last component, if the goal was its directory.
    pub(crate) last: Last<'p>,
    /// Whether slashes came after the last component.
    pub(crate) slash: bool,
    /// Symbolic links followed.
    pub(crate) links: u32,
}

/// The inode or link that a component led to.
enum Met<'v> {
    Inode(Inode<'v>, Option<Attr>),
    /// A link: the new text, and whether it starts at the root.
    Link(Vec<u8>, bool),
}

impl<'w, 'v, 'p> RefWalk<'w, 'v, 'p> {
    /// A walk whose position is `dir`, before the component at `offset` of `path`.
    pub(crate) fn new(
        walker: &'w Walker<'w, 'v>,
        dir: Inode<'v>,
        path: &'p [u8],
        offset: usize,
        links: u32,
    ) -> Self {
        let op = walker.vfs.op(walker.cred);
        Self { walker, op, dir, attr: None, text: Cow::Borrowed(path), offset, links }
    }

    /// Walks to the goal.
    pub(crate) fn run(mut self, goal: Goal) -> Result<Arrived<'v, 'p>> {
        loop {
            let Some(c) = component(&self.text, self.offset) else {
                return Ok(self.arrive(Last::Root, false));
            };
            self.walker.vfs.search(&self.op, &self.dir)?;
            if c.last && goal == Goal::Parent {
                let last = match (c.kind, &self.text) {
                    (Kind::Dot, _) => Last::Dot,
                    (Kind::DotDot, _) => Last::DotDot,
                    (Kind::Name, &Cow::Borrowed(path)) => {
                        Last::Name(Cow::Borrowed(&path[c.start..c.start + c.name.len()]))
                    }
                    (Kind::Name, Cow::Owned(_)) => Last::Name(Cow::Owned(c.name.to_vec())),
                };
                let slash = c.slash;
                return Ok(self.arrive(last, slash));
            }
            let next = c.next;
            match self.meet(c, goal)? {
                Met::Inode(inode, attr) => {
                    self.dir = inode;
                    self.attr = attr;
                    self.offset = next;
                }
                Met::Link(text, absolute) => {
                    if absolute {
                        self.dir = self.walker.root.clone();
                        self.attr = None;
                    }
                    self.text = Cow::Owned(text);
                    self.offset = 0;
                    self.links += 1;
                }
            }
        }
    }

    fn arrive(self, last: Last<'p>, slash: bool) -> Arrived<'v, 'p> {
        Arrived { inode: self.dir, attr: self.attr, last, slash, links: self.links }
    }

    /// The inode or link that the component leads to.
    fn meet(&self, c: Component<'_>, goal: Goal) -> Result<Met<'v>> {
        let vfs = self.walker.vfs;
        match c.kind {
            Kind::Dot => return Ok(Met::Inode(self.dir.clone(), self.attr)),
            Kind::DotDot => {
                let up = vfs.parent(&self.dir, self.walker.root.id())?;
                return Ok(Met::Inode(up, None));
            }
            Kind::Name => {}
        }
        let (inode, attr) = match vfs.child(&self.op, &self.dir, c.name)? {
            Found::Node(inode, attr) => (inode, attr),
            Found::Absent(_) => return Err(Errno::NOENT),
        };
        if is_followed(attr.fmt(), !c.last || c.slash, goal.follows()) {
            may_be_one_more(self.links)?;
            if c.last {
                self.may_follow(&attr)?;
            }
            let target = follow(self.walker, &self.op, &inode)?;
            let absolute = target.starts_with(b"/");
            return Ok(Met::Link(replaced(target, &self.text, c), absolute));
        }
        if !attr.is_dir() && (!c.last || c.slash) {
            return Err(Errno::NOTDIR);
        }
        Ok(Met::Inode(inode, Some(attr)))
    }

    /// The protected-symlinks rule, for the last link of a path.
    fn may_follow(&self, link: &Attr) -> Result<()> {
        let vfs = self.walker.vfs;
        let dir = vfs.attr_now(&self.op, &self.dir)?;
        permission::may_follow(vfs.protected, &self.op.cred, (&dir).into(), link)
    }
}
