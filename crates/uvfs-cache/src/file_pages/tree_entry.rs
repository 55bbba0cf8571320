//! One word of the tree: empty, a page, or a node with its level.
//!
//! A node of level 1 holds pages, one of level n + 1 nodes of level n. Plain values.

use uvfs_sync::page_frames::FrameId;

/// Bits of the index that one node resolves. One under loom, which counts every access.
const FAN_BITS: u32 = if cfg!(loom) { 1 } else { 6 };
/// Entries of a node.
pub(super) const FAN: usize = 1 << FAN_BITS;
/// Bits of an index. Ten levels, so that a level fits into its four bits.
const INDEX_BITS: u32 = 10 * FAN_BITS;
/// Largest page index: 2^60 - 1.
pub const MAX_INDEX: u64 = (1 << INDEX_BITS) - 1;

const LEVEL_SHIFT: u32 = 60;

/// Level above frame; 0 is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(u64);

impl Entry {
    pub(super) const EMPTY: Self = Self(0);

    pub(super) fn new(level: u32, frame: FrameId) -> Self {
        Self(u64::from(level) << LEVEL_SHIFT | frame.to_bits())
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn is_node(self) -> bool {
        self.level() != 0
    }

    pub(super) fn level(self) -> u32 {
        (self.0 >> LEVEL_SHIFT) as u32
    }

    pub(super) fn frame(self) -> FrameId {
        FrameId::from_bits(self.0)
    }

    /// The entry's page, if it is one.
    pub(super) fn page(self) -> Option<FrameId> {
        (!self.is_empty() && !self.is_node()).then(|| self.frame())
    }

    /// Whether a root like this has room for `index`; an empty one never has.
    pub(super) fn covers(self, index: u64) -> bool {
        !self.is_empty() && index >> (FAN_BITS * self.level()) == 0
    }

    /// The slot of this node that leads to `index`.
    pub(super) fn slot(self, index: u64) -> usize {
        slot_at(self.level(), index)
    }

    /// How many indices one slot of this node covers.
    pub(super) fn span(self) -> u64 {
        1 << (FAN_BITS * (self.level() - 1))
    }
}

/// The slot of a node of `level` that leads to `index`.
pub(super) fn slot_at(level: u32, index: u64) -> usize {
    (index >> (FAN_BITS * (level - 1))) as usize % FAN
}

/// The lowest level of a root that covers `index`.
pub(super) fn level_for(index: u64) -> u32 {
    (u64::BITS - index.leading_zeros()).div_ceil(FAN_BITS)
}
