//! The slots of a device's blocks: free slots, their blocks, and eviction.
//!
//! Slots come in *groups* of 64 KiB of blocks. A group's memory is charged to the cache's limit when the
//! group is first used. When the whole group has been emptied, its memory is returned and no longer
//! charged. If the limit forbids another group, a block goes instead: second chance in arena order. A block
//! that was used since the hand last passed stays once more (uses are noted only while memory is short). A
//! pinned block stays.
//!
//! The device's mutex protects everything here.

use uvfs_sync::pinned_blocks::{BlockId, Blocks};

use super::block_tree::Index;
use super::memory_share::Account;

/// Bytes of a group of blocks.
const GROUP: usize = if cfg!(loom) { 16 } else { 64 << 10 };

/// Use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// A thread reads a block for it.
    Taken,
    Block(u64, BlockId),
}

/// The parts of a device that its slots belong to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'d> {
    pub(super) blocks: &'d Blocks,
    pub(super) index: &'d Index,
}

impl Parts<'_> {
    /// End a block that nobody has pinned.
    fn evict(self, number: u64, id: BlockId) -> bool {
        // The index is cleared second: a reader that finds the entry in between finds an ended generation.
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
    /// For each group that was ever used: whether its memory is there.
    there: Vec<bool>,
    /// Groups whose memory was given back.
    returned: Vec<u32>,
    /// Hands: the slot at which the next eviction continues, and the group at which the next emptying does.
    hand: u32,
    group_hand: u32,
    /// Blocks evicted.
    evicted: u64,
}

impl Space {
    pub(super) fn new(blocks: &Blocks) -> Self {
        let len = (GROUP / blocks.size()).max(1) as u32;
        // Slot 0 is never used; if it is a whole group, that group is not used either.
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

    /// Whether most slots have been used, so that uses of blocks are to be noted.
    pub(super) fn is_short(&self, blocks: &Blocks) -> bool {
        self.uses.len() as u32 > blocks.slots() / 4 * 3
    }

    /// How many blocks of these bytes may be read at once: an eighth of all possible slots, or of the
    /// existing ones if the limit forbids more. Other readers need slots meanwhile.
    pub(super) fn at_once(&self, parts: Parts<'_>, account: &Account, bytes: usize) -> usize {
        let free = account.budget().is_none_or(|budget| budget.may_grow(bytes as u64));
        let slots = if free { parts.blocks.slots() as usize } else { self.uses.len() };
        (bytes / parts.blocks.size()).min(slots / 8).max(1)
    }

    /// End some block, whose slot is then free; false: all are pinned.
    pub(super) fn evict(&mut self, parts: Parts<'_>) -> bool {
        let slot = self.evict_one(parts);
        slot.into_iter().for_each(|slot| self.release(slot));
        slot.is_some()
    }

    /// A slot for a block; the caller must follow with [`Space::enter`] or [`Space::release`]. `None`:
    /// every block is pinned.
    pub(super) fn take(&mut self, parts: Parts<'_>, account: &mut Account) -> Option<u32> {
        if self.free.is_empty() {
            self.add_group(parts, account);
        }
        let slot = self.free.pop().or_else(|| self.evict_one(parts))?;
        self.uses[slot as usize] = Use::Taken;
        Some(slot)
    }

    /// A taken slot has this block now.
    pub(super) fn enter(&mut self, slot: u32, number: u64, id: BlockId) {
        self.uses[slot as usize] = Use::Block(number, id);
    }

    /// A taken slot is not needed.
    pub(super) fn release(&mut self, slot: u32) {
        self.uses[slot as usize] = Use::Free;
        self.free.push(slot);
    }

    /// The slots of a group. Slot 0 is never used.
    fn group(&self, group: u32) -> std::ops::Range<u32> {
        (group * self.len).max(1)..(group + 1) * self.len
    }

    /// Bytes of a group's blocks, and bytes that are never returned.
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
        if slots.is_empty() || account.budget().is_some_and(|budget| !budget.may_grow(bytes)) {
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

    /// Empty groups and return their memory until `bytes` are returned, first groups without a recently
    /// used block. Returns how many bytes were returned. O(slots).
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

    /// Whether an empty group's memory could be returned. Locked memory, for one, cannot: it stays charged,
    /// and in use.
    fn give_back(&mut self, parts: Parts<'_>, account: &mut Account, group: u32) -> bool {
        let slots = self.group(group);
        let slots = slots.start..slots.end.min(parts.blocks.slots());
        // From the group's first byte on, even if that is slot 0's.
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

    /// End all blocks of a group, unless one of them is pinned or (without `used_too`) was used lately.
    /// Returns whether no slot of it is in use any more.
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
