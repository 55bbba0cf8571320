//! Counting references to inodes: in the inode's word, or per thread while many threads use it.
//!
//! A put is counted where the inode's references are counted now, wherever the reference was taken. The
//! reference of the inode's name (its *anchor*) vouches for the others while they are spread. Once it goes,
//! all are counted in the word, so that the last put is noticed. Each method that can put the last
//! reference says so; the caller then ends the inode's generation.
//!
//! Nothing here is locked, but gathering spread references takes the mutex of their table, a leaf.

use uvfs_sync::lockref::{Got, LockRef};
use uvfs_sync::percpu_ref::{self, Place};
use uvfs_sync::primitives::AtomicU32;

use super::inode_slots::Inodes;
use crate::types::InodeId;

impl percpu_ref::CountedObjects for Inodes {
    fn refs(&self, index: u32) -> &LockRef {
        &self.private(index).refs
    }
    fn place(&self, index: u32) -> &AtomicU32 {
        &self.private(index).place
    }
}

impl Inodes {
    /// Take a reference by id; false if that generation is over.
    #[inline]
    pub(crate) fn hold(&self, id: InodeId) -> bool {
        if !self.is_slot(id.index()) {
            return false;
        }
        let place = Place::of(&self.private(id.index()).place);
        // If the per-thread reference slot is this generation's, it remains so while the generation lasts.
        !place.is_none() && self.percpu.get(place, id.as_u64()) || self.hold_here(id)
    }

    /// Take a reference that is counted in the inode's word; false if the generation is over.
    #[inline(never)]
    fn hold_here(&self, id: InodeId) -> bool {
        let refs = &self.private(id.index()).refs;
        match refs.get_watched(id.generation()) {
            Got::Dead => false,
            got @ (Got::Yes | Got::Contended) => {
                if percpu_ref::often(id.as_u64(), got == Got::Contended) {
                    self.percpu.spread(self, id.as_u64());
                }
                true
            }
            // The references are being gathered, or this thread has no line.
            Got::Spread => {
                let got = refs.get_generation(id.generation());
                self.counted_here(id.index());
                got
            }
        }
    }

    /// Take another reference to an inode to which the caller holds one.
    #[inline]
    pub(crate) fn hold_again(&self, id: InodeId) {
        let private = self.private(id.index());
        let place = Place::of(&private.place);
        if place.is_none() {
            private.refs.get_held();
        } else if !self.percpu.get(place, id.as_u64()) {
            self.counted_here(id.index());
            private.refs.get_held();
        }
    }

    /// Take a reference to whatever inode lives in a slot; returns its generation. It is counted in the
    /// inode's word, and not noted as a sign of frequent use.
    pub(crate) fn hold_any(&self, index: u32) -> Option<u32> {
        let private = self.private(index);
        let generation = private.refs.generation();
        if !private.refs.get_generation(generation) {
            return None;
        }
        if !Place::of(&private.place).is_none() {
            self.counted_here(index);
        }
        Some(generation)
    }

    /// Drop a reference; whether it was the last one.
    #[inline]
    pub(crate) fn put(&self, index: u32) -> bool {
        let private = self.private(index);
        let place = Place::of(&private.place);
        if place.is_none() {
            return private.refs.put();
        }
        let id = InodeId::new(index, private.refs.generation());
        !self.percpu.put(place, id.as_u64()) && self.put_here(index)
    }

    /// Drop a reference that could not be counted per thread.
    #[cold]
    #[inline(never)]
    fn put_here(&self, index: u32) -> bool {
        self.counted_here(index);
        self.private(index).refs.put()
    }

    /// Drop the reference of a name (or of a superblock to its root), which vouched for the inode; whether
    /// it was the last one. From now on all others are counted in the inode's word, so that the last put is
    /// noticed. The caller holds no lock.
    pub(crate) fn put_anchor(&self, index: u32) -> bool {
        let refs = &self.private(index).refs;
        // If nothing is spread, all references are counted in the word, even if the inode has a per-thread
        // reference slot.
        if let Some(last) = refs.put_anchor() {
            return last;
        }
        if refs.unanchor() {
            self.gather(index);
        }
        self.put(index)
    }

    /// Count all references to an inode in its word, for now.
    pub(crate) fn gather(&self, index: u32) {
        self.percpu.gather(self, index);
    }

    /// Inodes whose references are counted per thread.
    pub(crate) fn spread(&self) -> u64 {
        self.percpu.in_use()
    }

    /// A reference is counted in the word of an inode although the inode has a per-thread reference slot.
    #[cold]
    fn counted_here(&self, index: u32) {
        self.percpu.elsewhere(self, index);
    }
}
