//! `hashbrown`: a map without any lock, so it cannot change while it is read. A lower bound, not an alternative.

use anyhow::{Context as _, Result};
use hashbrown::HashMap;
use uvfs_cache::Attr;

use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::{BorrowedKey, Hashing, Key, hashing};
use crate::names::tree::{NameTree, TreeEntry};

/// The map; the arm that puts a lock around it uses the same type.
pub type Map = HashMap<Key, Attr, Hashing>;

/// A map that holds a tree.
pub fn fill(tree: &NameTree) -> Map {
    let mut map = Map::with_capacity_and_hasher(tree.entries.len(), hashing());
    for entry in &tree.entries {
        create(&mut map, entry);
    }
    map
}

/// Removes a file from a map.
///
/// # Errors
/// If the file is not there.
pub fn remove(map: &mut Map, entry: &TreeEntry) -> Result<()> {
    let removed = map.remove(&BorrowedKey { parent: entry.parent, name: &entry.name });
    removed.map(drop).context("the file to be removed is not there")
}

/// Adds a file to a map.
pub fn create(map: &mut Map, entry: &TreeEntry) {
    map.insert(Key::new(entry.parent, &entry.name), entry.attr);
}

impl Get for &Map {
    #[inline]
    fn get<R>(&self, key: BorrowedKey<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        HashMap::get(self, &key).map(read)
    }
}

/// The arm.
#[derive(Debug)]
pub struct NoLock(Map);

impl Table for NoLock {
    type Local<'t> = &'t Map;

    fn build(tree: &NameTree, _threads: usize) -> Result<Self> {
        Ok(Self(fill(tree)))
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        remove(&mut self.0, entry)
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        create(&mut self.0, entry);
        Ok(())
    }

    fn local(&self, _thread: usize) -> &Map {
        &self.0
    }
}

impl Local for &Map {
    type View<'l>
        = Keyed<&'l Map>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Keyed<&Map> {
        Keyed(self)
    }
}
