//! Walks of the index and of the host, and their difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use uvfs_index::{ChangeKind, ChangedName, FileFacts, IndexedTree};

/// Paths below the root, with attributes.
pub type Walk = BTreeMap<Vec<u8>, FileFacts>;

/// All names of the index.
pub fn of_index(tree: &IndexedTree) -> Walk {
    let mut walk = Walk::new();
    let visited = tree.visit(b"", |name| {
        assert!(
            walk.insert(name.path.to_vec(), FileFacts { birth: 0, ..name.facts }).is_none(),
            "a name twice"
        );
        true
    });
    visited.expect("a tree that is followed");
    walk
}

/// All names of the host. Others may change it meanwhile.
pub fn of_host(root: &Path) -> Walk {
    let mut walk = Walk::new();
    let mut below = vec![root.to_owned()];
    while let Some(path) = below.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_dir()
            && let Ok(entries) = fs::read_dir(&path)
        {
            below.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
        }
        let facts = FileFacts {
            ino: meta.ino(),
            dev: meta.dev(),
            size: meta.size(),
            blocks: meta.blocks(),
            mtime: (meta.mtime(), meta.mtime_nsec() as u32),
            ctime: (meta.ctime(), meta.ctime_nsec() as u32),
            nlink: meta.nlink() as u32,
            uid: meta.uid(),
            gid: meta.gid(),
            mode: meta.mode() as u16,
            birth: 0,
        };
        let inner = path.strip_prefix(root).expect("a path below").as_os_str().as_bytes().to_vec();
        walk.insert(inner, facts);
    }
    walk
}

/// Fails with the first differences.
pub fn assert_same(index: &Walk, host: &Walk, when: &str) {
    let all: BTreeSet<_> = index.keys().chain(host.keys()).collect();
    let differ: Vec<_> = all.into_iter().filter(|path| index.get(*path) != host.get(*path)).collect();
    let shown: Vec<_> =
        differ.iter().take(5).map(|path| (text(path), index.get(*path), host.get(*path))).collect();
    assert!(differ.is_empty(), "{when}: {} names differ (index, host): {shown:#?}", differ.len());
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Fails if the two walks differ at a path that the list does not cover, or the list says what is not so.
pub fn assert_complete(before: &Walk, now: &Walk, changes: &[ChangedName], when: &str) {
    let mut listed = BTreeSet::new();
    let mut whole = Vec::new();
    for change in changes {
        let paths = [Some(&change.path), change.from.as_ref()];
        for path in paths.into_iter().flatten() {
            listed.insert(path.clone());
            if change.whole {
                whole.push([path, &b"/"[..]].concat());
            }
        }
        let there = now.contains_key(&change.path);
        assert_eq!(there, change.kind != ChangeKind::Removed, "{when}: {} {change:?}", text(&change.path));
    }
    // A listed name that is no directory now has nothing below it.
    let emptied = |path: &[u8]| listed.contains(path) && now.get(path).is_none_or(|facts| !facts.is_dir());
    let below_one = |path: &[u8]| {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes.into_iter().any(|(at, _)| emptied(&path[..at]))
    };
    let covered = |path: &Vec<u8>| {
        listed.contains(path) || whole.iter().any(|above| path.starts_with(above)) || below_one(path)
    };
    let all: BTreeSet<_> = before.keys().chain(now.keys()).collect();
    for path in all {
        let (old, new) = (before.get(path), now.get(path));
        assert!(old == new || covered(path), "{when}: {} is not listed: {old:?}, {new:?}", text(path));
    }
}
