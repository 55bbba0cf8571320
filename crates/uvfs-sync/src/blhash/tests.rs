//! Tests of the hash: a model check of each race, and random changes against a map.

use super::*;
use crate::primitives::Arc;

/// Objects whose hash under a key is a mix of their index, or (hostile) constant under the first key.
struct Objs {
    hash: Vec<AtomicU32>,
    hostile: Option<Key>,
}

impl Objs {
    fn new(n: u32, hostile: Option<Key>) -> Self {
        Self { hash: (0..n).map(|_| AtomicU32::new(0)).collect(), hostile }
    }
    fn full(&self, index: u32, key: Key) -> u64 {
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
    fn rehash(&self, index: u32, key: Key) -> u64 {
        self.full(index, key)
    }
    fn store_hash(&self, index: u32, hash: u32) {
        self.hash[index as usize].store(hash, Ordering::Relaxed);
    }
}

#[cfg(loom)]
mod loom_tests {
    use super::*;

    fn model(f: impl Fn() + Send + Sync + 'static) {
        let mut b = loom::model::Builder::new();
        b.preemption_bound = Some(2);
        b.max_branches = 20_000;
        b.check(f);
    }

    /// Rule 5: while a bucket is split, an entry that is there all the time is never missed.
    /// Planted bug: `belongs` always true, or `scan_table` without it.
    #[test]
    fn loom_rule5_a_split_hides_no_entry() {
        model(|| {
            let table = Arc::new(BlHash::new(64).unwrap());
            let objects = Arc::new(Objs::new(4, None));
            // Buckets 0 and 1 after the split: hashes chosen, not random.
            for (index, hash) in [(1u32, 0u64), (2, 1)] {
                let h = Hashes { epoch: 0, hash: [hash, 0] };
                let mut locked = table.lock([&h], false).unwrap();
                objects.store_hash(index, hash as u32);
                locked.insert(0, &h, index).unwrap();
            }
            let t = {
                let (table, objects) = (table.clone(), objects.clone());
                loom::thread::spawn(move || table.split_now(&*objects))
            };
            for (index, hash) in [(2u32, 1u64), (1, 0)] {
                let h = Hashes { epoch: 0, hash: [hash, 0] };
                let found = table.scan(&h, |i| (i == index).then_some(i), || ());
                assert_ne!(found, Scan::Miss(()), "a false ENOENT");
            }
            assert!(t.join().unwrap());
        });
    }

    /// Rule 5: who locks a bucket that is being split ends up with the right one. Planted bug: no
    /// `belongs` in `Table::lock`.
    #[test]
    fn loom_rule5_a_locker_computes_its_bucket_again() {
        model(|| {
            let table = Arc::new(BlHash::new(64).unwrap());
            let objects = Arc::new(Objs::new(4, None));
            let t = {
                let (table, objects) = (table.clone(), objects.clone());
                loom::thread::spawn(move || table.split_now(&*objects))
            };
            let h = Hashes { epoch: 0, hash: [1, 0] };
            objects.store_hash(1, 1);
            table.lock([&h], false).unwrap().insert(0, &h, 1).unwrap();
            t.join().unwrap();
            assert_eq!(table.scan(&h, Some, || ()), Scan::Hit(1));
        });
    }

    /// Rule 12: an entry that moves from one bucket to another with both locked is never absent
    /// from both. Planted bug: unlock the first before the second is written.
    #[test]
    fn loom_rule12_a_moving_entry_is_never_absent() {
        model(|| {
            let table = Arc::new(BlHash::new(64).unwrap());
            let objects = Objs::new(4, None);
            table.split_now(&objects);
            let (a, b) = (Hashes { epoch: 0, hash: [0, 0] }, Hashes { epoch: 0, hash: [1, 0] });
            table.lock([&a], false).unwrap().insert(0, &a, 1).unwrap();
            let t = {
                let table = table.clone();
                loom::thread::spawn(move || {
                    let mut locked = table.lock([&a, &b], false).unwrap();
                    locked.remove(0, 1);
                    locked.insert(1, &b, 1).unwrap();
                })
            };
            let in_a = table.scan(&a, Some, || ());
            let in_b = table.scan(&b, Some, || ());
            // Seen gone from a, it must be found in b, or b is still locked.
            if in_a == Scan::Miss(()) {
                assert_ne!(in_b, Scan::Miss(()), "absent from both");
            }
            t.join().unwrap();
        });
    }

    /// Rule 6: while all entries move under a new key, one that is there is never missed. Planted
    /// bug: look into the new table first.
    #[test]
    fn loom_rule6_a_rekey_hides_no_entry() {
        model(|| {
            let table = Arc::new(BlHash::new(64).unwrap());
            let objects = Arc::new(Objs::new(4, None));
            objects.insert(&table, 1);
            table.want_rekey.store(true, Ordering::Relaxed);
            table.maintain(&*objects);
            let t = {
                let (table, objects) = (table.clone(), objects.clone());
                loom::thread::spawn(move || table.maintain(&*objects))
            };
            assert_ne!(objects.find(&table, 1), Scan::Miss(()), "a false ENOENT");
            t.join().unwrap();
            assert!(objects.finds(&table, 1));
        });
    }
}

#[cfg(not(loom))]
mod std_tests {
    use super::*;
    use std::sync::atomic::AtomicBool as StdBool;

    #[test]
    fn what_is_in_is_found_and_what_is_out_is_not() {
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

    /// Rule 6: names that all collide under the key start a re-key, during and after which
    /// everything is found, and the long chain is gone.
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

    /// Readers never miss what stays, while others come and go, the table grows and is re-keyed.
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
}
