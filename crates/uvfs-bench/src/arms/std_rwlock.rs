//! `std-rwlock`: `std::sync::RwLock` around a hash map, read-locked once per operation.
//!
//! The map is hashbrown's. The standard library's map is the same one, but hashbrown's accepts a borrowed key.

use std::sync::PoisonError;
#[expect(clippy::disallowed_types, reason = "it is what is measured here")]
use std::sync::{RwLock, RwLockReadGuard};

use anyhow::Result;
use uvfs_cache::Attr;

use crate::arms::hashbrown::{self, Map, fill};
use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::BorrowedKey;
use crate::names::tree::{NameTree, TreeEntry};

/// The arm.
#[derive(Debug)]
#[expect(clippy::disallowed_types, reason = "it is what is measured here")]
pub struct StdRwLock(RwLock<Map>);

impl Table for StdRwLock {
    type Local<'t> = &'t Self;

    #[expect(clippy::disallowed_types, reason = "it is what is measured here")]
    fn build(tree: &NameTree, _threads: usize) -> Result<Self> {
        Ok(Self(RwLock::new(fill(tree))))
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        hashbrown::remove(self.0.get_mut().unwrap_or_else(PoisonError::into_inner), entry)
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        hashbrown::create(self.0.get_mut().unwrap_or_else(PoisonError::into_inner), entry);
        Ok(())
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }
}

impl Local for &StdRwLock {
    type View<'l>
        = Keyed<RwLockReadGuard<'l, Map>>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Self::View<'_> {
        Keyed(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Get for RwLockReadGuard<'_, Map> {
    #[inline]
    fn get<R>(&self, key: BorrowedKey<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        Map::get(self, &key).map(read)
    }
}
