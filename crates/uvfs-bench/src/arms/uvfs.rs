//! uvfs's cache as a table: one component at a time, without references, storing nothing shared.
//!
//! The only file that knows the cache's lookup calls.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use uvfs_cache::machinery::{Fresh, Pos, SbOptions, Stuck};
use uvfs_cache::{Attr, Cache, Config, InodeId, InodeRef, Room, SbId, Ttl};

use crate::arms::{Local, Movable, Table};
use crate::names::tree::{NameTree, ROOT, TreeEntry};
use crate::names::{DirPerm, Miss, NameTable};

/// The arm.
pub struct Uvfs {
    cache: Arc<Cache>,
    sb: SbId,
    root: InodeId,
    /// Ids of the directories by inode number, for changes.
    dirs: HashMap<u64, InodeId>,
}

fn fresh(attr: Attr) -> Fresh {
    Fresh { attr, private: 0, ttl: Ttl::Forever }
}

impl Uvfs {
    /// The cache that it measures.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    fn dir(&self, ino: u64) -> Result<InodeRef<'_>> {
        let id = self.dirs.get(&ino).context("no directory of this number")?;
        self.cache.get(*id).context("the directory is gone")
    }

    fn add(&mut self, entry: &TreeEntry) -> Result<()> {
        let cache = self.cache.clone();
        let id = self.dirs.get(&entry.parent).context("an entry stands before its directory")?;
        let dir = cache.get(*id).context("the directory is gone")?;
        let guard = cache.lock_name(&dir, &entry.name);
        if entry.attr.ino == 0 {
            guard.absent(Ttl::Forever);
            return Ok(());
        }
        let room = guard.reserve(if entry.attr.is_dir() { Room::Dir } else { Room::Node })?;
        let inode = guard.create(room, &fresh(entry.attr));
        if entry.attr.is_dir() {
            self.dirs.insert(entry.attr.ino, inode.id());
        }
        Ok(())
    }
}

impl Table for Uvfs {
    type Local<'t> = &'t Self;

    fn build(tree: &NameTree, _threads: usize) -> Result<Self> {
        let entries = tree.entries.len();
        let negative = tree.entries.iter().filter(|e| e.attr.ino == 0).count();
        let cache = Cache::new(Config {
            max_inodes: entries as u32 * 2 + (1 << 16),
            max_negative: negative as u32 + 1024,
            ..Config::default()
        })?;
        // Absent names are worth an entry only where directories are not complete.
        let sb = cache.add_superblock(SbOptions {
            resident: negative == 0,
            watched: false,
            on_evict: Box::new(|_, _| {}),
        })?;
        let root = cache.make_root(sb, &fresh(NameTree::root()))?.id();
        let mut table = Self { cache, sb, root, dirs: HashMap::from([(ROOT, root)]) };
        tree.entries.iter().try_for_each(|entry| table.add(entry))?;
        Ok(table)
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        let dir = self.dir(entry.parent)?;
        self.cache.lock_name(&dir, &entry.name).remove(None);
        Ok(())
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        self.add(entry)
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }
}

impl Movable for Uvfs {
    fn rename(&self, dir: u64, from: &[u8], to: &[u8]) -> Result<()> {
        let dir = self.dir(dir)?;
        let _renames = self.cache.lock_renames(self.sb);
        let (from, to) = self.cache.lock_names((&dir, from), (&dir, to));
        let room = to.reserve(Room::Name)?;
        self.cache.rename(&from, &to, room, None);
        Ok(())
    }

    fn chmod(&self, dir: u64, mode: u32) -> Result<()> {
        self.dir(dir)?.update(|attr| attr.mode = mode);
        Ok(())
    }
}

impl Local for &Uvfs {
    type View<'l>
        = Hits<'l>
    where
        Self: 'l;

    #[inline(always)]
    fn pin(&self) -> Hits<'_> {
        Hits::of(self)
    }
}

/// A view: nothing is pinned.
#[derive(Clone, Copy)]
pub struct Hits<'l> {
    cache: &'l Cache,
    names: uvfs_cache::machinery::Names<'l>,
    root: InodeId,
}

impl<'l> Hits<'l> {
    #[inline(always)]
    pub(crate) fn of(table: &'l Uvfs) -> Self {
        Self { cache: &table.cache, names: table.cache.names(), root: table.root }
    }

    /// The cache itself, and where walks start.
    pub(crate) fn start(&self) -> (&'l Cache, InodeId) {
        (self.cache, self.root)
    }
}

fn missed(stuck: Stuck) -> Miss {
    match stuck {
        Stuck::Retry(_) => Miss::Moved,
        // The cache holds all names of the tree, and no links.
        _ => Miss::Absent,
    }
}

impl NameTable for Hits<'_> {
    type At = Pos;

    #[inline(always)]
    fn root(&self) -> Result<Pos, Miss> {
        self.cache.pos(self.root).ok_or(Miss::Moved)
    }

    #[inline(always)]
    fn down(&self, at: Pos, name: &[u8]) -> Result<Pos, Miss> {
        self.cache.down(&self.names, at, &self.names.hash(name)).map_err(missed)
    }

    #[inline(always)]
    fn look(&self, at: Pos, name: &[u8], attr: &mut Attr) -> Result<(), Miss> {
        self.cache.look(&self.names, at, &self.names.hash(name), attr).map(drop).map_err(missed)
    }

    #[inline(always)]
    fn perm(&self, at: Pos) -> DirPerm {
        let perm = self.cache.perm(at);
        DirPerm { mode: perm.mode, uid: perm.uid, gid: perm.gid }
    }
}
