//! The generated tree by itself, without a cache: it is what its seed says, always and everywhere.

use std::collections::HashSet;

use proptest::prelude::*;
use uvfs::Driver;
use uvfs::types::mode;
use uvfs_drivers::generated::{Change, Generated, ROOT_INO, Spec, Tree};

fn driver(spec: &str) -> Generated {
    let spec: Spec = spec.parse().unwrap_or_else(|error| panic!("{spec}: {error}"));
    Generated::new(spec.clone()).unwrap_or_else(|error| panic!("{spec:?}: {error}"))
}

/// Everything visible of a tree, inode by inode.
fn everything(tree: &Tree) -> Vec<String> {
    (1..=tree.inodes())
        .map(|ino| {
            let mut content = [0; 40];
            tree.content(ino, 3, &mut content);
            format!("{:?} {:?} {content:?}", tree.path(ino), tree.attr(ino))
        })
        .collect()
}

const SMALL: &str = "depth=3,dirs=3,files=5,seed=42,name=4..30,size=0..1M,uid=1..9,gid=1..9";

#[test]
fn same_seed_same_tree_and_other_seed_other_tree() {
    let (one, two) = (driver(SMALL), driver(SMALL));
    assert_eq!(everything(one.tree()), everything(two.tree()));
    let other = driver(&SMALL.replace("seed=42", "seed=43"));
    let same = everything(one.tree()).iter().zip(everything(other.tree())).filter(|(a, b)| **a == *b).count();
    assert_eq!(same, 0);
}

/// A seed must give the same tree for ever: reports identify trees by their seed.
#[test]
fn a_seed_names_a_tree_for_ever() {
    let driver = driver(SMALL);
    let tree = driver.tree();
    let seen: Vec<_> = [2, 40, 240]
        .map(|ino| {
            let attr = tree.attr(ino).unwrap();
            let mut content = [0; 4];
            tree.content(ino, 0, &mut content);
            let path = String::from_utf8(tree.path(ino).unwrap()).unwrap();
            format!("{path} {:o} {} {} {} {:?}", attr.mode, attr.uid, attr.size, attr.mtime.sec(), content)
        })
        .to_vec();
    let expected = [
        "/11bbogl7 40755 8 256 1384218607 [175, 121, 71, 106]",
        "/6lvnobuple3smah94hjn3e6lsea6/13np3e8519/3li25paut5rsol3t9oot3s4m 40755 4 160 1171719991 [193, 179, 17, 64]",
        "/6lvnobuple3smah94hjn3e6lsea6/13np3e8519/3li25paut5rsol3t9oot3s4m/7p36bjeb34c12t9guelvj \
         100755 8 312679 1699461441 [201, 219, 208, 169]",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn numbers_names_and_places_agree_over_a_whole_tree() {
    let driver = driver(SMALL);
    let tree = driver.tree();
    let (mut dirs, mut files) = (vec![ROOT_INO], 0);
    let mut inos = HashSet::from([ROOT_INO]);
    while let Some(dir) = dirs.pop() {
        let mut names = HashSet::new();
        let mut subdirs = 0;
        for index in 0..tree.entries(dir) {
            let (ino, name) = (tree.child(dir, index).unwrap(), tree.name(dir, index).unwrap());
            assert!(inos.insert(ino), "{ino} stands in two places");
            assert!(names.insert(name.to_vec()), "{name:?} stands twice in {dir}");
            assert!((4..=30).contains(&name.len()) && !name.contains(&b'/') && !name.contains(&0));
            assert_eq!(tree.find(dir, &name), Some(index));
            assert_eq!(tree.parent(ino), Some((dir, index)));
            let attr = tree.attr(ino).unwrap();
            assert_eq!((attr.ino, attr.is_dir()), (ino, tree.is_dir(ino)));
            if tree.is_dir(ino) {
                subdirs += 1;
                dirs.push(ino);
            } else {
                files += 1;
                assert!(attr.size <= 1 << 20 && attr.nlink == 1 && attr.fmt() == mode::S_IFREG);
            }
            assert!((1..=9).contains(&attr.uid) && (1..=9).contains(&attr.gid));
        }
        assert_eq!(tree.attr(dir).unwrap().nlink, 2 + subdirs);
        assert_eq!(tree.name(dir, tree.entries(dir)).map(|name| name.to_vec()), None);
    }
    assert_eq!((inos.len() as u64, files), (tree.inodes(), 40 * 5));
    for no_inode in [0, tree.inodes() + 1, u64::MAX] {
        assert_eq!((tree.attr(no_inode), tree.path(no_inode), tree.entries(no_inode)), (None, None, 0));
    }
}

#[test]
fn lengths_use_the_whole_range() {
    let driver = driver("depth=0,files=2000,name=12..40");
    let tree = driver.tree();
    let lengths: HashSet<_> = (0..2000).map(|index| tree.name(ROOT_INO, index).unwrap().len()).collect();
    assert_eq!(lengths.len(), 29);
}

/// 10^12 files in one directory, and about 10^19 inodes 62 levels deep: answers cost no memory
/// and no time that grows with the tree (this test would not end if they did).
#[test]
fn trees_of_any_size_answer_at_once() {
    let wide = driver("depth=1,dirs=1000000,files=1000000000000,name=12..40");
    for index in (0..1_000_001_000_000).step_by(7_777_777_777) {
        let name = wide.tree().name(ROOT_INO, index).unwrap();
        assert_eq!(wide.tree().find(ROOT_INO, &name), Some(index));
    }
    let deep = driver("depth=62,dirs=2,files=0,name=1..3");
    let tree = deep.tree();
    assert_eq!(tree.inodes(), (1 << 63) - 1);
    let last = tree.path(tree.inodes()).unwrap();
    let mut at = ROOT_INO;
    let mut level = 0;
    for name in last.split(|byte| *byte == b'/').skip(1) {
        at = tree.child(at, tree.find(at, name).unwrap()).unwrap();
        level += 1;
    }
    assert_eq!((at, level, tree.entries(at)), (tree.inodes(), 62, 0));
}

#[test]
fn content_is_the_same_wherever_a_read_begins() {
    let driver = driver(SMALL);
    let ino = driver.tree().inodes();
    let mut whole = vec![0; 300];
    driver.tree().content(ino, 0, &mut whole);
    for from in 0..40 {
        for len in [0, 1, 7, 8, 9, 100] {
            let mut part = vec![0; len];
            driver.tree().content(ino, from as u64, &mut part);
            assert_eq!(part, whole[from..from + len]);
        }
    }
    let mut far = [0; 16];
    driver.tree().content(ino, i64::MAX as u64, &mut far);
    let mut other = whole.clone();
    driver.tree().content(ino - 1, 0, &mut other);
    assert_ne!(other, whole);
}

#[test]
fn a_change_reaches_the_subtree_and_nothing_else() {
    let driver = driver(SMALL);
    let tree = driver.tree();
    let dir = tree.child(ROOT_INO, 1).unwrap();
    let before = everything(tree);
    let below = |mut ino| {
        while ino != dir {
            match tree.parent(ino) {
                Some((parent, _)) => ino = parent,
                None => return false,
            }
        }
        true
    };
    tree.change(dir, Change::Attributes);
    let attributes = everything(tree);
    tree.change(dir, Change::Names);
    let names = everything(tree);
    for ino in 1..=tree.inodes() {
        let at = ino as usize - 1;
        assert_eq!(attributes[at] != before[at], below(ino), "attributes of {ino}");
        // The directory's own name belongs to its parent.
        assert_eq!(names[at] != attributes[at], below(ino) && ino != dir, "name of {ino}");
    }
    let (old, index) = (before[tree.child(dir, 0).unwrap() as usize - 1].clone(), 0);
    assert!(!old.contains(&format!("{:?}", tree.name(dir, index).unwrap().to_vec())));
}

#[test]
fn features_follow_the_specification() {
    let cases = [
        ("", (false, false, true)),
        ("may-block", (true, false, true)),
        ("percred", (false, true, true)),
        ("pass-writes", (false, false, false)),
        ("fault=read:delay:1ms@5", (true, false, true)),
        ("fault=lookup:EIO", (false, false, true)),
        ("fault=write:ENOSPC@2", (false, false, false)),
    ];
    for (spec, expected) in cases {
        let features = driver(spec).features();
        let seen = (features.may_block, features.lookup_depends_on_cred, features.read_only);
        assert_eq!(seen, expected, "{spec}");
        assert!(!features.resident);
    }
}

proptest! {
    /// For any shape: every name leads back to its index, and nothing else does.
    #[test]
    fn find_is_the_inverse_of_name(
        seed: u64,
        dirs in 0..5u64,
        files in prop_oneof![0..50u64, 1..1u64 << 40],
        low in 9..200u8,
        more in 0..50u8,
        pick: u64,
        garbage in "[0-9a-v]{0,20}|\\PC{0,10}",
    ) {
        let spec = format!("depth=2,dirs={dirs},files={files},seed={seed},name={low}..{}", low + more);
        let driver = driver(&spec);
        let tree = driver.tree();
        let ino = 1 + pick % tree.inodes();
        if let Some((dir, index)) = tree.parent(ino) {
            let name = tree.name(dir, index).unwrap();
            prop_assert_eq!(tree.find(dir, &name), Some(index));
            prop_assert_eq!(tree.child(dir, index), Some(ino));
            // One byte off is another name or none, never the same entry.
            for at in 0..name.len() {
                let mut other = name.to_vec();
                other[at] = if other[at] == b'0' { b'1' } else { b'0' };
                prop_assert_ne!(tree.find(dir, &other), Some(index));
            }
            prop_assert_eq!(tree.find(dir, &name[..name.len() - 1]), None);
        }
        if let Some(index) = tree.find(ROOT_INO, garbage.as_bytes()) {
            let name = tree.name(ROOT_INO, index).unwrap();
            prop_assert_eq!(&*name, garbage.as_bytes());
        }
    }
}
