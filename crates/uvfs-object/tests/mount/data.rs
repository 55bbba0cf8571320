//! Data: sizes, read-ahead, versions.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use uvfs_object::ObjectOptions;

use crate::fixture::{Fixture, Served, bytes, options, within};

const PART: usize = 256 << 10;

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or_default()
}

pub fn sizes() {
    let sizes = [0, 1, 4095, 4096, PART - 1, PART, PART + 1, 3 * PART, 7 * PART + 12_345, (128 << 10) + 1];
    let fill = |bucket: &crate::bucket::Bucket| {
        sizes.iter().for_each(|len| bucket.put(&format!("f{len}"), bytes(*len, *len as u64)));
    };
    let mount = Fixture::of(fill, &options());
    for len in sizes {
        let read = fs::read(mount.path(&format!("f{len}"))).expect("read");
        assert!(read == bytes(len, len as u64), "{len} bytes: {} came", read.len());
    }
    // As a program does it; the digest of the same bytes in a file.
    let largest = format!("f{}", 7 * PART + 12_345);
    let copy = tempfile::NamedTempFile::new().expect("a file");
    fs::write(copy.path(), bytes(7 * PART + 12_345, (7 * PART + 12_345) as u64)).expect("written");
    let digest = |path: &std::path::Path| {
        let out = std::process::Command::new("sha256sum").arg(path).output().expect("sha256sum");
        String::from_utf8_lossy(&out.stdout).split_whitespace().next().map(str::to_owned)
    };
    assert_eq!(digest(&mount.path(&largest)), digest(copy.path()));
}

pub fn one_get() {
    let mount = Fixture::of(|bucket| bucket.put("f", bytes(100_000, 1)), &options());
    mount.path("f").metadata().expect("known");
    mount.bucket().take_requests();
    for _ in 0..2 {
        assert_eq!(fs::read(mount.path("f")).expect("read").len(), 100_000);
    }
    let requests = mount.bucket().take_requests();
    // Each open asks, since it promises what the store has at that moment; pages stay cached.
    assert_eq!((requests.lists, requests.heads, requests.gets, requests.bytes), (0, 0, 2, 200_000));
}

pub fn random() {
    const LEN: usize = 16 << 20;
    let data = bytes(LEN, 3);
    let mount = Fixture::of(|bucket| bucket.put("f", data.clone()), &options());
    let file = File::open(mount.path("f")).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("advice");
    mount.bucket().take_requests();
    let mut buffer = [0; 4096];
    // Backwards, and far from each other.
    for n in (1..8).rev() {
        file.read_exact_at(&mut buffer, n << 21).expect("read");
        assert!(buffer[..] == data[n as usize * (2 << 20)..][..4096]);
    }
    let requests = mount.bucket().take_requests();
    assert!(requests.bytes < 2 << 20, "{requests:?}");
    // A reader that goes on from there is read ahead of, in growing steps.
    let mut file = file;
    file.seek(SeekFrom::Start(0)).expect("seek");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Normal).expect("advice");
    let mut whole = Vec::new();
    file.read_to_end(&mut whole).expect("read");
    assert!(whole == data);
    let requests = mount.bucket().take_requests();
    assert!(requests.gets < 200 && requests.bytes <= 18 << 20, "{requests:?}");
}

pub fn bounded() {
    let served = Served::new();
    (0..12).for_each(|n| served.bucket.put(&format!("f{n}"), bytes(8 << 20, n)));
    // A quarter is for data: 4 MiB, for twelve files whose read-ahead wants 1 MiB each and more.
    let mount = Fixture::new(served, "", &ObjectOptions { memory: 16 << 20, ..options() });
    let mut files: Vec<_> =
        (0..12).map(|n| File::open(mount.path(&format!("f{n}"))).expect("open")).collect();
    let written: Vec<_> = (0..12).map(|n| bytes(8 << 20, n)).collect();
    let mut buffer = vec![0; 1 << 20];
    for round in 0..8usize {
        for (n, file) in files.iter_mut().enumerate() {
            file.read_exact(&mut buffer).expect("read");
            assert!(buffer[..] == written[n][round << 20..][..1 << 20], "file {n}, MiB {round}");
        }
    }
    let (_, peak) = mount.handle().figures().data;
    // The kernel has a few requests at once, each over the bound at most by its own bytes.
    assert!(peak > 1 << 20 && peak <= 6 << 20, "{peak}");
}

pub fn close_to_open() {
    let mount = Fixture::of(|bucket| bucket.put("d/f", bytes(300_000, 1)), &options());
    assert!(fs::read(mount.path("d/f")).expect("read") == bytes(300_000, 1));
    // Long before the TTL has passed.
    mount.bucket().put("d/f", bytes(700_000, 2));
    assert!(fs::read(mount.path("d/f")).expect("read") == bytes(700_000, 2));
    mount.bucket().put("d/f", "");
    assert!(fs::read(mount.path("d/f")).expect("read").is_empty());
    mount.bucket().put("d/f", "grown");
    assert_eq!(fs::read(mount.path("d/f")).expect("read"), b"grown");
    mount.bucket().remove("d/f");
    assert_eq!(errno(&fs::read(mount.path("d/f")).expect_err("gone")), libc::ENOENT);
}

pub fn one_version() {
    let len = 4 << 20;
    let mount =
        Fixture::of(|bucket| bucket.put("f", bytes(len, 1)), &ObjectOptions { read_ahead: 0, ..options() });
    let old = File::open(mount.path("f")).expect("open");
    let mut buffer = vec![0; 4096];
    old.read_exact_at(&mut buffer, 0).expect("read");
    mount.bucket().put("f", bytes(len, 2));
    let new = File::open(mount.path("f")).expect("open");
    new.read_exact_at(&mut buffer, 3 << 20).expect("read");
    assert!(buffer[..] == bytes(len, 2)[3 << 20..][..4096]);
    // The old file has what was read of it, and no more; never bytes of the new one.
    old.read_exact_at(&mut buffer, 0).expect("cached");
    assert!(buffer[..] == bytes(len, 1)[..4096]);
    let refused = old.read_exact_at(&mut buffer, 3 << 20).expect_err("another version");
    assert_eq!(errno(&refused), libc::ESTALE);
    mount.bucket().remove("f");
    let refused = new.read_exact_at(&mut buffer, 1 << 20).expect_err("gone");
    assert_eq!(errno(&refused), libc::ESTALE);
}

pub fn evicted() {
    const FILES: u64 = 4;
    let served = Served::new();
    (0..FILES).for_each(|n| served.bucket.put(&format!("data/f{n}"), bytes(2 << 20, n)));
    (0..40).for_each(|d| (0..1000).for_each(|n| served.bucket.put(&format!("many/d{d}/f{n}"), "x")));
    let mount = Fixture::new(served, "", &ObjectOptions { memory: 8 << 20, ..options() });
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..FILES)
            .map(|n| {
                let mount = &mount;
                scope.spawn(move || {
                    for _ in 0..5 {
                        let read = fs::read(mount.path(&format!("data/f{n}"))).expect("read");
                        assert!(read == bytes(2 << 20, n));
                    }
                })
            })
            .collect();
        for d in 0..40 {
            assert_eq!(fs::read_dir(mount.path(&format!("many/d{d}"))).expect("a directory").count(), 1000);
        }
        readers.into_iter().for_each(|reader| reader.join().expect("a reader"));
    });
    assert!(
        within(Duration::from_secs(10), || mount.handle().figures().data.0 == 0),
        "closed files hold no data"
    );
}
