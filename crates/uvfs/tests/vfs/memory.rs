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
