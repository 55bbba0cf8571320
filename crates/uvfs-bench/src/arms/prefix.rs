//! `uvfs-prefix`: uvfs's cache with its prefix cache, as the library's own walk uses it.
//!
//! If a path's directory part was walked before, the path takes two lookups. The first finds that part and checks
//! that its directories have not moved. The second finds the last name.

use anyhow::Result;
use uvfs_cache::Attr;
use uvfs_cache::machinery::Pos;
use uvfs_cache::machinery::prefix::{Question, Way};

use crate::arms::uvfs::{Hits, Uvfs};
use crate::arms::{Local, Movable, Table};
use crate::names::namei::{self, Failure, Walker, may_search};
use crate::names::paths::Path;
use crate::names::tree::{NameTree, TreeEntry};
use crate::names::{DirPerm, Miss, NameTable};

/// Stands for the credentials of the only caller.
const WHO: u32 = 1;

/// The arm.
pub struct Prefixes(pub(crate) Uvfs);

impl Table for Prefixes {
    type Local<'t> = &'t Self;

    fn build(tree: &NameTree, threads: usize) -> Result<Self> {
        Ok(Self(Uvfs::build(tree, threads)?))
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        self.0.remove(entry)
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        self.0.create(entry)
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }
}

impl Movable for Prefixes {
    fn rename(&self, dir: u64, from: &[u8], to: &[u8]) -> Result<()> {
        self.0.rename(dir, from, to)
    }

    fn chmod(&self, dir: u64, mode: u32) -> Result<()> {
        self.0.chmod(dir, mode)
    }
}

impl Local for &Prefixes {
    type View<'l>
        = Fronted<'l>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Fronted<'_> {
        Fronted(Hits::of(&self.0))
    }
}

/// A view: nothing is pinned.
#[derive(Clone, Copy)]
pub struct Fronted<'l>(Hits<'l>);

impl Fronted<'_> {
    /// Walks through every directory and records the result in the prefix cache. `enter` may refuse a directory
    /// before a name is looked up in it.
    #[cold]
    fn walk<'n, E: From<Miss>>(
        &self,
        names: impl Iterator<Item = &'n [u8]>,
        question: Option<&Question>,
        enter: impl Fn(Pos) -> Result<(), E>,
    ) -> Result<Pos, E> {
        let (cache, _) = self.0.start();
        let mut at = self.0.root()?;
        let mut way = Way::new(at);
        for name in names {
            enter(at)?;
            at = self.0.down(at, name)?;
            way.add(at);
        }
        if let Some(question) = question {
            cache.note_prefix(question, &way);
        }
        Ok(at)
    }
}

impl NameTable for Fronted<'_> {
    type At = Pos;

    #[inline]
    fn root(&self) -> Result<Pos, Miss> {
        self.0.root()
    }

    #[inline]
    fn down(&self, at: Pos, name: &[u8]) -> Result<Pos, Miss> {
        self.0.down(at, name)
    }

    #[inline]
    fn look(&self, at: Pos, name: &[u8], attr: &mut Attr) -> Result<(), Miss> {
        self.0.look(at, name, attr)
    }

    #[inline]
    fn whole(&self, path: Path<'_>, attr: &mut Attr) -> Result<(), Miss> {
        let last = path.last();
        let dirs = &path.whole[..path.whole.len() - last.len() - 1];
        if dirs.is_empty() {
            return self.0.look(self.0.root()?, last, attr);
        }
        let (cache, start) = self.0.start();
        let question = Question::new(cache, (start, start), WHO, 0, dirs);
        let at = match question.as_ref().and_then(|question| cache.prefix(question)) {
            Some((at, _)) => at,
            None => self.walk(path.split().0, question.as_ref(), |_| Ok::<(), Miss>(()))?,
        };
        self.0.look(at, last, attr)
    }

    /// [`namei::stat`] in two steps. The entry of a directory part belongs to the caller, so its directories are
    /// not asked for permission again, except the last one.
    #[inline]
    fn stat(&self, cred: Walker, path: &[u8], attr: &mut Attr) -> Result<(), Failure> {
        let cut = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        let (dirs, last) = path.split_at(cut);
        if dirs.is_empty() {
            return namei::stat(&self.0, cred, path, attr);
        }
        let (cache, start) = self.0.start();
        let question = Question::new(cache, (start, start), WHO, 0, dirs);
        let may = |at| if may_search(cred, self.0.perm(at)) { Ok(()) } else { Err(Failure::Denied) };
        let at = match question.as_ref().and_then(|question| cache.prefix(question)) {
            Some((at, _)) => at,
            None => self.walk(dirs[1..].split(|b| *b == b'/'), question.as_ref(), may)?,
        };
        may(at)?;
        Ok(self.0.look(at, &last[1..], attr)?)
    }

    #[inline]
    fn perm(&self, at: Pos) -> DirPerm {
        self.0.perm(at)
    }
}
