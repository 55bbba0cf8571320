//! Numbers for keys of up to 64 bytes: file handles, object keys, GUIDs.
//!
//! The cache finds inodes by 64-bit numbers. A [`NodeKey`] gives a key a number that no other key of its index has.
//! The embedder uses that number as the inode's `ino`, and keeps the key in its data. So the key has its number for
//! as long as the inode is cached, and leaves the index with it.
//!
//! Each shard of the index has a mutex, a leaf; a lookup takes it for a few steps. A key's entry goes with the last
//! [`NodeKey`], under the mutex. If a maker of that key comes first, it has a `NodeKey` too, and the entry stays.
//! Otherwise the maker finds none, and gives the key another number.
//!
//! Costs the key, 24 bytes and a place in a set for each key, counted in the limit. A set of which little is used
//! shrinks.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use uvfs_sync::primitives::{AtomicU64, Mutex, Ordering};

use crate::limit::external_bytes::ExternalBytes;

/// Longest key, in bytes.
const KEY_MAX: usize = 64;
const SHARDS: usize = if cfg!(loom) { 1 } else { 16 };
/// Bytes of an allocation beside the key: two counts, the number, and the allocator's word before it.
const BESIDE_KEY: usize = 32;
/// Bytes of a place in a set: a fat pointer and a byte, with seven eighths to half of that of the set in use.
const PLACE: usize = 28;
/// Sets with space for fewer keys stay as they are.
const SET_MIN: usize = 1024;

/// A key is longer than 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTooLong;

impl fmt::Display for KeyTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key is longer than 64 bytes")
    }
}

impl std::error::Error for KeyTooLong {}

/// The number, then the key.
#[derive(Clone)]
struct Numbered(Arc<[u8]>);

impl Numbered {
    fn number(&self) -> u64 {
        self.0.first_chunk().map_or(0, |number| u64::from_le_bytes(*number))
    }

    fn key(&self) -> &[u8] {
        &self.0[8..]
    }
}

impl Borrow<[u8]> for Numbered {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}

impl Hash for Numbered {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for Numbered {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Numbered {}

/// Bytes that a key takes. Allocators give units of 16.
const fn bytes_of(key: &[u8]) -> u64 {
    ((key.len() + BESIDE_KEY).next_multiple_of(16) + PLACE) as u64
}

/// Shrink a set of which little is used. Its mutex is held; that is O(keys left), once for seven times as many that
/// went.
fn give_back(set: &mut HashSet<Numbered>) {
    if set.capacity() >= SET_MIN && set.len() < set.capacity() / 8 {
        set.shrink_to(set.len() * 2);
    }
}

struct Index {
    shards: [Mutex<HashSet<Numbered>>; SHARDS],
    hasher: RandomState,
    next: AtomicU64,
    bytes: Arc<ExternalBytes>,
}

impl Index {
    fn shard(&self, key: &[u8]) -> &Mutex<HashSet<Numbered>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// A new number for a key.
    fn make(&self, key: &[u8]) -> Numbered {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.bytes.add(bytes_of(key));
        Numbered(number.to_le_bytes().iter().chain(key).copied().collect())
    }

    fn gone(&self, entry: &Numbered) {
        self.bytes.sub(bytes_of(entry.key()));
    }
}

/// An index of keys; [`NodeCache::keys`](super::NodeCache::keys) makes it. A clone is the same index.
#[derive(Clone)]
pub struct NodeKeys(Arc<Index>);

impl NodeKeys {
    pub(super) fn new(first: u64, bytes: Arc<ExternalBytes>) -> Self {
        let shards = std::array::from_fn(|_| Mutex::new(HashSet::new()));
        Self(Arc::new(Index { shards, hasher: RandomState::new(), next: AtomicU64::new(first), bytes }))
    }

    /// The key, with the number that it has, or a new one.
    ///
    /// # Errors
    /// [`KeyTooLong`].
    pub fn key(&self, key: &[u8]) -> Result<NodeKey, KeyTooLong> {
        if key.len() > KEY_MAX {
            return Err(KeyTooLong);
        }
        let mut shard = self.0.shard(key).lock();
        let entry = match shard.get(key) {
            Some(entry) => entry.clone(),
            None => {
                let entry = self.0.make(key);
                shard.insert(entry.clone());
                entry
            }
        };
        Ok(NodeKey { index: self.0.clone(), entry: Some(entry) })
    }

    // For this project's own crates: see `machinery`.
    /// The number that a key has, if any.
    #[doc(hidden)]
    pub fn number(&self, key: &[u8]) -> Option<u64> {
        self.0.shard(key).lock().get(key).map(Numbered::number)
    }

    /// The key of `old` is another inode from now on, and has a new number. If the key has already got another number
    /// since, this is that one: of two threads that see the same change, both get one number. The old number stays
    /// with those that have it, and no lookup by the key leads there. Names that lead to the old inode are another
    /// matter: [`OwnedNode::replaced`](super::OwnedNode::replaced).
    pub fn replace(&self, old: &NodeKey) -> NodeKey {
        let key = old.key();
        let mut shard = self.0.shard(key).lock();
        let entry = match shard.get(key) {
            Some(now) if !old.is(now) => now.clone(),
            _ => {
                let entry = self.0.make(key);
                if let Some(listed) = shard.replace(entry.clone()) {
                    self.0.gone(&listed);
                }
                entry
            }
        };
        NodeKey { index: self.0.clone(), entry: Some(entry) }
    }
}

impl fmt::Debug for NodeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKeys")
    }
}

/// A key and its number. While one of a key exists, the key keeps its number.
pub struct NodeKey {
    index: Arc<Index>,
    /// `None` only while this is dropped.
    entry: Option<Numbered>,
}

impl NodeKey {
    /// The number; use it as the inode's `ino`.
    pub fn number(&self) -> u64 {
        self.entry.as_ref().map_or(0, Numbered::number)
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        self.entry.as_ref().map_or(&[], Numbered::key)
    }

    /// Whether the index lists this entry, and not a later one of the same key.
    fn is(&self, listed: &Numbered) -> bool {
        self.entry.as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.0, &listed.0))
    }
}

impl Clone for NodeKey {
    fn clone(&self) -> Self {
        Self { index: self.index.clone(), entry: self.entry.clone() }
    }
}

impl Drop for NodeKey {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        let mut shard = self.index.shard(entry.key()).lock();
        // Ours, unless the key is another inode by now. Two counts: the set's and this one. (One that another
        // thread clones or drops now has a count of its own until it is dropped here.)
        let ours = shard.get(entry.key()).is_some_and(|listed| Arc::ptr_eq(&listed.0, &entry.0));
        if ours && Arc::strong_count(&entry.0) == 2 {
            shard.remove(entry.key());
            give_back(&mut shard);
            self.index.gone(&entry);
        }
        // Under the mutex: of two that go at once, the second sees the count of the first gone.
        drop(entry);
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({:?} = {})", self.key(), self.number())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_keys_comes_back() {
        let keys = NodeKeys::new(1, Arc::default());
        let places = || keys.0.shards.iter().map(|set| set.lock().capacity()).sum::<usize>();
        let mut held: Vec<_> = (0..100_000u64).map(|n| keys.key(&n.to_le_bytes()).unwrap()).collect();
        assert!(places() >= 100_000);
        assert_eq!(keys.0.bytes.bytes(), 100_000 * (48 + PLACE as u64));
        held.truncate(100);
        assert!(places() < SHARDS * SET_MIN, "{} places", places());
        assert!((0..100u64).all(|n| keys.number(&n.to_le_bytes()) == Some(n + 1)));
        drop(held);
        assert_eq!(keys.0.bytes.bytes(), 0);
    }
}
