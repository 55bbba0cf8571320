//! Rule 9: a miss is ENOENT only if a negative entry says so or the directory is complete.

use std::sync::atomic::{AtomicBool, Ordering};

use uvfs_drivers::generated::FaultCall;

use super::{ABSENT, World};

/// Broken if a miss is taken for ENOENT: the first `cached` would answer. Broken if answers are
/// not kept: the driver would be asked again.
#[test]
fn only_what_the_driver_said_is_known() {
    let world = World::new("depth=1,dirs=3,files=200");
    for index in 0..203 {
        let (name, truth) = (world.name(index), world.truth(index));
        assert_eq!(world.cached(&name), None, "entry {index} was never asked for");
        assert_eq!(world.lookup(&name), Ok(Some(truth)));
        assert_eq!(world.cached(&name), Some(Some(truth)));
    }
    assert_eq!(world.cached(ABSENT), None, "nobody said that this name is absent");
    assert_eq!(world.lookup(ABSENT), Ok(None));
    assert_eq!(world.cached(ABSENT), Some(None));
    for index in 0..203 {
        assert_eq!(world.lookup(&world.name(index)), Ok(Some(world.truth(index))));
    }
    assert_eq!(world.lookup(ABSENT), Ok(None));
    assert_eq!(world.control.calls(FaultCall::Lookup), 204);
}

/// A listing gives a directory's names, but not their inodes. Broken if a listing (whole,
/// partial or wrong) makes the directory complete: an entry would be absent without the driver's word.
#[test]
fn a_listing_makes_no_name_absent() {
    for part in [1, 10, 21, 22] {
        for fault in ["", ",fault=readdir:wrong"] {
            let world = World::new(&format!("depth=1,dirs=2,files=20{fault}"));
            let root = world.vfs.root();
            let mut seen = 0;
            let mut sink = |_: uvfs::types::DirEntry<'_>| {
                seen += 1;
                seen < part
            };
            assert_eq!(world.vfs.readdir(&world.op(), &root, 0, &mut sink), Ok(()));
            assert_eq!(seen, part);
            for index in 0..22 {
                assert_ne!(world.cached(&world.name(index)), Some(None), "entry {index} after {part}{fault}");
                assert_eq!(world.lookup(&world.name(index)), Ok(Some(world.truth(index))));
            }
            assert_eq!(world.lookup(ABSENT), Ok(None));
        }
    }
}

/// A caller that has given the cache every entry of a directory may mark it complete. A name not in the cache is then
/// absent, without the driver and without negative entries, until one entry is forgotten. Broken if
/// completeness outlives an eviction or an invalidation, or is accepted from a listing during which
/// something moved: an entry that exists would be absent.
#[test]
fn completeness_lasts_until_something_is_forgotten() {
    let world = World::new("depth=0,files=40");
    let (cache, root) = (world.vfs.cache(), world.vfs.root());
    let fill = |meanwhile: &dyn Fn()| {
        let scan = cache.begin_scan(&root);
        for index in 0..40 {
            assert_eq!(world.lookup(&world.name(index)), Ok(Some(world.truth(index))));
        }
        meanwhile();
        scan.complete()
    };
    let forget: [&dyn Fn(); 2] =
        [&|| assert_eq!(cache.evict_unused(root.sb(), 1), 1), &|| world.invalidate(&world.name(7))];
    for forget in forget {
        assert!(fill(&|| ()));
        let calls = world.control.calls(FaultCall::Lookup);
        assert_eq!(world.lookup(ABSENT), Ok(None));
        assert_eq!((world.control.calls(FaultCall::Lookup), cache.counters().negative), (calls, 0));
        forget();
        assert_eq!(world.cached(ABSENT), None);
        for index in 0..40 {
            assert_ne!(world.cached(&world.name(index)), Some(None), "entry {index}");
        }
        assert!(!fill(forget), "late");
        assert_eq!(world.cached(ABSENT), None);
    }
}

/// Names are looked up while adjacent entries come, go and are forgotten, which moves buckets
/// under the readers. Broken if a reader takes a bucket that moved for one without the name: an
/// entry that the driver always had would be absent.
#[test]
fn no_name_vanishes_while_its_neighbours_come_and_go() {
    const NAMES: u64 = 3000;
    let world = World::new(&format!("depth=0,files={NAMES}"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let sb = world.vfs.root().sb();
            for round in 0.. {
                world.vfs.cache().evict_unused(sb, 100);
                world.invalidate(&world.name(round % NAMES));
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                let world = &world;
                scope.spawn(move || {
                    for step in 0..10 * NAMES {
                        let index = (step * 7 + reader * 1013) % NAMES;
                        let found = world.lookup(&world.name(index));
                        if found != Ok(Some(world.truth(index))) {
                            return Err((index, found));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        // The loop above must end even if a reader fails.
        let results: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        done.store(true, Ordering::Relaxed);
        for result in results {
            assert_eq!(result.expect("no panic"), Ok(()));
        }
    });
}

/// Broken if absent names are kept without bound: a caller that asks for many of them would fill the memory.
#[test]
fn absent_names_are_kept_in_bounds() {
    let mut config = uvfs::VfsConfig::default();
    config.cache.max_negative = 100;
    let world = World::with(config, "depth=0,files=50");
    for n in 0..5000 {
        assert_eq!(world.lookup(format!("absent-{n}").as_bytes()), Ok(None));
    }
    let kept = (0..5000).filter(|n| world.cached(format!("absent-{n}").as_bytes()).is_some()).count();
    assert!((1..=100).contains(&kept), "{kept} absent names are kept");
    // Existing entries are not affected.
    for index in 0..50 {
        assert_eq!(world.lookup(&world.name(index)), Ok(Some(world.truth(index))));
    }
}
