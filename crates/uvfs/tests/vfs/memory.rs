//! The VFS's calls of a driver when the memory limit is reached.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Store, errno, root, vfs_of};
use uvfs::{Errno, mode};

/// The cache drops each inode that a driver returned exactly once.
#[test]
fn an_inode_without_room_for_its_name_is_evicted_once() {
    let store = Arc::new(Store::default());
    let vfs = vfs_of(Arc::clone(&store) as Arc<dyn uvfs::Driver>);
    for i in 0..20_000 {
        store.plant(1, &format!("{i}"), mode::S_IFREG | 0o644);
    }
    let long = "x".repeat(200);
    store.plant(1, &long, mode::S_IFREG | 0o644);
    vfs.cache().set_memory_limit(2 << 20);
    let context = root(&vfs);
    for i in 0..20_000 {
        context.stat(format!("{i}").as_bytes()).unwrap();
    }
    let told = || (store.evicted.load(Ordering::Relaxed), vfs.cache().counters().inodes);
    let before = told();
    let answer = context.stat(long.as_bytes());
    let after = told();
    println!("{:?}: evicted, inodes {before:?} to {after:?}", errno(answer));
    // One inode came, unless it was refused before it had a slot.
    let gone = before.1 as i64 - after.1 as i64;
    let evicted = after.0 as i64 - before.0 as i64;
    assert!(
        (gone..=gone + 1).contains(&evicted),
        "{evicted} evicted, {gone} fewer and one that came: {:?}",
        Errno::NOMEM
    );
}

/// A walk by a prefix entry marks no name on its way, and a link has no children that would keep it. Planted bugs:
/// rule17-links-of-entries-look-unused, rule17-links-of-older-entries-look-unused.
#[test]
fn rule17_a_link_that_walks_follow_stays() {
    let mut store = Store::default();
    store.fixed_links = true;
    let store = Arc::new(store);
    let directory = store.plant(1, "directory", mode::S_IFDIR | 0o755);
    store.plant(directory, "file", mode::S_IFREG | 0o644);
    let vfs = vfs_of(Arc::clone(&store) as Arc<dyn uvfs::Driver>);
    let context = root(&vfs);
    context.symlink(b"directory", b"a-link-to-the-directory").unwrap();
    let walk = || assert!(context.stat(b"a-link-to-the-directory/file").unwrap().is_reg());
    // Noted before memory is short.
    (0..4).for_each(|_| walk());
    let asked = || store.asked("a-link-to-the-directory");
    let before = asked();
    vfs.cache().set_memory_limit(2 << 20);
    for i in 0..100_000 {
        let name = format!("{i}");
        store.plant(1, &name, mode::S_IFREG | 0o644);
        context.stat(name.as_bytes()).unwrap();
        if i % 16 == 0 {
            walk();
        }
    }
    let evicted = store.evicted.load(Ordering::Relaxed);
    assert!(evicted > 80_000, "the hand came by several times: {evicted} evicted");
    assert_eq!(asked(), before, "a link in constant use was evicted");
}
