//! Many calls at once, some of them cancelled, and a table that is too small for them.

#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../examples/store/objects.rs"]
mod objects;

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use fuse3::raw::{Filesystem, Request};
use uvfs_path::{PathFs, PathOptions, Ttl};

use objects::Store;

const ROOT: u64 = 1;

fn req() -> Request {
    Request::default()
}

/// A generator of small numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lookups_cancelled_among_ten_thousand_leak_nothing() {
    const NAMES: u64 = 1500;
    const CALLS: u64 = 10_000;
    let store = Store::new(Duration::from_millis(50));
    for i in 0..NAMES {
        store.put(&format!("/n{i}"), b"");
    }
    let fs = Arc::new(PathFs::new(store.clone(), PathOptions::default()).unwrap());
    let handle = fs.handle();
    let mut numbers = Numbers(7);
    // All begin at once. Some names do not exist.
    let (begin, begun) = tokio::sync::watch::channel(false);
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let (fs, name) = (Arc::clone(&fs), format!("n{}", numbers.below(NAMES + 100)));
            let mut begun = begun.clone();
            tokio::spawn(async move {
                begun.wait_for(|begun| *begun).await.unwrap();
                fs.lookup(req(), ROOT, OsStr::new(&name)).await.unwrap().attr.ino
            })
        })
        .collect();
    // A third is cancelled: before it began, while the back end works, while it waits for another's answer.
    let cancel: Vec<_> =
        calls.iter().filter(|_| numbers.below(3) == 0).map(|call| call.abort_handle()).collect();
    begin.send(true).unwrap();
    for (i, call) in cancel.iter().enumerate() {
        if i % 64 == 0 {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        call.abort();
    }
    let (mut given, mut cancelled) = (Vec::new(), 0);
    for call in calls {
        match call.await {
            Ok(id) => given.extend((id != 0).then_some((id, 1))),
            Err(error) => {
                assert!(error.is_cancelled(), "{error}");
                cancelled += 1;
            }
        }
    }
    assert!((100..CALLS / 2).contains(&cancelled), "{cancelled} were cancelled");
    // Lookups are counted exactly for the calls that were answered.
    assert_eq!(handle.lookups(), given.len() as u64);
    assert!(format!("{fs:?}").contains("0 in use, 0 moving"), "{fs:?}");
    let calls = store.calls().lookups();
    assert!(calls < NAMES + 100 + cancelled, "{calls} calls of the back end for {NAMES} names");
    // No name is locked: each is found, and a change of it goes through.
    for i in 0..NAMES + 100 {
        let name = format!("n{i}");
        let id = fs.lookup(req(), ROOT, OsStr::new(&name)).await.unwrap().attr.ino;
        assert_eq!(id != 0, i < NAMES, "{name}");
        given.extend((id != 0).then_some((id, 1)));
    }
    fs.batch_forget(req(), &given).await;
    assert_eq!(handle.lookups(), 0);
    // And nothing is held: the smallest limit evicts all but a few.
    handle.set_limit(1);
    let counters = handle.counters();
    assert!(counters.inodes <= 2 && counters.dentries <= 2, "{counters:?}");
}

/// Nodes that the kernel does not hold are evicted; lookups that find no memory wait, and then fail cleanly.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_limit_is_kept() {
    const LIMIT: u64 = 4 << 20;
    const FILES: u64 = 60_000;
    let store = Store::new(Duration::ZERO);
    for i in 0..FILES {
        store.put(&format!("/file{i}"), b"");
    }
    let options = PathOptions { limit: LIMIT, name_ttl: Some(Ttl::Forever), ..PathOptions::default() };
    let fs = Arc::new(PathFs::new(store, options).unwrap());
    let handle = fs.handle();
    let walkers: Vec<_> = (0..4u64)
        .map(|walker| {
            let (fs, handle) = (Arc::clone(&fs), handle.clone());
            tokio::spawn(async move {
                let mut most = 0;
                for i in 0..FILES {
                    let name = format!("file{}", (i + walker * FILES / 4) % FILES);
                    let id = fs.lookup(req(), ROOT, OsStr::new(&name)).await.unwrap().attr.ino;
                    assert_eq!(handle.path_of(id).unwrap(), OsStr::new(&format!("/{name}")));
                    fs.forget(req(), id, 1).await;
                    most = most.max(handle.counters().bytes);
                }
                most
            })
        })
        .collect();
    for walker in walkers {
        let most = walker.await.unwrap();
        assert!(most <= LIMIT + LIMIT / 16, "{most} of {LIMIT}");
    }
    let counters = handle.counters();
    assert!(counters.evicted > 100_000, "{counters:?}");
    // Held ones are not.
    let mut held = Vec::new();
    let refused = loop {
        let name = format!("file{}", held.len());
        match fs.lookup(req(), ROOT, OsStr::new(&name)).await {
            Ok(found) => held.push((found.attr.ino, 1)),
            Err(error) => break error,
        }
        assert!((held.len() as u64) < FILES, "{:?}", handle.counters());
    };
    assert_eq!(i32::from(refused).abs(), libc::ENOMEM);
    assert!(handle.counters().bytes <= LIMIT + LIMIT / 16, "{:?}", handle.counters());
    held.iter().for_each(|(id, _)| drop(handle.path_of(*id).unwrap()));
    fs.batch_forget(req(), &held).await;
    fs.lookup(req(), ROOT, OsStr::new("file59999")).await.unwrap();
}
