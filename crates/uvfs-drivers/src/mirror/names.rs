//! Names: looking them up, making, linking, removing and renaming them.
//!
//! The directory is opened first and compared with its node; the rest is done below its descriptor. If the host does
//! not agree with the cache about a name, the cache forgets it and the caller gets the error, and looks again. A new
//! file is looked at through the descriptor that making it returned, if there is one.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, StatxFlags, linkat, makedev, mkdirat, mknodat, openat,
    renameat_with, statx, symlinkat, unlinkat,
};
use uvfs::Inode;
use uvfs::driver::Rename;
use uvfs::types::{Access, Answer, Attr, Errno, Make, NewInode, Op, Result, mode};

use super::Mirror;
use super::file::how;
use super::identity::{self, Identity, Seen, unpack_dev};
use super::node::{Node, Place};
use super::noreplace::rename_to_free;
use super::owners::Judge;
use super::reach::{At, Links, moved};

/// A name in the form of rustix' paths.
fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// The access to a directory that a change of one of its names needs.
const CHANGES: Access = Access::WRITE.union(Access::EXEC);

/// The owner of either may remove a name from a sticky directory.
fn owners_of<'f>(dir: &'f At<'_>, file: Option<&'f OwnedFd>) -> Vec<BorrowedFd<'f>> {
    std::iter::once(dir.as_fd()).chain(file.map(AsFd::as_fd)).collect()
}

impl Mirror {
    pub(super) fn find(&self, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        let node = self.node(dir)?;
        if node.covered() {
            return Ok(Answer::Absent(self.believed()));
        }
        let at = self.reach(&node)?;
        let mut opened = self.open_child(&at, name);
        if matches!(opened, Err(Errno::XDEV)) && self.coherence.watches() {
            self.covers.note(node.number, name);
            opened = self.open_child(&at, name);
        }
        match opened {
            Ok(fd) => self.meet(&fd, &node, name, None).map(Answer::Found),
            Err(Errno::NOENT) => Ok(Answer::Absent(self.believed())),
            Err(Errno::XDEV) => self.covered(&at, &node, name),
            Err(errno) => Err(errno),
        }
    }

    /// Adds one count to the node of a file that has this name, and returns its answer for the cache. If `fmt` names
    /// a type, the file must have it. Another thread may change the file after the look at it and before it is in the
    /// table. The watcher then reports that in vain, because the file is not in the table. So if anything was
    /// reported meanwhile, the file is looked at again.
    fn meet(&self, fd: &OwnedFd, dir: &Arc<Node>, name: &[u8], fmt: Option<u32>) -> Result<NewInode> {
        let told = self.coherence.told();
        let seen = self.look(fd)?;
        if fmt.is_some_and(|fmt| fmt != seen.attr.fmt()) {
            return Err(Errno::STALE);
        }
        let answer = self.answer(&seen, dir, name);
        if told == self.coherence.told() {
            return Ok(answer);
        }
        match self.attr_at(fd) {
            Ok(attr) => Ok(NewInode { attr: self.shown(answer.attr.ino, attr), ..answer }),
            Err(errno) => {
                self.table.let_go(answer.attr.ino);
                Err(errno)
            }
        }
    }

    /// Adds one count to the node of a file that was found under a name, and returns its answer for the cache.
    fn answer(&self, seen: &Seen, dir: &Arc<Node>, name: &[u8]) -> NewInode {
        let node = self.table.meet(&seen.id, seen.attr.ino, seen.attr.fmt());
        let many = seen.attr.nlink > 1 && !seen.attr.is_dir();
        if node.number != self.root {
            node.seen_at(Place::new(dir, name), many);
        }
        let attr = if node.covered() {
            Attr { ino: node.number, ..seen.attr }
        } else {
            self.shown(node.number, seen.attr)
        };
        NewInode { attr, private: self.answer_number(), ttl: self.believed() }
    }

    /// A mount inside the source: only whether it is on a directory is shown.
    fn covered(&self, at: &At<'_>, dir: &Arc<Node>, name: &[u8]) -> Result<Answer> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let stat = statx(at, os(name), flags, StatxFlags::TYPE)?;
        let is_dir = u32::from(stat.stx_mode) & mode::S_IFMT == mode::S_IFDIR;
        let (mode, nlink) = if is_dir { (mode::S_IFDIR | 0o555, 2) } else { (mode::S_IFREG | 0o444, 1) };
        let id = Identity::Covered(dir.number, name.into());
        // A number of our own: the host's would be one of the other file system.
        let seen = Seen { id, attr: Attr { ino: 0, mode, nlink, ..Attr::default() } };
        Ok(Answer::Found(self.answer(&seen, dir, name)))
    }

    pub(super) fn make(&self, op: &Op, dir: &Inode<'_>, name: &[u8], make: &Make<'_>) -> Result<NewInode> {
        let (node, at) = self.reach_inode(dir)?;
        let made = self.make_below(op, (&node, &at), name, make, None);
        self.made(made, (dir, &node, &at), name, make).map(|(new, _)| new)
    }

    /// Makes a regular file that is open from the start.
    pub(super) fn make_open(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        name: &[u8],
        make: &Make<'_>,
        access: Access,
    ) -> Result<(NewInode, u64)> {
        let (node, at) = self.reach_inode(dir)?;
        // Before the file exists: a file that cannot be opened is not made.
        let permit = self.budget.permit()?;
        let made = self.make_below(op, (&node, &at), name, make, Some(access));
        let (new, fd) = self.made(made, (dir, &node, &at), name, make)?;
        let handle = self.table.of(new.attr.ino).map(|node| self.keep_open(&node, fd.into(), access, permit));
        Ok((new, handle.ok_or(Errno::STALE)?))
    }

    /// Makes a regular file without a name, open from the start. As long as it has no name, only that descriptor
    /// leads to it.
    pub(super) fn make_nameless(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        make: &Make<'_>,
        access: Access,
        linkable: bool,
    ) -> Result<(NewInode, u64)> {
        let (node, at) = self.reach_inode(dir)?;
        let permit = self.budget.permit()?;
        let permissions = self.permissions(op, (&node, &at), make);
        // Without this it may be linked.
        let bound = if linkable { OFlags::empty() } else { OFlags::EXCL };
        self.may_make(op, make.mode)?;
        let mut judge = self.judge(op);
        judge.may(&at, CHANGES)?;
        let acting = judge.act()?;
        let fd = openat(&at, c".", OFlags::TMPFILE | OFlags::CLOEXEC | bound | how(access), permissions);
        drop(acting);
        let fd = fd?;
        let seen = self.look(&fd)?;
        let node = self.table.meet(&seen.id, seen.attr.ino, seen.attr.fmt());
        let attr = self.shown(node.number, seen.attr);
        let new = NewInode { attr, private: self.answer_number(), ttl: self.believed() };
        Ok((new, self.keep_open(&node, fd.into(), access, permit)))
    }

    /// Returns the answer for the cache about a new file, and its descriptor.
    fn made(
        &self,
        made: Result<OwnedFd>,
        (dir, node, at): (&Inode<'_>, &Arc<Node>, &At<'_>),
        name: &[u8],
        make: &Make<'_>,
    ) -> Result<(NewInode, OwnedFd)> {
        let fmt = make.mode & mode::S_IFMT;
        let met = made.and_then(|fd| Ok((self.meet(&fd, node, name, Some(fmt))?, fd)));
        self.settle(dir, at);
        met.inspect_err(|_| self.mark_name_stale(node, name))
    }

    /// The permissions that the host is asked for when a file is made: a default list replaces the umask, and the
    /// host applies it.
    fn permissions(&self, op: &Op, (dir, at): (&Node, &At<'_>), make: &Make<'_>) -> Mode {
        let umask = if self.has_default_list(dir, at) { 0 } else { op.umask & 0o777 };
        Mode::from_raw_mode(make.mode & 0o7777 & !umask)
    }

    fn make_below(
        &self,
        op: &Op,
        (dir, at): (&Node, &At<'_>),
        name: &[u8],
        make: &Make<'_>,
        access: Option<Access>,
    ) -> Result<OwnedFd> {
        let permissions = self.permissions(op, (dir, at), make);
        self.may_make(op, make.mode)?;
        let mut judge = self.judge(op);
        judge.may(at, CHANGES)?;
        let acting = judge.act()?;
        let kind = match make.mode & mode::S_IFMT {
            mode::S_IFREG => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let how = access.map_or(OFlags::RDONLY, how) | OFlags::NOCTTY;
                return openat(at, os(name), flags | how, permissions);
            }
            mode::S_IFDIR => {
                mkdirat(at, os(name), permissions)?;
                None
            }
            mode::S_IFLNK => {
                symlinkat(os(make.target.ok_or(Errno::INVAL)?), at, os(name))?;
                None
            }
            mode::S_IFCHR => Some(FileType::CharacterDevice),
            mode::S_IFBLK => Some(FileType::BlockDevice),
            mode::S_IFIFO => Some(FileType::Fifo),
            mode::S_IFSOCK => Some(FileType::Socket),
            _ => return Err(Errno::INVAL),
        };
        if let Some(kind) = kind {
            let (major, minor) = unpack_dev(make.rdev);
            mknodat(at, os(name), kind, permissions, makedev(major, minor))?;
        }
        drop(acting);
        self.open_child(at, name)
    }

    pub(super) fn add_link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>, name: &[u8]) -> Result<()> {
        let (node, file) = self.reach_inode(inode)?;
        let (dir_node, at) = self.reach_inode(dir)?;
        let mut judge = self.judge(op);
        judge.may(&at, CHANGES)?;
        judge.may_link(&file)?;
        let acting = judge.act()?;
        // By the descriptor: the very file that was compared, even if it is a symbolic link.
        let linked = linkat(&*self.links, Links::name(&file), &at, os(name), AtFlags::SYMLINK_FOLLOW);
        drop(acting);
        self.settle(dir, &at);
        self.settle(inode, &file);
        match linked {
            Ok(()) => {
                node.seen_at(Place::new(&dir_node, name), true);
                Ok(())
            }
            Err(errno) => {
                self.mark_name_stale(&dir_node, name);
                Err(errno)
            }
        }
    }

    /// unlink and rmdir.
    pub(super) fn remove(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()> {
        let (dir_node, at) = self.reach_inode(dir)?;
        let node = self.node(inode)?;
        let file = self.expect(&at, &dir_node, name, &node)?;
        let is_dir = node.fmt() == mode::S_IFDIR;
        let mut judge = self.judge(op);
        judge.may(&at, CHANGES)?;
        judge.owns(&owners_of(&at, file.as_ref()))?;
        let acting = judge.act()?;
        let removed = unlinkat(&at, os(name), if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() });
        drop(acting);
        self.settle(dir, &at);
        if let Some(file) = &file {
            self.settle(inode, file);
        }
        match removed {
            Ok(()) => {
                node.gone_from(&dir_node, name);
                if is_dir {
                    self.dirs.forget_node(&node);
                    inode.update(|attr| attr.nlink = 0);
                }
                if let Some(file) = file {
                    self.keep_unnamed(&node, inode, file);
                }
                Ok(())
            }
            Err(errno) => {
                if moved(errno) || matches!(errno, Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY) {
                    self.mark_name_stale(&dir_node, name);
                }
                Err(errno)
            }
        }
    }

    /// The file that has this name, which must be the one that the cache knows under it. None for a mount inside the
    /// source: the host itself answers that it is busy.
    fn expect(&self, at: &At<'_>, dir: &Node, name: &[u8], node: &Node) -> Result<Option<OwnedFd>> {
        if node.covered() {
            return Ok(None);
        }
        let outcome = match self.open_child(at, name) {
            Ok(fd) if identity::is(&node.id, &fd)? => return Ok(Some(fd)),
            Ok(_) => Err(Errno::STALE),
            Err(Errno::XDEV) => Err(Errno::STALE),
            Err(errno) => Err(errno),
        };
        self.mark_name_stale(dir, name);
        outcome
    }

    /// `more`: further flags for the host, which must know them.
    pub(super) fn move_name(&self, op: &Op, rename: &Rename<'_>, more: RenameFlags) -> Result<()> {
        let Rename { from_dir, from_name, inode, to_dir, to_name, target, exchange } = *rename;
        let (from_node, from) = self.reach_inode(from_dir)?;
        let (to_node, to) = self.reach_inode(to_dir)?;
        let node = self.node(inode)?;
        let file = self.expect(&from, &from_node, from_name, &node)?;
        let victim = match target {
            Some(target) => {
                let node = self.node(target)?;
                let file = self.expect(&to, &to_node, to_name, &node)?;
                Some((target, node, file))
            }
            None => None,
        };
        // A file that the caller did not know of must not be replaced.
        let flags = match (exchange, target) {
            (true, _) => RenameFlags::EXCHANGE,
            (false, None) => RenameFlags::NOREPLACE,
            (false, Some(_)) => RenameFlags::empty(),
        } | more;
        let replaced = victim.as_ref().and_then(|(_, _, file)| file.as_ref());
        // A directory that gets another parent, which is written in it.
        let crosses = from_node.number != to_node.number;
        let is_moved = |node: &Node| crosses && node.fmt() == mode::S_IFDIR;
        let moved = [
            file.as_ref().filter(|_| is_moved(&node)),
            replaced.filter(|_| exchange && victim.as_ref().is_some_and(|(_, node, _)| is_moved(node))),
        ];
        let judge = self.judge_move(op, (&from, file.as_ref()), (&to, replaced), moved)?;
        let moving = self.moves.begin();
        let acting = judge.act()?;
        let outcome = match renameat_with(&from, os(from_name), &to, os(to_name), flags) {
            // A file system without flags.
            Err(Errno::INVAL) if flags == RenameFlags::NOREPLACE => {
                let is_dir = node.fmt() == mode::S_IFDIR;
                rename_to_free((&from, from_name), (&to, to_name), is_dir)
            }
            outcome => outcome,
        };
        drop(acting);
        if outcome.is_ok() {
            let victim = victim.as_ref().map(|(target, node, _)| (*target, &**node));
            note_places(rename, (&from_node, &to_node), &node, victim);
        }
        drop(moving);
        self.settle(from_dir, &from);
        self.settle(to_dir, &to);
        if let Some(file) = &file {
            self.settle(inode, file);
        }
        if let Some((target, _, Some(file))) = &victim {
            self.settle(target, file);
        }
        match outcome {
            Ok(()) => {
                if let Some((target, other, file)) = victim.filter(|_| !exchange) {
                    self.after_replaced(target, &other, file);
                }
                Ok(())
            }
            Err(errno) => {
                self.mark_name_stale(&from_node, from_name);
                self.mark_name_stale(&to_node, to_name);
                // The target did not exist when it was looked up, and does now: look again.
                Err(if errno == Errno::EXIST && target.is_none() { Errno::STALE } else { errno })
            }
        }
    }

    /// `moved`: the directories that get another parent.
    fn judge_move<'m>(
        &'m self,
        op: &'m Op,
        (from, file): (&At<'_>, Option<&OwnedFd>),
        (to, replaced): (&At<'_>, Option<&OwnedFd>),
        moved: [Option<&OwnedFd>; 2],
    ) -> Result<Judge<'m>> {
        let mut judge = self.judge(op);
        judge.may(from, CHANGES)?;
        judge.may(to, CHANGES)?;
        judge.owns(&owners_of(from, file))?;
        if replaced.is_some() {
            judge.owns(&owners_of(to, replaced))?;
        }
        for dir in moved.into_iter().flatten() {
            judge.may(dir, Access::WRITE)?;
        }
        Ok(judge)
    }

    /// The inode that had the new name has one link less.
    fn after_replaced(&self, inode: &Inode<'_>, node: &Arc<Node>, file: Option<OwnedFd>) {
        if node.fmt() == mode::S_IFDIR {
            self.dirs.forget_node(node);
            inode.update(|attr| attr.nlink = 0);
        }
        if let Some(file) = file {
            self.keep_unnamed(node, inode, file);
        }
    }
}

/// After a rename on the host: where the nodes have their names now. `victim`: the file at the target, if there was one.
fn note_places(
    rename: &Rename<'_>,
    (from_dir, to_dir): (&Arc<Node>, &Arc<Node>),
    node: &Node,
    victim: Option<(&Inode<'_>, &Node)>,
) {
    let many = |inode: &Inode<'_>, node: &Node| inode.attr().nlink > 1 && node.fmt() != mode::S_IFDIR;
    node.gone_from(from_dir, rename.from_name);
    if let Some((target, other)) = victim {
        other.gone_from(to_dir, rename.to_name);
        if rename.exchange {
            other.seen_at(Place::new(from_dir, rename.from_name), many(target, other));
        }
    }
    node.seen_at(Place::new(to_dir, rename.to_name), many(rename.inode, node));
}
