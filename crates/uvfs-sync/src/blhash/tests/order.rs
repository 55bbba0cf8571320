//! Rule 19: the order of buckets, in debug builds.

use super::*;
use crate::lock_order::{Class, Held};

/// Lock the buckets of every pair among a hundred objects, in both orders.
fn lock_all_pairs(table: &BlHash, objects: &Objs) {
    for (one, other) in (1..=100).flat_map(|i| (1..=100).map(move |j| (i, j))) {
        let [a, b] = [one, other].map(|index| objects.hashes(table, index));
        let _locked = table.lock([&a, &b], false).unwrap();
    }
}

/// Two buckets are locked by number, whatever the order of their hashes. Planted bug: rule19-buckets-in-falling-order.
#[test]
fn rule19_two_buckets_are_locked_by_number() {
    let table = BlHash::new(1 << 16).unwrap();
    lock_all_pairs(&table, &Objs::new(101, None));
}

/// During a re-key the old table's buckets are locked first. Planted bug: rule19-the-new-table-first.
#[test]
fn rule19_buckets_of_the_old_table_are_locked_first() {
    let table = BlHash::new(1 << 16).unwrap();
    let objects = Objs::new(2001, None);
    (1..=2000).for_each(|i| objects.insert(&table, i));
    table.want_rekey.store(true, Ordering::Relaxed);
    table.maintain(&objects);
    assert_eq!(table.epoch.load(Ordering::Relaxed), 1, "no re-key is under way");
    lock_all_pairs(&table, &objects);
}

/// A bucket is noted as long as it is locked, and no longer. Planted bugs: rule19-a-bucket-is-not-noted,
/// rule19-an-unlocked-bucket-stays-noted.
#[test]
fn rule19_a_locked_bucket_is_noted() {
    let table = BlHash::new(1 << 16).unwrap();
    let objects = Objs::new(3, None);
    let [a, b] = [1, 2].map(|index| objects.hashes(&table, index));
    let locked = table.lock([&a, &b], false).unwrap();
    let list = std::panic::catch_unwind(|| drop(Held::new(Class::DirIndex)));
    assert!(list.is_err(), "a list was taken while buckets are locked");
    drop(locked);
    drop(Held::new(Class::DirIndex));
}
