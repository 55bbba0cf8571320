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
