//! Calls of the file system without a mount, over a store that counts them.

#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../examples/store/objects.rs"]
mod objects;

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fuse3::raw::{Filesystem, Request};
use futures_util::StreamExt;
use uvfs_path::{PathFs, PathHandle, PathOptions, Ttl};

use objects::{Calls, Store};

const ROOT: u64 = 1;

struct World {
    fs: Arc<PathFs<Store>>,
    calls: Arc<Calls>,
    handle: PathHandle,
}

fn world(latency: u64, options: PathOptions) -> World {
    let store = Store::new(Duration::from_millis(latency));
    store.put("/a", b"hello");
    store.put_dir("/d");
    store.put_dir("/d/sub");
    store.put("/d/sub/file", b"text");
    store.put_dir("/to");
    let calls = store.calls();
    let fs = PathFs::new(store, options).unwrap();
    let handle = fs.handle();
    World { fs: Arc::new(fs), calls, handle }
}

fn req() -> Request {
    Request::default()
}

impl World {
    async fn find(&self, path: &str) -> u64 {
        let mut at = ROOT;
        for name in path.split('/') {
            at = self.fs.lookup(req(), at, OsStr::new(name)).await.unwrap().attr.ino;
            assert_ne!(at, 0, "{path}");
        }
        at
    }

    fn lookups(&self) -> u64 {
        self.calls.lookup.load(Relaxed)
    }

    fn path(&self, id: u64) -> String {
        self.handle.path_of(id).unwrap().into_string().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookups_of_one_name_make_one_call() {
    let w = world(20, PathOptions::default());
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let fs = Arc::clone(&w.fs);
            tokio::spawn(async move { fs.lookup(req(), ROOT, OsStr::new("a")).await.unwrap().attr.ino })
        })
        .collect();
    let mut ids = Vec::new();
    for task in tasks {
        ids.push(task.await.unwrap());
    }
    assert_eq!(w.lookups(), 1);
    assert!(ids.iter().all(|id| *id == ids[0] && *id > 1));
    assert_eq!(w.handle.lookups(), 64);
    // Known: no call. Attributes too.
    w.find("a").await;
    assert_eq!(w.fs.getattr(req(), ids[0], None, 0).await.unwrap().attr.size, 5);
    assert_eq!((w.lookups(), w.calls.getattr.load(Relaxed)), (1, 0));
    w.fs.batch_forget(req(), &[(ids[0], 65)]).await;
    assert_eq!(w.handle.lookups(), 0);
}

#[tokio::test]
async fn absences_are_remembered_for_their_ttl() {
    let ttl = Ttl::For(Duration::from_millis(50));
    let w = world(0, PathOptions { absent_ttl: ttl, ..PathOptions::default() });
    for _ in 0..10 {
        assert_eq!(w.fs.lookup(req(), ROOT, OsStr::new("none")).await.unwrap().attr.ino, 0);
    }
    assert_eq!(w.lookups(), 1);
    w.fs.back_end().put("/none", b"");
    tokio::time::sleep(Duration::from_millis(60)).await;
    w.find("none").await;
    let w = world(0, PathOptions { absent_ttl: Ttl::ZERO, ..PathOptions::default() });
    for calls in 1..=3 {
        assert!(w.fs.lookup(req(), ROOT, OsStr::new("none")).await.unwrap_err().is_not_exist());
        assert_eq!(w.lookups(), calls);
    }
}

#[tokio::test]
async fn a_name_that_expired_leads_to_the_same_node() {
    let ttl = Some(Ttl::For(Duration::from_millis(30)));
    let w = world(0, PathOptions { name_ttl: ttl, attr_ttl: ttl, ..PathOptions::default() });
    let id = w.find("d/sub/file").await;
    let calls = w.lookups();
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert_eq!((w.find("d/sub/file").await, w.lookups()), (id, calls + 3));
    // Attributes of their own accord.
    tokio::time::sleep(Duration::from_millis(40)).await;
    let before = w.calls.getattr.load(Relaxed);
    for _ in 0..3 {
        w.fs.getattr(req(), id, None, 0).await.unwrap();
    }
    assert_eq!(w.calls.getattr.load(Relaxed), before + 1);
    // Another type is another file.
    w.fs.back_end().take("/d/sub/file");
    w.fs.back_end().put_dir("/d/sub/file");
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert_ne!(w.find("d/sub/file").await, id);
    // Gone is gone.
    w.fs.back_end().take("/d/sub/file");
    tokio::time::sleep(Duration::from_millis(40)).await;
    let sub = w.find("d/sub").await;
    assert_eq!(w.fs.lookup(req(), sub, OsStr::new("file")).await.unwrap().attr.ino, 0);
}

/// A back end that is told of a change by others says so.
#[tokio::test]
async fn reported_changes_show_at_once() {
    let w = world(0, PathOptions { listing_ttl: Ttl::Forever, ..PathOptions::default() });
    let (dir, file) = (w.find("d").await, w.find("d/sub/file").await);
    w.fs.back_end().put("/d/sub/file", b"longer text");
    assert_eq!(w.fs.getattr(req(), file, None, 0).await.unwrap().attr.size, 4);
    w.handle.changed("/d/sub/file".as_ref()).unwrap();
    assert_eq!(w.fs.getattr(req(), file, None, 0).await.unwrap().attr.size, 11);
    // A new name in a directory that was listed whole.
    w.fs.readdirplus(req(), dir, 0, 0, 0).await.unwrap().entries.for_each(|_| async {}).await;
    w.fs.back_end().put("/d/new", b"");
    assert_eq!(w.fs.lookup(req(), dir, OsStr::new("new")).await.unwrap().attr.ino, 0);
    w.handle.changed("/d/new".as_ref()).unwrap();
    assert_ne!(w.fs.lookup(req(), dir, OsStr::new("new")).await.unwrap().attr.ino, 0);
    // One that has gone.
    w.fs.back_end().take("/d/new");
    w.handle.changed("/d/new".as_ref()).unwrap();
    assert_eq!(w.fs.lookup(req(), dir, OsStr::new("new")).await.unwrap().attr.ino, 0);
    w.handle.changed("/unknown/below".as_ref()).unwrap();
    assert!(w.handle.changed("/".as_ref()).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_leak_nothing() {
    let w = world(5, PathOptions::default());
    for round in 0..200u64 {
        let name = format!("n{}", round % 7);
        let tasks: Vec<_> = (0..4)
            .map(|i| {
                let (fs, name) = (Arc::clone(&w.fs), name.clone());
                tokio::spawn(async move {
                    let name = OsStr::new(&name);
                    match (round + i) % 3 {
                        0 => drop(fs.lookup(req(), ROOT, name).await),
                        1 => drop(fs.mkdir(req(), ROOT, name, 0o755, 0).await),
                        _ => drop(fs.rmdir(req(), ROOT, name).await),
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(round % 9)).await;
        tasks.iter().for_each(|task| task.abort());
        for task in tasks {
            let _ = task.await;
        }
    }
    // Whatever was cancelled: nothing is locked, in use or moving, and the table is right.
    assert!(format!("{:?}", w.fs).contains("0 in use, 0 moving"), "{:?}", w.fs);
    for i in 0..7 {
        let name = format!("n{i}");
        let seen = w.fs.lookup(req(), ROOT, OsStr::new(&name)).await.unwrap().attr.ino != 0;
        let made = w.fs.mkdir(req(), ROOT, OsStr::new(&name), 0o755, 0).await;
        assert_eq!(made.is_err(), seen, "{name}");
        w.fs.rmdir(req(), ROOT, OsStr::new(&name)).await.unwrap();
    }
}

#[tokio::test]
async fn a_renamed_directory_takes_its_children_along() {
    let w = world(1, PathOptions::default());
    let (dir, file, to) = (w.find("d").await, w.find("d/sub/file").await, w.find("to").await);
    w.fs.rename(req(), ROOT, OsStr::new("d"), to, OsStr::new("z")).await.unwrap();
    assert_eq!((w.path(dir), w.path(file)), ("/to/z".into(), "/to/z/sub/file".into()));
    assert_eq!(w.find("to/z/sub/file").await, file);
    assert_eq!(w.fs.lookup(req(), ROOT, OsStr::new("d")).await.unwrap().attr.ino, 0);
    w.fs.open(req(), file, 0).await.unwrap();
    // Below itself: no.
    assert!(w.fs.rename(req(), to, OsStr::new("z"), dir, OsStr::new("y")).await.is_err());
    // Exchanged with a file, and back.
    let a = w.find("a").await;
    for _ in 0..2 {
        let (one, other) = (w.path(file), w.path(a));
        w.fs.rename2(req(), ROOT, OsStr::new("a"), to, OsStr::new("z"), 2).await.unwrap();
        assert_ne!((w.path(file), w.path(a)), (one, other));
        w.fs.open(req(), file, 0).await.unwrap();
        w.fs.open(req(), a, 0).await.unwrap();
    }
    assert_eq!((w.path(a), w.path(file)), ("/a".into(), "/to/z/sub/file".into()));
    // Not over what exists.
    let over = w.fs.rename2(req(), ROOT, OsStr::new("a"), to, OsStr::new("z"), 1).await;
    assert!(over.unwrap_err().is_exist());
}

/// A call that names its file by path, and a rename of a directory above: whichever is first, the other waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_below_a_directory_that_is_being_renamed_find_their_files() {
    let w = world(3, PathOptions { attr_ttl: Some(Ttl::ZERO), ..PathOptions::default() });
    let (sub, file) = (w.find("d/sub").await, w.find("d/sub/file").await);
    let mut names = ["d", "e"];
    for _ in 0..20 {
        let calls: Vec<_> = (0..8u64)
            .map(|i| {
                let fs = Arc::clone(&w.fs);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(i)).await;
                    match i % 3 {
                        0 => fs.getattr(req(), file, None, 0).await.map(drop),
                        1 => fs.open(req(), file, 0).await.map(drop),
                        _ => {
                            let name = format!("new{i}");
                            fs.mkdir(req(), sub, OsStr::new(&name), 0o755, 0).await?;
                            fs.rmdir(req(), sub, OsStr::new(&name)).await
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(2)).await;
        w.fs.rename(req(), ROOT, OsStr::new(names[0]), ROOT, OsStr::new(names[1])).await.unwrap();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        names.swap(0, 1);
    }
}

/// Lookups while neighbours are removed: late answers, whose nodes have paths all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_have_paths_while_neighbours_are_removed() {
    let w = world(5, PathOptions::default());
    for i in 0..20 {
        w.fs.back_end().put(&format!("/d/keep{i}"), b"");
        w.fs.back_end().put(&format!("/d/gone{i}"), b"");
    }
    let dir = w.find("d").await;
    let mut tasks = Vec::new();
    for i in 0..20 {
        let fs = Arc::clone(&w.fs);
        tasks.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1 + i % 7)).await;
            let id = fs.lookup(req(), dir, OsStr::new(&format!("keep{i}"))).await.unwrap().attr.ino;
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some(id)
        }));
        let fs = Arc::clone(&w.fs);
        tasks.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(i % 5)).await;
            fs.unlink(req(), dir, OsStr::new(&format!("gone{i}"))).await.unwrap();
            None
        }));
    }
    for (i, task) in tasks.into_iter().enumerate() {
        if let Some(id) = task.await.unwrap() {
            assert_eq!(w.path(id), format!("/d/keep{}", i / 2));
            w.fs.open(req(), id, 0).await.unwrap();
        }
    }
}

#[tokio::test]
async fn listings_count_what_they_give_and_answer_absences() {
    let w = world(0, PathOptions { listing_ttl: Ttl::Forever, ..PathOptions::default() });
    for i in 0..50 {
        w.fs.back_end().put(&format!("/d/f{i:02}"), b"x");
    }
    let dir = w.find("d").await;
    let before = w.handle.lookups();
    // A reply that is full after ten entries: the eleventh is taken and does not fit.
    let reply = w.fs.readdirplus(req(), dir, 0, 0, 0).await.unwrap();
    let mut entries = Box::pin(reply.entries);
    let mut last = 0;
    for _ in 0..10 {
        last = entries.next().await.unwrap().unwrap().offset as u64;
    }
    entries.next().await.unwrap().unwrap();
    drop(entries);
    // `.` and `..` are not counted.
    assert_eq!(w.handle.lookups(), before + 8);
    let reply = w.fs.readdirplus(req(), dir, 0, last, 0).await.unwrap();
    let rest: Vec<_> = reply.entries.map(Result::unwrap).collect().await;
    assert_eq!(rest.len(), 53 - 10);
    assert_eq!(w.handle.lookups(), before + 51);
    // The directory is complete: neither those nor others make a call.
    let calls = w.lookups();
    assert_eq!(w.fs.lookup(req(), dir, OsStr::new("f07")).await.unwrap().attr.size, 1);
    assert_eq!(w.fs.lookup(req(), dir, OsStr::new("none")).await.unwrap().attr.ino, 0);
    assert_eq!(w.lookups(), calls);
    let reply = w.fs.readdir(req(), dir, 0, 0).await.unwrap();
    let names: Vec<_> = reply.entries.map(|entry| entry.unwrap()).collect().await;
    assert_eq!(names.len(), 53);
    assert!(names.iter().all(|entry| entry.inode != 0 && entry.inode != 0xffff_ffff), "all are known");
}

#[tokio::test]
async fn a_removed_file_stays_open_and_its_number_is_not_used_again() {
    let w = world(0, PathOptions::default());
    let id = w.find("a").await;
    let open = w.fs.open(req(), id, 2).await.unwrap();
    w.fs.unlink(req(), ROOT, OsStr::new("a")).await.unwrap();
    assert!(w.handle.path_of(id).unwrap_err().is_not_exist());
    w.fs.write(req(), id, open.fh, 5, b" there", 0, 0).await.unwrap();
    assert_eq!(w.fs.read(req(), id, open.fh, 0, 99).await.unwrap().data, "hello there");
    assert_eq!(w.fs.getattr(req(), id, Some(open.fh), 0).await.unwrap().attr.size, 11);
    let made = w.fs.create(req(), ROOT, OsStr::new("a"), 0o644, 0).await.unwrap();
    assert_ne!(made.attr.ino, id);
    w.fs.link(req(), made.attr.ino, ROOT, OsStr::new("b")).await.unwrap();
    w.fs.unlink(req(), ROOT, OsStr::new("a")).await.unwrap();
    assert_eq!((w.path(made.attr.ino), w.find("b").await), ("/b".into(), made.attr.ino));
}
