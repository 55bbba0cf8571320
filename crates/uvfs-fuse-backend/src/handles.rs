//! Open files and directories by number.
//!
//! Each shard has a lock, a leaf, which a call takes for a few steps. A number is never used again, so a late request
//! finds nothing rather than another file.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

const SHARDS: usize = 64;

type Shard<H> = RwLock<HashMap<u64, Arc<H>>>;

/// A server's open files or directories, each with data of the server's own.
pub struct HandleStore<H> {
    shards: [Shard<H>; SHARDS],
    next: AtomicU64,
}

impl<H> Default for HandleStore<H> {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()), next: AtomicU64::new(1) }
    }
}

impl<H> HandleStore<H> {
    fn shard(&self, handle: u64) -> &Shard<H> {
        &self.shards[handle as usize % SHARDS]
    }

    /// A number for an open file.
    pub fn insert(&self, open: H) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(handle).write().insert(handle, Arc::new(open));
        handle
    }

    /// The open file; `None`: EBADF.
    pub fn get(&self, handle: u64) -> Option<Arc<H>> {
        self.shard(handle).read().get(&handle).cloned()
    }

    /// Release the number if its file satisfies `is_it`. Others may be using the file still.
    pub fn remove_if(&self, handle: u64, is_it: impl FnOnce(&H) -> bool) -> Option<Arc<H>> {
        let mut shard = self.shard(handle).write();
        if !is_it(shard.get(&handle)?) {
            return None;
        }
        shard.remove(&handle)
    }

    /// Release all numbers.
    pub fn clear(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.write());
            drop(all);
        }
    }

    /// Open files. O(shards).
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Whether no file is open. O(shards).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<H> fmt::Debug for HandleStore<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleStore({} open)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_to_its_file_until_it_is_released_and_to_none_after_that() {
        let handles = HandleStore::default();
        let all: Vec<u64> = (0..200).map(|open| handles.insert(open)).collect();
        assert!(all.iter().enumerate().all(|(at, handle)| *handles.get(*handle).unwrap() == at));
        assert_eq!(handles.len(), 200);
        let held = handles.get(all[7]).unwrap();
        assert!(handles.remove_if(all[7], |open| *open == 8).is_none());
        assert_eq!(handles.remove_if(all[7], |open| *open == 7), Some(held));
        assert!(handles.get(all[7]).is_none() && handles.remove_if(all[7], |_| true).is_none());
        assert!(!all.contains(&handles.insert(7)));
        handles.clear();
        assert!(handles.is_empty() && all.iter().all(|handle| handles.get(*handle).is_none()));
    }
}
