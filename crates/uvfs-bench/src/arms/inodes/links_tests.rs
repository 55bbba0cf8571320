//! Tests of the forms.

use std::collections::BTreeSet;

use super::*;

fn made<C: InodeChanges>() -> Links<C> {
    Links::new(64, 1 << 14, HashHeads::Fit).unwrap()
}

fn alone<C: InodeChanges>() {
    let links = made::<C>();
    let insert =
        |slot: u32, ino: u64| links.insert(slot, ino, |node| node.attr[0].store(ino, Ordering::Relaxed));
    assert!((1..=3000).all(|slot| insert(slot, u64::from(slot) * 7)));
    assert!(!insert(3001, 7), "a number twice");
    assert_eq!((links.get(14), links.get(15)), (Some(2), None));
    assert_eq!(links.node(2).attr[0].load(Ordering::Relaxed), 14);
    assert!(!links.put(2) && links.put(2));
    assert_eq!((links.get(14), links.count()), (None, 2999));
    for slot in (1..=3000).filter(|slot| *slot != 2) {
        assert!(links.put(slot));
    }
    assert_eq!(links.count(), 0);
    assert!(links.buckets.iter().all(|bucket| first_of(bucket.load(Ordering::Relaxed)) == 0));
}

#[test]
fn an_inode_is_found_until_it_is_taken_out() {
    alone::<Stock>();
    alone::<HashBl>();
    alone::<Lists>();
    alone::<Both>();
    alone::<RcuSearch>();
}

fn rested<C: InodeChanges>() {
    let links = made::<C>();
    assert!((1..=300).all(|slot| links.insert(slot, u64::from(slot), |_| {})));
    (1..=300).for_each(|slot| links.rest(slot));
    assert_eq!((links.resting(), links.get(1), links.get(2)), (300, Some(1), Some(2)));
    // In use again and then not any more: it is in the list once.
    links.rest(2);
    let mut ended = Vec::new();
    links.prune(|slot| ended.push(slot));
    // The oldest first, and not the one that is in use.
    assert_eq!(ended, (2..=BATCH as u32).collect::<Vec<_>>());
    assert_eq!((links.resting(), links.get(2), links.get(129)), (300 - BATCH as u32, None, Some(129)));
    links.rest(129);
    assert!(links.put(1), "it is held once");
    links.prune(|slot| ended.push(slot));
    links.prune(|slot| ended.push(slot));
    assert_eq!((links.resting(), ended), (0, (2..=300).collect::<Vec<_>>()));
    assert!(links.buckets.iter().all(|bucket| first_of(bucket.load(Ordering::Relaxed)) == 0));
    assert_eq!(links.count(), 0);
}

#[test]
fn unused_inodes_rest_until_they_are_pruned() {
    rested::<Stock>();
    rested::<HashBl>();
    rested::<Lists>();
    rested::<Both>();
    rested::<RcuSearch>();
}

/// Each thread inserts and removes its own numbers, while one enumerates all.
fn beside<C: InodeChanges>() {
    let links = made::<C>();
    assert!((1..=100).all(|slot| links.insert(slot, u64::from(slot), |_| {})));
    std::thread::scope(|scope| {
        for thread in 1..=3u32 {
            let links = &links;
            scope.spawn(move || {
                for i in 0..3000u32 {
                    // Each slot once: the enumerator may still be ending an earlier inode.
                    let slot = thread * 3000 + i;
                    let ino = u64::from(slot);
                    assert!(links.insert(slot, ino, |_| {}) && links.get(ino) == Some(slot));
                    assert!(links.get(u64::from(i % 100 + 1)).is_some());
                    links.put(i % 100 + 1);
                    links.put(slot);
                    // The enumerator may hold the other reference for a while; the inode then ends there.
                    links.put(slot);
                    while links.get(ino).is_some_and(|held| !links.put(held)) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..50 {
            let mut seen = BTreeSet::new();
            links.each(
                &mut |ino| {
                    seen.insert(ino);
                },
                &mut |_| {},
            );
            assert!((1..=100).all(|ino| seen.contains(&ino)));
        }
    });
    assert_eq!(links.count(), 100);
}

#[test]
fn links_hold_beside_each_other() {
    beside::<Stock>();
    beside::<HashBl>();
    beside::<Lists>();
    beside::<Both>();
    beside::<RcuSearch>();
}

/// Slots go from thread to thread and from number to number, by the LRU, while others look the numbers up.
fn recycled<C: InodeChanges>() {
    let links = made::<C>();
    let free = parking_lot::Mutex::new((1..=600u32).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (links, free) = (&links, &free);
            scope.spawn(move || {
                for i in 0..3000u64 {
                    let ino = 1 + (i * 3 + thread) % 1000;
                    let slot = match links.get(ino) {
                        Some(slot) => slot,
                        None => {
                            let Some(slot) = free.lock().pop() else { continue };
                            let fill = |node: &LinkNode| node.attr[0].store(ino, Ordering::Relaxed);
                            if !links.insert(slot, ino, fill) {
                                free.lock().push(slot);
                                continue;
                            }
                            slot
                        }
                    };
                    // A held inode keeps its number, and is complete.
                    let node = links.node(slot);
                    let seen = (node.ino.load(Ordering::Relaxed), node.attr[0].load(Ordering::Relaxed));
                    assert_eq!(seen, (ino, ino));
                    links.unused(slot, &mut |slot| free.lock().push(slot));
                }
            });
        }
    });
    while links.resting() > 0 {
        links.prune(|slot| free.lock().push(slot));
    }
    let free: BTreeSet<_> = free.lock().iter().copied().collect();
    assert_eq!((links.count(), free.len()), (0, 600));
}

#[test]
fn slots_of_pruned_inodes_are_used_again() {
    recycled::<Stock>();
    recycled::<HashBl>();
    recycled::<Lists>();
    recycled::<Both>();
    recycled::<RcuSearch>();
}
