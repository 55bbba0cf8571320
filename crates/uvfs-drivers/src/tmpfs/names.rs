//! Names: the effects of making, linking, removing and renaming them on counts, sizes and times.
//!
//! The names themselves are the cache's. Each step here is one [`Inode::update`]. The VFS holds the name locks
//! meanwhile, so the steps of one operation need no lock among them. A directory's size is 20 bytes an entry, as in
//! the kernel's tmpfs, `.` and `..` included.

use uvfs::driver::{Inode, Rename};
use uvfs::types::{Attr, Errno, Make, NewInode, Op, Result, Time, Ttl, mode};

use super::Tmpfs;
use super::acl::extra_of;

/// The bytes that an entry adds to its directory's size.
const ENTRY: u64 = 20;

/// The effect of a change of names on a directory.
#[derive(Clone, Copy, Default)]
struct Change {
    entries: i64,
    subdirs: i64,
}

fn change(dir: &Inode<'_>, now: Time, change: Change) {
    dir.update(|attr| {
        attr.size = attr.size.saturating_add_signed(change.entries * ENTRY as i64);
        attr.nlink = attr.nlink.saturating_add_signed(change.subdirs as i32);
        attr.mtime = now;
        attr.ctime = now;
    });
}

fn is_dir(inode: &Inode<'_>) -> bool {
    inode.fmt() == mode::S_IFDIR
}

impl Tmpfs {
    /// Attributes of a directory without entries.
    pub(super) fn new_dir(&self, mode: u32, uid: u32, gid: u32, now: Time) -> Attr {
        Attr {
            ino: self.numbers.next(),
            mode: mode::S_IFDIR | mode & 0o7777,
            nlink: 2,
            uid,
            gid,
            size: 2 * ENTRY,
            atime: now,
            mtime: now,
            ctime: now,
            ..Attr::default()
        }
    }

    pub(super) fn make(&self, op: &Op, dir: &Inode<'_>, make: &Make<'_>) -> Result<NewInode> {
        if !self.inodes.take(1) {
            return Err(Errno::NOSPC);
        }
        let made = self.new_inode(op, make, false);
        match &made {
            Ok(new) => change(dir, op.now, Change { entries: 1, subdirs: i64::from(new.attr.is_dir()) }),
            Err(_) => self.inodes.give(1),
        }
        made
    }

    /// A file without a name counts as an inode from the start, as one with a name does.
    pub(super) fn make_nameless(&self, op: &Op, make: &Make<'_>, linkable: bool) -> Result<NewInode> {
        if !self.inodes.take(1) {
            return Err(Errno::NOSPC);
        }
        let mut made = self.new_inode(op, make, linkable).inspect_err(|_| self.inodes.give(1))?;
        made.attr.nlink = 0;
        Ok(made)
    }

    fn new_inode(&self, op: &Op, make: &Make<'_>, linkable: bool) -> Result<NewInode> {
        let private = extra_of(make, linkable).map_or(Ok(0), |extra| self.new_node(extra))?;
        let dir = self.new_dir(make.mode, make.uid, make.gid, op.now);
        let dir = Attr { acl: make.acl.is_some(), ..dir };
        if make.mode & mode::S_IFMT == mode::S_IFDIR {
            return Ok(NewInode { attr: dir, private, ttl: Ttl::Forever });
        }
        let attr = Attr {
            nlink: 1,
            mode: make.mode,
            size: make.target.map_or(0, |target| target.len() as u64),
            rdev: make.rdev,
            ..dir
        };
        Ok(NewInode { attr, private, ttl: Ttl::Forever })
    }

    /// Each name but the first counts as an inode: names take memory too.
    pub(super) fn add_link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>) -> Result<()> {
        // Under the inode lock, under which the first name is given too.
        if inode.attr().nlink == 0 {
            self.named(inode);
        } else if !self.inodes.take(1) {
            return Err(Errno::NOSPC);
        }
        let added = inode.update(|attr| {
            let nlink = attr.nlink.checked_add(1)?;
            attr.nlink = nlink;
            attr.ctime = op.now;
            Some(())
        });
        if added.is_none() {
            self.inodes.give(1);
            return Err(Errno::MLINK);
        }
        change(dir, op.now, Change { entries: 1, subdirs: 0 });
        Ok(())
    }

    /// Whether it was made without a name and may be given one.
    pub(super) fn may_be_named(&self, inode: &Inode<'_>) -> bool {
        self.with_extra(inode, |extra| extra.linkable).unwrap_or(false)
    }

    /// It has a name now, and cannot be given another first one after that.
    fn named(&self, inode: &Inode<'_>) {
        if let Some(node) = self.node(inode)
            && let Some(extra) = node.extra_mut().as_mut()
        {
            extra.linkable = false;
        }
    }

    pub(super) fn remove_name(&self, op: &Op, dir: &Inode<'_>, inode: &Inode<'_>) {
        self.drop_link(op, inode);
        change(dir, op.now, Change { entries: -1, subdirs: -i64::from(is_dir(inode)) });
    }

    /// One name less; a directory has only one.
    fn drop_link(&self, op: &Op, inode: &Inode<'_>) {
        let left = inode.update(|attr| {
            attr.nlink = if attr.is_dir() { 0 } else { attr.nlink.saturating_sub(1) };
            attr.ctime = op.now;
            attr.nlink
        });
        // The last name's inode is given back when the inode goes.
        if left != 0 {
            self.inodes.give(1);
        }
    }

    /// A rename that leaves a whiteout counts one inode more, and the old directory keeps its size.
    pub(super) fn move_name_from_whiteout(
        &self,
        op: &Op,
        rename: &Rename<'_>,
        whiteout: &Make<'_>,
    ) -> Result<NewInode> {
        let made = self.make(op, rename.from_dir, whiteout)?;
        self.move_name(op, rename);
        Ok(made)
    }

    pub(super) fn move_name(&self, op: &Op, rename: &Rename<'_>) {
        let (moved, target) = (i64::from(is_dir(rename.inode)), rename.target);
        let replaced = i64::from(target.is_some_and(is_dir));
        let (from, to) = if rename.exchange {
            (
                Change { entries: 0, subdirs: replaced - moved },
                Change { entries: 0, subdirs: moved - replaced },
            )
        } else {
            let added = i64::from(target.is_none());
            (Change { entries: -1, subdirs: -moved }, Change { entries: added, subdirs: moved - replaced })
        };
        rename.inode.update(|attr| attr.ctime = op.now);
        match target {
            Some(target) if rename.exchange => target.update(|attr| attr.ctime = op.now),
            Some(target) => self.drop_link(op, target),
            None => {}
        }
        if rename.from_dir.id() == rename.to_dir.id() {
            let both = Change { entries: from.entries + to.entries, subdirs: from.subdirs + to.subdirs };
            change(rename.from_dir, op.now, both);
        } else {
            change(rename.from_dir, op.now, from);
            change(rename.to_dir, op.now, to);
        }
    }
}
