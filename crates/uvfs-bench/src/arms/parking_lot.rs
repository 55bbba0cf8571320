//! `parking-lot`: `parking_lot::RwLock` around a hash map, read-locked once per operation.

use anyhow::Result;
use parking_lot::{RwLock, RwLockReadGuard};
use uvfs_cache::Attr;

use crate::arms::hashbrown::{Map, fill, rename};
use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::Borrowed;
use crate::names::tree::Tree;

/// The arm.
#[derive(Debug)]
pub struct ParkingLot(RwLock<Map>);

impl Table for ParkingLot {
    type Local<'t> = &'t Self;

    fn build(tree: &Tree, _threads: usize) -> Result<Self> {
        Ok(Self(RwLock::new(fill(tree))))
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }

    fn rename(&self, dir: u64, old: &[u8], new: &[u8]) -> Result<()> {
        rename(&mut self.0.write(), dir, old, new)
    }
}

impl Local for &ParkingLot {
    type View<'l>
        = Keyed<RwLockReadGuard<'l, Map>>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Self::View<'_> {
        Keyed(self.0.read())
    }
}

impl Get for RwLockReadGuard<'_, Map> {
    #[inline]
    fn get<R>(&self, key: Borrowed<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        Map::get(self, &key).map(read)
    }
}
