//! Listings and contents: a reader can resume anywhere, and always gets the truth.

use uvfs::types::{Access, Errno};
use uvfs_drivers::generated::ROOT_INO;

use super::World;

/// Entries of the root directory after `cookie`: name, inode number, type, cookie.
fn after(world: &World, cookie: u64, max: usize) -> Vec<(Vec<u8>, u64, u32, u64)> {
    let root = world.vfs.root();
    let mut entries = Vec::new();
    world
        .vfs
        .readdir(&world.op(), &root, cookie, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino, entry.fmt, entry.cookie));
            entries.len() < max
        })
        .expect("a listing");
    entries
}

/// Broken if an entry is lost or repeated when a reader resumes, at any entry.
#[test]
fn a_listing_resumes_from_every_cookie() {
    let world = World::new("depth=1,dirs=7,files=60");
    let all = after(&world, 0, usize::MAX);
    assert_eq!(all.len(), 67);
    for start in [1, 2] {
        assert_eq!(after(&world, start, usize::MAX), all, "from cookie {start}");
    }
    for (at, entry) in all.iter().enumerate() {
        assert!(entry.3 >= 3);
        assert_eq!(after(&world, entry.3, usize::MAX), all[at + 1..]);
        assert_eq!(after(&world, entry.3, 1), all[at + 1..(at + 2).min(all.len())]);
    }
    assert_eq!(after(&world, u64::MAX, usize::MAX), []);
}

/// Broken if a listing and a lookup disagree, whichever comes first.
#[test]
fn what_is_listed_is_found() {
    let world = World::new("depth=1,dirs=7,files=60");
    for (name, ino, fmt, _) in after(&world, 0, usize::MAX) {
        let attr = world.lookup(&name).expect("an answer").expect("found");
        assert_eq!((attr.ino, attr.fmt()), (ino, fmt));
    }
}

/// A directory of 10^12 entries is read from its middle and from its end without reading the rest.
#[test]
fn a_directory_of_any_size_is_read_anywhere() {
    let world = World::new("depth=0,files=1000000000000");
    for index in [0, 1, 500_000_000_000, 999_999_999_998] {
        let next = &after(&world, index + 3, 2)[0];
        assert_eq!(next.0, *world.control.tree().name(ROOT_INO, index + 1).unwrap());
        assert_eq!(world.lookup(&next.0), Ok(Some(world.truth(index + 1))));
    }
    assert_eq!(after(&world, 1_000_000_000_002, 2), []);
}

/// Broken if a read at some offset returns other bytes than a read of the whole file, or goes past its end.
#[test]
fn a_file_reads_the_same_wherever_one_begins() {
    let world = World::new("depth=0,files=5,size=100..300");
    for index in 0..5 {
        let (inode, truth) = (world.inode(index), world.truth(index));
        let mut expected = vec![0; truth.size as usize];
        world.control.tree().content(truth.ino, 0, &mut expected);
        let fh = world.vfs.open(&world.op(), &inode, Access::READ, false).expect("open");
        for from in 0..=expected.len() + 1 {
            for len in [0, 1, 7, 64, 1000] {
                let mut buf = vec![0xee; len];
                let n = world.vfs.read(&world.op(), fh, from as u64, &mut buf).expect("read");
                let rest = &expected[from.min(expected.len())..];
                assert_eq!(buf[..n], rest[..len.min(rest.len())], "{len} bytes from {from}");
            }
        }
        world.vfs.release(fh);
        assert_eq!(world.vfs.open(&world.op(), &inode, Access::WRITE, false), Err(Errno::ROFS));
    }
}
