//! Model checks of lockers of two buckets.

use super::*;

/// Rule 5: a locker of two buckets computes both again if either was split meanwhile. Planted bugs:
/// rule5-locker-looks-at-the-first-level, rule5-locker-looks-at-the-second-level.
#[test]
fn loom_rule5_a_locker_of_two_computes_both_buckets_again() {
    for split in [0, 1] {
        model(move || {
            let w = World { table: Arc::new(BlHash::new(24).unwrap()), ..World::new() };
            // Two buckets; the first is split next.
            assert!(w.table.split_now(&*w.objects));
            // Of the four, 0 becomes 0 and 2; 1 stays unchanged.
            let (moves, stays) = (hash(1, 2), hash(2, 1));
            let put = |w: &World| {
                let hashes = if split == 0 { [&moves, &stays] } else { [&stays, &moves] };
                let mut locked = w.table.lock(hashes, false).unwrap();
                w.objects.store_hash(1, BlHash::to_store(&moves));
                locked.insert(split, &moves, 1).unwrap();
            };
            during(&w, |w| assert!(w.table.split_now(&*w.objects)), put);
            assert_eq!(
                w.find(&moves, 1),
                Scan::Hit(1),
                "the entry is in a bucket to which it does not belong"
            );
        });
    }
}
