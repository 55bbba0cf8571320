//! The two halves of an inode.
//!
//! **Published** (64 bytes, one line): what `stat` reports and a walk checks. Written only when it
//! really changes, under the inode's lock bit, inside `seq`; a reader copies and checks.
//! For a directory the upper half of the size is its *walk sequence* instead (next to the generation, so that
//! one word tells both): it moves when the
//! name, parent, mode, owner or liveness of the directory changes, and is all that a walk through
//! it checks, so that creating a file in a directory (mtime, size, nlink) disturbs nobody who
//! walks through it.
//!
//! **Private** (56 bytes): what changes while the inode is in use: the reference word, the front
//! end's lookup count, the driver's value, the block count of files whose blocks do not follow from
//! their size.
//!
//! Nothing outside the cache's own modules touches a half; [`crate::inode_ref`] is the handle.

use uvfs_sync::lockref::LockRef;
use uvfs_sync::primitives::{AtomicU32, AtomicU64, Ordering};
use uvfs_sync::seqcount::{GenSeq, SeqCount};
use uvfs_sync::slot;

use crate::attr::{Attr, Time, mode};
use crate::types::SbId;

/// The slot is an inode that lives.
pub(crate) const LIVE: u32 = 1 << 16;
/// A directory that was removed.
pub(crate) const DEAD: u32 = 1 << 17;
/// The root of its superblock.
pub(crate) const ROOT: u32 = 1 << 18;
/// `blocks` is not `size` rounded up: it stands in the private half.
const ODD_BLOCKS: u32 = 1 << 19;
/// What stands here may not be so any more: see `stale.rs`.
const STALE: u32 = 1 << 24;
/// There is an access control list.
const ACL: u32 = 1 << 20;
const MODE: u32 = 0xffff;

slot! {
/// What a hit reads.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Published {
    /// Attribute sequence.
    pub seq: SeqCount,
    /// Size, or device number of a device.
    low: AtomicU32,
    ino: AtomicU64,
    /// Generation of the slot (it is also in the private half's reference word). Below it the upper half
    /// of the size; of a directory the walk sequence.
    stamp: GenSeq,
    /// Mode in the low half, flags above.
    mode: AtomicU32,
    nlink: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    times: [AtomicU64; 3],
}
}

slot! {
/// What changes while the inode is in use.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Private {
    /// References, lock bits, generation.
    pub refs: LockRef,
    /// Where references are counted per thread, if they are: read whenever `refs` is changed.
    pub place: AtomicU32,
    /// Hash in the inode table (superblocks that are not resident).
    pub hash: AtomicU32,
    /// References that a front end's kernel holds (FUSE nlookup); non-zero owns one of `refs`.
    pub nlookup: AtomicU64,
    /// The driver's value.
    pub value: AtomicU64,
    blocks: AtomicU64,
    /// Index + 1 of the directory state.
    pub dir: AtomicU32,
    /// A directory's one dentry; of a symbolic link the slot of its kept target. 0: none.
    pub alias: AtomicU32,
    /// Superblock, and [`RESIDENT`].
    pub sb: AtomicU32,
    /// Until when the attributes are believed.
    pub deadline: AtomicU32,
}
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Published>() == 64 && size_of::<Private>() == 56);

/// Beside the superblock's number: the superblock is resident. (Its inodes are never compared by their superblock.)
const RESIDENT: u32 = 1 << 31;

impl Private {
    /// The superblock; stays what it is for the whole of a generation.
    #[inline(always)]
    pub(crate) fn sb_id(&self) -> SbId {
        SbId(self.sb.load(Ordering::Relaxed) as u16)
    }

    /// Whether the superblock is resident, without a look at it.
    #[inline(always)]
    pub(crate) fn is_resident(&self) -> bool {
        self.sb.load(Ordering::Relaxed) & RESIDENT != 0
    }

    /// Before a generation begins.
    pub(crate) fn set_sb(&self, sb: SbId, resident: bool) {
        self.sb.store(u32::from(sb.0) | if resident { RESIDENT } else { 0 }, Ordering::Relaxed);
    }
}

/// Permission bits and owner, as a walk checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perm {
    /// Type and permission bits, and [`Perm::ACL`].
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Perm {
    /// The bit of `mode` which says that there is an access control list. It stands where the published
    /// half has it, so that a walk tests it in the word that it has loaded anyway.
    pub const ACL: u32 = ACL;
}

impl From<&Attr> for Perm {
    fn from(attr: &Attr) -> Self {
        let list = if attr.acl { Self::ACL } else { 0 };
        Self { mode: attr.mode & MODE | list, uid: attr.uid, gid: attr.gid }
    }
}

fn plain_blocks(size: u64) -> u64 {
    size.div_ceil(4096) * 8
}

impl Published {
    /// Mode and flags.
    #[inline(always)]
    pub(crate) fn mode_and_flags(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// Whether the attributes are suspect.
    #[inline(always)]
    pub(crate) fn is_stale(&self) -> bool {
        self.mode_and_flags() & STALE != 0
    }

    /// Under the inode's lock: the attributes are suspect. Both sequences move, also where they were suspect already:
    /// an answer that was asked for before is late, and who has come through the directory looks again.
    pub(crate) fn mark_stale(&self) {
        let word = self.mode.load(Ordering::Relaxed);
        let store = || self.seq.write(|| self.mode.store(word | STALE, Ordering::Relaxed));
        if word & mode::S_IFMT == mode::S_IFDIR { self.stamp.write(store) } else { store() }
    }

    /// Under the inode's lock: the attributes are what the driver says.
    pub(crate) fn believe(&self) {
        let word = self.mode.load(Ordering::Relaxed);
        if word & STALE != 0 {
            self.seq.write(|| self.mode.store(word & !STALE, Ordering::Relaxed));
        }
    }

    #[inline(always)]
    pub(crate) fn ino(&self) -> u64 {
        self.ino.load(Ordering::Relaxed)
    }

    /// Generation and, of a directory, walk sequence.
    #[inline(always)]
    pub(crate) fn stamp(&self) -> &GenSeq {
        &self.stamp
    }

    /// Generation of the slot.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        self.stamp.halves().0
    }

    #[inline]
    pub(crate) fn perm(&self) -> Perm {
        Perm {
            mode: self.mode.load(Ordering::Relaxed) & (MODE | ACL),
            uid: self.uid.load(Ordering::Relaxed),
            gid: self.gid.load(Ordering::Relaxed),
        }
    }

    /// Copy the attributes; one moment's truth only between `seq.begin` and `seq.check`, or under
    /// the inode's lock.
    #[inline(always)]
    pub(crate) fn copy<'p>(&self, private: impl FnOnce() -> &'p Private) -> Attr {
        let word = self.mode.load(Ordering::Relaxed);
        let low = self.low.load(Ordering::Relaxed);
        let time = |i: usize| Time::unpack(self.times[i].load(Ordering::Relaxed));
        let (mut size, mut rdev) = (u64::from(low), 0);
        match word & mode::S_IFMT {
            mode::S_IFDIR => {}
            mode::S_IFCHR | mode::S_IFBLK => (size, rdev) = (0, low),
            _ => size |= u64::from(self.stamp.halves().1) << 32,
        }
        let odd = word & ODD_BLOCKS != 0;
        Attr {
            ino: self.ino.load(Ordering::Relaxed),
            mode: word & MODE,
            nlink: self.nlink.load(Ordering::Relaxed),
            uid: self.uid.load(Ordering::Relaxed),
            gid: self.gid.load(Ordering::Relaxed),
            rdev,
            size,
            blocks: if odd { private().blocks.load(Ordering::Relaxed) } else { plain_blocks(size) },
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            acl: word & ACL != 0,
        }
    }

    /// Store what differs from `old`, which stands here (or everything where that is `None`); inside `seq.write`, under the
    /// lock, or before the slot is found. Inlined where the change is made, with it: of what it leaves alone nothing is
    /// compared (most move a time or two).
    #[inline(always)]
    fn store(&self, private: &Private, old: Option<&Attr>, attr: &Attr) {
        let mut flags = self.mode.load(Ordering::Relaxed) & !(MODE | ODD_BLOCKS | ACL);
        // To a model checker each store is one more value that a reader may see: models leave out those that change nothing.
        let put = |word: &AtomicU32, old: Option<u32>, v: u32| {
            if old != Some(v) && !(cfg!(loom) && word.load(Ordering::Relaxed) == v) {
                word.store(v, Ordering::Relaxed);
            }
        };
        let size = match attr.mode & mode::S_IFMT {
            mode::S_IFDIR => u64::from(attr.size.min(u64::from(u32::MAX)) as u32),
            mode::S_IFCHR | mode::S_IFBLK => u64::from(attr.rdev),
            _ => {
                let (generation, high) = self.stamp.halves();
                if high != (attr.size >> 32) as u32 {
                    self.stamp.set(generation, (attr.size >> 32) as u32);
                }
                attr.size
            }
        };
        put(&self.low, None, size as u32);
        if attr.blocks != plain_blocks(if attr.is_device() { 0 } else { size }) {
            flags |= ODD_BLOCKS;
            private.blocks.store(attr.blocks, Ordering::Relaxed);
        }
        if attr.acl {
            flags |= ACL;
        }
        put(&self.nlink, old.map(|old| old.nlink), attr.nlink);
        put(&self.uid, old.map(|old| old.uid), attr.uid);
        put(&self.gid, old.map(|old| old.gid), attr.gid);
        put(&self.mode, None, attr.mode & MODE | flags);
        let put = |word: &AtomicU64, old: Option<Time>, t: Time| {
            if old != Some(t) && !(cfg!(loom) && word.load(Ordering::Relaxed) == t.pack()) {
                word.store(t.pack(), Ordering::Relaxed);
            }
        };
        put(&self.times[0], old.map(|old| old.atime), attr.atime);
        put(&self.times[1], old.map(|old| old.mtime), attr.mtime);
        put(&self.times[2], old.map(|old| old.ctime), attr.ctime);
    }

    /// Begin a generation in a slot that nobody can find. Its last generation's readers are sent away by the
    /// attribute sequence and by the generation.
    pub(crate) fn fill(&self, private: &Private, generation: u32, attr: &Attr, flags: u32) {
        self.seq.write(|| {
            // The last generation's end has moved a directory's sequence; it goes on from there.
            self.stamp.set(generation, self.stamp.halves().1 & !1);
            self.mode.store(LIVE | flags, Ordering::Relaxed);
            self.ino.store(attr.ino, Ordering::Relaxed);
            self.store(private, None, attr);
        });
    }

    /// Change the attributes under the inode's lock. The walk sequence moves only if permissions
    /// did.
    #[inline(always)]
    pub(crate) fn change(&self, private: &Private, old: &Attr, new: &Attr) {
        let permissions = Perm::from(old) != Perm::from(new);
        if new.is_dir() && permissions {
            // Copies: else what is changed most often, in one piece with what changes it, would stand in memory for this.
            self.change_for_walks(private, &{ *old }, &{ *new });
            return;
        }
        let section = self.seq.open();
        self.store(private, Some(old), new);
        self.seq.close(section);
    }

    /// What walks check has changed.
    #[cold]
    #[inline(never)]
    fn change_for_walks(&self, private: &Private, old: &Attr, new: &Attr) {
        self.stamp.write(|| self.seq.write(|| self.store(private, Some(old), new)));
    }

    /// Mark a directory as removed; under its lock.
    pub(crate) fn mark_dead(&self) {
        self.stamp.write(|| {
            let word = self.mode.load(Ordering::Relaxed);
            self.seq.write(|| self.mode.store(word | DEAD, Ordering::Relaxed));
        });
    }

    /// End a generation; the caller put the last reference.
    pub(crate) fn clear(&self) {
        let dir = self.mode.load(Ordering::Relaxed) & mode::S_IFMT == mode::S_IFDIR;
        let clear = || self.seq.write(|| self.mode.store(0, Ordering::Relaxed));
        if dir { self.stamp.write(clear) } else { clear() }
    }
}
