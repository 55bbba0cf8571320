//! Every call of the driver fails in turn: the caller gets the error, and nothing else is harmed.

use uvfs::driver::Inode;
use uvfs::types::{Access, Errno, mode};
use uvfs::{Found, Vfs};
use uvfs_drivers::generated::{Fault, FaultCall, FaultKind, ROOT_INO};

use super::{ABSENT, World};

/// The result of one step of the script: a value to compare, or an error.
type Outcome = Result<String, Errno>;

const SPEC: &str = "depth=2,dirs=2,files=3,seed=5,size=1..9K,pass-writes";

/// Looks a path up component by component, as a front end does.
fn walk<'v>(world: &'v World, path: &[u8]) -> Result<Inode<'v>, Errno> {
    let mut at = world.vfs.root();
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        at = match world.vfs.lookup(&world.op(), &at, name)? {
            Found::Node(inode, _) => inode,
            Found::Absent(_) => return Err(Errno::NOENT),
        };
    }
    Ok(at)
}

fn list(vfs: &Vfs, world: &World, path: &[u8], at_once: usize) -> Outcome {
    let dir = walk(world, path)?;
    let (mut listing, mut cookie) = (Vec::new(), 0);
    loop {
        let before = listing.len();
        vfs.readdir(&world.op(), &dir, cookie, &mut |entry| {
            cookie = entry.cookie;
            listing.push(format!("{} {:?}", entry.ino, entry.name));
            listing.len() - before < at_once
        })?;
        if listing.len() == before {
            return Ok(listing.join(" "));
        }
    }
}

fn read(world: &World, path: &[u8]) -> Outcome {
    let inode = walk(world, path)?;
    let fh = world.vfs.open(&world.op(), &inode, Access::READ, false)?;
    let mut buf = vec![0; 10_000];
    let result = world.vfs.read(&world.op(), fh, 5, &mut buf);
    world.vfs.release(fh);
    result.map(|len| format!("{:?}", &buf[..len]))
}

/// Steps that do not build on each other, so that a failure of one must leave the rest alone.
fn script(world: &World) -> Vec<Outcome> {
    let tree = world.control.tree();
    let path = |ino| tree.path(ino).expect("an inode");
    let last = tree.inodes();
    let mut outcomes = Vec::new();
    for ino in [ROOT_INO, 2, 7, last, last / 2, 3, last] {
        let attr = walk(world, &path(ino)).and_then(|inode| world.vfs.getattr(&world.op(), &inode));
        outcomes.push(attr.map(|attr| format!("{attr:?}")));
        let attr = world.vfs.context(world.op().cred).stat(&path(ino));
        outcomes.push(attr.map(|attr| format!("{attr:?}")));
    }
    for (ino, at_once) in [(ROOT_INO, 100), (2, 2), (7, 1)] {
        outcomes.push(list(&world.vfs, world, &path(ino), at_once));
    }
    outcomes.push(read(world, &path(last)));
    outcomes.push(walk(world, ABSENT).map(|_| "found".to_string()));
    let root = world.vfs.root();
    let made = world.vfs.mknod(&world.op(), &root, ABSENT, mode::S_IFREG | 0o644, 0);
    outcomes.push(made.map(|_| "made".to_string()));
    let made = world.vfs.mkdir(&world.op(), &root, b"no-such-directory", 0o755);
    outcomes.push(made.map(|_| "made".to_string()));
    outcomes.push(world.vfs.unlink(&world.op(), &root, &world.name(2)).map(|()| "gone".to_string()));
    outcomes.push(world.vfs.statfs(&world.op(), &root).map(|figures| format!("{}", figures.files)));
    outcomes
}

/// The inodes that are left after everything unreferenced is forgotten.
fn left(world: &World) -> u64 {
    let sb = world.vfs.root().sb();
    while world.vfs.cache().evict_unused(sb, 1000) > 0 {}
    world.vfs.cache().counters().inodes
}

/// Broken if an error is swallowed or becomes another one. Broken if a failed call leaves a node, a negative entry or
/// a lock behind: the second run would differ, or hang. Broken if a reference is lost on the way out: an inode could
/// never be evicted again.
fn every_call_fails_in_turn(spec: &str, errno: Errno) {
    let sane = World::new(spec);
    let expected = script(&sane);
    let root_only = left(&sane);
    assert_eq!(root_only, 1, "the script itself leaves nothing behind");
    for call in FaultCall::ALL.iter().copied().filter(|call| *call != FaultCall::Root) {
        for n in 1..=sane.control.calls(call) {
            let world = World::new(spec);
            world.control.fault(Fault::nth(call, FaultKind::Fail(errno), n));
            let outcomes = script(&world);
            let other: Vec<_> =
                (0..expected.len()).filter(|step| outcomes[*step] != expected[*step]).collect();
            assert_eq!(other.len(), 1, "{call:?} {n}: steps {other:?} differ");
            assert_eq!(outcomes[other[0]], Err(errno), "{call:?} {n}: step {}", other[0]);
            assert_eq!(script(&world), expected, "{call:?} {n}: after the failure");
            assert_eq!(left(&world), 1, "{call:?} {n}: inodes that cannot be evicted");
        }
    }
}

#[test]
fn every_call_fails_in_turn_where_answers_are_kept() {
    every_call_fails_in_turn(SPEC, Errno::IO);
}

#[test]
fn every_call_fails_in_turn_where_nothing_is_believed() {
    every_call_fails_in_turn(&format!("{SPEC},ttl=0,negative-ttl=0"), Errno::NOMEM);
}

/// A mount of a driver that fails is an error, not a mount.
#[test]
fn a_root_that_fails_is_no_mount() {
    let driver = |spec: &str| uvfs_drivers::generated::Generated::new(spec.parse().unwrap()).unwrap();
    let failing = std::sync::Arc::new(driver("fault=root:EIO"));
    assert_eq!(Vfs::new(uvfs::VfsConfig::default(), failing.clone()).map(|_| ()), Err(Errno::IO));
    let world = World::new("depth=1,dirs=1,files=1");
    let before = world.vfs.cache().counters().inodes;
    assert_eq!(world.vfs.mount(&world.inode(0), failing), Err(Errno::IO));
    assert_eq!(left(&world), before);
}

/// A mounted and used file system can be removed without a trace. Broken if a reference is leaked:
/// the cache would keep inodes of a file system that is gone.
#[test]
fn nothing_is_left_of_what_is_unmounted() {
    for n in 1..40 {
        let world = World::new("depth=1,dirs=1,files=1");
        let used = uvfs_drivers::generated::Generated::new(SPEC.parse().unwrap()).unwrap();
        let control = used.control();
        world.vfs.mount(&world.inode(0), std::sync::Arc::new(used)).expect("mount");
        control.fault(Fault {
            call: FaultCall::Lookup,
            kind: FaultKind::Fail(Errno::IO),
            first: n,
            every: Some(n),
        });
        let point = world.control.tree().path(2).unwrap();
        for ino in 1..=control.tree().inodes() {
            let path = [&point[..], &control.tree().path(ino).unwrap()].concat();
            match world.vfs.context(world.op().cred).stat(&path) {
                Ok(attr) => assert_eq!(Some(attr), control.tree().attr(ino)),
                Err(error) => assert_eq!(error, Errno::IO),
            }
        }
        assert_eq!(world.vfs.unmount(&walk(&world, &point).expect("the mounted root")), Ok(()));
        assert_eq!(left(&world), 1);
    }
}

/// Broken if a driver that declared itself read-only gets changes, or if one that did
/// not gets none; if an injected error does not arrive, or leaves a node behind.
#[test]
fn changes_fail_with_the_drivers_error() {
    let make = |world: &World| {
        let root = world.vfs.root();
        let made = world.vfs.mknod(&world.op(), &root, ABSENT, mode::S_IFREG | 0o644, 0);
        made.map(|_| ()).expect_err("the tree is read-only")
    };
    let world = World::new("depth=0,files=3");
    assert_eq!((make(&world), world.control.calls(FaultCall::Create)), (Errno::ROFS, 0));
    let world = World::new("depth=0,files=3,fault=create:ENOSPC@1,fault=create:EIO@2");
    for errno in [Errno::NOSPC, Errno::IO, Errno::ROFS] {
        assert_eq!(make(&world), errno);
        assert_eq!(world.lookup(ABSENT), Ok(None));
        assert_eq!(left(&world), 1);
    }
    assert_eq!(world.control.calls(FaultCall::Create), 3);
}

/// A driver that lies. Broken if the cache mixes two answers or keeps more of a lie than it was
/// given: each answer is either the truth or the lie, whole, and the truth after a refresh.
#[test]
fn a_lie_is_believed_whole_and_not_for_longer_than_told() {
    let world = World::new("depth=0,files=9,fault=lookup:wrong@1/2,fault=getattr:wrong@1/3");
    for round in 0..50 {
        let index = round % 9;
        let (name, truth) = (world.name(index), world.truth(index));
        let attr = world.lookup(&name).expect("an answer").expect("found");
        assert_eq!((attr.ino, attr.fmt()), (truth.ino, truth.fmt()));
        world.invalidate(&name);
    }
    world.control.clear_faults();
    for index in 0..9 {
        world.invalidate(&world.name(index));
        assert_eq!(world.lookup(&world.name(index)), Ok(Some(world.truth(index))));
    }
}
