//! `moka`: a concurrent cache with an eviction policy that every hit must inform.

use anyhow::{Context as _, Result};
use moka::sync::Cache;
use uvfs_cache::Attr;

use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::{Borrowed, Hashing, Key, hashing};
use crate::names::tree::Tree;

/// The arm.
pub struct Moka(Cache<Key, Attr, Hashing>);

impl Table for Moka {
    type Local<'t> = &'t Self;

    /// Capacity for twice the entries: nothing is evicted, so the cost measured is the policy's bookkeeping.
    fn build(tree: &Tree, _threads: usize) -> Result<Self> {
        let entries = tree.entries.len();
        let cache = Cache::builder()
            .max_capacity(entries as u64 * 2 + 1024)
            .initial_capacity(entries)
            .build_with_hasher(hashing());
        for entry in &tree.entries {
            cache.insert(Key::new(entry.parent, &entry.name), entry.attr);
        }
        cache.run_pending_tasks();
        Ok(Self(cache))
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }

    fn rename(&self, dir: u64, old: &[u8], new: &[u8]) -> Result<()> {
        let attr = self
            .0
            .remove(&Borrowed { parent: dir, name: old })
            .context("the name to be renamed is not there")?;
        self.0.insert(Key::new(dir, new), attr);
        Ok(())
    }
}

impl Local for &Moka {
    type View<'l>
        = Keyed<&'l Moka>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Keyed<&Moka> {
        Keyed(self)
    }
}

impl Get for &Moka {
    #[inline]
    fn get<R>(&self, key: Borrowed<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        self.0.get(&key).map(|found| read(&found))
    }
}
