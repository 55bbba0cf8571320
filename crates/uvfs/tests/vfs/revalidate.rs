//! Drivers that revalidate their names and permissions at each use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Mem, Store, errno, root, touch, user, vfs_of};
use uvfs::{Context, Cred, Errno, OpenFlags, RenameFlags, Vfs, mode};

const FILE: u32 = mode::S_IFREG | 0o644;
const DIR: u32 = mode::S_IFDIR | 0o755;
/// Long enough for the prefix cache.
const DEEP: &[u8] = b"/directory/of-directories/f";

/// A tree with [`DEEP`] in it: the directories have the numbers 2 and 3, the file 4.
fn vouching() -> (Arc<Store>, Arc<Vfs>) {
    let store = Arc::new(Store::vouching());
    assert_eq!(store.plant(1, "directory", DIR), 2);
    assert_eq!(store.plant(2, "of-directories", DIR), 3);
    assert_eq!(store.plant(3, "f", FILE), 4);
    let vfs = vfs_of(Arc::clone(&store) as Arc<dyn uvfs::Driver>);
    root(&vfs).stat(DEEP).unwrap();
    store.uses();
    (store, vfs)
}

/// A repeated path, which any cache of paths would remember.
fn again(context: &Context<'_>, path: &[u8]) -> Result<u64, Errno> {
    let all: Vec<_> = (0..5).map(|_| context.stat(path).map(|attr| attr.ino)).collect();
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
    all[0]
}

#[test]
fn each_use_is_asked_about() {
    let (store, vfs) = vouching();
    let walk = ["may 1", "1/directory=2", "may 2", "2/of-directories=3", "may 3", "3/f=4"];
    for context in [root(&vfs), user(&vfs, 7, 7)] {
        for _ in 0..3 {
            context.stat(DEEP).unwrap();
            assert_eq!(store.uses(), walk);
        }
        context.resolve(DEEP).unwrap();
        assert_eq!(store.uses(), walk);
        drop(context.open(DEEP, OpenFlags::READ, 0).unwrap());
        assert_eq!(store.uses(), [&walk[..], &["may 4"]].concat());
        // The walk with references, from the link on.
        context.stat(b"/directory/none").unwrap_err();
        store.uses();
        context.stat(b"/directory/none/f").unwrap_err();
        assert_eq!(store.uses(), ["may 1", "1/directory=2", "may 2", "2/none=-"]);
    }
    assert_eq!((store.asked("f"), store.asked("none")), (1, 1));
}

#[test]
fn a_name_that_is_not_vouched_for_is_looked_up_anew() {
    let (store, vfs) = vouching();
    let root = root(&vfs);
    assert_eq!(again(&root, DEEP), Ok(4));
    store.uproot(3, "f");
    assert_eq!(again(&root, DEEP), Err(Errno::NOENT));
    assert_eq!(store.asked("f"), 2);
    let file = store.plant(3, "f", FILE);
    assert_eq!(again(&root, DEEP), Ok(file));
    assert_eq!(store.asked("f"), 3);
    // A directory on the way is replaced, and then the first one returns with its content.
    store.uproot(1, "directory");
    assert_eq!(again(&root, DEEP), Err(Errno::NOENT));
    let other = store.plant(1, "directory", DIR);
    assert_eq!(errno(root.resolve(DEEP)), Some(Errno::NOENT));
    let inner = store.plant(other, "of-directories", DIR);
    let file = store.plant(inner, "f", FILE);
    assert_eq!(again(&root, DEEP), Ok(file));
    drop(root.open(DEEP, OpenFlags::READ, 0).unwrap());
}

#[test]
fn changes_go_by_what_the_driver_says() {
    let (store, vfs) = vouching();
    let root = root(&vfs);
    store.uproot(3, "f");
    assert_eq!(errno(root.unlink(DEEP)), Some(Errno::NOENT));
    store.plant(3, "f", FILE);
    assert_eq!(errno(root.mkdir(DEEP, 0o755)), Some(Errno::EXIST));
    store.uproot(3, "f");
    assert_eq!(errno(root.rename(DEEP, b"/g", RenameFlags::empty())), Some(Errno::NOENT));
    root.mkdir(DEEP, 0o755).unwrap();
    root.rmdir(DEEP).unwrap();
}

#[test]
fn permissions_are_the_drivers() {
    let (store, vfs) = vouching();
    let (root, user) = (root(&vfs), user(&vfs, 7, 7));
    assert_eq!(again(&user, DEEP), Ok(4));
    store.change_mode(2, mode::S_IFDIR | 0o700);
    assert_eq!(again(&user, DEEP), Err(Errno::ACCESS));
    assert_eq!(errno(user.mkdir(b"/directory/n", 0o755)), Some(Errno::ACCESS));
    assert_eq!(again(&root, DEEP), Ok(4));
    store.change_mode(2, DIR);
    assert_eq!(again(&user, DEEP), Ok(4));
    store.change_mode(4, mode::S_IFREG | 0o600);
    assert_eq!(errno(user.open(DEEP, OpenFlags::READ, 0)), Some(Errno::ACCESS));
    store.change_mode(4, FILE);
    drop(user.open(DEEP, OpenFlags::READ, 0).unwrap());
}

#[test]
fn a_driver_that_vouches_for_nothing_is_looked_up_in_each_time() {
    let (store, vfs) = vouching();
    let root = root(&vfs);
    store.distrust.store(true, Ordering::Relaxed);
    assert_eq!(again(&root, DEEP), Ok(4));
    assert_eq!((store.asked("f"), store.asked("directory")), (6, 6));
    assert_eq!(errno(root.unlink(b"/none")), Some(Errno::NOENT));
    drop(root.open(DEEP, OpenFlags::READ, 0).unwrap());
}

#[test]
fn only_who_wants_to_be_asked_is() {
    let vfs = vfs_of(Arc::new(Mem::default()));
    let root = root(&vfs);
    root.mkdir(b"m", 0o755).unwrap();
    touch(&root, "f");
    let (vouching, other) = (Store::vouching(), Store::default());
    let (vouching, other) = (Arc::new(vouching), Arc::new(other));
    vouching.plant(1, "v", FILE);
    vouching.plant(1, "n", DIR);
    vfs.mount(&root.resolve(b"m").unwrap(), Arc::clone(&vouching) as _).unwrap();
    vfs.mount(&root.resolve(b"m/n").unwrap(), Arc::clone(&other) as _).unwrap();
    other.plant(1, "o", FILE);
    for path in [&b"f"[..], b"m/n/o", b"m/v", b"m/../f"] {
        root.stat(path).unwrap();
    }
    vouching.uses();
    root.stat(b"f").unwrap();
    assert_eq!(vouching.uses(), [""; 0]);
    root.stat(b"m/n/o").unwrap();
    assert_eq!(vouching.uses(), ["may 1", "1/n=3"]);
    root.stat(b"m/../f").unwrap();
    assert_eq!(vouching.uses(), ["may 1"]);
    assert_eq!(other.uses(), [""; 0]);
    // A front end cannot use the non-blocking way for this driver.
    let op = vfs.op(&Cred::root());
    assert!(vfs.lookup_cached(&op, &root.resolve(b"m").unwrap(), b"v").is_none());
    assert!(vfs.lookup_cached(&op, &root.resolve(b"m/n").unwrap(), b"o").is_some());
    vfs.lookup(&op, &root.resolve(b"m").unwrap(), b"v").unwrap();
    // After the unmount no driver is asked, and the rest is unchanged.
    vfs.unmount(&root.resolve(b"m/n").unwrap()).unwrap();
    vfs.unmount(&root.resolve(b"m").unwrap()).unwrap();
    vouching.uses();
    assert_eq!(errno(root.stat(b"m/v")), Some(Errno::NOENT));
    root.stat(b"f").unwrap();
    assert_eq!(vouching.uses(), [""; 0]);
}
