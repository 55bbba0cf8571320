//! `stock` and `patched`: Linux's `stat` before and after the reference count moved out of the name's cache line.
//!
//! The walk is the kernel's. It passes directories without references; on the last component it takes a
//! reference on the dentry, copies the attributes and puts the reference. In `stock` the word that holds count and
//! lock shares a cache line with the name, which every lookup reads. In `patched` that word has its own line. All
//! else is shared with uvfs: hash table, names, attributes, walk.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use uvfs_cache::Attr;
use uvfs_cache::machinery::Pos;

use crate::arms::lockref::{CountAndLock, QueueAtOnce, QueueLate};
use crate::arms::uvfs::{Hits, Uvfs};
use crate::arms::{Local, Table};
use crate::names::tree::{NameTree, TreeEntry};
use crate::names::{DirPerm, Miss, NameTable};

/// One cache line of the kernel's dentry: the part that lookups read, and space for count and lock.
#[repr(align(64))]
struct Line<P> {
    name: AtomicU64,
    word: P,
}

/// uvfs's table with the kernel's reference at the end. If `APART` is true, the word has a line of its own.
pub struct Kernel<P, const APART: bool> {
    table: Uvfs,
    names: Vec<Line<P>>,
    words: Vec<Line<P>>,
}

/// Before the change.
pub type Stock = Kernel<QueueAtOnce, false>;
/// After it.
pub type Patched = Kernel<QueueLate, true>;

/// Lines with one permanent reference each, so that no put is the last one.
fn lines<P: CountAndLock>(n: usize) -> Vec<Line<P>> {
    let line = || Line { name: AtomicU64::new(0), word: P::started() };
    std::iter::repeat_with(line).take(n).collect()
}

impl<P: CountAndLock, const APART: bool> Table for Kernel<P, APART> {
    type Local<'t> = &'t Self;

    fn build(tree: &NameTree, threads: usize) -> Result<Self> {
        let slots = (tree.entries.len() + 2).next_power_of_two();
        let words = if APART { slots } else { 0 };
        Ok(Self { table: Uvfs::build(tree, threads)?, names: lines(slots), words: lines(words) })
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        self.table.remove(entry)
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        self.table.create(entry)
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }
}

impl<P: CountAndLock, const APART: bool> Local for &Kernel<P, APART> {
    type View<'l>
        = Referenced<'l, P, APART>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Self::View<'_> {
        Referenced { hits: Hits::of(&self.table), kernel: self }
    }
}

/// A view.
pub struct Referenced<'l, P, const APART: bool> {
    hits: Hits<'l>,
    kernel: &'l Kernel<P, APART>,
}

impl<P: CountAndLock, const APART: bool> Referenced<'_, P, APART> {
    /// The lockref word of a dentry. Reads the line of its name first, as comparing names does.
    #[inline]
    fn word(&self, index: u64) -> Option<&P> {
        let slot = index as usize & (self.kernel.names.len() - 1);
        let name = &self.kernel.names[slot];
        if name.name.load(Ordering::Relaxed) != 0 {
            return None;
        }
        Some(if APART { &self.kernel.words[slot].word } else { &name.word })
    }
}

impl<P: CountAndLock, const APART: bool> NameTable for Referenced<'_, P, APART> {
    type At = Pos;

    #[inline]
    fn root(&self) -> Result<Pos, Miss> {
        self.hits.root()
    }

    #[inline]
    fn down(&self, at: Pos, name: &[u8]) -> Result<Pos, Miss> {
        self.hits.down(at, name)
    }

    #[inline]
    fn look(&self, at: Pos, name: &[u8], attr: &mut Attr) -> Result<(), Miss> {
        let mut found = Attr::default();
        let id = self.hits.look_id(at, name, &mut found)?;
        let word = self.word(id.as_u64()).ok_or(Miss::Moved)?;
        if !word.get() {
            return Err(Miss::Absent);
        }
        // The kernel copies while it holds the reference, so another thread may take the line meanwhile.
        *attr = std::hint::black_box(found);
        if word.put() { Err(Miss::Absent) } else { Ok(()) }
    }

    #[inline]
    fn perm(&self, at: Pos) -> DirPerm {
        self.hits.perm(at)
    }
}
