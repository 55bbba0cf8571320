//! uvfs's cache as an [`Inodes`]: a superblock that is not resident.

use std::sync::Arc;

use anyhow::{Result, ensure};
use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, SbOptions};
use uvfs_cache::{Attr, Cache, Config, InodeRef, SbId, Ttl};

use crate::arms::inodes::links::HashHeads;
use crate::arms::inodes::{FIRST, Inodes, attr_of};

/// Inodes besides those that stay.
const SPARE: u64 = 1 << 16;

/// The cache.
pub struct UvfsInodes {
    cache: Arc<Cache>,
    sb: SbId,
}

impl UvfsInodes {
    fn make(&self, ino: u64) -> Result<InodeRef<'_>> {
        let fresh = Fresh { attr: attr_of(ino), private: 0, ttl: Ttl::Forever };
        let asked = self.cache.ask(self.sb);
        let (inode, current) = self.cache.iget(self.sb, asked, &fresh)?;
        ensure!(current, "inode {ino} changed");
        Ok(inode)
    }
}

impl Inodes for UvfsInodes {
    fn new(files: u64, _heads: HashHeads) -> Result<Self> {
        let max_inodes = u32::try_from((files + SPARE).next_power_of_two())?;
        let cache = Cache::new(Config { max_inodes, ..Config::default() })?;
        let sb = cache.add_superblock(SbOptions {
            resident: false,
            watched: false,
            on_evict: Box::new(|_, _| {}),
        })?;
        let attr = Attr { mode: S_IFDIR | 0o755, ..attr_of(1) };
        drop(cache.make_root(sb, &Fresh { attr, private: 0, ttl: Ttl::Forever })?);
        let this = Self { cache, sb };
        for ino in FIRST..FIRST + files {
            // Held for good, as by a name.
            std::mem::forget(this.make(ino)?);
        }
        Ok(this)
    }

    #[inline]
    fn stat(&self, ino: u64, attr: &mut Attr) -> bool {
        self.cache.ipeek(self.sb, ino, S_IFREG, attr).is_some()
    }

    #[inline]
    fn get(&self, ino: u64) -> bool {
        self.cache.ilookup(self.sb, ino, S_IFREG).is_some()
    }

    fn make_and_end(&self, ino: u64) -> Result<()> {
        self.make(ino).map(drop)
    }

    /// uvfs keeps an inode as long as a name or a holder needs it, so this one ends.
    fn pass_through(&self, ino: u64) -> Result<()> {
        self.make_and_end(ino)
    }

    fn each(&self, f: &mut dyn FnMut(u64)) {
        self.cache.inodes_of(self.sb, &mut |inode| {
            // The root is in none of the other arms.
            if !inode.is_root() {
                f(inode.ino());
            }
            true
        });
    }
}
