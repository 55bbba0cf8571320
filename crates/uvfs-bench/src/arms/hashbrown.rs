//! `hashbrown`: a map without any lock, so it cannot change while it is read. A lower bound, not an alternative.

use anyhow::{Result, bail};
use hashbrown::HashMap;
use uvfs_cache::Attr;

use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::{Borrowed, Hashing, Key, hashing};
use crate::names::tree::Tree;

/// The map; the arms that put a lock around it use the same type.
pub type Map = HashMap<Key, Attr, Hashing>;

/// A map that holds a tree.
pub fn fill(tree: &Tree) -> Map {
    let mut map = Map::with_capacity_and_hasher(tree.entries.len(), hashing());
    for entry in &tree.entries {
        map.insert(Key::new(entry.parent, &entry.name), entry.attr);
    }
    map
}

/// Renames an entry. The caller has exclusive access to the map.
///
/// # Errors
/// If the old name does not exist.
pub fn rename(map: &mut Map, dir: u64, old: &[u8], new: &[u8]) -> Result<()> {
    match map.remove(&Borrowed { parent: dir, name: old }) {
        Some(attr) => drop(map.insert(Key::new(dir, new), attr)),
        None => bail!("the name to be renamed is not there"),
    }
    Ok(())
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

    fn rename(&self, _dir: u64, _old: &[u8], _new: &[u8]) -> Result<()> {
        bail!("a map without a lock cannot be changed while others read it")
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
