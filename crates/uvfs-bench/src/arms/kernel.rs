//! `stock` and `patched`: the Linux kernel's `stat` before and after the reference count left the name's line.
//!
//! The walk is the kernel's: directories are passed without references, and a hit on the last
//! component takes a reference on the dentry, copies the attributes and puts it again. In `stock` the word
//! of count and lock stands in the line that holds the name, which every lookup reads; in `patched`
//! it stands in a line of its own. All else is shared with uvfs: hash table, names, attributes, walk.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use uvfs_cache::{Attr, Pos};
use uvfs_sync::lockref::{self, LockRef, Policy};

use crate::arms::uvfs::{Hits, Uvfs};
use crate::arms::{Local, Table};
use crate::names::tree::Tree;
use crate::names::{Miss, Names, Perm};

/// The generation of all words.
const GENERATION: u32 = 1;

/// A line of the kernel's dentry: the part that lookups read, and room for count and lock.
#[repr(align(64))]
struct Line<P> {
    name: AtomicU64,
    word: LockRef<P>,
}

/// A table of uvfs with the kernel's reference at the end. `APART`: the word has a line of its own.
pub struct Kernel<P, const APART: bool> {
    table: Uvfs,
    names: Vec<Line<P>>,
    words: Vec<Line<P>>,
}

/// Before the change.
pub type Stock = Kernel<lockref::Stock, false>;
/// After it.
pub type Patched = Kernel<lockref::Patched, true>;

/// Lines with a reference each, held by nobody in particular, so that no put is the last.
fn lines<P: Policy>(n: usize) -> Vec<Line<P>> {
    let line = || {
        let word = LockRef::new();
        word.start(GENERATION);
        Line { name: AtomicU64::new(0), word }
    };
    std::iter::repeat_with(line).take(n).collect()
}

impl<P: Policy, const APART: bool> Table for Kernel<P, APART> {
    type Local<'t> = &'t Self;

    fn build(tree: &Tree, threads: usize) -> Result<Self> {
        let slots = (tree.entries.len() + 2).next_power_of_two();
        let words = if APART { slots } else { 0 };
        Ok(Self { table: Uvfs::build(tree, threads)?, names: lines(slots), words: lines(words) })
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }

    fn rename(&self, dir: u64, old: &[u8], new: &[u8]) -> Result<()> {
        self.table.rename(dir, old, new)
    }
}

impl<P: Policy, const APART: bool> Local for &Kernel<P, APART> {
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

impl<P: Policy, const APART: bool> Referenced<'_, P, APART> {
    /// The word of a dentry; reads the line of its name first, as the comparison of names does.
    #[inline]
    fn word(&self, index: u64) -> Option<&LockRef<P>> {
        let slot = index as usize & (self.kernel.names.len() - 1);
        let name = &self.kernel.names[slot];
        if name.name.load(Ordering::Relaxed) != 0 {
            return None;
        }
        Some(if APART { &self.kernel.words[slot].word } else { &name.word })
    }
}

impl<P: Policy, const APART: bool> Names for Referenced<'_, P, APART> {
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
        if !word.get_generation(GENERATION) {
            return Err(Miss::Absent);
        }
        // The kernel copies while it holds the reference, so that the line may go away and come back.
        *attr = std::hint::black_box(found);
        if word.put() { Err(Miss::Absent) } else { Ok(()) }
    }

    #[inline]
    fn perm(&self, at: Pos) -> Perm {
        self.hits.perm(at)
    }
}
