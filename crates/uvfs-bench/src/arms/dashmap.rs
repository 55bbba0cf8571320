//! `dashmap`: a sharded map. Each lookup takes the lock of one shard.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};

use anyhow::{Context as _, Result};
use dashmap::DashMap;
use uvfs_cache::Attr;

use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::{BorrowedKey, Hashing, Key, hashing};
use crate::names::tree::{NameTree, TreeEntry};

/// The arm.
#[derive(Debug)]
pub struct Dash(DashMap<Key, Attr, Hashing>);

impl Table for Dash {
    type Local<'t> = &'t Self;

    fn build(tree: &NameTree, _threads: usize) -> Result<Self> {
        let map = DashMap::with_capacity_and_hasher(tree.entries.len(), hashing());
        for entry in &tree.entries {
            map.insert(Key::new(entry.parent, &entry.name), entry.attr);
        }
        Ok(Self(map))
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        let key = BorrowedKey { parent: entry.parent, name: &entry.name };
        let key: &dyn Named = &key;
        self.0.remove(key).map(drop).context("the file to be removed is not there")
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        self.0.insert(Key::new(entry.parent, &entry.name), entry.attr);
        Ok(())
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }
}

impl Local for &Dash {
    type View<'l>
        = Keyed<&'l Dash>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Keyed<&Dash> {
        Keyed(self)
    }
}

impl Get for &Dash {
    #[inline]
    fn get<R>(&self, key: BorrowedKey<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        let key: &dyn Named = &key;
        self.0.get(key).map(|found| read(found.value()))
    }
}

/// The map looks keys up through `Borrow`, which cannot return a key that borrows its name. Both kinds of key
/// can be borrowed as a trait object instead.
trait Named {
    fn named(&self) -> BorrowedKey<'_>;
}

impl Named for Key {
    #[inline]
    fn named(&self) -> BorrowedKey<'_> {
        self.borrowed()
    }
}

impl Named for BorrowedKey<'_> {
    #[inline]
    fn named(&self) -> BorrowedKey<'_> {
        *self
    }
}

impl Hash for dyn Named + '_ {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.named().hash(state);
    }
}

impl PartialEq for dyn Named + '_ {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.named() == other.named()
    }
}

impl Eq for dyn Named + '_ {}

impl<'n> Borrow<dyn Named + 'n> for Key {
    #[inline]
    fn borrow(&self) -> &(dyn Named + 'n) {
        self
    }
}
