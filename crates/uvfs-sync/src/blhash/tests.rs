//! Tests of the hash: an entry is found through growth and re-keys.

#[cfg(debug_assertions)]
mod order;

use std::sync::atomic::AtomicBool as StdBool;

use super::*;
use crate::primitives::Arc;

/// Objects whose hash under a key is a mix of their index, or (hostile) constant under the first key.
struct Objs {
    hash: Vec<AtomicU32>,
    hostile: Option<HashKey>,
}

impl Objs {
    fn new(n: u32, hostile: Option<HashKey>) -> Self {
        Self { hash: (0..n).map(|_| AtomicU32::new(0)).collect(), hostile }
    }
    fn full(&self, index: u32, key: HashKey) -> u64 {
        if self.hostile == Some(key) {
            return 0x4200_0000_0000_0001;
        }
        let x = (u64::from(index) ^ key.0).wrapping_mul(key.1 | 1);
        x ^ x >> 29 ^ x << 31
    }
    fn hashes(&self, table: &BlHash, index: u32) -> Hashes {
        table.hashes(|key| self.full(index, key))
    }
    fn insert(&self, table: &BlHash, index: u32) {
        let mut spare = false;
        loop {
            let h = self.hashes(table, index);
            let Some(mut locked) = table.lock([&h], spare) else { continue };
            self.store_hash(index, BlHash::to_store(&h));
            if locked.insert(0, &h, index).is_ok() {
                break;
            }
            spare = true;
        }
        table.maintain(self);
    }
    fn remove(&self, table: &BlHash, index: u32) -> bool {
        let removed = loop {
            let h = self.hashes(table, index);
            if let Some(mut locked) = table.lock([&h], false) {
                break locked.remove(0, index);
            }
        };
        table.maintain(self);
        removed
    }
    fn find(&self, table: &BlHash, index: u32) -> Scan<u32, ()> {
        let h = self.hashes(table, index);
        table.scan(&h, |i| (i == index).then_some(i), || ())
    }
    fn finds(&self, table: &BlHash, index: u32) -> bool {
        loop {
            match self.find(table, index) {
                Scan::Hit(_) => return true,
                Scan::Miss(()) => return false,
                Scan::Moved => crate::primitives::spin_loop(),
            }
        }
    }
}

impl Objects for Objs {
    fn stored_hash(&self, index: u32) -> u32 {
        self.hash[index as usize].load(Ordering::Relaxed)
    }
    fn rehash(&self, index: u32, key: HashKey) -> u64 {
        self.full(index, key)
    }
    fn store_hash(&self, index: u32, hash: u32) {
        self.hash[index as usize].store(hash, Ordering::Relaxed);
    }
}

/// Without the first, lines would be committed without a question when the memory limit has long been reached.
#[test]
fn a_table_that_fell_behind_counts_its_buckets_and_catches_up_with_few_inserts() {
    // So few beside the first ones that no chain becomes long: that would re-key the table.
    const FIRST: u32 = 30_000;
    const BEHIND: u32 = FIRST + 12_000;
    const LAST: u32 = BEHIND + 1_000;
    let objects = Objs::new(LAST, None);
    let table = BlHash::new(1 << 20).unwrap();
    let buckets = || table.tables[0].buckets();
    (1..FIRST).for_each(|index| objects.insert(&table, index));
    let held = table.grow.lock();
    (FIRST..BEHIND).for_each(|index| objects.insert(&table, index));
    assert!((buckets() + 1_000) * LOAD < table.len(), "nothing is split while the mutex is held");
    // Without the overflow lines, of which there are more while buckets are missing.
    let overflow = u64::from(table.overflow_pool.chunks_out()) * u64::from(crate::slab::CHUNK);
    let counted = table.bytes() / 64 - overflow;
    assert!(counted + 1 >= table.len() / LOAD, "{counted} lines for {} entries", table.len());
    drop(held);
    (BEHIND..LAST).for_each(|index| objects.insert(&table, index));
    assert!((buckets() + 1) * LOAD >= table.len(), "{} buckets for {} entries", buckets(), table.len());
    assert_eq!(table.owed.load(Ordering::Relaxed), 0);
}

#[test]
fn entries_are_found_and_removed_entries_are_not() {
    let table = BlHash::new(1 << 20).unwrap();
    let n = 200_000;
    let objects = Objs::new(n + 1, None);
    for i in 1..=n {
        objects.insert(&table, i);
    }
    assert_eq!(table.len(), u64::from(n));
    assert!((1..=n).all(|i| objects.finds(&table, i)));
    let bytes = table.bytes() as f64 / f64::from(n);
    assert!(bytes < 16.0, "{bytes} bytes an entry");
    for i in (1..=n).step_by(2) {
        assert!(objects.remove(&table, i));
        assert!(!objects.remove(&table, i));
    }
    assert!((1..=n).all(|i| objects.finds(&table, i) == (i % 2 == 0)));
}

/// Rule 6: names that all collide under the key start a re-key. During and after it everything is found,
/// and the long chain is gone.
#[test]
fn rule6_a_long_chain_starts_a_rekey_that_ends() {
    let table = BlHash::new(1 << 16).unwrap();
    let n = 4000;
    let objects = Objs::new(n + 1, Some(table.tables[0].key()));
    for i in 1..=n {
        objects.insert(&table, i);
        assert!(objects.finds(&table, i) && objects.finds(&table, 1 + i / 2));
    }
    let (long, rekeys) = table.long_chains();
    assert!(long > 0 && rekeys == 1, "{long} long chains, {rekeys} re-keys");
    let epoch = table.epoch.load(Ordering::Relaxed);
    assert_eq!(epoch, 2, "the re-key has ended");
    assert!((1..=n).all(|i| objects.finds(&table, i)));
    // And once more, back into the first table.
    let objects = Objs { hash: objects.hash, hostile: None };
    table.want_rekey.store(true, Ordering::Relaxed);
    while table.epoch.load(Ordering::Relaxed) != 4 {
        table.maintain(&objects);
        assert!(objects.finds(&table, 17));
    }
    assert!((1..=n).all(|i| objects.remove(&table, i)));
}

/// A table from which most was removed returns its memory, and grows again; readers miss nothing.
#[test]
fn a_table_that_is_too_large_shrinks() {
    let n = if cfg!(miri) { 200 } else { 100_000u32 };
    let table = Arc::new(BlHash::new(1 << 20).unwrap());
    let objects = Arc::new(Objs::new(n + 1, None));
    let stop = Arc::new(StdBool::new(false));
    let stays = |i: &u32| i.is_multiple_of(1000);
    (1..=n).filter(stays).for_each(|i| objects.insert(&table, i));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (table, objects, stop) = (table.clone(), objects.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for i in (1..=n).filter(stays) {
                        assert_ne!(objects.find(&table, i), Scan::Miss(()), "missed {i}");
                    }
                }
            })
        })
        .collect();
    for _ in 0..3 {
        (1..=n).filter(|i| !stays(i)).for_each(|i| objects.insert(&table, i));
        let large = table.bytes();
        (1..=n).filter(|i| !stays(i)).for_each(|i| assert!(objects.remove(&table, i)));
        table.settle(&*objects);
        table.trim();
        let small = table.bytes();
        assert!(small < large / 2 || cfg!(miri), "{large} bytes, then {small}");
        assert!((1..=n).all(|i| objects.finds(&table, i) == stays(&i)));
    }
    stop.store(true, Ordering::Relaxed);
    for r in readers {
        r.join().unwrap();
    }
}

/// Readers never miss a remaining entry, while others come and go, the table grows and is re-keyed.
#[test]
fn readers_miss_nothing_while_the_table_changes() {
    let n = if cfg!(miri) { 200 } else { 20_000u32 };
    let table = Arc::new(BlHash::new(1 << 20).unwrap());
    let objects = Arc::new(Objs::new(n + 1, None));
    for i in (1..=n).step_by(4) {
        objects.insert(&table, i);
    }
    let stop = Arc::new(StdBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (table, objects, stop) = (table.clone(), objects.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for i in (1..=n).step_by(4) {
                        assert_ne!(objects.find(&table, i), Scan::Miss(()), "missed {i}");
                    }
                }
            })
        })
        .collect();
    for round in 0..if cfg!(miri) { 1 } else { 6 } {
        for i in (1..=n).filter(|i| i % 4 != 1) {
            objects.insert(&table, i);
        }
        if round % 2 == 1 {
            table.want_rekey.store(true, Ordering::Relaxed);
        }
        for i in (1..=n).filter(|i| i % 4 != 1) {
            assert!(objects.remove(&table, i));
        }
    }
    stop.store(true, Ordering::Relaxed);
    for r in readers {
        r.join().unwrap();
    }
    assert!(table.long_chains().1 > 0 || cfg!(miri));
}
