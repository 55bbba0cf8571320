//! `scc`: `HashIndex`, the read-optimised one of its maps. Each operation takes one guard and calls `peek` under it.

use anyhow::{Context as _, Result, ensure};
use scc::{Guard, HashIndex};
use uvfs_cache::Attr;

use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::{Borrowed, Hashing, Key, hashing};
use crate::names::tree::Tree;

type Map = HashIndex<Key, Attr, Hashing>;

/// The arm.
#[derive(Debug)]
pub struct Scc(Map);

impl Table for Scc {
    type Local<'t> = &'t Self;

    fn build(tree: &Tree, _threads: usize) -> Result<Self> {
        let map = Map::with_capacity_and_hasher(tree.entries.len(), hashing());
        for entry in &tree.entries {
            let fresh = map.insert_sync(Key::new(entry.parent, &entry.name), entry.attr).is_ok();
            ensure!(fresh, "a name stands twice in the tree");
        }
        Ok(Self(map))
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }

    fn rename(&self, dir: u64, old: &[u8], new: &[u8]) -> Result<()> {
        let old = Borrowed { parent: dir, name: old };
        let attr = self.0.peek_with(&old, |_, attr| *attr).context("the name to be renamed is not there")?;
        ensure!(self.0.remove_sync(&old), "the name to be renamed went away");
        ensure!(self.0.insert_sync(Key::new(dir, new), attr).is_ok(), "the new name exists");
        Ok(())
    }
}

/// The map, and the guard of one operation.
pub struct Guarded<'l>(&'l Map, Guard);

impl Local for &Scc {
    type View<'l>
        = Keyed<Guarded<'l>>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Self::View<'_> {
        Keyed(Guarded(&self.0, Guard::new()))
    }
}

impl Get for Guarded<'_> {
    #[inline]
    fn get<R>(&self, key: Borrowed<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        self.0.peek(&key, &self.1).map(read)
    }
}
