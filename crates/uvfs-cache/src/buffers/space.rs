//! The slots of a device's blocks: which are free, which block is in which, and who goes.
//!
//! Slots come in *groups* of 64 KiB of blocks, whose memory is charged to the cache's limit when the group is first used,
//! and given back, and no longer charged, when it has been emptied as a whole. Where the limit stands in the way of another
//! group, a block goes instead: second chance in arena order. A block that was used since the hand came by (uses are noted only
//! while memory is short) stays once more; one that is pinned stays.
//!
//! Everything here is protected by the device's mutex.

use uvfs_sync::blocks::{BlockId, Blocks};

use super::charge::Account;
use super::index::Index;

/// Bytes of a group of blocks.
const GROUP: usize = if cfg!(loom) { 16 } else { 64 << 10 };

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Somebody reads a block for it.
    Taken,
    Block(u64, BlockId),
}

/// What the slots of one device are of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'d> {
    pub(super) blocks: &'d Blocks,
    pub(super) index: &'d Index,
}

impl Parts<'_> {
    /// Ends a block that nobody has pinned.
    fn evict(self, number: u64, id: BlockId) -> bool {
        // The index is cleared second: a reader that finds the entry in between finds a generation that is over.
        let gone = self.blocks.kill(id);
        if gone {
            self.index.remove(number);
        }
        gone
    }
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Space {
    uses: Vec<Use>,
    free: Vec<u32>,
    /// Slots of a group.
    len: u32,
    /// Of each group that was ever used: whether its memory is there.
    there: Vec<bool>,
    /// Groups whose memory was given back.
    returned: Vec<u32>,
    /// Where who evicts a block goes on, and who empties groups.
    hand: u32,
    group_hand: u32,
    /// Blocks that went.
    evicted: u64,
}

impl Space {
    pub(super) fn new(blocks: &Blocks) -> Self {
        let len = (GROUP / blocks.size()).max(1) as u32;
        // Slot 0 is none; where that is a whole group, so is that.
        let none = usize::from(len == 1);
        Self {
            uses: vec![Use::Free; none],
            free: Vec::new(),
            len,
            there: vec![false; none],
            returned: Vec::new(),
            hand: 0,
            group_hand: 0,
            evicted: 0,
        }
    }

    /// Blocks evicted so far.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Whether most slots have been used: uses of blocks are to be noted.
    pub(super) fn is_short(&self, blocks: &Blocks) -> bool {
        self.uses.len() as u32 > blocks.slots() / 4 * 3
    }

    /// How many blocks of these bytes may be read at once: an eighth of what can be, which where the limit stands in the way is what
    /// there is. Others need slots meanwhile.
    pub(super) fn at_once(&self, parts: Parts<'_>, account: &Account, bytes: usize) -> usize {
        let free = account.cache().is_none_or(|cache| cache.may_grow(bytes as u64));
        let slots = if free { parts.blocks.slots() as usize } else { self.uses.len() };
        (bytes / parts.blocks.size()).min(slots / 8).max(1)
    }

    /// Ends some block, whose slot is free then; false: all are pinned.
    pub(super) fn evict(&mut self, parts: Parts<'_>) -> bool {
        let slot = self.evict_one(parts);
        slot.into_iter().for_each(|slot| self.release(slot));
        slot.is_some()
    }

    /// A slot for a block, of which [`Space::enter`] or [`Space::release`] is to be told; `None`: every block is pinned.
    pub(super) fn take(&mut self, parts: Parts<'_>, account: &mut Account) -> Option<u32> {
        if self.free.is_empty() {
            self.add_group(parts, account);
        }
        let slot = self.free.pop().or_else(|| self.evict_one(parts))?;
        self.uses[slot as usize] = Use::Taken;
        Some(slot)
    }

    /// What was taken has this block now.
    pub(super) fn enter(&mut self, slot: u32, number: u64, id: BlockId) {
        self.uses[slot as usize] = Use::Block(number, id);
    }

    /// What was taken is not needed.
    pub(super) fn release(&mut self, slot: u32) {
        self.uses[slot as usize] = Use::Free;
        self.free.push(slot);
    }

    /// The slots of a group. Slot 0 is none.
    fn group(&self, group: u32) -> std::ops::Range<u32> {
        (group * self.len).max(1)..(group + 1) * self.len
    }

    /// Bytes of a group's blocks, and of what is never given back.
    fn bytes(&self, parts: Parts<'_>) -> (u64, u64) {
        let lasting = (Blocks::overhead() + size_of::<Use>()) as u64;
        (u64::from(self.len) * parts.blocks.size() as u64, u64::from(self.len) * lasting)
    }

    fn add_group(&mut self, parts: Parts<'_>, account: &mut Account) {
        let (memory, lasting) = self.bytes(parts);
        let next = self.there.len() as u32;
        let group = self.returned.last().copied().unwrap_or(next);
        let slots = self.group(group);
        let slots = slots.start..slots.end.min(parts.blocks.slots());
        let bytes = memory + if group == next { lasting } else { 0 };
        if slots.is_empty() || account.cache().is_some_and(|cache| !cache.may_grow(bytes)) {
            return;
        }
        account.add(bytes);
        if group == next {
            self.there.push(true);
            self.uses.resize(slots.end as usize, Use::Free);
        } else {
            self.returned.pop();
            self.there[group as usize] = true;
        }
        // Popped from the end: neighbours in time are neighbours in memory.
        self.free.extend(slots.rev());
    }

    fn evict_one(&mut self, parts: Parts<'_>) -> Option<u32> {
        let slots = self.uses.len() as u32;
        for _ in 0..2 * slots {
            let slot = self.hand % slots;
            self.hand = slot + 1;
            if let Use::Block(number, id) = self.uses[slot as usize]
                && !parts.blocks.take_mark(slot)
                && parts.evict(number, id)
            {
                self.evicted += 1;
                return Some(slot);
            }
        }
        None
    }

    /// Empty groups and give their memory back until so many bytes are, those first of which nothing was used of
    /// late; how many it became. O(slots).
    pub(super) fn reclaim(&mut self, parts: Parts<'_>, account: &mut Account, bytes: u64) -> u64 {
        let (memory, _) = self.bytes(parts);
        let (mut emptied, groups) = (Vec::new(), self.there.len() as u32);
        for turn in 0..2 * groups {
            if emptied.len() as u64 * memory >= bytes {
                break;
            }
            let group = self.group_hand % groups;
            self.group_hand = group + 1;
            if self.there[group as usize] && self.empty(parts, group, turn >= groups) {
                self.there[group as usize] = false;
                emptied.push(group);
            }
        }
        emptied.sort_unstable();
        let len = self.len;
        self.free.retain(|slot| emptied.binary_search(&(slot / len)).is_err());
        let given = emptied.into_iter().filter(|group| self.give_back(parts, account, *group)).count();
        given as u64 * memory
    }

    /// Whether an empty group's memory could be given back. Locked memory, for one, cannot: it stays charged, and in use.
    fn give_back(&mut self, parts: Parts<'_>, account: &mut Account, group: u32) -> bool {
        let slots = self.group(group);
        let slots = slots.start..slots.end.min(parts.blocks.slots());
        // From the group's first byte on, also where that is slot 0's.
        let given = parts.blocks.give_back(group * self.len, slots.end).is_ok();
        if given {
            account.sub(self.bytes(parts).0);
            self.returned.push(group);
        } else {
            self.there[group as usize] = true;
            self.free.extend(slots.rev());
        }
        given
    }

    /// End all blocks of a group, unless one of them is pinned or (but where `used_too`) was used of late. Whether nothing is
    /// in use there.
    fn empty(&mut self, parts: Parts<'_>, group: u32, used_too: bool) -> bool {
        let stays = |slot: u32| match self.uses[slot as usize] {
            Use::Free => false,
            Use::Taken => true,
            Use::Block(_, id) => parts.blocks.is_pinned(id) || (parts.blocks.take_mark(slot) && !used_too),
        };
        let slots = self.group(group).start..self.group(group).end.min(self.uses.len() as u32);
        if slots.clone().any(stays) {
            return false;
        }
        for slot in slots {
            if let Use::Block(number, id) = self.uses[slot as usize] {
                if !parts.evict(number, id) {
                    return false;
                }
                self.evicted += 1;
                self.release(slot);
            }
        }
        true
    }
}
