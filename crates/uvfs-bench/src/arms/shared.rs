//! `arc`: entries behind an `Arc`, whose count goes up and down with every lookup. This is the usual way to
//! hand out a value that must outlive the lookup. The map itself has no lock.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Result, bail};
use hashbrown::HashMap;
use uvfs_cache::Attr;

use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::{Borrowed, Hashing, Key, hashing};
use crate::names::tree::Tree;
use crate::names::{Miss, Names, Perm};

type Map = HashMap<Key, Arc<Attr>, Hashing>;

/// The arm.
#[derive(Debug)]
pub struct Shared(Map);

impl Table for Shared {
    type Local<'t> = &'t Self;

    fn build(tree: &Tree, _threads: usize) -> Result<Self> {
        let mut map = Map::with_capacity_and_hasher(tree.entries.len(), hashing());
        for entry in &tree.entries {
            map.insert(Key::new(entry.parent, &entry.name), Arc::new(entry.attr));
        }
        Ok(Self(map))
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }

    fn rename(&self, _dir: u64, _old: &[u8], _new: &[u8]) -> Result<()> {
        bail!("a map without a lock cannot be changed while others read it")
    }
}

impl Local for &Shared {
    type View<'l>
        = Counted<'l>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Counted<'_> {
        Counted { map: &self.0, walk: Keyed(Plain(&self.0)) }
    }
}

/// A view. As in the kernel, the walk passes directories without counting references.
pub struct Counted<'l> {
    map: &'l Map,
    walk: Keyed<Plain<'l>>,
}

/// Lookups without counting.
pub struct Plain<'l>(&'l Map);

impl Get for Plain<'_> {
    #[inline]
    fn get<R>(&self, key: Borrowed<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        self.0.get(&key).map(|attr| read(attr))
    }
}

impl Names for Counted<'_> {
    type At = <Keyed<Plain<'static>> as Names>::At;

    #[inline]
    fn root(&self) -> Result<Self::At, Miss> {
        self.walk.root()
    }

    #[inline]
    fn down(&self, at: Self::At, name: &[u8]) -> Result<Self::At, Miss> {
        self.walk.down(at, name)
    }

    #[inline]
    fn look(&self, at: Self::At, name: &[u8], attr: &mut Attr) -> Result<(), Miss> {
        let found = self.map.get(&at.key(name)).ok_or(Miss::Absent)?;
        // Keeps the compiler from merging clone and drop into nothing.
        let held = black_box(Arc::clone(found));
        *attr = *held;
        if attr.ino == 0 { Err(Miss::Absent) } else { Ok(()) }
    }

    #[inline]
    fn perm(&self, at: Self::At) -> Perm {
        self.walk.perm(at)
    }
}
