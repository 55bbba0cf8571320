//! Rule 19: in debug builds the locks of the cache are noted, and taken in their order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use uvfs_sync::lock_order::{self, Class};

use crate::file_pages::{Mapping, Memory};
use crate::inodes::attr::mode::{S_IFDIR, S_IFREG};
use crate::machinery::{Fresh, SbOptions};
use crate::names::dentry::NameWords;
use crate::{Attr, Cache, Config, InodeRef, Room, SbId, Ttl};

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

fn world() -> (Arc<Cache>, SbId) {
    let cache = Cache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
    let sb = cache
        .add_superblock(SbOptions { resident: true, watched: false, on_evict: Box::new(|_, _| {}) })
        .unwrap();
    drop(cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap());
    (cache, sb)
}

fn create(cache: &Cache, dir: &InodeRef<'_>, name: &[u8], ino: u64, fmt: u32) {
    let guard = cache.lock_name(dir, name);
    let room = guard.reserve(if fmt == S_IFDIR { Room::Dir } else { Room::Node }).unwrap();
    guard.create(room, &fresh(ino, fmt));
}

/// Check that a lock of `class` is noted while `_guard` is held, and no longer after it is dropped.
fn noted<G>(class: Class, before: Class, guard: G) {
    let panic =
        catch_unwind(AssertUnwindSafe(|| lock_order::check(before))).expect_err("the lock is not noted");
    let message = panic.downcast::<String>().unwrap();
    assert_eq!(*message, format!("lock order: {before:?} is taken while {class:?} is held"));
    drop(guard);
    lock_order::check(Class::Rename);
}

/// A device's state: `buffers/tests.rs`. Planted bugs: rule19-pages-are-not-noted,
/// rule19-eviction-lock-is-not-noted, rule19-list-is-not-noted, rule19-attribute-lock-is-not-noted.
#[test]
fn rule19_each_lock_of_the_cache_is_noted() {
    let (cache, sb) = world();
    let root = cache.root(sb).unwrap();
    let memory = Memory::reserve(64).unwrap();
    let mapping = Mapping::new();
    noted(Class::File, Class::InodeLock, mapping.lock(&memory));
    noted(Class::Eviction, Class::File, cache.limit.lock_eviction());
    noted(Class::DirIndex, Class::Device, root.dir_state().unwrap().entries());
    let words = NameWords::new(b"a");
    noted(Class::Bucket, Class::DirIndex, cache.lock_names_bucket([(root.index(), &words)], false));
    let refs = &cache.inodes.private(root.index()).refs;
    refs.lock();
    let panic = catch_unwind(AssertUnwindSafe(|| lock_order::check(Class::Bucket)));
    refs.unlock();
    assert!(panic.is_err(), "an attribute lock is not noted");
    lock_order::check(Class::Rename);
}

/// The rename mutexes of two superblocks, one after the other. Planted bug: rule19-rename-is-not-noted.
#[test]
#[should_panic(expected = "Rename 0x0 is taken while Rename 0x0 is held")]
fn rule19_the_rename_mutex_is_taken_once() {
    let (cache, sb) = world();
    let other = cache
        .add_superblock(SbOptions { resident: true, watched: false, on_evict: Box::new(|_, _| {}) })
        .unwrap();
    let _one = cache.lock_renames(sb);
    let _other = cache.lock_renames(other);
}

/// The rename mutex comes before a name lock, even one that is only waited for. Planted bug:
/// rule19-names-are-not-noted.
#[test]
fn rule19_a_name_is_asked_for_before_all_other_locks() {
    let (cache, sb) = world();
    let root = cache.root(sb).unwrap();
    let _list = root.dir_state().unwrap().entries();
    let taken = catch_unwind(AssertUnwindSafe(|| drop(cache.lock_name(&root, b"a"))));
    assert!(taken.is_err(), "a name was waited for under a directory's list");
}

/// Two names are taken in the order of their hashes, whichever is named first. Planted bug:
/// rule19-names-as-they-come.
#[test]
fn rule19_two_names_are_taken_in_one_order() {
    let (cache, sb) = world();
    let root = cache.root(sb).unwrap();
    for (a, b) in [(b"a", b"b"), (b"b", b"a"), (b"c", b"d"), (b"d", b"c"), (b"e", b"e")] {
        drop(cache.lock_names((&root, a), (&root, b)));
    }
}

/// Two directories that change places are locked by index. Planted bug: rule19-inodes-as-they-come.
#[test]
fn rule19_two_directories_are_locked_in_one_order() {
    let (cache, sb) = world();
    let root = cache.root(sb).unwrap();
    create(&cache, &root, b"x", 5, S_IFDIR);
    create(&cache, &root, b"y", 6, S_IFDIR);
    // After the first exchange each name leads to the other directory, so the second exchange comes in the
    // opposite order.
    for _ in 0..2 {
        let (x, y) = cache.lock_names((&root, b"x"), (&root, b"y"));
        cache.exchange(&x, &y);
    }
}

/// A removal drops the inode with no lock held: the last reference ends it, and calls the driver. Planted
/// bug: rule19-finished-under-the-bucket.
#[test]
fn rule19_an_inode_ends_with_no_lock_held() {
    let (cache, sb) = world();
    let root = cache.root(sb).unwrap();
    create(&cache, &root, b"f", 5, S_IFREG);
    cache.lock_name(&root, b"f").remove(None);
    assert_eq!(cache.counters().inodes, 1);
}
