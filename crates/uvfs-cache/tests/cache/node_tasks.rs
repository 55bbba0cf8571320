//! Lookups and changes as tasks: cancelled at random, nothing leaks and none waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::{Config, NodeCache, NodeKnown, NodeLookup, NodeSuperblock, OwnedNode, Room, Ttl};

use crate::nodes::{Counted, answer, attr};
use crate::tasks::{Executor, yields};

const LIMIT: Duration = Duration::from_secs(120);

struct World {
    alive: Arc<AtomicI64>,
    cache: NodeCache<Counted>,
    sb: NodeSuperblock<Counted>,
}

fn world() -> World {
    let alive = Arc::new(AtomicI64::new(0));
    let cache = NodeCache::new(Config { max_inodes: 1 << 16, ..Config::default() }).unwrap();
    let sb = cache.add_superblock(false, answer(attr(1, S_IFDIR), Counted::new(1, &alive))).unwrap();
    World { alive, cache, sb }
}

/// Numbers that look random.
fn mix(n: usize) -> usize {
    (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xff51_afd7_ed55_8ccd)
        as usize
        >> 8
}

/// Ten thousand slow lookups of few names, a third of them cancelled.
#[test]
fn ten_thousand_lookups_cancelled_at_random_leak_nothing() {
    let w = world();
    let executor = Executor::default();
    let (asked, found) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..10_000)
        .map(|i| {
            let (root, alive) = (w.sb.root(), w.alive.clone());
            let (asked, found) = (asked.clone(), found.clone());
            executor.spawn(async move {
                yields(mix(i) % 7).await;
                let name = format!("{}", mix(i) % 97);
                match root.lookup(name.as_bytes()).await {
                    Ok(NodeLookup::Hit(node)) => drop(node),
                    Ok(NodeLookup::Negative) => {}
                    Ok(NodeLookup::Miss(ticket)) => {
                        asked.fetch_add(1, Ordering::Relaxed);
                        yields(20 + mix(i) % 50).await;
                        let ino = 2 + (mix(i) % 97) as u64;
                        match ino % 5 {
                            0 => ticket.absent(Ttl::Forever),
                            _ => drop(ticket.found(answer(attr(ino, S_IFREG), Counted::new(ino, &alive)))),
                        }
                    }
                    Err(errno) => panic!("{errno}"),
                }
                found.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    // Cancel while they run.
    let victims: Vec<_> = tasks.iter().enumerate().filter(|(i, _)| mix(i + 77).is_multiple_of(3)).collect();
    let waiting = std::thread::scope(|scope| {
        scope.spawn(|| {
            for (i, victim) in &victims {
                if i % 16 == 0 {
                    std::thread::yield_now();
                }
                victim.abort();
            }
        });
        executor.run(4, LIMIT)
    });
    assert_eq!(waiting, 0, "tasks that wait for ever");
    assert!(found.load(Ordering::Relaxed) >= 10_000 - victims.len());
    // One question a name, and one more for each that was cancelled while asking.
    assert!(asked.load(Ordering::Relaxed) < 97 + victims.len());
    drop(tasks);
    let counters = w.cache.counters();
    assert_eq!(w.alive.load(Ordering::Relaxed), counters.inodes as i64);
    // Every name is free.
    let root = w.sb.root();
    for i in 0..97 {
        assert!(root.try_lookup(format!("{i}").as_bytes()).is_ok(), "name {i} is locked");
    }
    drop(root);
    assert_eq!(w.sb.remove(), 0, "handles leaked");
    assert_eq!(w.alive.load(Ordering::Relaxed), 0);
}

/// Creates, removals and renames as tasks, with paths read meanwhile: each path is one that the file had.
#[test]
fn changes_as_tasks_cancelled_at_random_leave_every_lock_free() {
    let w = world();
    let executor = Executor::default();
    let root = w.sb.root();
    let dirs: Vec<OwnedNode<Counted>> = (0..4)
        .map(|i| {
            let lock = root.blocking_lock_name(format!("d{i}").as_bytes());
            lock.create(answer(attr(2 + i, S_IFDIR), Counted::new(2 + i, &w.alive))).unwrap()
        })
        .collect();
    let sb = Arc::new(w.sb);
    let tasks: Vec<_> = (0..3000)
        .map(|i| {
            let (sb, dirs, alive) = (sb.clone(), dirs.clone(), w.alive.clone());
            let cache = w.cache.clone();
            executor.spawn(async move {
                let at = |n: usize| (&dirs[mix(n) % 4], format!("{}", mix(n + 1) % 13));
                let (dir, name) = at(i);
                match mix(i + 2) % 4 {
                    0 => {
                        let mut lock = dir.lock_name(name.as_bytes()).await;
                        if lock.reserve(Room::Node).is_ok() && !matches!(lock.known(), NodeKnown::Hit(_)) {
                            yields(3).await;
                            let ino = 100 + i as u64;
                            drop(lock.create(answer(attr(ino, S_IFREG), Counted::new(ino, &alive))));
                        }
                    }
                    1 => {
                        let lock = dir.lock_name(name.as_bytes()).await;
                        yields(2).await;
                        lock.remove();
                    }
                    2 => {
                        let _renames = sb.lock_renames().await;
                        let (to, new) = at(i + 500);
                        let names = cache.lock_names((dir, name.as_bytes()), (to, new.as_bytes())).await;
                        yields(2).await;
                        cache.rename(names.0, names.1).unwrap();
                    }
                    _ => {
                        if let Ok(NodeLookup::Hit(node)) = dir.lookup(name.as_bytes()).await {
                            yields(1).await;
                            if let Ok(Some(path)) = node.path() {
                                assert!(path.starts_with(b"d") && path.contains(&b'/'));
                            }
                        }
                    }
                }
            })
        })
        .collect();
    let waiting = std::thread::scope(|scope| {
        scope.spawn(|| tasks.iter().step_by(3).for_each(|task| task.abort()));
        executor.run(4, LIMIT)
    });
    assert_eq!(waiting, 0, "tasks that wait for ever");
    drop(tasks);
    assert!(sb.try_lock_renames().is_ok());
    for (dir, name) in dirs.iter().flat_map(|dir| (0..13).map(move |i| (dir, format!("{i}")))) {
        assert!(dir.try_lock_name(name.as_bytes()).is_ok(), "{name} is locked");
    }
    drop((dirs, root));
    assert_eq!(Arc::into_inner(sb).unwrap().remove(), 0, "handles leaked");
    assert_eq!(w.alive.load(Ordering::Relaxed), 0);
}
