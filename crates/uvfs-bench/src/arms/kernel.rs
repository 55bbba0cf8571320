//! `stock` and `patched`: the Linux kernel's `stat` before and after the reference count left the name's line.
//!
//! The walk is the kernel's: directories are passed without references, and a hit on the last
//! component takes a reference on the dentry, copies the attributes and puts it again. In `stock` the word
//! of count and lock stands in the line that holds the name, which every lookup reads; in `patched`
//! it stands in a line of its own. All else is shared with uvfs: hash table, names, attributes, walk.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use uvfs_cache::{Attr, Pos};

use crate::arms::uvfs::{Hits, Uvfs};
use crate::arms::{Local, Table};
use crate::names::tree::Tree;
use crate::names::{Miss, Names, Perm};

/// Count and lock of a dentry: the lock in the lowest bit, references above it.
#[derive(Debug, Default)]
pub struct LockRef(AtomicU64);

const LOCKED: u64 = 1;
const ONE: u64 = 2;
const DEAD: u64 = 1 << 63;

impl LockRef {
    /// A reference, unless the dentry is dead: compare-and-swap while the lock is free, else under it.
    #[inline]
    pub fn get_not_dead(&self) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            if old & DEAD != 0 {
                return false;
            }
            if old & LOCKED != 0 {
                return self.locked(ONE);
            }
            match self.0.compare_exchange_weak(old, old + ONE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    /// Gives a reference back.
    #[inline]
    pub fn put(&self) {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            if old & LOCKED != 0 {
                self.locked(ONE.wrapping_neg());
                return;
            }
            match self.0.compare_exchange_weak(old, old - ONE, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    #[cold]
    fn locked(&self, add: u64) -> bool {
        while self.0.fetch_or(LOCKED, Ordering::Acquire) & LOCKED != 0 {
            std::hint::spin_loop();
        }
        let alive = self.0.load(Ordering::Relaxed) & DEAD == 0;
        if alive {
            self.0.fetch_add(add, Ordering::Relaxed);
        }
        self.0.fetch_and(!LOCKED, Ordering::Release);
        alive
    }
}

/// A line of the kernel's dentry: the part that lookups read, and room for the word.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    name: AtomicU64,
    word: LockRef,
}

/// A table of uvfs with the kernel's reference at the end. `APART`: the word has a line of its own.
pub struct Kernel<const APART: bool> {
    table: Uvfs,
    names: Vec<Line>,
    words: Vec<Line>,
}

/// Before the change.
pub type Stock = Kernel<false>;
/// After it.
pub type Patched = Kernel<true>;

impl<const APART: bool> Table for Kernel<APART> {
    type Local<'t> = &'t Self;

    fn build(tree: &Tree, threads: usize) -> Result<Self> {
        let lines = |n: usize| {
            let lines: Vec<Line> = std::iter::repeat_with(Line::default).take(n).collect();
            lines.iter().for_each(|line| line.word.0.store(ONE, Ordering::Relaxed));
            lines
        };
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

impl<const APART: bool> Local for &Kernel<APART> {
    type View<'l>
        = Referenced<'l, APART>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Self::View<'_> {
        Referenced { hits: Hits::of(&self.table), kernel: self }
    }
}

/// A view.
pub struct Referenced<'l, const APART: bool> {
    hits: Hits<'l>,
    kernel: &'l Kernel<APART>,
}

impl<const APART: bool> Referenced<'_, APART> {
    /// The word of a dentry; reads the line of its name first, as the comparison of names does.
    #[inline]
    fn word(&self, index: u64) -> Option<&LockRef> {
        let slot = index as usize & (self.kernel.names.len() - 1);
        let name = &self.kernel.names[slot];
        if name.name.load(Ordering::Relaxed) != 0 {
            return None;
        }
        Some(if APART { &self.kernel.words[slot].word } else { &name.word })
    }
}

impl<const APART: bool> Names for Referenced<'_, APART> {
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
        if !word.get_not_dead() {
            return Err(Miss::Absent);
        }
        // The kernel copies while it holds the reference, so that the line may go away and come back.
        *attr = std::hint::black_box(found);
        word.put();
        Ok(())
    }

    #[inline]
    fn perm(&self, at: Pos) -> Perm {
        self.hits.perm(at)
    }
}
