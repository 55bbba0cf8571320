//! Model checks of the hash, one per race; named after the rule of docs/locking.md.
//!
//! The reader is always the spawned thread. It then runs after the change and may read old values of
//! everything that it was not notified of, so it covers every order for a thread that only loads. If it ran
//! first, it would only ever see the beginning: loom looks for races with the last access to a word, and a
//! writer that loads before it stores hides the reader's access.

mod two;

use loom::cell::UnsafeCell;
use loom::thread::spawn;

use super::*;
use crate::bitlock;
use crate::primitives::Arc;

/// Objects with hashes that the tests choose; filled before they are inserted.
struct Objs {
    hash: [AtomicU32; 5],
    filled: [AtomicU32; 5],
}

/// The bits of a hash select the bucket and, in the top byte, the tag.
const fn hash(index: u32, bucket: u64) -> Hashes {
    Hashes { epoch: 0, hash: [(index as u64) << 56 | bucket, 0] }
}

impl Objs {
    fn full(index: u32, key: HashKey) -> u64 {
        let x = (u64::from(index) ^ key.0).wrapping_mul(key.1 | 1);
        x ^ x >> 29 ^ x << 31
    }
    fn put(&self, table: &BlHash, h: &Hashes, index: u32, spare: bool) {
        let mut locked = table.lock([h], spare).unwrap();
        self.filled[index as usize].store(index, Ordering::Relaxed);
        self.store_hash(index, BlHash::to_store(h));
        locked.insert(0, h, index).unwrap();
    }
}

impl Objects for Objs {
    fn stored_hash(&self, index: u32) -> u32 {
        self.hash[index as usize].load(Ordering::Relaxed)
    }
    fn rehash(&self, index: u32, key: HashKey) -> u64 {
        Self::full(index, key)
    }
    fn store_hash(&self, index: u32, hash: u32) {
        self.hash[index as usize].store(hash, Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct World {
    table: Arc<BlHash>,
    objects: Arc<Objs>,
}

impl World {
    fn new() -> Self {
        let zeroes = || std::array::from_fn(|_| AtomicU32::new(0));
        let objects = Objs { hash: zeroes(), filled: zeroes() };
        Self { table: Arc::new(BlHash::new(8).unwrap()), objects: Arc::new(objects) }
    }
    /// A table with objects 1 to `n` in bucket 0, in this order.
    fn with(n: u32) -> Self {
        let w = Self::new();
        (1..=n).for_each(|i| w.objects.put(&w.table, &hash(i, 0), i, i as usize > super::bucket_line::SLOTS));
        w
    }
    fn remove(&self, h: &Hashes, index: u32) {
        assert!(self.table.lock([h], false).unwrap().remove(0, index));
    }
    fn find(&self, h: &Hashes, index: u32) -> Scan<u32, ()> {
        self.table.scan(h, |i| (i == index).then_some(i), || ())
    }
    fn find_by_key(&self, index: u32) -> Scan<u32, ()> {
        self.find(&self.table.hashes(|key| Objs::full(index, key)), index)
    }
    /// Whether a glance with this hash (of any key) proves that the object is absent.
    fn ruled_out(&self, hash: impl Fn(HashKey) -> u64, index: u32) -> bool {
        let view = self.table.view();
        let hash = hash(view.key());
        let mut glance = view.glance(hash);
        let seen = glance.seen();
        !glance.any(|i| i == index) && self.table.rules_out(view.epoch(), hash, seen)
    }
    fn insert_by_key(&self, index: u32) {
        let h = self.table.hashes(|key| Objs::full(index, key));
        self.objects.put(&self.table, &h, index, false);
    }
    fn rekey_step(&self) {
        self.table.maintain(&*self.objects);
    }
    fn begin_rekey(&self) {
        self.table.want_rekey.store(true, Ordering::Relaxed);
    }
}

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(2);
    b.max_branches = 20_000;
    b.check(f);
}

/// Run `read` in another thread while this one runs `change`.
fn during<R: 'static>(
    w: &World,
    read: impl FnOnce(World) -> R + Send + 'static,
    change: impl FnOnce(&World),
) -> R {
    let reader = {
        let w = w.clone();
        spawn(move || read(w))
    };
    change(w);
    reader.join().unwrap()
}

/// Rule 5: while a bucket is split, an entry that is there all the time is never missed. Planted bugs:
/// rule5-reader-ignores-level, rule5-split-leaves-the-level, rule5-split-without-fence.
#[test]
fn loom_rule5_a_split_hides_no_entry() {
    for (index, bucket) in [(2, 1), (1, 0)] {
        model(move || {
            let w = World::new();
            w.objects.put(&w.table, &hash(1, 0), 1, false);
            w.objects.put(&w.table, &hash(2, 1), 2, false);
            let found = during(
                &w,
                move |w| w.find(&hash(index, bucket), index),
                |w| assert!(w.table.split_now(&*w.objects)),
            );
            assert_ne!(found, Scan::Miss(()), "a false ENOENT");
        });
    }
}

/// Rule 5: a thread that locks a bucket during its split ends up with the right one. Planted bug:
/// rule5-locker-ignores-level.
#[test]
fn loom_rule5_a_locker_computes_its_bucket_again() {
    model(|| {
        let w = World::new();
        let h = hash(1, 1);
        during(&w, |w| assert!(w.table.split_now(&*w.objects)), |w| w.objects.put(&w.table, &h, 1, false));
        assert_eq!(w.find(&h, 1), Scan::Hit(1));
    });
}

/// Rule 5: an entry that moves within its chain, because another one leaves, is never missed. Planted bugs:
/// rule5-lock-without-fence, rule5-scan-without-fence, rule5-header-relaxed,
/// rule5-unlock-moves-no-sequence, rule5-miss-not-checked.
#[test]
fn loom_rule5_an_entry_that_moves_in_its_chain_is_not_missed() {
    model(|| {
        let w = World::with(2);
        let found = during(&w, |w| w.find(&hash(2, 0), 2), |w| w.remove(&hash(1, 0), 1));
        assert_ne!(found, Scan::Miss(()), "a false ENOENT");
    });
}

/// Rule 5: a glance does not rule out an entry that is there all the time: in a chain that is changed, in a
/// bucket that is split, in an overflow line. Planted bugs: rule5-glance-relaxed,
/// rule5-glance-without-fence, rule5-glance-not-checked, rule5-glance-ignores-level,
/// rule5-glance-ignores-overflow.
#[test]
fn loom_rule5_a_glance_rules_out_no_entry_that_is_there() {
    model(|| {
        let w = World::with(2);
        let out = during(&w, |w| w.ruled_out(|_| hash(2, 0).hash[0], 2), |w| w.remove(&hash(1, 0), 1));
        assert!(!out, "a false ENOENT");
    });
    model(|| {
        let w = World::new();
        w.objects.put(&w.table, &hash(2, 1), 2, false);
        let split = |w: &World| assert!(w.table.split_now(&*w.objects));
        let out = during(&w, |w| w.ruled_out(|_| hash(2, 1).hash[0], 2), split);
        assert!(!out, "a false ENOENT");
    });
    model(|| {
        let last = super::bucket_line::SLOTS as u32 + 1;
        let w = World::with(last);
        assert!(!w.ruled_out(|_| hash(last, 0).hash[0], last), "a false ENOENT");
        assert!(World::new().ruled_out(|_| hash(1, 0).hash[0], 1), "nothing is there");
    });
}

/// Rule 6: the same while all entries move under a new key. Planted bugs: rule6-glance-one-table-only,
/// rule6-view-relaxed.
#[test]
fn loom_rule6_a_glance_rules_out_nothing_that_moves() {
    for steps in 1..=2 {
        model(move || {
            let w = World::new();
            w.insert_by_key(1);
            w.begin_rekey();
            let find = |w: World| w.ruled_out(|key| Objs::full(1, key), 1);
            let out = during(&w, find, |w| (0..steps).for_each(|_| w.rekey_step()));
            assert!(!out, "a false ENOENT");
        });
    }
}

/// Rule 3: nor is an entry missed whose overflow line is recycled meanwhile. Planted bug:
/// rule3-new-line-without-fence. (The line is cleared directly: its next user stores into it under a
/// bucket's lock, which has a fence of its own.)
#[test]
fn loom_rule3_a_recycled_line_hides_no_entry() {
    model(|| {
        let last = super::bucket_line::SLOTS as u32 + 1;
        let w = World::with(last);
        let found = during(
            &w,
            move |w| w.find(&hash(last, 0), last),
            |w| {
                w.remove(&hash(1, 0), 1);
                // Another thread, with no fence in between but `new_line`'s own.
                let (table, at) = (w.table.clone(), w.table.clone());
                spawn(move || table.new_line()).join().unwrap().inspect(|line| at.free_line(*line));
            },
        );
        assert_ne!(found, Scan::Miss(()), "a false ENOENT");
    });
}

/// Rule 16: an object that is found was filled before. Planted bugs: rule16-put-relaxed,
/// rule16-slot-relaxed.
#[test]
fn loom_rule16_an_object_is_filled_before_it_is_found() {
    model(|| {
        let w = World::new();
        found_is_filled(&w, 1, false);
    });
}

/// Rule 16, through a new overflow line. Planted bugs: rule16-link-relaxed, rule16-next-relaxed.
#[test]
fn loom_rule16_an_object_in_a_new_line_is_filled_before_it_is_found() {
    model(|| {
        let last = super::bucket_line::SLOTS as u32 + 1;
        let w = World::with(last - 1);
        found_is_filled(&w, last, true);
    });
}

fn found_is_filled(w: &World, index: u32, spare: bool) {
    during(
        w,
        move |w| {
            let accept = |i| (i == index).then(|| w.objects.filled[i as usize].load(Ordering::Relaxed));
            if let Scan::Hit(filled) = w.table.scan(&hash(index, 0), accept, || ()) {
                assert_eq!(filled, index, "found before it was filled");
            }
        },
        |w| w.objects.put(&w.table, &hash(index, 0), index, spare),
    );
}

/// Rule 12: an entry that moves from one bucket to another with both locked is never absent from both.
/// Planted bug: rule12-relocate-takes-out-first.
#[test]
fn loom_rule12_a_moving_entry_is_never_absent() {
    model(|| {
        let w = World::new();
        w.table.split_now(&*w.objects);
        let (a, b) = (hash(1, 0), hash(1, 1));
        w.objects.put(&w.table, &a, 1, false);
        let (in_a, in_b) = during(
            &w,
            move |w| (w.find(&a, 1), w.find(&b, 1)),
            |w| {
                let mut locked = w.table.lock([&a, &b], false).unwrap();
                assert!(locked.relocate(0, 1, &b, 1).unwrap());
            },
        );
        // A reader that saw it gone from a must find it in b, or b is still locked.
        if in_a == Scan::Miss(()) {
            assert_ne!(in_b, Scan::Miss(()), "absent from both");
        }
        assert_eq!((w.find(&a, 1), w.find(&b, 1)), (Scan::Miss(()), Scan::Hit(1)));
    });
}

/// Rule 6: while all entries move under a new key, an existing one is never missed. Planted bugs:
/// rule6-one-table-only, rule6-epoch-relaxed, rule6-start-relaxed, rule6-move-without-fence.
#[test]
fn loom_rule6_a_rekey_hides_no_entry() {
    for steps in 1..=3 {
        model(move || {
            let w = World::new();
            w.insert_by_key(1);
            w.begin_rekey();
            let found = during(&w, |w| w.find_by_key(1), |w| (0..steps).for_each(|_| w.rekey_step()));
            assert_ne!(found, Scan::Miss(()), "a false ENOENT");
            assert_eq!(w.find_by_key(1), Scan::Hit(1));
        });
    }
}

/// Rule 6, and rule 3 for keys: a reader that still looks in an epoch that is over does not hash with a
/// later key and then miss an entry that is there. The table's last use ends and its next one begins as in
/// two re-keys, but without moving entries: the entry that is looked for stays in place. Planted bug:
/// rule6-key-without-fence.
#[test]
fn loom_rule6_a_recycled_tables_key_hides_no_entry() {
    let looks: [fn(&World) -> bool; 2] = [
        |w| {
            let hashes = w.table.hashes(|key| Objs::full(1, key));
            hashes.epoch == 0 && w.find(&hashes, 1) == Scan::Miss(())
        },
        |w| {
            let view = w.table.view();
            let hash = Objs::full(1, view.key());
            let mut glance = view.glance(hash);
            let seen = glance.seen();
            let found = glance.any(|i| i == 1);
            view.epoch() == 0 && !found && w.table.rules_out(0, hash, seen)
        },
    ];
    for look in looks {
        model(move || {
            let w = World::new();
            w.insert_by_key(1);
            let missed = during(
                &w,
                move |w| look(&w),
                |w| {
                    w.table.epoch.store(2, Ordering::Release);
                    let w = w.clone();
                    // Another thread, with no fence in between but `start`'s own.
                    spawn(move || w.table.tables[0].start(random_key(2).unwrap())).join().unwrap();
                },
            );
            assert!(!missed, "a false ENOENT");
        });
    }
}

/// Rule 6: an insert that runs while all entries move is found afterwards. Planted bug:
/// rule6-locker-ignores-epoch.
#[test]
fn loom_rule6_a_rekey_loses_no_insert() {
    model(|| {
        let w = World::new();
        w.begin_rekey();
        during(
            &w,
            |w| (0..3).for_each(|_| w.rekey_step()),
            |w| {
                loop {
                    let h = w.table.hashes(|key| Objs::full(1, key));
                    let Some(mut locked) = w.table.lock([&h], false) else {
                        crate::primitives::spin_loop();
                        continue;
                    };
                    w.objects.store_hash(1, BlHash::to_store(&h));
                    locked.insert(0, &h, 1).unwrap();
                    break;
                }
            },
        );
        (0..3).for_each(|_| w.rekey_step());
        assert_eq!(w.find_by_key(1), Scan::Hit(1));
    });
}

/// Rule 6: a table's memory goes, and is used again, only after a thread that still holds one of its
/// buckets has released it. Planted bug: rule6-retire-breaks-a-lock.
#[test]
fn loom_rule6_a_table_that_ends_waits_for_a_locker() {
    struct Shared(BlHash, UnsafeCell<u32>);
    // SAFETY: the cell is only touched under the bucket's lock, or after `retire` took it; the test proves
    // that.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}
    model(|| {
        let s = Arc::new(Shared(BlHash::new(8).unwrap(), UnsafeCell::new(0)));
        bitlock::lock(&s.0.tables[0].heads.get(0).header);
        let starter = {
            let s = s.clone();
            spawn(move || {
                s.0.tables[0].retire(0, 1);
                // SAFETY: see above.
                s.1.with_mut(|v| unsafe { *v += 1 });
            })
        };
        // SAFETY: see above.
        s.1.with_mut(|v| unsafe { *v += 1 });
        s.0.tables[0].unlock(0);
        starter.join().unwrap();
    });
}

/// Rule 6: a late thread does not lock a bucket of an ended table. So no unlock ends another thread's lock
/// when the table is used again. Planted bugs: rule6-gone-can-be-locked, rule6-given-back-can-be-locked.
#[test]
fn loom_rule6_a_table_that_has_ended_is_not_locked() {
    model(|| {
        let w = World::new();
        w.begin_rekey();
        w.rekey_step();
        let late = w.table.hashes(|key| Objs::full(1, key));
        during(
            &w,
            // Other tests check what the lock protects; here the last unlock matters.
            move |w| drop(w.table.lock([&late], false)),
            |w| {
                (0..3).for_each(|_| w.rekey_step());
                assert_eq!(w.table.left.load(Ordering::Relaxed), 0, "the old table is retired");
                let header = &w.table.tables[0].heads.get(0).header;
                assert_eq!(header.load(Ordering::Relaxed), 0, "a bucket of an ended table was locked");
            },
        );
        assert_eq!(w.table.tables[0].heads.get(0).header.load(Ordering::Relaxed), 0);
    });
}
