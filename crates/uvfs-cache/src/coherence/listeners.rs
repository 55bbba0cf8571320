//! Listeners for changes behind the cache: front ends, whose kernels keep names, attributes and pages of
//! their own.
//!
//! A listener is notified after the cache ([`crate::coherence::stale`] has the order), by the thread that notified the
//! cache. That thread holds nothing, so a listener that asks the cache finds what is true now. A listener
//! must not wait: it notes the notification and lets another thread do the rest. The mutex protects the
//! list and is a leaf. Without listeners, no thread takes it.

use std::sync::{Arc, Weak};

use uvfs_sync::primitives::{AtomicBool, Mutex, Ordering};

use crate::cache::Cache;
use crate::inodes::attr::mode;
use crate::inodes::inode_ref::InodeRef;
use crate::names::dentry::is_name;
use crate::types::{InodeId, SbId};

/// Receives changes that are made behind the cache.
pub trait Listener: Send + Sync {
    /// `name` in `dir` may lead elsewhere, or nowhere; the directory's attributes may differ.
    fn name(&self, sb: SbId, dir: InodeId, name: &[u8]);
    /// The attributes of `inode` may differ; with `content`, the file's content too.
    fn inode(&self, sb: SbId, inode: InodeId, content: bool);
    /// Anything may differ.
    fn all(&self, sb: SbId);
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Listeners {
    any: AtomicBool,
    all: Mutex<Vec<Weak<dyn Listener>>>,
}

impl Cache {
    /// From now on `listener` is notified of changes behind the cache, for as long as it lives.
    pub fn listen(&self, listener: Weak<dyn Listener>) {
        self.listeners.all.lock().push(listener);
        self.listeners.any.store(true, Ordering::Release);
    }

    /// The driver itself changed what `name` leads to in `dir`, and the directory's attributes with it. The
    /// cache has the change already; this notifies the front ends.
    pub fn tell_of_name(&self, dir: &InodeRef<'_>, name: &[u8]) {
        if !is_name(name) {
            return;
        }
        self.announce(|listener| listener.name(dir.sb(), dir.id(), name));
    }

    /// As [`Cache::tell_of_name`], for an inode's attributes.
    pub fn tell_of_attr(&self, inode: &InodeRef<'_>) {
        self.announce(|listener| listener.inode(inode.sb(), inode.id(), false));
    }

    pub(crate) fn announce(&self, tell: impl Fn(&dyn Listener)) {
        if !self.listeners.any.load(Ordering::Acquire) {
            return;
        }
        let all: Vec<Arc<dyn Listener>> = {
            let mut all = self.listeners.all.lock();
            all.retain(|listener| listener.strong_count() != 0);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        all.iter().for_each(|listener| tell(&**listener));
    }

    /// Inodes of `sb` that a front end's kernel holds, each with whether it is a directory. They come in
    /// arena order from `from` (0: the start), at most `max`. Also returns where to continue, if that was
    /// not all. An inode that the kernel learns of meanwhile may be missing.
    pub fn held_nodes(&self, sb: SbId, from: u32, max: usize) -> (Vec<(InodeId, bool)>, Option<u32>) {
        let mut held = Vec::new();
        for (first, end) in self.superblock(sb).inodes().chunks() {
            for index in (first.max(from)..end).take_while(|index| self.inodes.is_slot(*index)) {
                let (published, private) = (self.inodes.get(index), self.inodes.private(index));
                if private.nlookup.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                if held.len() == max {
                    return (held, Some(index));
                }
                let is_dir = published.mode_and_flags() & mode::S_IFMT == mode::S_IFDIR;
                held.push((InodeId::new(index, published.generation()), is_dir));
            }
        }
        (held, None)
    }
}
