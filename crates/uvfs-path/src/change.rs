//! Changes of names: locks are held while the back end is asked, and the change is published afterwards.
//!
//! Each method takes the name's lock, reserves memory, uses the directory's path (for a removal or rename it also moves
//! the nodes, see [`crate::paths_in_use`]), and asks. If the back end refuses, nothing has changed. A call that is cancelled
//! while the back end works leaves the cache as it was before; the names are then asked about again.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuse3::path::PathFilesystem;
use fuse3::path::reply as path_reply;
use fuse3::raw::Request;
use fuse3::raw::reply::{ReplyCreated, ReplyEntry};
use fuse3::{Errno, Result};
use uvfs_cache::{NameLock, NodeKnown, Room};

use crate::lookup::keep;
use crate::table::{Node, PathNode, Table, errno};

/// The kernel's flags of renameat2.
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

type Lock = NameLock<PathNode>;

/// The calls that make a name.
#[derive(Clone, Copy)]
pub(crate) enum Making<'a> {
    Dir { mode: u32, umask: u32 },
    Node { mode: u32, rdev: u32 },
    Link { to: &'a OsStr },
}

impl Making<'_> {
    async fn ask<F: PathFilesystem + Send + Sync>(
        self,
        fs: &F,
        (req, dir, name): (Request, &OsStr, &OsStr),
    ) -> Result<path_reply::ReplyEntry> {
        match self {
            Self::Dir { mode, umask } => fs.mkdir(req, dir, name, mode, umask).await,
            Self::Node { mode, rdev } => fs.mknod(req, dir, name, mode, rdev).await,
            Self::Link { to } => fs.symlink(req, dir, name, to).await,
        }
    }

    fn room(self) -> Room {
        if matches!(self, Self::Dir { .. }) { Room::Dir } else { Room::Node }
    }
}

/// The calls that remove a name.
#[derive(Clone, Copy)]
pub(crate) enum Removing {
    File,
    Dir,
}

/// A locked name whose change the back end is asked for. Unless the answer comes, the name is asked about again: a
/// call that was cancelled may have changed it.
struct Doubt<'a> {
    dir: &'a Node,
    name: &'a OsStr,
    settled: bool,
}

impl<'a> Doubt<'a> {
    fn new(dir: &'a Node, name: &'a OsStr) -> Self {
        Self { dir, name, settled: false }
    }

    /// The back end has answered.
    fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.dir.invalidate(self.name.as_bytes());
        }
    }
}

/// Others made this name before: its absence is no longer trusted.
fn note_exists(mut lock: Lock, error: Errno) -> Errno {
    if error.is_exist() && !matches!(lock.known(), NodeKnown::Hit(_)) {
        lock.dir().invalidate(lock.name());
    }
    error
}

/// A node that a change removes or replaces, after [`NameLock::begin_removal`].
struct Removed {
    node: Option<Node>,
    /// The table has entries in it, and the back end had none: others removed them.
    stale: bool,
}

impl Removed {
    fn begin(lock: &mut Lock) -> Self {
        let node = lock.previous();
        let stale = node.as_ref().is_some_and(|node| lock.begin_removal(node).is_err());
        Self { node, stale }
    }

    /// The back end has removed or replaced it. Returns whether the table may publish that as an ordinary removal.
    fn end(&self, table: &Table) -> bool {
        if let Some(node) = &self.node {
            if self.stale {
                node.replaced();
            } else {
                table.attr_changed(node);
            }
        }
        !self.stale
    }
}

impl Table {
    async fn reserve(&self, lock: &mut Lock, room: Room) -> Result<()> {
        let mut patience = self.patience();
        loop {
            match self.attempt(&patience, || lock.reserve(room)) {
                Err(_) if patience.again().await => {}
                done => return done,
            }
        }
    }

    /// mkdir, mknod and symlink.
    pub(crate) async fn make<F: PathFilesystem + Send + Sync>(
        &self,
        fs: &F,
        (req, parent, name): (Request, u64, &OsStr),
        making: Making<'_>,
    ) -> Result<ReplyEntry> {
        Self::check_name(name)?;
        let dir = self.node(parent)?;
        let mut lock = dir.lock_name(name.as_bytes()).await;
        self.reserve(&mut lock, making.room()).await?;
        let used = self.uses.enter([&dir]).await;
        let path = self.path(&dir)?;
        let doubt = Doubt::new(&dir, name);
        let made = making.ask(fs, (req, &path, name)).await;
        doubt.settle();
        drop(used);
        let made = match made {
            Ok(made) => made,
            Err(error) => return Err(note_exists(lock, error)),
        };
        let answer = self.answer(None, &made.attr, (made.ttl, made.ttl));
        let attr = answer.attr;
        let node = lock.create(answer).map_err(errno)?;
        self.attr_changed(&dir);
        Ok(self.entry(&node, &attr))
    }

    /// A create that may also open a file that exists.
    pub(crate) async fn create<F: PathFilesystem + Send + Sync>(
        &self,
        fs: &F,
        (req, parent, name): (Request, u64, &OsStr),
        (mode, flags): (u32, u32),
    ) -> Result<ReplyCreated> {
        Self::check_name(name)?;
        let dir = self.node(parent)?;
        let mut lock = dir.lock_name(name.as_bytes()).await;
        self.reserve(&mut lock, Room::Node).await?;
        let used = self.uses.enter([&dir]).await;
        let path = self.path(&dir)?;
        let doubt = Doubt::new(&dir, name);
        let made = fs.create(req, &path, name, mode, flags).await;
        doubt.settle();
        drop(used);
        let made = match made {
            Ok(made) => made,
            Err(error) => return Err(note_exists(lock, error)),
        };
        let exclusive = flags & libc::O_EXCL as u32 != 0;
        let previous = if exclusive { None } else { lock.previous() };
        let answer = self.answer(previous.as_ref(), &made.attr, (made.ttl, made.ttl));
        let attr = answer.attr;
        let node = match previous {
            // A node that is known takes no memory.
            Some(previous) if previous.attr().ino == attr.ino => keep(self, &self.patience(), lock, answer)?,
            _ => lock.create(answer).map_err(errno)?,
        };
        self.attr_changed(&dir);
        let entry = self.entry(&node, &attr);
        let (fh, flags) = (made.fh, made.flags);
        self.open_files.opened(node.id(), fh);
        Ok(ReplyCreated { ttl: entry.ttl, attr: entry.attr, generation: 0, fh, flags })
    }

    /// Another name for a node.
    pub(crate) async fn link<F: PathFilesystem + Send + Sync>(
        &self,
        fs: &F,
        req: Request,
        node: u64,
        (parent, name): (u64, &OsStr),
    ) -> Result<ReplyEntry> {
        Self::check_name(name)?;
        let (node, dir) = (self.node(node)?, self.node(parent)?);
        if node.attr().is_dir() {
            return Err(libc::EPERM.into());
        }
        let mut lock = dir.lock_name(name.as_bytes()).await;
        self.reserve(&mut lock, Room::Name).await?;
        let used = self.uses.enter([&node, &dir]).await;
        let (path, dir_path) = (self.path(&node)?, self.path(&dir)?);
        let revision = node.revision();
        let doubt = Doubt::new(&dir, name);
        let linked = fs.link(req, &path, &dir_path, name).await;
        doubt.settle();
        drop(used);
        let linked = match linked {
            Ok(linked) => linked,
            Err(error) => return Err(note_exists(lock, error)),
        };
        let attr = self.answer_of(&node, &linked.attr)?;
        self.store_attr(&node, revision, &attr, self.attr_ttl(linked.ttl));
        lock.link(&node, self.name_ttl(linked.ttl)).map_err(errno)?;
        self.attr_changed(&dir);
        Ok(self.entry(&node, &attr))
    }

    /// unlink and rmdir.
    pub(crate) async fn remove<F: PathFilesystem + Send + Sync>(
        &self,
        fs: &F,
        (req, parent, name): (Request, u64, &OsStr),
        removing: Removing,
    ) -> Result<()> {
        Self::check_name(name)?;
        let dir = self.node(parent)?;
        let mut lock = dir.lock_name(name.as_bytes()).await;
        let removed = Removed::begin(&mut lock);
        let used = self.uses.enter([&dir]).await;
        let moving = self.uses.begin_move(self.cache(), removed.node.as_ref().as_slice()).await;
        let path = self.path(&dir)?;
        let doubt = Doubt::new(&dir, name);
        let gone = match removing {
            Removing::File => fs.unlink(req, &path, name).await,
            Removing::Dir => fs.rmdir(req, &path, name).await,
        };
        doubt.settle();
        if let Err(error) = gone {
            if error.is_not_exist() {
                dir.invalidate(name.as_bytes());
            }
            return Err(error);
        }
        if removed.end(self) {
            lock.remove();
        } else {
            dir.invalidate(name.as_bytes());
        }
        drop((moving, used));
        self.attr_changed(&dir);
        Ok(())
    }

    /// rename; with flags, renameat2.
    pub(crate) async fn rename<F: PathFilesystem + Send + Sync>(
        &self,
        fs: &F,
        req: Request,
        (from, to): ((u64, &OsStr), (u64, &OsStr)),
        with: Option<u32>,
    ) -> Result<()> {
        let flags = with.unwrap_or(0);
        Self::check_name(from.1)?;
        Self::check_name(to.1)?;
        let (from_dir, to_dir) = (self.node(from.0)?, self.node(to.0)?);
        let _renames = match from_dir == to_dir {
            true => None,
            false => Some(self.superblock().lock_renames().await),
        };
        let places = ((&from_dir, from.1.as_bytes()), (&to_dir, to.1.as_bytes()));
        let (mut from_lock, mut to_lock) = self.cache().lock_names(places.0, places.1).await;
        let exchange = flags & RENAME_EXCHANGE != 0;
        let (moved, target) = (from_lock.previous(), to_lock.previous());
        // A replaced directory above its replacement is not empty; an exchanged one would come below itself.
        for (node, into) in [(&moved, &to_dir), (&target, &from_dir)] {
            if node.as_ref().is_some_and(|node| node.attr().is_dir() && into.is_below(node)) {
                let replaced = std::ptr::eq(node, &target) && !exchange;
                return Err(if replaced { libc::ENOTEMPTY } else { libc::EINVAL }.into());
            }
        }
        self.reserve(&mut to_lock, Room::Name).await?;
        let replaced = match exchange {
            true => Removed { node: None, stale: false },
            false => Removed::begin(&mut to_lock),
        };
        let used = self.uses.enter([&from_dir, &to_dir]).await;
        let nodes: Vec<&Node> = moved.iter().chain(&target).collect();
        let moving = self.uses.begin_move(self.cache(), &nodes).await;
        let (from_path, to_path) = (self.path(&from_dir)?, self.path(&to_dir)?);
        let doubts = [Doubt::new(&from_dir, from.1), Doubt::new(&to_dir, to.1)];
        let done = match with {
            None => fs.rename(req, &from_path, from.1, &to_path, to.1).await,
            Some(flags) => fs.rename2(req, &from_path, from.1, &to_path, to.1, flags).await,
        };
        doubts.into_iter().for_each(Doubt::settle);
        done?;
        if exchange {
            self.cache().exchange(from_lock, to_lock);
        } else {
            if !replaced.end(self) {
                to_dir.invalidate(to.1.as_bytes());
            }
            // If the moved name has left the table, both are asked about again.
            self.cache().rename(from_lock, to_lock).map_err(errno)?;
            if flags & RENAME_WHITEOUT != 0 {
                from_dir.invalidate(from.1.as_bytes());
            }
        }
        drop((moving, used));
        for node in [Some(&from_dir), Some(&to_dir), moved.as_ref()].into_iter().flatten() {
            self.attr_changed(node);
        }
        Ok(())
    }
}
