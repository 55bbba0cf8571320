//! Unreferenced entries may be forgotten at any time, and only the driver's calls may show it.

use std::sync::atomic::{AtomicBool, Ordering};

use uvfs::types::{Errno, Found};
use uvfs_cache::Room;
use uvfs_drivers::generated::FaultCall;

use super::{ABSENT, World};

/// Broken if an evicted name is taken for absent, or comes back as something else; or if nothing
/// is evicted: the driver would not be asked again.
#[test]
fn what_was_evicted_is_found_again() {
    let world = World::new("depth=1,dirs=5,files=300");
    let sb = world.vfs.root().sb();
    for round in 1..=3 {
        for index in 0..305 {
            assert_eq!(world.lookup(&world.name(index)), Ok(Some(world.truth(index))));
        }
        assert_eq!(world.lookup(ABSENT), Ok(None));
        assert!(world.control.calls(FaultCall::Lookup) >= round * 305, "nothing was evicted");
        while world.vfs.cache().evict_unused(sb, 50) > 0 {}
    }
}

/// Broken if something held is evicted, or something on the way to it.
#[test]
fn what_is_held_stays() {
    let world = World::new("depth=1,dirs=5,files=30");
    let sb = world.vfs.root().sb();
    let held: Vec<_> = (0..35).step_by(3).map(|index| (index, world.inode(index))).collect();
    while world.vfs.cache().evict_unused(sb, 1000) > 0 {}
    let calls = world.control.all_calls();
    for (index, inode) in &held {
        let truth = world.truth(*index);
        assert_eq!(world.vfs.getattr(&world.op(), inode), Ok(truth));
        assert_eq!(world.vfs.inode(inode.id()).map(|inode| inode.attr()), Ok(truth));
        assert_eq!(world.inode(*index).id(), inode.id(), "one inode, one id");
    }
    assert_eq!(world.control.all_calls(), calls, "names of what is held are not forgotten");
}

/// Broken if an id of an evicted inode is taken for the inode that has its slot now.
#[test]
fn an_id_of_what_was_evicted_is_stale() {
    let world = World::new("depth=0,files=500");
    let sb = world.vfs.root().sb();
    let mut stale = Vec::new();
    for round in 0..4 {
        let ids: Vec<_> = (0..500).map(|index| (world.inode(index).id(), world.truth(index))).collect();
        while world.vfs.cache().evict_unused(sb, 1000) > 0 {}
        stale.extend(ids);
        for index in (0..500).rev().step_by(round + 1) {
            let _ = world.inode(index);
        }
        for (id, truth) in &stale {
            if let Ok(inode) = world.vfs.inode(*id) {
                assert_eq!(inode.attr(), *truth, "the id leads to another inode");
            }
        }
    }
}

/// Inodes that nobody may keep live as long as one lookup: many threads make and end them at once,
/// of the same numbers and of neighbouring ones. Broken if an inode's end and another one's
/// beginning hold each other up (this test would not end), if two inodes of one number are alive
/// at once, or if one is lost.
#[test]
fn inodes_come_and_go_at_once() {
    let world = World::new("depth=1,dirs=20,files=200,ttl=0,negative-ttl=0");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let world = &world;
            scope.spawn(move || {
                for step in 0..20_000u64 {
                    let index = (step * (thread + 1)) % 220;
                    assert_eq!(world.lookup(&world.name(index)), Ok(Some(world.truth(index))));
                    if step % 16 == 0 {
                        let (one, two) = (world.inode(index), world.inode(index));
                        assert_eq!(one.id(), two.id(), "two inodes of one number");
                    }
                }
            });
        }
    });
    assert_eq!(world.vfs.cache().counters().inodes, 1, "only the root is left");
}

/// A held directory takes new names, even while eviction looks at it. Broken if
/// eviction, while it finds out that a directory is held, makes it look removed: a create
/// would fail with ENOENT in a directory that exists. (The window is a few instructions wide; the
/// rounds are many so that a run seldom misses it.)
#[test]
fn a_held_directory_takes_names_while_others_are_evicted() {
    let world = World::new("depth=1,dirs=1,files=1");
    let cache = world.vfs.cache();
    let sb = world.vfs.root().sb();
    let done = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                cache.evict_unused(sb, 10);
            }
        });
        // The directory comes and goes; while it is here, a name is always to be had in it.
        let refused = (0..200_000).filter(|_| {
            let dir = world.inode(0);
            let guard = cache.lock_name(&dir, ABSENT);
            guard.reserve(Room::Node).is_err()
        });
        let refused = refused.count();
        done.store(true, Ordering::Relaxed);
        refused
    });
    assert_eq!(refused, 0, "refusals");
}

/// A cache of few inodes serves a tree of many. Broken if a full cache is an error although nearly
/// all of it could be forgotten, or if held inodes are evicted. If all are held, ENOMEM must not
/// outlast the holding.
#[test]
fn a_full_cache_forgets_what_nobody_holds() {
    let mut config = uvfs::VfsConfig::default();
    config.cache.max_inodes = 4096;
    let world = World::with(config, "depth=0,files=20000");
    let first = world.inode(0);
    for index in 0..20_000 {
        assert_eq!(world.lookup(&world.name(index)), Ok(Some(world.truth(index))), "entry {index}");
    }
    assert_eq!(first.attr(), world.truth(0));
    let root = world.vfs.root();
    let mut held = Vec::new();
    let error =
        (0..20_000).find_map(|index| match world.vfs.lookup(&world.op(), &root, &world.name(index)) {
            Ok(Found::Node(inode, _)) => {
                held.push(inode);
                None
            }
            Ok(Found::Absent(_)) => panic!("entry {index} is absent"),
            Err(error) => Some(error),
        });
    assert_eq!(error, Some(Errno::NOMEM), "{} held", held.len());
    assert!(held.iter().enumerate().all(|(index, inode)| inode.attr() == world.truth(index as u64)));
    drop(held);
    assert_eq!(world.lookup(&world.name(19_999)), Ok(Some(world.truth(19_999))));
}
