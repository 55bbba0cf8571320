//! Operations that change names: open with creation, mkdir, mknod, symlink, link, unlink, rmdir, rename.

use std::collections::BTreeMap;

use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use super::walk::{End, Last};
use super::{
    Answer, Ino, Kind, Model, Open, READ, ROOT, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_ISUID, S_ISVTX,
    S_IXGRP, Stop, WRITE, err,
};
use crate::ops::{At, FileOp, Who};

impl Model {
    pub(super) fn change_names(&mut self, who: Who, op: &FileOp) -> Answer<()> {
        match op {
            FileOp::Open { slot, at, flags, mode } => {
                let ino = self.open(who, at, *flags, mode.0)?;
                let access = *flags & OFlags::ACCMODE;
                let open = Open {
                    ino,
                    pos: 0,
                    read: access != OFlags::WRONLY,
                    write: access != OFlags::RDONLY,
                    append: flags.contains(OFlags::APPEND),
                    who,
                };
                self.slots[*slot] = Some(open);
                Ok(())
            }
            FileOp::Mkdir { at, mode } => {
                let last = self.vacant(who, at, true)?;
                self.may_create(who, last.dir)?;
                self.make(who, &last, S_IFDIR | (mode.0 & 0o1777), 0, &[]);
                Ok(())
            }
            FileOp::Mknod { at, mode, rdev } => self.mknod(who, at, mode.0, *rdev),
            FileOp::Symlink { target, at } => {
                self.base(at)?;
                match target.len() {
                    0 => return err(Errno::NOENT),
                    4096.. => return err(Errno::NAMETOOLONG),
                    _ => {}
                }
                let last = self.vacant(who, at, false)?;
                self.may_create(who, last.dir)?;
                self.make(who, &last, S_IFLNK | 0o777, 0, target);
                Ok(())
            }
            FileOp::Link { old, new, follow } => self.link(who, old, new, *follow),
            FileOp::Unlink { at } => self.unlink(who, at),
            FileOp::Rmdir { at } => self.rmdir(who, at),
            FileOp::Rename { old, new, flags } => self.rename(who, old, new, *flags),
            _ => Err(Stop::Unspecified),
        }
    }

    /// Makes a node; permissions have been checked.
    fn make(&mut self, who: Who, at: &Last, mut mode: u32, rdev: u64, target: &[u8]) -> Ino {
        let (uid, mut gid, _) = who.ids();
        let fmt = mode & S_IFMT;
        let umask = if fmt == S_IFLNK { 0 } else { self.umask };
        let dir = self.node(at.dir);
        if dir.mode & S_ISGID != 0 {
            gid = dir.gid;
            if fmt == S_IFDIR {
                mode |= S_ISGID;
            } else if mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP
                && who != Who::Root
                && !Self::in_group(who, dir.gid)
            {
                mode &= !S_ISGID;
            }
        }
        mode &= !umask;
        let kind = match fmt {
            S_IFDIR => Kind::Dir { entries: BTreeMap::new(), parent: at.dir },
            S_IFREG => Kind::File { size: 0, pages: BTreeMap::new() },
            S_IFLNK => Kind::Link(target.to_vec()),
            _ => Kind::Special,
        };
        let ino = self.insert(mode, uid, gid, rdev, kind);
        self.entries_mut(at.dir).insert(at.name.clone(), ino);
        if fmt == S_IFDIR {
            self.node_mut(at.dir).nlink += 1;
        }
        self.touch(at.dir, true);
        ino
    }

    fn mknod(&mut self, who: Who, at: &At, mode: u32, rdev: u64) -> Answer<()> {
        self.base(at)?;
        let fmt = mode & S_IFMT;
        if fmt == S_IFDIR {
            return err(Errno::PERM);
        }
        // The character device 0/0 needs no privilege: a whiteout.
        let device = fmt == 0o060000 || fmt == 0o020000 && rdev != 0;
        let last = self.vacant(who, at, false)?;
        self.may_create(who, last.dir)?;
        if device && who != Who::Root {
            return err(Errno::PERM);
        }
        self.make(who, &last, mode, if device { rdev } else { 0 }, &[]);
        Ok(())
    }

    fn open(&mut self, who: Who, at: &At, flags: OFlags, mode: u32) -> Answer<Ino> {
        let from = self.start(at)?;
        let mut links = 0;
        let mut last = self.walk(who, from, &at.path, &mut links)?;
        let follow = !flags.contains(OFlags::NOFOLLOW);
        if !flags.contains(OFlags::CREATE) {
            let ino = self.finish(who, &last, follow, &mut links)?;
            return self.open_existing(who, ino, flags);
        }
        loop {
            if last.end != End::Name {
                return err(if flags.contains(OFlags::EXCL) { Errno::EXIST } else { Errno::ISDIR });
            }
            if last.slash {
                return err(Errno::ISDIR);
            }
            let Some(ino) = self.child(last.dir, &last.name)? else {
                self.may_create(who, last.dir)?;
                return Ok(self.make(who, &last, S_IFREG | (mode & 0o7777), 0, &[]));
            };
            if flags.contains(OFlags::EXCL) {
                return err(Errno::EXIST);
            }
            match &self.node(ino).kind {
                // In a sticky directory the kernel's care for others' files comes first, or not.
                Kind::Link(_) if !follow && self.node(last.dir).mode & S_ISVTX != 0 => {
                    return Err(Stop::Unspecified);
                }
                Kind::Link(_) if !follow => return err(Errno::LOOP),
                Kind::Link(target) => {
                    links += 1;
                    if links > 40 {
                        return err(Errno::LOOP);
                    }
                    last = self.walk(who, last.dir, &target.clone(), &mut links)?;
                }
                Kind::Dir { .. } => return err(Errno::ISDIR),
                _ => return self.open_existing(who, ino, flags),
            }
        }
    }

    fn open_existing(&mut self, who: Who, ino: Ino, flags: OFlags) -> Answer<Ino> {
        let node = self.node(ino);
        if flags.contains(OFlags::DIRECTORY) && !node.is_dir() {
            return err(Errno::NOTDIR);
        }
        if node.is_link() {
            return err(Errno::LOOP);
        }
        let truncate = flags.contains(OFlags::TRUNC);
        let mut mask = match flags & OFlags::ACCMODE {
            OFlags::RDONLY => READ,
            OFlags::WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if truncate {
            mask |= WRITE;
        }
        if node.is_dir() && mask & WRITE != 0 {
            return err(Errno::ISDIR);
        }
        let special = matches!(node.kind, Kind::Special);
        self.need(who, ino, mask)?;
        if special {
            return Err(Stop::Unspecified);
        }
        if truncate {
            self.set_size(who, ino, 0, true);
        }
        Ok(ino)
    }

    fn link(&mut self, who: Who, old: &At, new: &At, follow: bool) -> Answer<()> {
        self.base(old)?;
        self.base(new)?;
        let ino = self.resolve(who, old, follow)?;
        let last = self.vacant(who, new, false)?;
        let node = self.node(ino);
        let odd = node.mode & S_ISUID != 0 || node.mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
        let safe = node.is_file() && !odd && self.may(who, ino, READ | WRITE);
        if self.habits.protected_hardlinks && !safe && !self.owns(who, ino) {
            return err(Errno::PERM);
        }
        self.may_create(who, last.dir)?;
        if self.node(ino).is_dir() {
            return err(Errno::PERM);
        }
        self.node_mut(ino).nlink += 1;
        self.entries_mut(last.dir).insert(last.name, ino);
        self.touch(ino, false);
        self.touch(last.dir, true);
        Ok(())
    }

    fn unlink(&mut self, who: Who, at: &At) -> Answer<()> {
        let last = self.walk(who, self.start(at)?, &at.path, &mut 0)?;
        if last.end != End::Name {
            return err(Errno::ISDIR);
        }
        let ino = self.child(last.dir, &last.name)?.ok_or(Errno::NOENT)?;
        if last.slash {
            return err(if self.node(ino).is_dir() { Errno::ISDIR } else { Errno::NOTDIR });
        }
        self.may_delete(who, last.dir, ino, false)?;
        self.entries_mut(last.dir).remove(&last.name);
        self.node_mut(ino).nlink -= 1;
        self.touch(ino, false);
        self.touch(last.dir, true);
        Ok(())
    }

    fn rmdir(&mut self, who: Who, at: &At) -> Answer<()> {
        let last = self.walk(who, self.start(at)?, &at.path, &mut 0)?;
        match last.end {
            End::Name => {}
            End::Dot => return err(Errno::INVAL),
            End::DotDot => return err(Errno::NOTEMPTY),
            End::Root => return err(Errno::BUSY),
        }
        let ino = self.child(last.dir, &last.name)?.ok_or(Errno::NOENT)?;
        self.may_delete(who, last.dir, ino, true)?;
        if !self.entries(ino).is_empty() {
            return err(Errno::NOTEMPTY);
        }
        self.entries_mut(last.dir).remove(&last.name);
        self.node_mut(ino).nlink = 0;
        self.node_mut(last.dir).nlink -= 1;
        self.touch(ino, false);
        self.touch(last.dir, true);
        Ok(())
    }

    /// Whether `ino` is `dir` or above it.
    fn is_above(&self, ino: Ino, dir: Ino) -> bool {
        let mut at = dir;
        loop {
            if at == ino {
                return true;
            }
            match self.node(at).kind {
                Kind::Dir { parent, .. } if at != ROOT => at = parent,
                _ => return false,
            }
        }
    }

    fn rename(&mut self, who: Who, old: &At, new: &At, flags: RenameFlags) -> Answer<()> {
        self.base(old)?;
        self.base(new)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let no_replace = flags.contains(RenameFlags::NOREPLACE);
        if exchange && no_replace {
            return err(Errno::INVAL);
        }
        let from = self.walk(who, self.start(old)?, &old.path, &mut 0)?;
        let to = self.walk(who, self.start(new)?, &new.path, &mut 0)?;
        if from.end != End::Name {
            return err(Errno::BUSY);
        }
        if to.end != End::Name {
            return err(if no_replace { Errno::EXIST } else { Errno::BUSY });
        }
        let ino = self.child(from.dir, &from.name)?.ok_or(Errno::NOENT)?;
        let target = self.child(to.dir, &to.name)?;
        let is_dir = self.node(ino).is_dir();
        let target_is_dir = target.is_some_and(|t| self.node(t).is_dir());
        if no_replace && target.is_some() {
            return err(Errno::EXIST);
        }
        if exchange && target.is_none() {
            return err(Errno::NOENT);
        }
        if exchange && !target_is_dir && to.slash {
            return err(Errno::NOTDIR);
        }
        if !is_dir && (from.slash || (!exchange && to.slash)) {
            return err(Errno::NOTDIR);
        }
        if is_dir && self.is_above(ino, to.dir) {
            return err(Errno::INVAL);
        }
        if target.is_some_and(|t| self.is_above(t, from.dir)) {
            return err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if target == Some(ino) {
            return Ok(());
        }
        self.may_rename(who, (&from, ino), (&to, target), exchange)?;
        match target {
            Some(target) if exchange => self.swap((&from, ino), (&to, target)),
            _ => self.move_over((&from, ino), (&to, target)),
        }
        Ok(())
    }

    fn may_rename(
        &self,
        who: Who,
        from: (&Last, Ino),
        to: (&Last, Option<Ino>),
        exchange: bool,
    ) -> Answer<()> {
        let is_dir = self.node(from.1).is_dir();
        let target_is_dir = to.1.is_some_and(|t| self.node(t).is_dir());
        self.may_delete(who, from.0.dir, from.1, is_dir)?;
        match to.1 {
            None => self.may_create(who, to.0.dir)?,
            Some(target) => {
                self.may_delete(who, to.0.dir, target, if exchange { target_is_dir } else { is_dir })?;
            }
        }
        // Moving a directory to another parent writes its `..`.
        if from.0.dir != to.0.dir {
            if is_dir {
                self.need(who, from.1, WRITE)?;
            }
            if let (true, true, Some(target)) = (exchange, target_is_dir, to.1) {
                self.need(who, target, WRITE)?;
            }
        }
        match to.1 {
            Some(target) if !exchange && target_is_dir && !self.entries(target).is_empty() => {
                err(Errno::NOTEMPTY)
            }
            _ => Ok(()),
        }
    }

    fn place(&mut self, ino: Ino, at: &Last) {
        self.entries_mut(at.dir).insert(at.name.clone(), ino);
        let dir = at.dir;
        if let Kind::Dir { parent, .. } = &mut self.node_mut(ino).kind {
            *parent = dir;
            self.node_mut(dir).nlink += 1;
        }
    }

    fn displace(&mut self, ino: Ino, at: &Last) {
        self.entries_mut(at.dir).remove(&at.name);
        if self.node(ino).is_dir() {
            self.node_mut(at.dir).nlink -= 1;
        }
    }

    fn swap(&mut self, a: (&Last, Ino), b: (&Last, Ino)) {
        self.displace(a.1, a.0);
        self.displace(b.1, b.0);
        self.place(a.1, b.0);
        self.place(b.1, a.0);
        for ino in [a.1, b.1] {
            self.touch(ino, false);
        }
        for dir in [a.0.dir, b.0.dir] {
            self.touch(dir, true);
        }
    }

    fn move_over(&mut self, from: (&Last, Ino), to: (&Last, Option<Ino>)) {
        if let Some(target) = to.1 {
            self.displace(target, to.0);
            let node = self.node_mut(target);
            node.nlink = if node.is_dir() { 0 } else { node.nlink - 1 };
            self.touch(target, false);
        }
        self.displace(from.1, from.0);
        self.place(from.1, to.0);
        self.touch(from.1, false);
        for dir in [from.0.dir, to.0.dir] {
            self.touch(dir, true);
        }
    }

    /// The rights that a change of content or owner takes away.
    pub(super) fn drop_set_ids(&mut self, who: Who, ino: Ino, even_root: bool) {
        if who == Who::Root && !even_root {
            return;
        }
        let node = self.node_mut(ino);
        let privileged = who == Who::Root || Self::in_group(who, node.gid);
        if node.mode & S_ISGID != 0 && (node.mode & S_IXGRP != 0 || !privileged) {
            node.mode &= !S_ISGID;
        }
        node.mode &= !S_ISUID;
    }
}
