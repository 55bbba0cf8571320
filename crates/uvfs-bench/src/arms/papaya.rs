//! `papaya`: a lock-free map, pinned once per operation as its documentation advises.

use anyhow::{Context as _, Result};
use papaya::{HashMap, HashMapRef, LocalGuard};
use uvfs_cache::Attr;

use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::{BorrowedKey, Hashing, Key, hashing};
use crate::names::tree::{NameTree, TreeEntry};

/// The arm.
#[derive(Debug)]
pub struct Papaya(HashMap<Key, Attr, Hashing>);

impl Table for Papaya {
    type Local<'t> = &'t Self;

    fn build(tree: &NameTree, _threads: usize) -> Result<Self> {
        let map = HashMap::builder().capacity(tree.entries.len()).hasher(hashing()).build();
        let pinned = map.pin();
        for entry in &tree.entries {
            pinned.insert(Key::new(entry.parent, &entry.name), entry.attr);
        }
        drop(pinned);
        Ok(Self(map))
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        let pinned = self.0.pin();
        let removed = pinned.remove(&BorrowedKey { parent: entry.parent, name: &entry.name });
        removed.map(drop).context("the file to be removed is not there")
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        self.0.pin().insert(Key::new(entry.parent, &entry.name), entry.attr);
        Ok(())
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }
}

type Pinned<'l> = HashMapRef<'l, Key, Attr, Hashing, LocalGuard<'l>>;

impl Local for &Papaya {
    type View<'l>
        = Keyed<Pinned<'l>>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Self::View<'_> {
        Keyed(self.0.pin())
    }
}

impl Get for Pinned<'_> {
    #[inline]
    fn get<R>(&self, key: BorrowedKey<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        HashMapRef::get(self, &key).map(read)
    }
}
