//! Caches and superblocks: made, limited, counted, removed.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::uvfs_cache::{Config, Errno, HolderCall, InodeId, NodeCache, NodeRef, NodeSuperblock, OwnedNode};

use crate::boundary::{call, given};
use crate::values::{Data, Res, UVFS_ROOT, cache_error, inode_id, uvfs_answer, uvfs_destroy, uvfs_name};

/// Sizes of a cache. All zero: the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uvfs_config {
    /// Inodes that address space is reserved for. 0: 134 million.
    pub max_inodes: u32,
    /// The most negative entries. 0: in proportion to the names.
    pub max_negative: u32,
    /// Bytes that may be committed. 0: no limit.
    pub memory_limit: u64,
    /// Bytes that the server's data of each inode takes (malloc gives no fewer than 32). They count in the limit. 0: the
    /// data is not counted.
    pub data_bytes: u32,
    /// Called exactly once for the data of each inode (not for NULL), when nothing holds the inode any more: in any
    /// thread, inside any call. It must neither wait for another thread nor call the library. NULL: none.
    pub destroy: uvfs_destroy,
}

/// Current figures.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uvfs_counters {
    /// Inodes in use.
    pub inodes: u64,
    /// Names in use, negative ones included.
    pub names: u64,
    /// Negative names in use.
    pub negative: u64,
    /// Bytes committed.
    pub bytes: u64,
    /// The most that `bytes` may be; 0: no limit.
    pub limit: u64,
    /// Names evicted.
    pub evicted: u64,
}

/// A cache.
pub struct uvfs_cache {
    pub(crate) nodes: NodeCache<Data>,
    pub(crate) holder_call: Arc<HolderCall>,
    destroy: uvfs_destroy,
}

/// A file system in a cache.
pub struct uvfs_superblock {
    pub(crate) sb: NodeSuperblock<Data>,
    pub(crate) root: InodeId,
    pub(crate) destroy: uvfs_destroy,
    /// Tells the superblocks of all caches apart.
    pub(crate) serial: u64,
}

impl uvfs_superblock {
    /// The id in the cache of a node.
    pub(crate) fn id(&self, node: u64) -> InodeId {
        if node == UVFS_ROOT { self.root } else { inode_id(node) }
    }

    /// A node of this superblock, for one call: takes no reference to the cache, whose count all threads share.
    #[inline]
    pub(crate) fn borrow(&self, node: u64) -> Res<NodeRef<'_, Data>> {
        let found = self.sb.cache().borrow(self.id(node)).ok_or(Errno::STALE)?;
        if found.superblock() == self.sb.id() { Ok(found) } else { Err(Errno::XDEV) }
    }

    /// A node of this superblock.
    pub(crate) fn node(&self, node: u64) -> Res<OwnedNode<Data>> {
        let found = self.sb.cache().node(self.id(node)).ok_or(Errno::STALE)?;
        if found.superblock() == self.sb.id() { Ok(found) } else { Err(Errno::XDEV) }
    }

    /// A directory of this superblock.
    pub(crate) fn dir(&self, node: u64) -> Res<OwnedNode<Data>> {
        let found = self.node(node)?;
        if found.attr().is_dir() { Ok(found) } else { Err(Errno::NOTDIR) }
    }
}

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Make a cache. `config`: NULL for the defaults.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_cache_new(
    config: Option<&uvfs_config>,
    cache: Option<&mut MaybeUninit<Option<Box<uvfs_cache>>>>,
) -> c_int {
    call(|| {
        let cache = given(cache)?;
        let mut sizes = Config::default();
        let mut destroy = None;
        if let Some(config) = config {
            if config.max_inodes != 0 {
                sizes.max_inodes = config.max_inodes;
            }
            sizes.max_negative = config.max_negative;
            sizes.memory_limit = config.memory_limit;
            sizes.data_bytes = config.data_bytes;
            destroy = config.destroy;
        }
        let nodes = NodeCache::new(sizes).map_err(cache_error)?;
        cache.write(Some(Box::new(uvfs_cache { nodes, holder_call: Arc::default(), destroy })));
        Ok(0)
    })
}

/// Free a cache, once its superblocks and all other handles are gone.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_cache_free(cache: Option<Box<uvfs_cache>>) {
    call(|| {
        drop(cache);
        Ok(0)
    });
}

/// Set the memory limit in bytes (0: none), and evict down to it as far as possible.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_set_memory_limit(cache: Option<&uvfs_cache>, bytes: u64) -> c_int {
    call(|| {
        given(cache)?.nodes.set_memory_limit(bytes);
        Ok(0)
    })
}

/// Figures of a cache.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_get_counters(
    cache: Option<&uvfs_cache>,
    counters: Option<&mut MaybeUninit<uvfs_counters>>,
) -> c_int {
    call(|| {
        let (now, out) = (given(cache)?.nodes.counters(), given(counters)?);
        out.write(uvfs_counters {
            inodes: now.inodes,
            names: now.dentries,
            negative: now.negative,
            bytes: now.bytes,
            limit: now.limit,
            evicted: now.evicted,
        });
        Ok(0)
    })
}

/// Add a file system with its root, which has the node id 1 in it. `watched`: the server reports every change that
/// others make (`uvfs_name_changed`, `uvfs_inode_changed`), and UVFS_FOREVER holds until then. -ENOTDIR: the root is
/// no directory.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_superblock_add(
    cache: Option<&uvfs_cache>,
    watched: bool,
    root: Option<&uvfs_answer>,
    superblock: Option<&mut MaybeUninit<Option<Box<uvfs_superblock>>>>,
) -> c_int {
    call(|| {
        let (cache, root, out) = (given(cache)?, given(root)?, given(superblock)?);
        let root = root.checked(cache.destroy)?;
        if !root.attr.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let sb = cache.nodes.add_superblock(watched, root).map_err(cache_error)?;
        let root = sb.root().id();
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        out.write(Some(Box::new(uvfs_superblock { sb, root, destroy: cache.destroy, serial })));
        Ok(0)
    })
}

/// Remove a file system: its names, its root, and all lookups that its client has not forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_superblock_remove(superblock: Option<Box<uvfs_superblock>>) {
    call(|| {
        drop(superblock);
        Ok(0)
    });
}

/// Others have changed a name in the directory whose inode number is `dir`. Call this after the change. Returns 1
/// if the directory is cached, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_name_changed(
    superblock: Option<&uvfs_superblock>,
    dir: u64,
    name: uvfs_name,
) -> c_int {
    call(|| Ok(given(superblock)?.sb.name_changed(dir, name.bytes()?).into()))
}

/// Others have changed the inode with this number and the type bits of `mode`; with `content`, its content too.
/// Returns 1 if it is cached, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_inode_changed(
    superblock: Option<&uvfs_superblock>,
    ino: u64,
    mode: u32,
    content: bool,
) -> c_int {
    call(|| {
        let fmt = mode & ::uvfs_cache::attr::mode::S_IFMT;
        Ok(given(superblock)?.sb.inode_changed(ino, fmt, content).into())
    })
}

/// Reports of changes were lost: nothing cached of a watched superblock is trusted before the back end was asked.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_all_suspect(superblock: Option<&uvfs_superblock>) -> c_int {
    call(|| {
        given(superblock)?.sb.all_suspect();
        Ok(0)
    })
}
