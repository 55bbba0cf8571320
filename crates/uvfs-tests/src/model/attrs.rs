//! chmod, chown, utimensat, and extended attributes.

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::{
    Answer, Ino, Model, Outcome, READ, S_IFMT, S_ISGID, S_ISUID, S_ISVTX, S_IXGRP, Stop, WRITE, err,
};
use crate::ops::{FileOp, TargetPath, TimeArg, Who, pattern};

impl Model {
    pub(super) fn set_attributes(&mut self, who: Who, op: &FileOp) -> Answer<()> {
        match op {
            FileOp::Chmod { target, mode } => {
                let ino = self.target(who, target)?;
                if !self.owns(who, ino) {
                    return err(Errno::PERM);
                }
                let mut bits = mode.0 & 0o7777;
                if who != Who::Root && !Self::in_group(who, self.node(ino).gid) {
                    bits &= !S_ISGID;
                }
                let node = self.node_mut(ino);
                node.mode = (node.mode & S_IFMT) | bits;
                self.touch(ino, false);
                Ok(())
            }
            FileOp::Chown { target, uid, gid } => self.chown(who, target, *uid, *gid),
            FileOp::Utimens { target, atime, mtime } => self.utimens(who, target, *atime, *mtime),
            _ => Err(Stop::Unspecified),
        }
    }

    fn chown(&mut self, who: Who, target: &TargetPath, uid: Option<u32>, gid: Option<u32>) -> Answer<()> {
        let ino = self.target(who, target)?;
        let node = self.node(ino);
        let owner = who.ids().0 == node.uid;
        if who != Who::Root {
            if uid.is_some_and(|uid| !owner || uid != node.uid) {
                return err(Errno::PERM);
            }
            if gid.is_some_and(|gid| !owner || !(Self::in_group(who, gid) || gid == node.gid)) {
                return err(Errno::PERM);
            }
            let group_exec = node.mode & S_IXGRP != 0 || !Self::in_group(who, node.gid);
            let drops = node.mode & S_ISUID != 0 || (node.mode & S_ISGID != 0 && group_exec);
            if !owner && !node.is_dir() && drops {
                return err(Errno::PERM);
            }
        }
        if !node.is_dir() {
            self.drop_set_ids(who, ino, true);
        }
        let node = self.node_mut(ino);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        self.touch(ino, false);
        Ok(())
    }

    fn utimens(&mut self, who: Who, target: &TargetPath, atime: TimeArg, mtime: TimeArg) -> Answer<()> {
        if let TargetPath::Slot(s) = target {
            self.open_file(*s)?;
        }
        if let TargetPath::Path { at, .. } = target {
            self.base(at)?;
        }
        if atime == TimeArg::Omit && mtime == TimeArg::Omit {
            return Ok(());
        }
        let ino = self.target(who, target)?;
        if !self.owns(who, ino) {
            if atime != TimeArg::Now || mtime != TimeArg::Now {
                return err(Errno::PERM);
            }
            self.need(who, ino, WRITE)?;
        }
        let now = self.now();
        let node = self.node_mut(ino);
        match mtime {
            TimeArg::Now => node.mtime = now,
            TimeArg::Omit => {}
            TimeArg::At(sec, nsec) => node.mtime = (sec, nsec),
        }
        node.ctime = now;
        Ok(())
    }

    /// Whether `who` may read (or write) the attribute; and whether such a name exists.
    fn may_xattr(&self, who: Who, ino: Ino, name: &[u8], write: bool) -> Answer<()> {
        let node = self.node(ino);
        let denied = if write { Errno::PERM } else { Errno::NODATA };
        if name.starts_with(b"trusted.") {
            return if who == Who::Root { Ok(()) } else { err(denied) };
        }
        let user = name.starts_with(b"user.");
        if user && !node.is_file() && !node.is_dir() {
            return err(denied);
        }
        if user && write && node.is_dir() && node.mode & S_ISVTX != 0 && !self.owns(who, ino) {
            return err(Errno::PERM);
        }
        self.need(who, ino, if write { WRITE } else { READ })?;
        match () {
            () if !user => err(Errno::OPNOTSUPP),
            () if name == b"user." => err(Errno::INVAL),
            () => Ok(()),
        }
    }

    pub(super) fn xattr(&mut self, who: Who, op: &FileOp) -> Answer<Outcome> {
        match op {
            FileOp::SetXattr { target, name, len, fill, flags } => {
                let ino = self.xattr_target(who, target, Some(name))?;
                self.may_xattr(who, ino, name, true)?;
                let exists = self.node(ino).xattrs.contains_key(&name.0);
                if exists && flags.contains(XattrFlags::CREATE) {
                    return err(Errno::EXIST);
                }
                if !exists && flags.contains(XattrFlags::REPLACE) {
                    return err(Errno::NODATA);
                }
                self.node_mut(ino).xattrs.insert(name.0.clone(), pattern(*fill, *len));
                self.touch(ino, false);
                Ok(Outcome::Done)
            }
            FileOp::GetXattr { target, name } => {
                let ino = self.xattr_target(who, target, Some(name))?;
                self.may_xattr(who, ino, name, false)?;
                Ok(Outcome::Data(self.node(ino).xattrs.get(&name.0).ok_or(Errno::NODATA)?.clone()))
            }
            FileOp::ListXattr { target } => {
                let ino = self.xattr_target(who, target, None)?;
                let names = self.node(ino).xattrs.keys();
                let seen = names.filter(|n| who == Who::Root || !n.starts_with(b"trusted."));
                Ok(Outcome::Names(seen.map(|n| (n.clone(), 0)).collect()))
            }
            FileOp::RemoveXattr { target, name } => {
                let ino = self.xattr_target(who, target, Some(name))?;
                self.may_xattr(who, ino, name, true)?;
                if self.node_mut(ino).xattrs.remove(&name.0).is_none() {
                    return err(Errno::NODATA);
                }
                self.touch(ino, false);
                Ok(Outcome::Done)
            }
            _ => Err(Stop::Unspecified),
        }
    }

    /// The name is looked at before the path is.
    fn xattr_target(&self, who: Who, target: &TargetPath, name: Option<&[u8]>) -> Answer<Ino> {
        if let TargetPath::Slot(s) = target {
            self.open_file(*s)?;
        }
        if name.is_some_and(|n| n.is_empty() || n.len() > 255) {
            return err(Errno::RANGE);
        }
        self.target(who, target)
    }
}
