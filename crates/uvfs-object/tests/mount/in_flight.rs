//! Changes while a LIST of the same directory is in flight: without a kernel, which would let some of them wait.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use fuse3::raw::{Filesystem, Request};
use futures_util::StreamExt;
use tokio::task::JoinHandle;
use uvfs_object::ObjectFs;

use crate::bucket::{Bucket, Fault, Write};
use crate::fixture::{Served, options, within};

pub const REQUEST: Request = Request { unique: 9, uid: 0, gid: 0, pid: 77 };
const WRITE: u32 = (libc::O_WRONLY | libc::O_TRUNC) as u32;

/// The node id and the size of a name; 0: there is none.
pub async fn find(fs: &ObjectFs, dir: u64, name: &str) -> (u64, u64) {
    let entry = fs.lookup(REQUEST, dir, OsStr::new(name)).await.expect("an answer");
    (entry.attr.ino, entry.attr.size)
}

pub async fn create(fs: &ObjectFs, dir: u64, name: &str, content: &[u8]) -> (u64, u64) {
    let flags = (libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL) as u32;
    let made = fs.create(REQUEST, dir, OsStr::new(name), 0o644, flags).await.expect("made");
    fs.write(REQUEST, made.attr.ino, made.fh, 0, content, 0, 0).await.expect("written");
    (made.attr.ino, made.fh)
}

pub async fn close(fs: &ObjectFs, (id, fh): (u64, u64)) {
    fs.flush(REQUEST, id, fh, 0).await.expect("published");
    fs.release(REQUEST, id, fh, 0, 0, false).await.expect("released");
}

/// Gives a file another content. Returns its new node.
pub async fn overwrite(fs: &ObjectFs, dir: u64, name: &str, content: &[u8]) -> u64 {
    let old = find(fs, dir, name).await.0;
    let again = fs.open(REQUEST, old, WRITE).await.expect_err("the kernel looks again");
    assert_eq!(again, fuse3::Errno::from(libc::ESTALE));
    let new = find(fs, dir, name).await.0;
    let fh = fs.open(REQUEST, new, WRITE).await.expect("opened").fh;
    fs.write(REQUEST, new, fh, 0, content, 0, 0).await.expect("written");
    close(fs, (new, fh)).await;
    new
}

pub async fn names(fs: &ObjectFs, dir: u64) -> Vec<String> {
    let fh = fs.opendir(REQUEST, dir, 0).await.expect("a directory").fh;
    let mut names = Vec::new();
    let mut offset = 0;
    loop {
        let reply = fs.readdir(REQUEST, dir, fh, offset).await.expect("names");
        let more: Vec<_> = reply.entries.map(|entry| entry.expect("an entry")).collect().await;
        let Some(last) = more.last() else { break };
        offset = last.offset;
        names.extend(more.into_iter().map(|entry| entry.name.into_string().expect("text")));
    }
    fs.releasedir(REQUEST, dir, fh, 0).await.expect("closed");
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

/// Starts a reader of a directory, whose LIST the store has answered; the answer is held back.
pub fn held_reader(fs: &Arc<ObjectFs>, dir: u64, bucket: &Bucket) -> JoinHandle<Vec<String>> {
    bucket.plan_lists(&[Fault::Held]);
    bucket.take_requests();
    let fs = Arc::clone(fs);
    let reader = tokio::spawn(async move { names(&fs, dir).await });
    let is_listed = || bucket.take_requests().lists != 0;
    assert!(tokio::task::block_in_place(|| within(Duration::from_secs(10), is_listed)));
    reader
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

pub fn changes() {
    let served = Served::new();
    for name in ["old", "gone", "source", "stays"] {
        served.bucket.put(&format!("d/{name}"), "version 1");
    }
    let fs = Arc::new(ObjectFs::new(served.operator(), "", &options()).expect("tables"));
    let bucket = served.bucket.clone();
    runtime().block_on(async move {
        let dir = find(&fs, 1, "d").await.0;
        assert_eq!(find(&fs, dir, "old").await.1, 9);
        // Another mount makes a name, and this one will make it too.
        bucket.put("d/both", "of another");
        // After a change, a reader makes a LIST of its own; the store answers, and the answer is on its way.
        let made = create(&fs, dir, "made before", b"1").await;
        close(&fs, made).await;
        let reader = held_reader(&fs, dir, &bucket);
        // It began before each of these.
        let new = overwrite(&fs, dir, "old", b"the second version").await;
        fs.unlink(REQUEST, dir, OsStr::new("gone")).await.expect("removed");
        fs.rename(REQUEST, dir, OsStr::new("source"), dir, OsStr::new("target")).await.expect("renamed");
        let made = create(&fs, dir, "made", b"12345").await;
        let open = create(&fs, dir, "open", b"1234").await;
        let both = create(&fs, dir, "both", b"12").await;
        close(&fs, made).await;
        bucket.release_lists(1);
        let read = reader.await.expect("it ended");
        for name in ["old", "stays", "made before"] {
            assert!(read.iter().any(|read| read == name), "{name}: {read:?}");
        }
        // The LIST has undone none of them, and says nothing about names that it did not have.
        bucket.take_requests();
        assert_eq!(find(&fs, dir, "old").await, (new, 18));
        assert_eq!(find(&fs, dir, "gone").await.0, 0);
        assert_eq!(find(&fs, dir, "source").await.0, 0);
        assert_eq!(find(&fs, dir, "target").await.1, 9);
        assert_eq!(find(&fs, dir, "made").await.1, 5);
        assert_eq!(find(&fs, dir, "open").await.1, 4);
        assert_eq!(find(&fs, dir, "both").await, (both.0, 2), "its writer decides at the close");
        close(&fs, open).await;
        let lost = fs.flush(REQUEST, both.0, both.1, 0).await.expect_err("another was faster");
        assert_eq!(lost, fuse3::Errno::from(libc::EEXIST));
        fs.release(REQUEST, both.0, both.1, 0, 0, false).await.expect("released");
        assert_eq!(names(&fs, dir).await, ["both", "made", "made before", "old", "open", "stays", "target"]);
        assert_eq!(bucket.take_writes(Write::Delete), 2);
    });
}

pub fn reader() {
    let served = Served::new();
    served.bucket.put("d/a", "1");
    let fs = Arc::new(ObjectFs::new(served.operator(), "", &options()).expect("tables"));
    let bucket = served.bucket.clone();
    runtime().block_on(async move {
        let dir = find(&fs, 1, "d").await.0;
        // It is there before the reader begins, and in no LIST; it is published while the reader waits.
        let open = create(&fs, dir, "open", b"1").await;
        let reader = held_reader(&fs, dir, &bucket);
        close(&fs, open).await;
        bucket.release_lists(1);
        assert_eq!(reader.await.expect("it ended"), ["a", "open"]);
        assert_eq!(names(&fs, dir).await, ["a", "open"]);
    });
}
