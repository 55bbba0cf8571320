//! `uvfs-prefix`: uvfs's cache with its prefix cache, as the library's own walk uses it.
//!
//! If a path's directory part was walked before, the path takes two lookups. The first finds that part and checks
//! that its directories have not moved. The second finds the last name.

use anyhow::Result;
use uvfs_cache::prefix::{Question, Way};
use uvfs_cache::{Attr, Pos};

use crate::arms::uvfs::{Hits, Uvfs};
use crate::arms::{Local, Table};
use crate::names::paths::Path;
use crate::names::tree::Tree;
use crate::names::{Miss, Names, Perm};

/// Stands for the credentials of the only caller.
const WHO: u32 = 1;

/// The arm.
pub struct Prefixes(Uvfs);

impl Table for Prefixes {
    type Local<'t> = &'t Self;

    fn build(tree: &Tree, threads: usize) -> Result<Self> {
        Ok(Self(Uvfs::build(tree, threads)?))
    }

    fn local(&self, _thread: usize) -> &Self {
        self
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
    /// Walks through every directory and records the result in the prefix cache.
    #[cold]
    fn walk(&self, path: Path<'_>, question: Option<&Question>) -> Result<Pos, Miss> {
        let (cache, _) = self.0.start();
        let mut at = self.0.root()?;
        let mut way = Way::new(at);
        for name in path.split().0 {
            at = self.0.down(at, name)?;
            way.add(at);
        }
        if let Some(question) = question {
            cache.note_prefix(question, &way);
        }
        Ok(at)
    }
}

impl Names for Fronted<'_> {
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
        let question = Question::new(cache, start, WHO, 0, dirs);
        let at = match question.as_ref().and_then(|question| cache.prefix(question)) {
            Some(at) => at,
            None => self.walk(path, question.as_ref())?,
        };
        self.0.look(at, last, attr)
    }

    #[inline]
    fn perm(&self, at: Pos) -> Perm {
        self.0.perm(at)
    }
}
