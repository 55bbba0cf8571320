//! The rules of `open(2)`.
//!
//! Without O_CREAT this is a walk to the inode, and the checks on it. With O_CREAT it is a walk to the directory, a
//! look at the last name, and then either the checks or a new file. A symbolic link there is followed by another
//! walk from its directory. If another caller makes the file between the look and the creation, the open treats it
//! as if it had existed before.

use std::borrow::Cow;

use crate::driver::Inode;
use crate::namei::open_handle::Handle;
use crate::namei::symlinks::{follow, may_be_one_more};
use crate::namei::{Last, Parent, Walker, check_path};
use crate::ops::name_and_type::is_dir;
use crate::ops::open_read_write::Opening;
use crate::permission;
use crate::types::{Access, Attr, Errno, Found, Op, OpenFlags, Result};

/// The access that an existing node is opened for.
pub(super) fn access(flags: OpenFlags) -> Access {
    let mut access = Access::empty();
    access.set(Access::READ, flags.contains(OpenFlags::READ));
    access.set(Access::WRITE, flags.contains(OpenFlags::WRITE));
    access
}

/// EINVAL for contradictory flags.
fn check_flags(flags: OpenFlags) -> Result<()> {
    if access(flags).is_empty() || flags.contains(OpenFlags::CREATE | OpenFlags::DIRECTORY) {
        Err(Errno::INVAL)
    } else {
        Ok(())
    }
}

/// Opens `path`; a new file gets `mode` without the bits of the umask.
pub(crate) fn open<'v>(
    walker: &Walker<'_, 'v>,
    op: &Op,
    path: &[u8],
    flags: OpenFlags,
    mode: u32,
) -> Result<Handle<'v>> {
    check_flags(flags)?;
    check_path(path)?;
    if flags.contains(OpenFlags::CREATE) {
        return create(walker, op, path, flags, mode);
    }
    let inode = walker.node(path, !flags.contains(OpenFlags::NOFOLLOW))?;
    existing(walker, op, inode, flags)
}

/// Opens an existing inode.
fn existing<'v>(walker: &Walker<'_, 'v>, op: &Op, inode: Inode<'v>, flags: OpenFlags) -> Result<Handle<'v>> {
    if flags.contains(OpenFlags::DIRECTORY) && !is_dir(&inode) {
        return Err(Errno::NOTDIR);
    }
    let truncate = flags.contains(OpenFlags::TRUNC);
    let append = flags.contains(OpenFlags::APPEND);
    let file = walker.vfs.open_file(op, &inode, access(flags), Opening { truncate, append })?;
    Ok(Handle { vfs: walker.vfs, cred: op.cred.clone(), inode, flags, file })
}

/// O_CREAT: looks, and makes a file if there is nothing.
fn create<'v>(
    walker: &Walker<'_, 'v>,
    op: &Op,
    path: &[u8],
    flags: OpenFlags,
    mode: u32,
) -> Result<Handle<'v>> {
    let exclusive = flags.contains(OpenFlags::EXCL);
    let mut parent = walker.parent(path)?;
    loop {
        let name = match &parent.last {
            // These are all directories.
            Last::Root | Last::Dot | Last::DotDot if exclusive => return Err(Errno::EXIST),
            Last::Root | Last::Dot | Last::DotDot => return Err(Errno::ISDIR),
            Last::Name(_) if parent.slash => return Err(Errno::ISDIR),
            Last::Name(name) => name,
        };
        let (inode, attr) = match walker.vfs.child(op, &parent.dir, name)? {
            Found::Node(inode, attr) => (inode, attr),
            Found::Absent(_) => {
                // There is nothing to truncate.
                match walker.vfs.make_file(op, &parent.dir, name, mode, access(flags)) {
                    Ok(made) => {
                        let (vfs, cred) = (walker.vfs, op.cred.clone());
                        return Ok(Handle { vfs, cred, inode: made.inode, flags, file: made.file });
                    }
                    // Another caller came first, so the file exists now.
                    Err(Errno::EXIST) if !exclusive => continue,
                    Err(errno) => return Err(errno),
                }
            }
        };
        if exclusive {
            return Err(Errno::EXIST);
        }
        if !attr.is_symlink() {
            return shared(walker, op, &parent.dir, inode, &attr, flags);
        }
        if flags.contains(OpenFlags::NOFOLLOW) {
            return Err(Errno::LOOP);
        }
        parent = through(walker, op, &parent, &inode, &attr)?;
    }
}

/// The directory and name to which a symbolic link as last component leads.
fn through<'v>(
    walker: &Walker<'_, 'v>,
    op: &Op,
    parent: &Parent<'v, '_>,
    link: &Inode<'v>,
    attr: &Attr,
) -> Result<Parent<'v, 'static>> {
    let vfs = walker.vfs;
    may_be_one_more(parent.links)?;
    let dir = vfs.attr_now(op, &parent.dir)?;
    permission::may_follow(vfs.protected, &op.cred, (&dir).into(), attr)?;
    let target = follow(walker, op, link)?;
    let next = walker.parent_from(&parent.dir, &target, parent.links + 1)?;
    let last = match next.last {
        Last::Name(name) => Last::Name(Cow::Owned(name.into_owned())),
        Last::Dot => Last::Dot,
        Last::DotDot => Last::DotDot,
        Last::Root => Last::Root,
    };
    Ok(Parent { dir: next.dir, last, slash: next.slash, links: next.links })
}

/// O_CREAT of an existing file: the rules for sticky directories apply too.
fn shared<'v>(
    walker: &Walker<'_, 'v>,
    op: &Op,
    dir: &Inode<'v>,
    inode: Inode<'v>,
    attr: &Attr,
    flags: OpenFlags,
) -> Result<Handle<'v>> {
    if attr.is_dir() {
        return Err(Errno::ISDIR);
    }
    let vfs = walker.vfs;
    permission::may_open_shared(vfs.protected, op, &vfs.attr_now(op, dir)?, attr)?;
    existing(walker, op, inode, flags)
}
