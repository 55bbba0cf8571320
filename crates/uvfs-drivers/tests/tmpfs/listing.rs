//! Listings of a directory that changes meanwhile: they end, and report for each name a state that it once
//! had.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use uvfs::Context;
use uvfs::types::{Cred, OpenFlags, RenameFlags};

use crate::Fs;

/// More than the VFS copies at once.
const FILES: usize = 200;

fn name(i: usize) -> String {
    format!("/d/f{i:03}")
}

/// A directory `/d` with some files.
fn directory(fs: &Fs) -> Context<'_> {
    let root = fs.vfs.context(Cred::root());
    root.mkdir(b"/d", 0o755).unwrap();
    for i in 0..FILES {
        root.mknod(name(i).as_bytes(), 0o644, 0).unwrap();
    }
    root
}

/// Counts how often each name of `/d` is listed, with `step` entries per call; `each` runs after each entry.
fn list(root: &Context<'_>, step: usize, mut each: impl FnMut(&str)) -> BTreeMap<String, usize> {
    let dir = root.open(b"/d", OpenFlags::READ | OpenFlags::DIRECTORY, 0).unwrap();
    let (mut seen, mut total, mut cookie) = (BTreeMap::new(), 0, 0);
    loop {
        let mut names = Vec::new();
        dir.readdir(cookie, &mut |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            cookie = entry.cookie;
            names.len() < step
        })
        .unwrap();
        if names.is_empty() {
            return seen;
        }
        total += names.len();
        assert!(total <= 4 * FILES, "the listing does not end: {cookie}");
        for name in names {
            each(&name);
            *seen.entry(name).or_default() += 1;
        }
    }
}

/// A change to an entry that has just been listed.
type Change = fn(&Context<'_>, &str);

const CHANGES: [(&str, Change); 5] = [
    ("replaced by a new file", |root, name| {
        root.mknod(b"/d/new", 0o644, 0).unwrap();
        root.rename(b"/d/new", format!("/d/{name}").as_bytes(), RenameFlags::empty()).unwrap();
    }),
    ("replaced from another directory", |root, name| {
        root.mknod(b"/new", 0o644, 0).unwrap();
        root.rename(b"/new", format!("/d/{name}").as_bytes(), RenameFlags::empty()).unwrap();
    }),
    ("renamed", |root, name| {
        let new = format!("/d/{name}.");
        root.rename(format!("/d/{name}").as_bytes(), new.as_bytes(), RenameFlags::empty()).unwrap();
    }),
    ("moved away and back", |root, name| {
        let path = format!("/d/{name}");
        root.rename(path.as_bytes(), b"/away", RenameFlags::empty()).unwrap();
        root.rename(b"/away", path.as_bytes(), RenameFlags::empty()).unwrap();
    }),
    ("made another one for", |root, name| {
        root.mknod(format!("/d/{name}+").as_bytes(), 0o644, 0).unwrap();
    }),
];

#[test]
fn a_listing_ends_whatever_is_done_to_what_was_listed() {
    for (how, change) in CHANGES {
        for step in [1, 7, 100, usize::MAX] {
            let fs = Fs::new("");
            let root = directory(&fs);
            let seen = list(&root, step, |name| change(&root, name));
            for i in 0..FILES {
                let times = seen.get(&format!("f{i:03}")).copied().unwrap_or(0);
                assert_eq!(times, 1, "f{i:03}, {how}, {step} a call");
            }
            // From the start again, the whole directory.
            let now = list(&root, step, |_| ());
            assert_eq!(now.len(), root.readdir(b"/d").unwrap().len());
            assert!(now.len() >= FILES && now.values().all(|&times| times == 1), "{how}");
        }
    }
}

/// The same in one call, which hands entries out with nothing held.
#[test]
fn one_call_ends_though_its_sink_replaces_what_it_is_handed() {
    for (how, change) in CHANGES {
        let fs = Fs::new("");
        let root = directory(&fs);
        let dir = root.open(b"/d", OpenFlags::READ | OpenFlags::DIRECTORY, 0).unwrap();
        let mut seen = BTreeMap::<_, usize>::new();
        let mut total = 0;
        dir.readdir(0, &mut |entry| {
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            change(&root, &name);
            *seen.entry(name).or_default() += 1;
            total += 1;
            total <= 4 * FILES
        })
        .unwrap();
        assert!(total <= 4 * FILES, "the listing does not end: {how}");
        assert!((0..FILES).all(|i| seen.get(&format!("f{i:03}")) == Some(&1)), "{how}");
    }
}

/// Other threads replace a name, by new files and by older ones, from this directory and from another one. Each listing
/// lists the name once, and likewise a name that is exchanged with others.
#[test]
fn a_name_that_is_replaced_meanwhile_is_listed_once() {
    let fs = Fs::new("");
    drop(directory(&fs));
    let (done, start) = (AtomicBool::new(false), Barrier::new(5));
    // Until the listers are done: what to do with the names of these numbers in turn.
    let change = |numbers: Range<usize>, what: &dyn Fn(&Context<'_>, usize)| {
        let root = fs.vfs.context(Cred::root());
        start.wait();
        numbers.cycle().take_while(|_| !done.load(Ordering::Relaxed)).for_each(|i| what(&root, i));
    };
    let replace = |from: &'static [u8], numbers: Range<usize>| {
        change(numbers, &|root, i| {
            root.mknod(from, 0o644, 0).unwrap();
            root.rename(from, name(i).as_bytes(), RenameFlags::empty()).unwrap();
        });
    };
    let exchange = || {
        change(100..150, &|root, i| {
            let (old, new) = (name(i), name(50 + i));
            root.rename(old.as_bytes(), new.as_bytes(), RenameFlags::EXCHANGE).unwrap();
            root.rename(old.as_bytes(), b"/d/moving", RenameFlags::empty()).unwrap();
            root.link(new.as_bytes(), old.as_bytes()).unwrap();
            root.rename(b"/d/moving", new.as_bytes(), RenameFlags::empty()).unwrap();
        });
    };
    let lister = || {
        let root = fs.vfs.context(Cred::root());
        start.wait();
        for round in 0..400 {
            let seen = list(&root, [1, 30, usize::MAX][round % 3], |_| ());
            for i in (0..100).chain(150..200) {
                let times = seen.get(&format!("f{i:03}")).copied().unwrap_or(0);
                assert_eq!(times, 1, "f{i:03} in round {round}");
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| replace(b"/d/own", 0..50));
        scope.spawn(|| replace(b"/other", 50..100));
        scope.spawn(exchange);
        let listers = [(); 2].map(|()| scope.spawn(lister));
        let outcomes = listers.map(thread::ScopedJoinHandle::join);
        done.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok), "a listing was wrong");
    });
}

/// A returned position stays valid as long as the directory exists. A file made before the listing, with a position
/// after the returned one, is listed from there, whether or not the entry at that position still exists.
#[test]
fn positions_stand_when_their_entries_go() {
    let fs = Fs::new("");
    let root = directory(&fs);
    let dir = root.open(b"/d", OpenFlags::READ | OpenFlags::DIRECTORY, 0).unwrap();
    let read = |cookie: u64| {
        let mut list = Vec::new();
        dir.readdir(cookie, &mut |entry| {
            list.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.cookie));
            true
        })
        .unwrap();
        list
    };
    let all = read(0);
    assert_eq!(all.len(), FILES);
    for at in (0..FILES).step_by(9) {
        root.unlink(format!("/d/{}", all[at].0).as_bytes()).unwrap();
        root.mknod(format!("/d/again{at}").as_bytes(), 0o644, 0).unwrap();
    }
    for at in 0..FILES {
        let left: Vec<_> = (at + 1..FILES).filter(|i| i % 9 != 0).map(|i| all[i].clone()).collect();
        assert_eq!(read(all[at].1), left, "after {}", all[at].0);
    }
    assert_eq!(read(0).len(), FILES);
}
