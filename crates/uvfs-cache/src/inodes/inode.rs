//! The two halves of an inode.
//!
//! **Published** (64 bytes, one line): the fields that `stat` reports and a walk checks. A writer stores here only
//! what really changes, under the attribute lock, inside `seq`. A reader copies and checks.
//!
//! For a directory, the upper half of the size is its *walk sequence* instead. It stands next to the
//! generation, so that one word gives both. It moves when the name, parent, mode, owner or liveness of the
//! directory changes. A walk through the directory checks nothing else, so creating a file there (mtime,
//! size, nlink) disturbs no such walk.
//!
//! **Private** (56 bytes): fields that change while the inode is in use. It holds the reference word, the front
//! end's lookup count and the driver's value. It also holds the block count of files whose blocks do not
//! follow from their size.
//!
//! Only the cache's own modules touch a half; [`crate::inodes::inode_ref`] is the handle.

use uvfs_sync::lockref::LockRef;
use uvfs_sync::primitives::{AtomicU32, AtomicU64, Ordering};
use uvfs_sync::seqcount::{GenSeq, SeqCount};
use uvfs_sync::slot;

use crate::inodes::attr::{Attr, Time, mode};
use crate::types::SbId;
use crate::walk::prefix_change_counts::ChangeCounts;

/// The slot holds a live inode.
pub(crate) const LIVE: u32 = 1 << 16;
/// A removed directory.
pub(crate) const DEAD: u32 = 1 << 17;
/// The root of its superblock.
pub(crate) const ROOT: u32 = 1 << 18;
/// `blocks` is not `size` rounded up, so the private half has it.
const ODD_BLOCKS: u32 = 1 << 19;
/// The published attributes may be out of date: see `stale.rs`.
const STALE: u32 = 1 << 24;
/// The inode has an access control list.
const ACL: u32 = 1 << 20;
const MODE: u32 = 0xffff;

slot! {
/// The half that a hit reads.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Published {
    /// Attribute sequence.
    pub seq: SeqCount,
    /// Size, or device number of a device.
    low: AtomicU32,
    ino: AtomicU64,
    /// Generation of the slot (the private half's reference word has it too). Below it stands the upper
    /// half of the size, or a directory's walk sequence.
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
/// The half that changes while the inode is in use.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Private {
    /// References, lock bits, generation.
    pub refs: LockRef,
    /// The inode's per-thread reference slot, if it has one: read whenever `refs` is changed.
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
    /// Of a directory its one dentry; of a symbolic link the slot of its cached target. 0: none. In a superblock
    /// that is [`NAMED`], a dentry of any inode (see `names/path_of_inode.rs`).
    pub alias: AtomicU32,
    /// Superblock, and [`RESIDENT`].
    pub sb: AtomicU32,
    /// Until when the attributes are trusted.
    pub deadline: AtomicU32,
}
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Published>() == 64 && size_of::<Private>() == 56);

/// Flag beside the superblock's number: the superblock is resident. (Its inodes are never compared by
/// superblock.)
pub(crate) const RESIDENT: u32 = 1 << 31;
/// Flag beside it: the inode's `alias` is a dentry, whatever its type.
pub(crate) const NAMED: u32 = 1 << 29;
/// Flag beside it: a cached path passes this directory or link (see `walk/prefix_cache.rs`). A new generation has no flag.
const PASSED: u32 = 1 << 30;
/// Where the group of a passed directory or link stands beside that flag.
const GROUP: u32 = 16;

impl Private {
    /// The superblock; constant for the whole generation.
    #[inline(always)]
    pub(crate) fn sb_id(&self) -> SbId {
        SbId(self.sb.load(Ordering::Relaxed) as u16)
    }

    /// Whether the superblock is resident, without a look at it.
    #[inline(always)]
    pub(crate) fn is_resident(&self) -> bool {
        self.sb.load(Ordering::Relaxed) & RESIDENT != 0
    }

    /// The group of this directory or link, if a cached path passes it.
    pub(crate) fn passed_group(&self) -> Option<u8> {
        // Relaxed: only a directory's flag is cleared, under its attribute lock, which each of its writers has.
        let word = self.sb.load(Ordering::Relaxed);
        (word & PASSED != 0).then_some((word >> GROUP) as u8)
    }

    /// A cached path passes this, and its group is always this one. Stores only what changes.
    pub(crate) fn set_passed(&self, group: u8) {
        if self.passed_group().is_none() {
            self.sb.fetch_or(PASSED | u32::from(group) << GROUP, Ordering::Relaxed);
        }
    }

    /// No valid entry's path passes this directory. Under its attribute lock.
    pub(crate) fn clear_passed(&self) {
        if self.passed_group().is_some() {
            self.sb.fetch_and(!PASSED, Ordering::Relaxed);
        }
    }

    /// Whether `alias` is a dentry, whatever the type.
    pub(crate) fn is_named(&self) -> bool {
        self.sb.load(Ordering::Relaxed) & NAMED != 0
    }

    /// Set the superblock and its flags, before a generation begins.
    pub(crate) fn set_sb(&self, sb: SbId, flags: u32) {
        self.sb.store(u32::from(sb.0) | flags, Ordering::Relaxed);
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
    /// The bit of `mode` for an access control list. It stands where the published half has it, so that a
    /// walk tests it in the word that it has loaded anyway.
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

    /// Whether the attributes are stale.
    #[inline(always)]
    pub(crate) fn is_stale(&self) -> bool {
        self.mode_and_flags() & STALE != 0
    }

    /// Mark the attributes stale, under the attribute lock. Both sequences move, even if the attributes
    /// were stale already. So an answer requested earlier is late, and a walk that came through the
    /// directory looks again.
    pub(crate) fn mark_stale(&self, private: &Private, changes: &ChangeCounts) {
        let word = self.mode.load(Ordering::Relaxed);
        let store = || {
            self.seq.write(|| {
                if word & mode::S_IFMT == mode::S_IFLNK {
                    changes.before_link_change(private);
                }
                self.mode.store(word | STALE, Ordering::Relaxed);
            });
        };
        if word & mode::S_IFMT == mode::S_IFDIR {
            self.stamp.write(|| {
                changes.before_change(private);
                store();
            });
        } else {
            store();
        }
    }

    /// The attributes are the driver's current ones; under the attribute lock.
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

    /// Copy the attributes. The copy is one moment's truth only between `seq.begin` and `seq.check`, or
    /// under the attribute lock.
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

    /// Store what differs from `old`, the present contents (or everything if `old` is `None`). Called
    /// inside `seq.write`, under the lock, or before the slot can be found. Inlined together with the
    /// change itself, so that fields which the change leaves alone are not compared (most changes move a
    /// time or two).
    #[inline(always)]
    fn store(&self, private: &Private, old: Option<&Attr>, attr: &Attr) {
        let mut flags = self.mode.load(Ordering::Relaxed) & !(MODE | ODD_BLOCKS | ACL);
        // A model checker treats each store as one more value that a reader may see, so models omit stores
        // that change nothing.
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

    /// Begin a generation in a slot that nobody can find. The attribute sequence and the generation reject
    /// readers of the slot's last generation.
    pub(crate) fn fill(&self, private: &Private, generation: u32, attr: &Attr, flags: u32) {
        self.seq.write(|| {
            // The end of the last generation moved a directory's sequence; it continues from there.
            self.stamp.set(generation, self.stamp.halves().1 & !1);
            self.mode.store(LIVE | flags, Ordering::Relaxed);
            self.ino.store(attr.ino, Ordering::Relaxed);
            self.store(private, None, attr);
        });
    }

    /// Change the attributes under the inode's lock. The walk sequence moves only if permissions
    /// did.
    #[inline(always)]
    pub(crate) fn change(&self, private: &Private, changes: &ChangeCounts, old: &Attr, new: &Attr) {
        let permissions = Perm::from(old) != Perm::from(new);
        if new.is_dir() && permissions {
            // Copies: otherwise the most common changes, which are compiled in one piece with this, would
            // keep their attributes in memory for this call.
            self.change_for_walks(private, changes, &{ *old }, &{ *new });
            return;
        }
        let section = self.seq.open();
        if new.is_symlink() {
            changes.before_link_change(private);
        }
        self.store(private, Some(old), new);
        self.seq.close(section);
    }

    /// A change of fields that walks check.
    #[cold]
    #[inline(never)]
    fn change_for_walks(&self, private: &Private, changes: &ChangeCounts, old: &Attr, new: &Attr) {
        self.stamp.write(|| {
            changes.before_change(private);
            self.seq.write(|| self.store(private, Some(old), new));
        });
    }

    /// Mark a directory as removed; under its attribute lock. It has no child and gets none. Every path that passed it
    /// went through a former child: a subdirectory's sequence, or a link's count, moved when that left.
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
