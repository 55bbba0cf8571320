//! Names that stay only because a front end's kernel holds their inodes.
//!
//! A front end that needs memory asks its kernel to forget some of them, and evicts them afterwards
//! ([`Cache::balance_after`]). The search takes no lock and no reference, so its result is only a hint.

use uvfs_sync::primitives::Ordering;

use crate::cache::{Cache, is_dir};
use crate::superblock::Hand;
use crate::types::{InodeId, SbId};

/// Leaves that a front end's kernel holds, and the number of other names that could go.
#[derive(Clone, Debug, Default)]
pub struct HeldByKernel {
    /// Inodes that only their name and the kernel hold.
    pub leaves: Vec<Leaf>,
    /// Names met on the way that could be evicted as they are.
    pub evictable: usize,
}

/// One leaf of [`HeldByKernel`].
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The inode.
    pub id: InodeId,
    pub(crate) sb: SbId,
    /// The slot where its name was.
    pub(crate) dentry: u32,
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Look at some names of a superblock, cyclically in arena order. Returns up to `max` inodes that could
    /// be evicted if the kernel forgot them, and how many could be at once. Looks at no more than `pieces`
    /// of 64 names.
    pub fn held_by_kernel(&self, sb: SbId, max: usize, pieces: u64) -> HeldByKernel {
        let superblock = self.superblock(sb);
        let mut held = HeldByKernel::default();
        for _ in 0..superblock.dentries().spans().min(pieces) {
            if held.leaves.len() >= max {
                break;
            }
            let Some((from, to)) = superblock.next_span(Hand::Kernel) else { break };
            (from..to).for_each(|dentry| self.look_at_holder(sb, dentry, &mut held));
        }
        held
    }

    fn look_at_holder(&self, sb: SbId, dentry: u32, held: &mut HeldByKernel) {
        let d = self.dentries.get(dentry);
        let inode = d.inode.load(Ordering::Relaxed);
        if d.len() == 0 || inode == 0 {
            return;
        }
        // Only a hint: the kernel is asked in vain to forget an inode that is wrongly taken for a leaf.
        let private = self.inodes.private(inode);
        let id = InodeId::new(inode, private.refs.generation());
        match private.refs.count() {
            1 => held.evictable += 1,
            2 if private.nlookup.load(Ordering::Relaxed) != 0 => held.leaves.push(Leaf { id, sb, dentry }),
            _ => {}
        }
    }

    /// Directory and name of a leaf that is no directory; `None` if it now has another name, or none.
    pub(crate) fn name_of(&self, leaf: &Leaf) -> Option<(InodeId, Vec<u8>)> {
        let seen = self.see(leaf.dentry).filter(|seen| seen.inode == leaf.id.index())?;
        let inode = self.get(leaf.id).filter(|inode| !is_dir(inode.fmt()))?;
        drop(inode);
        let dir = InodeId::new(seen.parent, self.inodes.private(seen.parent).refs.generation());
        Some((dir, seen.name[..seen.len].to_vec()))
    }
}
