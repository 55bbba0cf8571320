//! Tests without a mount, on services whose listings and reads tell little: `memory` (names only) and `fs` (no ETags).

use std::ffi::OsStr;

use fuse3::raw::{Filesystem, Request};
use futures_util::StreamExt;
use opendal::Operator;
use opendal::services::{Fs, Memory};

use crate::{ObjectFs, ObjectOptions};

fn request(unique: u64) -> Request {
    Request { unique, uid: 0, gid: 0, pid: 0 }
}

async fn id(fs: &ObjectFs, path: &str) -> u64 {
    let mut id = 1;
    for name in path.split('/') {
        id = fs.lookup(request(9), id, OsStr::new(name)).await.expect("an answer").attr.ino;
    }
    id
}

async fn read(fs: &ObjectFs, path: &str) -> Result<Vec<u8>, i32> {
    let errno = |error: fuse3::Errno| -i32::from(error);
    let id = id(fs, path).await;
    let fh = fs.open(request(1), id, libc::O_RDONLY as u32).await.map_err(errno)?.fh;
    let mut all = Vec::new();
    loop {
        let read = fs.read(request(2), id, fh, all.len() as u64, 100_000).await.map_err(errno)?;
        if read.data.is_empty() {
            break;
        }
        all.extend_from_slice(&read.data);
    }
    fs.release(request(3), id, fh, 0, 0, false).await.map_err(errno)?;
    Ok(all)
}

async fn works(op: Operator) {
    let large: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
    op.write("p/d/large", large.clone()).await.expect("written");
    op.write("p/d/empty", "").await.expect("written");
    op.write("p/small", "abc").await.expect("written");
    let fs = ObjectFs::new(op.clone(), "p/", &ObjectOptions::default()).expect("tables");
    assert!(read(&fs, "d/large").await == Ok(large));
    assert_eq!(read(&fs, "d/empty").await, Ok(Vec::new()));
    assert_eq!(read(&fs, "small").await, Ok(b"abc".to_vec()));
    assert_eq!(id(&fs, "d/none").await, 0);
    let fh = fs.opendir(request(4), 1, 0).await.expect("a directory").fh;
    let mut names = Vec::new();
    loop {
        let offset = names.last().map_or(0, |(_, offset)| *offset);
        let reply = fs.readdir(request(5), 1, fh, offset).await.expect("a directory");
        let more: Vec<_> = reply.entries.map(|entry| entry.expect("an entry")).collect().await;
        if more.is_empty() {
            break;
        }
        names.extend(more.into_iter().map(|entry| (entry.name, entry.offset)));
    }
    names.sort();
    let names: Vec<_> = names.iter().map(|(name, _)| name.to_str().expect("text")).collect();
    assert_eq!(names, [".", "..", "d", "small"]);
    // An open file does not become another version.
    let file = id(&fs, "d/large").await;
    let fh = fs.open(request(6), file, 0).await.expect("open").fh;
    op.write("p/d/large", vec![1; 300_000]).await.expect("written");
    assert!(fs.read(request(7), file, fh, 390_000, 10).await.is_err());
    fs.release(request(8), file, fh, 0, 0, false).await.expect("released");
    assert!(read(&fs, "d/large").await == Ok(vec![1; 300_000]));
}

/// Write a file anew, as the kernel does: a lookup, then create, or open twice.
async fn write(fs: &ObjectFs, dir: u64, name: &str, content: &[u8]) -> Result<(), i32> {
    let errno = |error: fuse3::Errno| -i32::from(error);
    let name = OsStr::new(name);
    let flags = (libc::O_WRONLY | libc::O_TRUNC) as u32;
    let known = fs.lookup(request(1), dir, name).await.map_err(errno)?.attr.ino;
    let (id, fh) = if known == 0 {
        let made =
            fs.create(request(2), dir, name, 0o644, flags | libc::O_CREAT as u32).await.map_err(errno)?;
        (made.attr.ino, made.fh)
    } else {
        assert_eq!(fs.open(request(3), known, flags).await.map_err(errno), Err(libc::ESTALE));
        let new = fs.lookup(request(4), dir, name).await.map_err(errno)?.attr.ino;
        (new, fs.open(request(5), new, flags).await.map_err(errno)?.fh)
    };
    for (n, part) in content.chunks(100_000).enumerate() {
        fs.write(request(6), id, fh, n as u64 * 100_000, part, 0, 0).await.map_err(errno)?;
    }
    let done = fs.flush(request(7), id, fh, 0).await.map_err(errno);
    fs.release(request(8), id, fh, 0, 0, false).await.map_err(errno)?;
    done
}

/// Services without ETags, and without If-Match.
async fn is_written(op: Operator) {
    op.write("p/d/old", "abc").await.expect("written");
    // More than two parts.
    let options = ObjectOptions { part_size: 150_000, ..ObjectOptions::default() };
    let fs = ObjectFs::new(op.clone(), "p/", &options).expect("tables");
    let dir = id(&fs, "d").await;
    let large: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
    for name in ["new", "old", "new"] {
        assert_eq!(write(&fs, dir, name, &large).await, Ok(()));
        assert!(op.read(&format!("p/d/{name}")).await.expect("there").to_vec() == large);
        assert!(read(&fs, &format!("d/{name}")).await.as_ref() == Ok(&large));
        assert_eq!(write(&fs, dir, name, b"short").await, Ok(()));
        assert_eq!(read(&fs, &format!("d/{name}")).await, Ok(b"short".to_vec()));
    }
    // Another version since the open: a HEAD tells.
    let known = id(&fs, "d/old").await;
    let flags = (libc::O_WRONLY | libc::O_TRUNC) as u32;
    assert!(fs.open(request(1), known, flags).await.is_err());
    let other = Request { pid: 1, ..request(9) };
    let seen = fs.lookup(other, dir, OsStr::new("old")).await.expect("an answer").attr.ino;
    assert_eq!(seen, known, "another thread gets the old one");
    let new = fs.lookup(request(1), dir, OsStr::new("old")).await.expect("an answer").attr.ino;
    let fh = fs.open(request(2), new, flags).await.expect("opened").fh;
    op.write("p/d/old", "by another").await.expect("written");
    fs.write(request(3), new, fh, 0, b"mine", 0, 0).await.expect("taken");
    assert_eq!(fs.flush(request(4), new, fh, 0).await, Err(fuse3::Errno::from(libc::ESTALE)));
    fs.release(request(5), new, fh, 0, 0, false).await.expect("released");
    assert_eq!(op.read("p/d/old").await.expect("there").to_vec(), b"by another");
    fs.unlink(request(6), dir, OsStr::new("old")).await.expect("removed");
    assert!(!op.exists("p/d/old").await.expect("an answer"));
    let renamed = fs.rename(request(7), dir, OsStr::new("new"), 1, OsStr::new("moved")).await;
    let made = fs.mkdir(request(8), 1, OsStr::new("sub"), 0o755, 0).await;
    if op.info().capability().copy {
        renamed.expect("renamed");
        assert_eq!(read(&fs, "moved").await, Ok(b"short".to_vec()));
    } else {
        assert_eq!(renamed, Err(fuse3::Errno::from(libc::EXDEV)));
    }
    made.expect("made");
    fs.rmdir(request(9), 1, OsStr::new("sub")).await.expect("removed");
    assert!(!op.exists("p/sub/").await.expect("an answer"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_service_is_written() {
    is_written(Operator::new(Memory::default()).expect("memory")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fs_service_is_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().to_str().expect("text");
    is_written(Operator::new(Fs::default().root(root)).expect("a directory")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_service_works() {
    works(Operator::new(Memory::default()).expect("memory")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fs_service_works() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().to_str().expect("text");
    works(Operator::new(Fs::default().root(root)).expect("a directory")).await;
}
