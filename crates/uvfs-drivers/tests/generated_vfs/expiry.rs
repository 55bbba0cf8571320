//! Rule 14: entries expire when their time to live has passed, and not before.
//!
//! The clock is put forward by hand; the times are hours, so that the real one does not matter.

use uvfs_drivers::generated::{Change, FaultCall, ROOT_INO};

use super::{ABSENT, World};

const MINUTE: u32 = 60_000;

/// Broken if deadlines are not checked on a hit (the old name would stay, the new one absent), or
/// if they pass early (the driver would be asked, and know the old name no longer).
#[test]
fn names_expire_in_their_time() {
    let world = World::new("depth=0,files=9,ttl=600m,negative-ttl=300m");
    let (old, truth) = (world.name(3), world.truth(3));
    assert_eq!(world.lookup(&old), Ok(Some(truth)));
    assert_eq!(world.lookup(ABSENT), Ok(None));
    world.control.change(ROOT_INO, Change::Names);
    let new = world.name(3);
    for (minutes, asked) in [(0, 2), (299, 2), (2, 3), (290, 3)] {
        world.vfs.cache().advance_clock(minutes * MINUTE);
        assert_eq!(world.lookup(&old), Ok(Some(truth)));
        assert_eq!(world.lookup(ABSENT), Ok(None));
        assert_eq!(world.control.calls(FaultCall::Lookup), asked);
    }
    world.vfs.cache().advance_clock(20 * MINUTE);
    assert_eq!(world.lookup(&old), Ok(None));
    assert_eq!(world.lookup(&new), Ok(Some(world.truth(3))));
    assert_eq!(world.control.calls(FaultCall::Lookup), 5);
}

/// Broken if an expired entry comes back to life: by being looked at, by its inode being
/// refreshed under another name, or by a failure to refresh it.
#[test]
fn what_has_expired_stays_expired_until_the_driver_has_spoken() {
    let world = World::new("depth=0,files=9,ttl=60m,negative-ttl=60m");
    let name = world.name(3);
    let held = world.inode(3);
    world.vfs.cache().advance_clock(61 * MINUTE);
    assert!(held.expired());
    assert!(world.vfs.getattr(&world.op(), &world.vfs.root()).is_ok(), "the directory itself is fresh");
    assert_eq!(world.cached(&name), None);
    assert_eq!(world.cached(&name), None);
    let fails = "lookup:EIO".parse().expect("a fault");
    world.control.fault(fails);
    assert_eq!(world.lookup(&name), Err(uvfs::types::Errno::IO));
    assert_eq!(world.cached(&name), None);
    world.control.clear_faults();
    assert!(world.vfs.getattr(&world.op(), &held).is_ok());
    assert_eq!(world.lookup(&name), Ok(Some(world.truth(3))));
    assert_eq!(world.cached(&name), Some(Some(world.truth(3))));
    assert_eq!(world.inode(3).id(), held.id(), "one inode, one id");
}

/// Broken if an expired negative entry hides a name that exists by now.
#[test]
fn absence_expires() {
    let world = World::new("depth=0,files=9,ttl=forever,negative-ttl=60m,fault=lookup:absent@1");
    let name = world.name(3);
    assert_eq!(world.lookup(&name), Ok(None));
    world.vfs.cache().advance_clock(59 * MINUTE);
    assert_eq!(world.lookup(&name), Ok(None));
    world.vfs.cache().advance_clock(2 * MINUTE);
    assert_eq!(world.lookup(&name), Ok(Some(world.truth(3))));
    assert_eq!(world.control.calls(FaultCall::Lookup), 2);
}

/// Broken if attributes of a held inode are trusted for ever, or requested each time; or if a
/// lookup that returns fresh ones does not count.
#[test]
fn attributes_expire_in_their_time() {
    let world = World::new("depth=0,files=9,ttl=60m");
    let inode = world.inode(3);
    let old = world.truth(3);
    world.control.change(old.ino, Change::Attributes);
    let new = world.truth(3);
    assert_ne!(old, new);
    let getattr = || world.vfs.getattr(&world.op(), &inode);
    world.vfs.cache().advance_clock(59 * MINUTE);
    assert_eq!((getattr(), world.control.calls(FaultCall::Getattr)), (Ok(old), 0));
    world.vfs.cache().advance_clock(2 * MINUTE);
    assert_eq!((getattr(), world.control.calls(FaultCall::Getattr)), (Ok(new), 1));
    assert_eq!((getattr(), world.control.calls(FaultCall::Getattr)), (Ok(new), 1));
    world.vfs.cache().advance_clock(61 * MINUTE);
    world.control.change(old.ino, Change::Attributes);
    assert_eq!(world.lookup(&world.name(3)), Ok(Some(world.truth(3))));
    assert_eq!((getattr(), world.control.calls(FaultCall::Getattr)), (Ok(world.truth(3)), 1));
}

/// Broken if an answer with TTL 0 is kept, or not even returned.
#[test]
fn no_time_to_live_means_ask_each_time() {
    let world = World::new("depth=0,files=9,ttl=0,negative-ttl=0");
    for asked in 1..10 {
        assert_eq!(world.lookup(&world.name(3)), Ok(Some(world.truth(3))));
        assert_eq!(world.lookup(ABSENT), Ok(None));
        assert_eq!(world.control.calls(FaultCall::Lookup), 2 * asked);
        world.control.change(ROOT_INO, Change::Attributes);
    }
}

/// A walk goes by the same rules as a lookup. Broken if the lock-free walk does not look at
/// deadlines: the path would lead where it led before.
#[test]
fn paths_expire_too() {
    let world = World::new("depth=3,dirs=2,files=2,ttl=60m,negative-ttl=60m");
    let context = world.vfs.context(world.op().cred);
    let tree = world.control.tree();
    let ino = tree.inodes();
    let (old, attr) = (tree.path(ino).expect("a path"), tree.attr(ino));
    assert_eq!(context.stat(&old).ok(), attr);
    let dir = tree.child(ROOT_INO, 1).expect("a directory");
    world.control.change(dir, Change::Names);
    assert_eq!(context.stat(&old).ok(), attr);
    world.vfs.cache().advance_clock(61 * MINUTE);
    assert_eq!(context.stat(&old), Err(uvfs::types::Errno::NOENT));
    assert_eq!(context.stat(&tree.path(ino).expect("a path")).ok(), attr);
}
