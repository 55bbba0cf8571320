//! The parts of a view that a change must reach: the caches that it is mounted in, and its open files.
//!
//! The engine knows views by this part alone. The list of mounts is a leaf lock, and no cache is called while it is
//! held.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uvfs_cache::{Cache, SbId};

use super::open_files::Opens;

/// See the module's head.
pub(super) struct ViewCaches {
    pub(super) opens: Opens,
    mounts: Mutex<Vec<Mount>>,
}

struct Mount {
    cache: Weak<Cache>,
    sb: SbId,
}

impl ViewCaches {
    pub(super) fn new() -> Self {
        Self { opens: Opens::new(), mounts: Mutex::new(Vec::new()) }
    }

    /// The view was mounted in `cache`, as the superblock `sb`.
    pub(super) fn add(&self, cache: &Arc<Cache>, sb: SbId) {
        self.mounts.lock().push(Mount { cache: Arc::downgrade(cache), sb });
    }

    /// Calls `tell` with each cache that the view is mounted in, and the superblock there.
    pub(super) fn each_cache(&self, tell: impl Fn(&Cache, SbId)) {
        let caches: Vec<_> = {
            let mut mounts = self.mounts.lock();
            mounts.retain(|mount| mount.cache.strong_count() != 0);
            mounts.iter().filter_map(|mount| Some((mount.cache.upgrade()?, mount.sb))).collect()
        };
        caches.iter().for_each(|(cache, sb)| tell(cache, *sb));
    }
}
