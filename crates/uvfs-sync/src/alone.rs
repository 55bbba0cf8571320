//! A key that is held, in one word, while it is the only one of its shard.
//!
//! Rights to many things (names, inodes) stand in a sharded table: a list behind a mutex. Nearly always
//! the list is empty, and who takes a key and gives it back would lock the mutex twice for it: four read-modify-writes where
//! two do. So the first key of a shard stands in a word beside the list: 0 (none is held), that key, or *many* (the list tells).
//!
//! **What protects what.** From 0 to a key and back the word is changed by compare-exchange, by who takes and who holds that
//! key. To and from *many* it is changed under the mutex of the list, and the list is empty at all times when
//! the word is not *many*. The race of who holds a key alone, and gives it back, with who finds the word taken: if
//! the first is first, the other one finds 0 in its place. If the other one is, it has put the key on the list before it
//! lets go of the mutex, and the holder, whose exchange fails, finds it there.

use crate::primitives::{AtomicU64, Ordering};

/// The list tells which keys are held.
const MANY: u64 = 1;
/// The least key.
pub const LEAST: u64 = 2;

/// Models of other crates go by the list, as if the word were always taken: it has a model of its own.
const LISTED: bool = cfg!(all(loom, not(test)));

/// The word.
#[derive(Debug)]
pub struct Alone(AtomicU64);

impl Default for Alone {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Alone {
    /// Take a key ([`LEAST`] or more) of a shard in which none is held. False: go by the list.
    #[inline]
    pub fn take(&self, key: u64) -> bool {
        debug_assert!(key >= LEAST, "not a key");
        // Acquire: what was done with a right to the shard before happens before.
        !LISTED && self.0.compare_exchange(0, key, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Give a key back. False: it stands on the list.
    #[inline]
    pub fn release(&self, key: u64) -> bool {
        !LISTED && self.0.compare_exchange(key, 0, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// The list tells from now on. The key that was held alone is to be put on it. Under the list's mutex.
    #[must_use = "the holder will look for the key on the list"]
    pub fn share(&self) -> Option<u64> {
        let held = if LISTED { MANY } else { self.0.swap(MANY, Ordering::AcqRel) };
        (held >= LEAST).then_some(held)
    }

    /// The list is empty. Under its mutex, by who has taken the last key from it.
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
            let at =
                list.iter().position(|held| *held == key).expect("a key that is held stands on the list");
            list.swap_remove(at);
            if list.is_empty() {
                self.alone.unshare();
            }
        }
    }

    /// Rule 13: a key has one holder at a time, who sees what the last one did, whoever else comes for it or for
    /// another key. Planted bugs: rule13-alone-take-relaxed, rule13-alone-release-relaxed, rule13-alone-forgets.
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
                            // Not one step: a second holder's would be lost.
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
                assert!(s.0.take(2) && s.0.take(3), "a key that nobody holds");
                assert_eq!(s.1.load(Ordering::Relaxed), done);
            });
        }
    }
}
