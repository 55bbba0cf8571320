//! Slots of dentries within the memory limit, and their return to the superblock that owns them.

use super::dentry::NameWords;
use super::dentry_slots::DENTRY_CHUNK;
use crate::cache::Cache;
use crate::types::{CacheError, SbId};

impl Cache {
    pub(crate) fn alloc_dentry(&self, sb: SbId) -> Result<u32, CacheError> {
        let slab = self.superblock(sb).dentries();
        let dentry = self.with_room(sb, || self.dentries.take(slab, &|| self.may_grow(DENTRY_CHUNK)))?;
        self.took(sb, dentry);
        Ok(dentry)
    }

    /// Memory that a name needs beside its dentry: the tail of a long name, filled; 0 if the name needs
    /// none. Every dentry gets its name after this call.
    ///
    /// # Errors
    /// `NoMemory`; `Name`.
    pub(crate) fn alloc_tail(&self, sb: SbId, words: &NameWords<'_>) -> Result<u32, CacheError> {
        if words.is_none() {
            return Err(CacheError::Name);
        }
        self.with_room(sb, || self.dentries.take_tail(words, &|bytes| self.may_grow(bytes)))
    }

    /// The only way to give back a dentry slot and its tail (0: none). Both go to the superblock that owns
    /// the slot, which is not always the superblock of the directory at hand (design rule 18). A negative
    /// entry does not hold its directory, so another superblock may have taken the directory's index since.
    pub(crate) fn free_dentry(&self, dentry: u32, tail: u32) {
        self.dentries.free_tail(tail);
        if self.dentries.free(dentry, |owner| self.owner(owner).dentries()) {
            self.trim_ended(self.dentries.owner(dentry));
        }
    }
}
