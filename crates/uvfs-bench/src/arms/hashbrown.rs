//! `hashbrown`: a map without any lock, so it cannot change while it is read. A lower bound, not an alternative.

use anyhow::Result;
use hashbrown::HashMap;
use uvfs_cache::Attr;

use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::{Borrowed, Hashing, Key, hashing};
use crate::names::tree::Tree;

/// The map; the arm that puts a lock around it uses the same type.
pub type Map = HashMap<Key, Attr, Hashing>;

/// A map that holds a tree.
pub fn fill(tree: &Tree) -> Map {
    let mut map = Map::with_capacity_and_hasher(tree.entries.len(), hashing());
    for entry in &tree.entries {
        map.insert(Key::new(entry.parent, &entry.name), entry.attr);
    }
    map
}

impl Get for &Map {
    #[inline]
    fn get<R>(&self, key: Borrowed<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        HashMap::get(self, &key).map(read)
    }
}

/// The arm.
#[derive(Debug)]
pub struct NoLock(Map);

impl Table for NoLock {
    type Local<'t> = &'t Map;

    fn build(tree: &Tree, _threads: usize) -> Result<Self> {
        Ok(Self(fill(tree)))
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
