//! Listeners for changes behind the cache: front ends, whose kernels keep names, attributes and pages of
//! their own.
//!
//! A listener is notified after the cache ([`crate::coherence::stale`] has the order), by the thread that notified the
//! cache. That thread holds nothing, so a listener that asks the cache finds what is true now. A listener
//! must not wait: it notes the notification and lets another thread do the rest. The mutex protects the
//! list and is a leaf. Without listeners, no thread takes it.

use std::sync::{Arc, Weak};

use uvfs_sync::primitives::{AtomicBool, Mutex, Ordering};

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

impl Listeners {
    /// From now on `listener` is notified, for as long as it lives.
    pub(crate) fn add(&self, listener: Weak<dyn Listener>) {
        self.all.lock().push(listener);
        self.any.store(true, Ordering::Release);
    }

    /// Notify all listeners. The caller holds nothing.
    pub(crate) fn notify(&self, tell: impl Fn(&dyn Listener)) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let all: Vec<Arc<dyn Listener>> = {
            let mut all = self.all.lock();
            all.retain(|listener| listener.strong_count() != 0);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        all.iter().for_each(|listener| tell(&**listener));
    }
}
