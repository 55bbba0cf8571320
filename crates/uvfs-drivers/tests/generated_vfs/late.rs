//! Rule 10: an answer that comes after the directory has moved on is returned but not cached.

use uvfs_drivers::generated::{Change, FaultCall, ROOT_INO};

use super::{ABSENT, PATIENCE, World};

/// Looks `name` up; runs `meanwhile` while the driver holds its computed answer.
fn late(world: &World, name: &[u8], meanwhile: impl FnOnce()) -> Option<uvfs::types::Attr> {
    let gate = world.control.gate(FaultCall::Lookup, 1);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| world.lookup(name));
        assert!(gate.reached(PATIENCE), "the driver is not asked");
        meanwhile();
        gate.open();
        asker.join().expect("no panic").expect("an answer")
    })
}

/// The name is gone before the answer that it exists arrives. Broken if the answer is cached: the
/// name would still be there, for ever.
#[test]
fn a_late_positive_answer_is_not_cached() {
    let world = World::new("depth=0,files=9");
    let (name, truth) = (world.name(3), world.truth(3));
    let answer = late(&world, &name, || {
        world.control.change(ROOT_INO, Change::Names);
        world.invalidate(&name);
    });
    assert_eq!(answer, Some(truth), "what the driver said is what the caller gets");
    assert_eq!(world.cached(&name), None, "but nobody else");
    assert_eq!(world.lookup(&name), Ok(None));
    assert_eq!(world.control.calls(FaultCall::Lookup), 2);
}

/// The name comes to exist before the answer that it does not arrives. Broken if the answer is
/// cached: the name would be absent for ever.
#[test]
fn a_late_negative_answer_is_not_cached() {
    let world = World::new("depth=0,files=9,fault=lookup:absent@1");
    let (name, truth) = (world.name(3), world.truth(3));
    assert_eq!(late(&world, &name, || world.invalidate(&name)), None);
    assert_eq!(world.cached(&name), None);
    assert_eq!(world.lookup(&name), Ok(Some(truth)));
}

/// The revision belongs to the directory: a change of any of its names makes the answer late. Broken
/// if only the looked-up name counts.
#[test]
fn an_answer_is_late_whichever_name_has_moved() {
    let world = World::new("depth=0,files=9");
    let (name, other) = (world.name(3), world.name(4));
    assert!(world.lookup(&other).is_ok());
    assert_eq!(late(&world, &name, || world.invalidate(&other)), Some(world.truth(3)));
    assert_eq!(world.cached(&name), None);
    assert_eq!(late(&world, ABSENT, || world.invalidate(&name)), None);
    assert_eq!(world.cached(ABSENT), None);
}

/// If nothing has moved, a slow answer is as good as a quick one. Broken if all slow answers
/// are dropped: the driver would be asked twice.
#[test]
fn a_slow_answer_is_cached() {
    let world = World::new("depth=0,files=9");
    let (name, other) = (world.name(3), world.name(4));
    // Looking another name up, found or not, moves nothing.
    let answer = late(&world, &name, || {
        assert!(world.lookup(&other).is_ok() && world.lookup(ABSENT).is_ok());
    });
    assert_eq!(answer, Some(world.truth(3)));
    assert_eq!(world.cached(&name), Some(Some(world.truth(3))));
    assert_eq!(world.control.calls(FaultCall::Lookup), 3);
}

/// After every change that is announced, the next answer is the new one, in whatever state the
/// name was. Broken if an old positive or negative entry outlives its invalidation.
#[test]
fn what_was_invalidated_is_asked_again() {
    let world = World::new("depth=0,files=9");
    for _ in 0..20 {
        let old: Vec<_> = (0..9).map(|index| world.name(index)).collect();
        for (index, name) in old.iter().enumerate() {
            assert_eq!(world.lookup(name), Ok(Some(world.truth(index as u64))));
        }
        world.control.change(ROOT_INO, Change::Names);
        for index in 0..9 {
            let new = world.name(index);
            world.invalidate(&old[index as usize]);
            world.invalidate(&new);
            assert_eq!(world.lookup(&old[index as usize]), Ok(None));
            assert_eq!(world.lookup(&new), Ok(Some(world.truth(index))));
        }
    }
}

/// Attributes that arrive after newer ones. Broken if they overwrite newer cached ones: the
/// old ones would be trusted for the new ones' TTL.
#[test]
fn late_attributes_are_not_cached() {
    let world = World::new("depth=0,files=9,ttl=60m");
    let (name, old) = (world.name(3), world.truth(3));
    let inode = world.inode(3);
    world.vfs.cache().advance_clock(61 * 60_000);
    let getattr = || world.vfs.getattr(&world.op(), &inode);
    let gate = world.control.gate(FaultCall::Getattr, 1);
    let answer = std::thread::scope(|scope| {
        let asker = scope.spawn(getattr);
        assert!(gate.reached(PATIENCE), "the driver is not asked");
        world.control.change(old.ino, Change::Attributes);
        assert_eq!(world.lookup(&name), Ok(Some(world.truth(3))));
        gate.open();
        asker.join().expect("no panic")
    });
    assert_eq!(answer, Ok(old), "what the driver said is what the caller gets");
    assert_eq!(getattr(), Ok(world.truth(3)));
    assert_eq!(world.control.calls(FaultCall::Getattr), 1);
}
