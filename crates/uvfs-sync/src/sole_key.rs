//! A shard's only held key, in one word.
//!
//! Locks on many things (names, inodes) stand in a sharded table: a list behind a mutex. Nearly always the
//! list is empty. Taking a key and giving it back would then lock the mutex twice: four read-modify-writes
//! where two suffice. So the first key of a shard stands in a word beside the list. The word is 0 (no key
//! is held), that key, or *many* (the list has the keys).
//!
//! **Protection.** The thread that takes or holds a key changes the word from 0 to the key and back, by
//! compare-exchange. To and from *many* the word is changed under the mutex of the list. The list is empty whenever
//! the word is not *many*. The race of a holder that gives its key back against a thread that finds the word taken:
//! if the holder comes first, the other thread finds 0 in its place. If the other thread comes first, it puts the key
//! on the list before it releases the mutex, and the holder, whose exchange fails, finds it there.

use crate::primitives::{AtomicU64, Ordering};

/// The list has the keys that are held.
const MANY: u64 = 1;
/// The least key.
pub const LEAST: u64 = 2;

/// Models of other crates use the list, as if the word were always taken: the word has a model of its own.
const LISTED: bool = cfg!(all(loom, not(test)));

/// The word beside the list.
#[derive(Debug)]
pub struct Alone(AtomicU64);

impl Default for Alone {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Alone {
    /// Take a key ([`LEAST`] or more) of a shard in which none is held. False: use the list.
    #[inline]
    pub fn take(&self, key: u64) -> bool {
        debug_assert!(key >= LEAST, "not a key");
        // Acquire: the actions of earlier holders of this shard's keys happen before.
        !LISTED && self.0.compare_exchange(0, key, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Give a key back. False: it is on the list.
    #[inline]
    pub fn release(&self, key: u64) -> bool {
        !LISTED && self.0.compare_exchange(key, 0, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// The list has the keys from now on; the caller puts the returned key, which was held alone, on it.
    /// Called under the list's mutex.
    #[must_use = "the holder will look for the key on the list"]
    pub fn share(&self) -> Option<u64> {
        let held = if LISTED { MANY } else { self.0.swap(MANY, Ordering::AcqRel) };
        (held >= LEAST).then_some(held)
    }

    /// The list is empty. Called under its mutex, by the thread that took the last key from it.
    pub fn unshare(&self) {
        if !LISTED {
            self.0.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitives::{Arc, AtomicU32, Mutex};
    use loom::thread::spawn;

    #[derive(Default)]
    struct Shard {
        alone: Alone,
        list: Mutex<Vec<u64>>,
    }

    impl Shard {
        fn take(&self, key: u64) -> bool {
            if self.alone.take(key) {
                return true;
            }
            let mut list = self.list.lock();
            list.extend(self.alone.share());
            let free = !list.contains(&key);
            if free {
                list.push(key);
            }
            free
        }

        fn release(&self, key: u64) {
            if self.alone.release(key) {
                return;
            }
            let mut list = self.list.lock();
            let at = list.iter().position(|held| *held == key).expect("a held key is on the list");
            list.swap_remove(at);
            if list.is_empty() {
                self.alone.unshare();
            }
        }
    }

    /// Rule 13: a key has one holder at a time, which sees what the last holder did, whoever else comes for
    /// it or for another key. Planted bugs: rule13-alone-take-relaxed, rule13-alone-release-relaxed,
    /// rule13-alone-forgets.
    #[test]
    fn loom_rule13_a_key_has_one_holder() {
        for others in [[2, 2], [2, 3]] {
            let mut model = loom::model::Builder::new();
            model.preemption_bound = Some(3);
            model.check(move || {
                let s = Arc::new((Shard::default(), AtomicU32::new(0)));
                let work = |s: &(Shard, AtomicU32), key: u64| {
                    if s.0.take(key) {
                        if key == 2 {
                            // Two steps: a second holder's addition would be lost.
                            let n = s.1.load(Ordering::Relaxed);
                            s.1.store(n + 1, Ordering::Relaxed);
                        }
                        s.0.release(key);
                        return u32::from(key == 2);
                    }
                    0
                };
                let threads = others.map(|key| {
                    let s = s.clone();
                    spawn(move || work(&s, key))
                });
                let mut done = work(&s, 2);
                for t in threads {
                    done += t.join().unwrap();
                }
                assert!(s.0.take(2) && s.0.take(3), "a key is still held");
                assert_eq!(s.1.load(Ordering::Relaxed), done);
            });
        }
    }
}
