//! A position of a walk: a directory, and the walk sequence that it had.

use uvfs_sync::seqcount::GenSeq;

use crate::types::InodeId;

/// A directory (or the start of a walk) as it was when its generation and walk sequence were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pos {
    pub(crate) index: u32,
    pub(crate) stamp: u64,
}

impl Pos {
    /// Which inode.
    #[inline(always)]
    pub fn id(self) -> InodeId {
        InodeId::new(self.index, self.generation())
    }

    #[inline(always)]
    pub(crate) fn generation(self) -> u32 {
        GenSeq::generation_of(self.stamp)
    }
}
