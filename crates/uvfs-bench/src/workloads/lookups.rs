//! Tables under the same walk: the arm that every lookup workload is made of.
//!
//! A [`LookupArm`] is a filled table, the tree from which it was filled, a [`Method`] (the bare table or namei) and the
//! choice of paths to visit. The loop is compiled for each table and method from the same source.

use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use uvfs_cache::Attr;

use crate::arms::{Local, Table};
use crate::harness::{Arm, Worker, WorkerSeat};
use crate::names::NameTable;
use crate::names::aging::{self, AgingStep};
use crate::names::namei::{Failure, Walker};
use crate::names::paths::{Path, Paths};
use crate::names::tree::{NameTree, attr_of};
use crate::workloads::visit::{Cursor, SERIALIZED, Which};

/// The user who walks: not the owner.
pub const USER: Walker = Walker { uid: 1000, gid: 1000 };
/// Walks of one path before a benchmark gives up because something always moves.
pub const TRIES: u32 = 1_000_000;
/// Number of paths that are checked in full before anything is measured.
const CHECKED: usize = 20_000;

/// How a path is looked up.
pub trait Method: Send + Sync + 'static {
    /// Looks the path up in a view.
    ///
    /// # Errors
    /// The error of `stat(2)`.
    fn look<N: NameTable>(names: &N, path: Path<'_>, attr: &mut Attr) -> Result<(), Failure>;
}

/// The table alone: it receives names one by one.
pub struct Bare;

impl Method for Bare {
    #[inline]
    fn look<N: NameTable>(names: &N, path: Path<'_>, attr: &mut Attr) -> Result<(), Failure> {
        Ok(names.whole(path, attr)?)
    }
}

/// The whole path through namei.
pub struct WholeStat;

impl Method for WholeStat {
    #[inline]
    fn look<N: NameTable>(names: &N, path: Path<'_>, attr: &mut Attr) -> Result<(), Failure> {
        names.stat(USER, path.whole, attr)
    }
}

/// The ingredients of an arm.
#[derive(Clone)]
pub struct Setup {
    /// The tree.
    pub tree: Arc<NameTree>,
    /// Which paths are visited.
    pub which: Which,
    /// Most threads.
    pub threads: usize,
    /// Whether files are removed and created before the arm is used ([`aging`]).
    pub aged: bool,
}

/// A table that holds the setup's tree.
///
/// # Errors
/// The table's error.
pub fn filled<T: Table>(setup: &Setup) -> Result<T> {
    let mut table = T::build(&setup.tree, setup.threads)?;
    if setup.aged {
        aging::age(&setup.tree, |change, entry| match change {
            AgingStep::Remove => table.remove(entry),
            AgingStep::Create => table.create(entry),
        })?;
    }
    Ok(table)
}

/// The arm.
pub struct LookupArm<T, M> {
    name: &'static str,
    table: T,
    setup: Setup,
    _method: PhantomData<M>,
}

impl<T: Table, M: Method> LookupArm<T, M> {
    /// Fills a table, and ages it if the setup says so.
    ///
    /// # Errors
    /// The table's error.
    pub fn new(name: &'static str, setup: &Setup) -> Result<Self> {
        let table = filled(setup)?;
        Ok(Self { name, table, setup: setup.clone(), _method: PhantomData })
    }

    /// The table.
    pub fn table(&self) -> &T {
        &self.table
    }

    fn check_paths(&self, thread: usize) -> Result<()> {
        let (tree, local) = (&self.setup.tree, self.table.local(thread));
        for index in 0..tree.paths.len().min(CHECKED) {
            let mut attr = Attr::default();
            let got = M::look(&local.pin(), tree.paths.get(index), &mut attr);
            match tree.inos[index] {
                0 => ensure!(got == Err(Failure::Absent), "an absent name was found: {got:?}"),
                ino => ensure!(
                    got == Ok(()) && attr == attr_of(ino, false),
                    "inode {ino}: {got:?} with {attr:?} instead of its attributes"
                ),
            }
        }
        Ok(())
    }

    /// Checks names that no tree has, next to names that it has.
    fn check_misses(&self, thread: usize) -> Result<()> {
        let (tree, local) = (&self.setup.tree, self.table.local(thread));
        for index in 0..tree.paths.len().min(CHECKED) {
            let (above, last) = tree.paths.get(index).split();
            let wrong = [&last[..last.len() - 1], b"~"].concat();
            let names: Vec<&[u8]> = above.chain([&wrong[..]]).collect();
            let mut paths = Paths::default();
            paths.push(&names).context("a path that is too long")?;
            let got = M::look(&local.pin(), paths.get(0), &mut Attr::default());
            ensure!(got == Err(Failure::Absent), "a name that is not there: {got:?}");
        }
        Ok(())
    }
}

impl<T: Table + 'static, M: Method> Arm for LookupArm<T, M> {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<()> {
        (0..self.setup.threads.max(1))
            .try_for_each(|t| self.check_paths(t).and_then(|()| self.check_misses(t)))
    }

    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let tree = &*self.setup.tree;
        let cursor = Cursor::new(self.setup.which, tree.paths.len(), seat);
        let local = self.table.local(seat.index);
        let absent = tree.inos.first() == Some(&0);
        let looking = Looking::<T, M> {
            tree,
            local,
            cursor,
            absent,
            serialized: variant == SERIALIZED,
            _method: PhantomData,
        };
        Ok(Box::new(looking))
    }
}

struct Looking<'a, T: Table + 'a, M> {
    tree: &'a NameTree,
    local: T::Local<'a>,
    cursor: Cursor,
    absent: bool,
    serialized: bool,
    _method: PhantomData<M>,
}

impl<T: Table, M: Method> Looking<'_, T, M> {
    fn run<const SERIAL: bool>(&mut self, ops: u64) -> Result<()> {
        let mut attr = Attr::default();
        let mut cursor = self.cursor;
        for _ in 0..ops {
            let path = self.tree.paths.get(cursor.index());
            let got = M::look(&self.local.pin(), path, &mut attr);
            if got.is_err() {
                self.unusual(got, path, &mut attr)?;
            }
            black_box(&mut attr);
            if SERIAL { cursor.next_after(attr.ino) } else { cursor.next() }
        }
        self.cursor = cursor;
        Ok(())
    }

    /// Accepts an expected absence; otherwise repeats the lookup until nothing moves.
    fn unusual(&self, got: Result<(), Failure>, path: Path<'_>, attr: &mut Attr) -> Result<()> {
        let mut got = got;
        for _ in 0..TRIES {
            match got {
                Ok(()) => return Ok(()),
                Err(Failure::Absent) if self.absent => return Ok(()),
                Err(Failure::Moved) => got = M::look(&self.local.pin(), path, attr),
                Err(failure) => bail!("{}: {failure:?}", String::from_utf8_lossy(path.whole)),
            }
        }
        bail!("{}: changed {TRIES} times while it was looked up", String::from_utf8_lossy(path.whole))
    }
}

impl<T: Table, M: Method> Worker for Looking<'_, T, M> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        if self.serialized { self.run::<true>(ops) } else { self.run::<false>(ops) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::tree::{Shape, TreeEntry};
    use crate::names::{DirPerm, Miss};

    /// A broken table: finds every name everywhere, with the attributes of one inode.
    struct Liar;

    impl Table for Liar {
        type Local<'t> = &'t Self;
        fn build(_: &NameTree, _: usize) -> Result<Self> {
            Ok(Self)
        }
        fn remove(&mut self, _: &TreeEntry) -> Result<()> {
            Ok(())
        }
        fn create(&mut self, _: &TreeEntry) -> Result<()> {
            Ok(())
        }
        fn local(&self, _: usize) -> &Self {
            self
        }
    }

    impl Local for &Liar {
        type View<'l>
            = Lies
        where
            Self: 'l;
        fn pin(&self) -> Lies {
            Lies
        }
    }

    struct Lies;

    impl NameTable for Lies {
        type At = ();
        fn root(&self) -> Result<(), Miss> {
            Ok(())
        }
        fn down(&self, (): (), _: &[u8]) -> Result<(), Miss> {
            Ok(())
        }
        fn look(&self, (): (), _: &[u8], attr: &mut Attr) -> Result<(), Miss> {
            *attr = attr_of(2, false);
            Ok(())
        }
        fn perm(&self, (): ()) -> DirPerm {
            DirPerm { mode: 0o755, uid: 0, gid: 0 }
        }
    }

    #[test]
    fn a_table_that_is_wrong_is_not_measured() {
        let shape = |files, negative| Shape {
            files,
            depth: 1,
            per_dir: None,
            own: false,
            negative,
            name_bytes: 0,
            seed: 1,
        };
        for (shape, said) in [
            // The hit is right; the miss is not.
            (shape(1, false), "a name that is not there"),
            (shape(2, false), "instead of its attributes"),
            (shape(1, true), "an absent name was found"),
        ] {
            let tree = Arc::new(NameTree::new(shape).unwrap());
            let setup = Setup { tree, which: Which::All, threads: 1, aged: false };
            let wrong = LookupArm::<Liar, Bare>::new("liar", &setup).unwrap().check().unwrap_err();
            assert!(wrong.to_string().contains(said), "{wrong}");
        }
    }
}
