//! Limits: ENOSPC, short counts, and exact accounting, under concurrency too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uvfs::types::{Errno, Fallocate, Seek, SetAttr, XattrFlags};

use crate::Fs;

const PAGE: u64 = 4096;

#[test]
fn a_write_that_does_not_fit_is_short_and_then_refused() {
    let fs = Fs::new("size=40k");
    let (fh, op) = (fs.open_new("f"), fs.op());
    let data: Vec<u8> = (0..60_000u32).map(|i| i as u8 | 1).collect();
    assert_eq!(fs.vfs.write(&op, fh, 100, &data, false, false), Ok(40_960 - 100));
    assert_eq!(fs.vfs.write(&op, fh, 40_960, b"x", false, false), Err(Errno::NOSPC));
    assert_eq!(fs.vfs.write(&op, fh, 1 << 40, b"x", false, false), Err(Errno::NOSPC));
    // Existing data may be overwritten, and nothing was lost.
    assert_eq!(fs.vfs.write(&op, fh, 40_950, &data[..100], false, false), Ok(10));
    let mut all = vec![0; 50_000];
    assert_eq!(fs.vfs.read(&op, fh, 0, &mut all), Ok(40_960));
    assert!(all[..100].iter().all(|b| *b == 0));
    assert_eq!(&all[100..40_950], &data[..40_850]);
    let stat = fs.vfs.statfs(&op, &fs.vfs.root()).unwrap();
    assert_eq!((stat.bsize, stat.blocks, stat.bfree, stat.bavail), (4096, 10, 0, 0));
    fs.unlink("f");
    assert_eq!(fs.tmpfs.usage().bytes, 10 * PAGE, "an open file keeps its pages");
    fs.vfs.release(fh);
    assert_eq!(fs.tmpfs.usage().bytes, 0);
    assert_eq!(fs.vfs.statfs(&op, &fs.vfs.root()).unwrap().bfree, 10);
}

#[test]
fn allocation_is_all_or_nothing() {
    let fs = Fs::new("size=40k");
    let (fh, op) = (fs.open_new("f"), fs.op());
    fs.vfs.write(&op, fh, 3 * PAGE, b"here", false, false).unwrap();
    for how in [Fallocate::Allocate { keep_size: false }, Fallocate::ZeroRange { keep_size: false }] {
        assert_eq!(fs.vfs.fallocate(&op, fh, how, 0, 11 * PAGE), Err(Errno::NOSPC));
        assert_eq!(fs.tmpfs.usage().bytes, PAGE);
    }
    let mut buf = [0; 4];
    assert_eq!(fs.vfs.read(&op, fh, 3 * PAGE, &mut buf), Ok(4));
    assert_eq!(&buf, b"here", "a refused zeroing zeroes nothing");
    fs.vfs.fallocate(&op, fh, Fallocate::Allocate { keep_size: true }, 0, 10 * PAGE).unwrap();
    assert_eq!(fs.tmpfs.usage().bytes, 10 * PAGE);
    // Allocated space is writable, whatever the other writers do.
    assert_eq!(fs.vfs.write(&op, fh, 0, &[1; 10 * 4096], false, false), Ok(10 * 4096));
}

#[test]
fn inodes_and_links_are_counted() {
    let fs = Fs::new("size=1m,nr_inodes=4");
    let (op, root) = (fs.op(), fs.vfs.root());
    let file = fs.file("a");
    fs.vfs.mkdir(&op, &root, b"d", 0o755).unwrap();
    let before = fs.root_attr();
    assert_eq!(fs.vfs.link(&op, &file, &root, b"b").map(|a| a.nlink), Ok(2));
    assert_eq!(fs.tmpfs.usage().inodes, 4);
    let full = fs.root_attr();
    assert_eq!(full.size, before.size + 20);
    assert_eq!(fs.vfs.mkdir(&op, &root, b"no", 0o755).err(), Some(Errno::NOSPC));
    assert_eq!(fs.vfs.mknod(&op, &root, b"no", 0o644, 0).err(), Some(Errno::NOSPC));
    assert_eq!(fs.vfs.symlink(&op, &root, b"no", b"target").err(), Some(Errno::NOSPC));
    assert_eq!(fs.vfs.link(&op, &file, &root, b"no").err(), Some(Errno::NOSPC));
    assert_eq!(fs.root_attr(), full, "what failed left a trace");
    assert_eq!(file.attr().nlink, 2);
    assert_eq!(fs.tmpfs.usage().bytes, 0);
    fs.unlink("b");
    assert_eq!(fs.tmpfs.usage().inodes, 3);
    fs.unlink("a");
    assert_eq!(fs.tmpfs.usage().inodes, 3, "it is still referenced");
    drop(file);
    assert_eq!(fs.tmpfs.usage().inodes, 2);
    fs.vfs.rmdir(&op, &root, b"d").unwrap();
    assert_eq!(fs.tmpfs.usage().inodes, 1);
    let stat = fs.vfs.statfs(&op, &root).unwrap();
    assert_eq!((stat.files, stat.ffree, stat.namelen), (4, 3, 255));
}

#[test]
fn targets_and_attributes_count_against_the_size() {
    let fs = Fs::new("size=4k");
    let (op, root) = (fs.op(), fs.vfs.root());
    let (link, _) = fs.vfs.symlink(&op, &root, b"l", &[b'x'; 4000]).unwrap();
    assert_eq!(fs.tmpfs.usage().bytes, 4000);
    assert_eq!(fs.vfs.symlink(&op, &root, b"m", &[b'x'; 97]).err(), Some(Errno::NOSPC));
    assert_eq!(fs.tmpfs.usage(), uvfs_drivers::tmpfs::Usage { inodes: 2, bytes: 4000, ..fs.tmpfs.usage() });
    let set = |value: &[u8]| fs.vfs.setxattr(&op, &root, b"user.a", value, XattrFlags::empty());
    assert_eq!(set(&[1; 27]), Err(Errno::NOSPC));
    assert_eq!(set(&[1; 26]), Ok(()));
    assert_eq!(fs.tmpfs.usage().bytes, 4096);
    assert_eq!(set(&[2; 27]), Err(Errno::NOSPC));
    assert_eq!(fs.vfs.getxattr(&op, &root, b"user.a"), Ok(vec![1; 26]), "a refused change changed something");
    assert_eq!(set(&[3; 6]), Ok(()));
    assert_eq!(fs.tmpfs.usage().bytes, 4076);
    assert_eq!(fs.vfs.readlink(&op, &link), Ok(vec![b'x'; 4000]));
    drop(link);
    fs.unlink("l");
    assert_eq!(fs.tmpfs.usage().bytes, 76);
    assert_eq!(fs.vfs.removexattr(&op, &root, b"user.a"), Ok(()));
    assert_eq!(fs.tmpfs.usage().bytes, 0);
}

#[test]
fn without_limits_statfs_says_zero_and_only_memory_is_a_limit() {
    let fs = Fs::new("size=0,nr_inodes=0");
    let (fh, op) = (fs.open_new("f"), fs.op());
    let stat = fs.vfs.statfs(&op, &fs.vfs.root()).unwrap();
    assert_eq!((stat.blocks, stat.bfree, stat.files, stat.ffree), (0, 0, 0, 0));
    assert_eq!(fs.vfs.write(&op, fh, 1 << 50, b"far", false, false), Ok(3));
    let allocate = Fallocate::Allocate { keep_size: true };
    assert_eq!(fs.vfs.fallocate(&op, fh, allocate, 0, 1 << 60), Err(Errno::NOSPC));
    assert_eq!(fs.tmpfs.usage().bytes, PAGE);
}

/// Isolated pages need more tree nodes than exist, long before the size is used up.
#[test]
fn a_file_that_is_too_sparse_is_refused_and_nothing_is_miscounted() {
    let fs = Fs::new("size=4m");
    let (inode, op) = (fs.file("f"), fs.op());
    let fh = fs.open(&inode);
    fs.vfs.write(&op, fh, 0, b"near", false, false).unwrap();
    let far =
        (1..1024).take_while(|i| fs.vfs.write(&op, fh, i << 48, b"far", false, false).is_ok()).count() as u64;
    assert!(far < 1000, "the nodes did not run out");
    let before = inode.attr();
    assert_eq!(before.blocks, (far + 1) * 8);
    assert_eq!(fs.tmpfs.usage().bytes, (far + 1) * PAGE);
    // The first pages have a node already, the others find none, so everything is undone.
    let allocate = Fallocate::Allocate { keep_size: false };
    assert_eq!(fs.vfs.fallocate(&op, fh, allocate, 0, 700 * PAGE), Err(Errno::NOSPC));
    assert_eq!(inode.attr(), before);
    assert_eq!(fs.tmpfs.usage().bytes, (far + 1) * PAGE);
    assert_eq!(fs.vfs.seek(&op, fh, 0, Seek::Hole), Ok(PAGE), "a page was left behind");
    // A write is short instead: it keeps what was written.
    let written = fs.vfs.write(&op, fh, 0, &[7; 700 * 4096], false, false).unwrap() as u64 / PAGE;
    assert!((64..700).contains(&written), "{written} pages were written");
    assert_eq!(fs.tmpfs.usage().bytes, (far + written) * PAGE);
    assert_eq!(inode.attr().blocks, (far + written) * 8);
    fs.vfs.truncate(&op, fh, 0).unwrap();
    assert_eq!(fs.tmpfs.usage().bytes, 0);
    fs.vfs.fallocate(&op, fh, allocate, 0, 1024 * PAGE).unwrap();
}

/// Eight threads fill, cut, punch and remove. The count never exceeds the limit, all accepted
/// data can be read, and in the end nothing is left.
#[test]
fn racing_writers_never_exceed_the_limit_and_everything_comes_back() {
    const LIMIT: u64 = 2 << 20;
    let fs = Fs::new("size=2m,nr_inodes=20");
    let (stop, refused) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let watch = s.spawn(|| {
            let mut highest = 0;
            while !stop.load(Ordering::Relaxed) {
                let usage = fs.tmpfs.usage();
                assert!(usage.bytes <= LIMIT, "{} bytes are used", usage.bytes);
                assert!(usage.inodes <= 20);
                highest = highest.max(usage.bytes);
            }
            highest
        });
        let workers: Vec<_> = (0..8u8)
            .map(|t| {
                let (fs, refused) = (&fs, &refused);
                s.spawn(move || work(fs, t, refused))
            })
            .collect();
        workers.into_iter().for_each(|w| w.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        assert!(watch.join().unwrap() > LIMIT / 2, "the limit was never near");
    });
    assert!(refused.load(Ordering::Relaxed) > 0, "the limit was never met");
    let usage = fs.tmpfs.usage();
    assert_eq!((usage.bytes, usage.inodes), (0, 1));
    let stat = fs.vfs.statfs(&fs.op(), &fs.vfs.root()).unwrap();
    assert_eq!((stat.bfree, stat.ffree), (stat.blocks, 19));
}

fn work(fs: &Fs, t: u8, refused: &AtomicU64) {
    let name = format!("f{t}");
    let mut x = u64::from(t) + 1;
    let mut random = |n: u64| {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 33) % n
    };
    for round in 0..30 {
        let inode = fs.file(&name);
        let (fh, op) = (fs.open(&inode), fs.op());
        let mut end = 0;
        for _ in 0..10 {
            let data = vec![t + 1; 1 + random(100_000) as usize];
            match fs.vfs.write(&op, fh, end, &data, false, false) {
                Ok(n) => {
                    end += n as u64;
                    refused.fetch_add(u64::from(n < data.len()), Ordering::Relaxed);
                }
                Err(e) => {
                    assert_eq!(e, Errno::NOSPC);
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        assert_eq!(inode.attr().size, end);
        assert_eq!(inode.attr().blocks, end.div_ceil(PAGE) * 8);
        let mut all = vec![0; end as usize];
        assert_eq!(fs.vfs.read(&op, fh, 0, &mut all), Ok(all.len()));
        assert!(all.iter().all(|b| *b == t + 1), "accepted bytes are gone");
        match round % 3 {
            0 => fs.vfs.truncate(&op, fh, random(end + 1)).unwrap(),
            1 => {
                fs.vfs.fallocate(&op, fh, Fallocate::PunchHole, random(end + 1), 1 + random(100_000)).unwrap()
            }
            _ => {}
        }
        fs.unlink(&name);
        let set = SetAttr { size: Some(random(1000)), ..SetAttr::default() };
        fs.vfs.setattr(&op, &inode, &set).unwrap();
        drop(inode);
        fs.vfs.release(fh);
    }
}
