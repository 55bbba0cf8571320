//! The effects of a driver's answers, evictions and callbacks on a superblock that is not resident.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Known, Lookup, NameGuard, SbOptions};
use uvfs_cache::{Attr, Cache, Config, Errno, InodeId, InodeRef, Peek, Room, SbId, Ttl};

fn fresh(ino: u64, fmt: u32, nlink: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

fn world(resident: bool) -> (Arc<Cache>, SbId) {
    let cache = Cache::new(Config { max_inodes: 1 << 12, max_negative: 64, ..Config::default() }).unwrap();
    let sb =
        cache.add_superblock(SbOptions { resident, watched: false, on_evict: Box::new(|_, _| {}) }).unwrap();
    drop(cache.make_root(sb, &fresh(1, S_IFDIR, 2)).unwrap());
    (cache, sb)
}

fn miss<'c>(cache: &'c Cache, dir: &InodeRef<'c>, name: &[u8]) -> NameGuard<'c> {
    match cache.lookup(dir, name) {
        Lookup::Miss(guard) => guard,
        other => panic!("not a miss: {other:?}"),
    }
}

fn find<'c>(cache: &'c Cache, dir: &InodeRef<'c>, name: &[u8], f: &Fresh) -> InodeRef<'c> {
    miss(cache, dir, name).found(f).unwrap()
}

#[test]
fn all_names_of_a_hard_linked_file_are_evicted() {
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let id = find(&cache, &root, b"a", &fresh(5, S_IFREG, 2)).id();
    assert_eq!(find(&cache, &root, b"b", &fresh(5, S_IFREG, 2)).id(), id);
    assert_eq!(cache.counters().inodes, 2);
    while cache.evict_unused(sb, 1) > 0 {}
    assert_eq!((cache.counters().inodes, cache.counters().dentries), (1, 0));
    assert!(cache.get(id).is_none());
    drop(root);
    assert_eq!(cache.drop_superblock(sb), 0);
}

/// Names that are asked for once each, as those of temporary files are, take no more memory than the names that there are.
#[test]
fn negative_entries_are_bounded_by_the_other_names_and_by_a_memory_limit() {
    let ask = |cache: &Cache, root: &InodeRef<'_>, names: std::ops::Range<u32>| {
        let mut most = 0;
        for i in names {
            miss(cache, root, format!("temporary{i}").as_bytes()).absent(Ttl::Forever);
            if i % 64 == 0 {
                most = most.max(cache.counters().negative);
            }
        }
        assert_eq!(
            cache.counters().dentries - cache.counters().negative,
            20_000.min(cache.counters().inodes - 1)
        );
        most
    };
    for (limit, few, many) in [(0, 8192, 20_000), (4 << 20, 4369, 4369)] {
        let config = Config { max_inodes: 1 << 17, memory_limit: limit, ..Config::default() };
        let cache = Cache::new(config).unwrap();
        let sb = cache
            .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
            .unwrap();
        let root = cache.make_root(sb, &fresh(1, S_IFDIR, 2)).unwrap();
        let most = ask(&cache, &root, 0..30_000);
        assert!(most <= few && most > few / 2, "{most} of {few}, where there is no other name");
        if limit != 0 {
            continue;
        }
        for i in 0..20_000 {
            find(&cache, &root, format!("f{i}").as_bytes(), &fresh(10 + i, S_IFREG, 1));
        }
        let most = ask(&cache, &root, 30_000..80_000);
        assert!(most <= many && most > many / 2, "{most} of {many}, where there are 20,000 others");
    }
}

/// Not the same few entries again and again: the oldest go too. And not only of the superblock that needs room.
#[test]
fn negative_entries_at_their_maximum_make_room_for_new_ones() {
    let (cache, first) = world(false);
    let second = cache
        .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
        .unwrap();
    drop(cache.make_root(second, &fresh(1, S_IFDIR, 2)).unwrap());
    for (round, sb) in [first, second, first].into_iter().enumerate() {
        let root = cache.root(sb).unwrap();
        for i in 0..1000 {
            let name = format!("{round} {i}");
            miss(&cache, &root, name.as_bytes()).absent(Ttl::Forever);
            assert_eq!(cache.peek(root.id(), name.as_bytes()), Peek::Negative, "{name}");
            assert!(cache.counters().negative <= 64);
        }
        let left = |i: &u64| cache.peek(root.id(), format!("{round} {i}").as_bytes()) == Peek::Negative;
        assert_eq!((0..900).filter(left).count(), 0, "old ones are left");
    }
}

/// b is in a; the host takes it out and puts a into it, while a is looked up in b.
#[test]
fn a_directory_that_was_moved_behind_the_cache_does_not_lie_below_itself() {
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let a = find(&cache, &root, b"a", &fresh(5, S_IFDIR, 3));
    let x = find(&cache, &a, b"x", &fresh(6, S_IFDIR, 3));
    let b = find(&cache, &x, b"b", &fresh(7, S_IFDIR, 2));
    assert!(cache.is_below(&b, &a));
    assert_eq!(find(&cache, &b, b"a", &fresh(5, S_IFDIR, 3)).id(), a.id());
    assert!(cache.is_below(&a, &b) && !cache.is_below(&b, &a));
    assert_eq!((cache.peek(x.id(), b"b"), cache.peek(root.id(), b"a")), (Peek::Miss, Peek::Miss));
    assert!(matches!(cache.peek(b.id(), b"a"), Peek::Hit(..)));
    // A driver that says that a directory is in itself is not remembered.
    assert_eq!(find(&cache, &a, b"self", &fresh(5, S_IFDIR, 3)).id(), a.id());
    assert!(matches!((cache.peek(a.id(), b"self"), cache.peek(b.id(), b"a")), (Peek::Miss, Peek::Hit(..))));
}

#[test]
fn an_entry_that_is_not_to_be_cached_keeps_its_directory_incomplete() {
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let scan = cache.begin_scan(&root);
    let answer = Fresh { ttl: Ttl::ZERO, ..fresh(5, S_IFREG, 1) };
    scan.found(b"a", &answer).unwrap();
    assert!(!scan.complete());
    assert_eq!(cache.peek(root.id(), b"a"), Peek::Miss);
}

/// The directory was being removed while it was listed, and then was not.
#[test]
fn an_entry_of_a_dying_directory_keeps_it_incomplete() {
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let dir = find(&cache, &root, b"d", &fresh(5, S_IFDIR, 2));
    let scan = cache.begin_scan(&dir);
    let death = dir.begin_death().unwrap();
    scan.found(b"a", &fresh(6, S_IFREG, 1)).unwrap();
    drop(death);
    assert!(!scan.complete());
    assert_eq!(cache.peek(dir.id(), b"a"), Peek::Miss);
}

#[test]
fn two_listings_may_both_find_the_directory_complete() {
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let (first, second) = (cache.begin_scan(&root), cache.begin_scan(&root));
    assert!(first.complete() && second.complete());
    assert_eq!(cache.peek(root.id(), b"a"), Peek::Negative);
}

/// The driver has renamed, but the name's old place was invalidated meanwhile: its new one is
/// unknown, though its directory was complete.
#[test]
fn a_rename_of_what_is_no_longer_cached_leaves_the_target_unknown() {
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let dir = find(&cache, &root, b"d", &fresh(5, S_IFDIR, 2));
    drop(find(&cache, &root, b"a", &fresh(6, S_IFREG, 1)));
    assert!(cache.begin_scan(&dir).complete());
    let (from, to) = cache.lock_names((&root, b"a"), (&dir, b"b"));
    let room = to.reserve(Room::Name).unwrap();
    cache.invalidate(&root, b"a");
    cache.rename(&from, &to, room, None);
    drop((from, to));
    assert_eq!(cache.peek(dir.id(), b"b"), Peek::Miss);
}

#[test]
fn an_exchange_with_what_is_no_longer_cached_leaves_both_unknown() {
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let dir = find(&cache, &root, b"d", &fresh(5, S_IFDIR, 2));
    drop(find(&cache, &root, b"a", &fresh(6, S_IFREG, 1)));
    drop(find(&cache, &dir, b"b", &fresh(7, S_IFREG, 1)));
    let (a, b) = cache.lock_names((&root, b"a"), (&dir, b"b"));
    cache.invalidate(&root, b"a");
    assert!(cache.begin_scan(&dir).complete() && cache.begin_scan(&root).complete());
    cache.exchange(&a, &b);
    drop((a, b));
    assert_eq!(cache.peek(root.id(), b"a"), Peek::Miss);
    assert_eq!(cache.peek(dir.id(), b"b"), Peek::Miss);
    drop((root, dir));
    assert_eq!(cache.drop_superblock(sb), 0);
}

#[test]
fn exchanged_directories_have_each_others_parent() {
    let (cache, sb) = world(true);
    let root = cache.root(sb).unwrap();
    let make = |dir: &InodeRef<'_>, name: &[u8], ino| {
        let guard = cache.lock_name(dir, name);
        let room = guard.reserve(Room::Dir).unwrap();
        cache.get(guard.create(room, &fresh(ino, S_IFDIR, 2)).id()).unwrap()
    };
    let (p, q) = (make(&root, b"p", 2), make(&root, b"q", 3));
    let (x, y) = (make(&p, b"x", 4), make(&q, b"y", 5));
    let (a, b) = cache.lock_names((&p, b"x"), (&q, b"y"));
    cache.exchange(&a, &b);
    assert!(matches!(a.find(), Known::Hit(i) if i.id() == y.id()));
    assert_eq!(cache.parent_of(&x).unwrap().id(), q.id());
    assert_eq!(cache.parent_of(&y).unwrap().id(), p.id());
    let mut listed = Vec::new();
    cache.read_dir(&p, 0, &mut |name, ino, _, _| {
        listed.push((name.to_vec(), ino));
        true
    });
    assert_eq!(listed, [(b"x".to_vec(), 5)]);
}

/// Rule 13: a callback that panics does not take the others' wake-up along.
#[test]
fn rule13_a_callback_that_panics_leaves_nobody_waiting() {
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let guard = miss(&cache, &root, b"a");
    let pending = || match cache.lookup(&root, b"a") {
        Lookup::Busy(pending) => pending,
        other => panic!("not busy: {other:?}"),
    };
    let (first, second) = (pending(), pending());
    first.on_done(Box::new(|_| panic!("a callback's own fault")));
    assert!(catch_unwind(AssertUnwindSafe(|| guard.fail(Errno::IO))).is_err());
    let told = Arc::new(uvfs_sync::primitives::Mutex::new(None));
    let seen = told.clone();
    second.on_done(Box::new(move |outcome| *seen.lock() = Some(outcome)));
    assert_eq!(*told.lock(), Some(Err(Errno::IO)));
}

/// Rule 15: an entry that gets another name in its directory keeps its place, and a listing that is under way comes to it.
/// Planted bug: rule15-a-renamed-entry-goes-to-the-end.
#[test]
fn rule15_a_renamed_entry_is_not_skipped() {
    let (cache, sb) = world(true);
    let root = cache.root(sb).unwrap();
    for (name, ino) in [(b"a", 5), (b"b", 6), (b"c", 7)] {
        let guard = cache.lock_name(&root, name);
        drop(guard.create(guard.reserve(Room::Node).unwrap(), &fresh(ino, S_IFREG, 1)));
    }
    let (mut listed, mut cookie) = (Vec::new(), 0);
    let mut list = |max: usize| {
        let begin = listed.len();
        cache.read_dir(&root, cookie, &mut |_, ino, _, next| {
            listed.push(ino);
            cookie = next;
            listed.len() - begin < max
        });
        listed.clone()
    };
    assert_eq!(list(1), [7]);
    let (from, to) = cache.lock_names((&root, b"a"), (&root, b"z"));
    cache.rename(&from, &to, to.reserve(Room::Name).unwrap(), None);
    drop((from, to));
    assert_eq!(list(9), [7, 6, 5]);
}

/// Whether a task was woken.
#[derive(Default)]
struct Task(AtomicBool);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Rule 13: a future that was polled by several tasks wakes the last of them. Planted bug: rule13-the-first-task-is-woken.
#[test]
fn rule13_the_last_task_that_polled_is_woken() {
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let guard = miss(&cache, &root, b"a");
    let Lookup::Busy(mut pending) = cache.lookup(&root, b"a") else { panic!("not busy") };
    let tasks = [(); 2].map(|()| Arc::new(Task::default()));
    let mut poll = |task: &Arc<Task>| {
        let waker = Waker::from(task.clone());
        Pin::new(&mut pending).poll(&mut Context::from_waker(&waker))
    };
    assert!(tasks.iter().all(|task| poll(task).is_pending()));
    drop(guard);
    assert!(tasks[1].0.load(Ordering::Relaxed), "it would wait for ever");
    assert_eq!(poll(&tasks[1]), Poll::Ready(Ok(())));
}

/// Rule 14: one more name of an inode whose attributes have expired is not believed before its driver was asked. Planted
/// bug: rule14-a-link-renews-what-has-expired.
#[test]
fn rule14_a_new_name_does_not_renew_attributes() {
    const TEN_MINUTES: u32 = 600_000;
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    let file = find(
        &cache,
        &root,
        b"a",
        &Fresh { ttl: Ttl::For(Duration::from_millis(TEN_MINUTES.into())), ..fresh(5, S_IFREG, 1) },
    );
    let link = |name: &[u8], ttl| {
        let guard = cache.lock_name(&root, name);
        guard.link(guard.reserve(Room::Name).unwrap(), &file, ttl);
        drop(guard);
        cache.peek(root.id(), name)
    };
    assert!(matches!(link(b"in time", Ttl::For(Duration::from_millis(TEN_MINUTES.into()))), Peek::Hit(..)));
    cache.advance_clock(TEN_MINUTES + 1);
    assert_eq!(link(b"late", Ttl::For(Duration::from_millis(TEN_MINUTES.into()))), Peek::Miss);
    assert_eq!(link(b"later", Ttl::Forever), Peek::Miss);
}

/// Rule 14: an exchange takes the time until which a target is believed along. Planted bug: rule14-exchange-keeps-deadlines.
#[test]
fn rule14_an_exchanged_target_expires_where_it_is() {
    const TEN_MINUTES: u32 = 600_000;
    let (cache, sb) = world(false);
    let root = cache.root(sb).unwrap();
    drop(find(&cache, &root, b"a", &fresh(5, S_IFREG, 1)));
    drop(find(
        &cache,
        &root,
        b"b",
        &Fresh { ttl: Ttl::For(Duration::from_millis(TEN_MINUTES.into())), ..fresh(6, S_IFREG, 1) },
    ));
    let (a, b) = cache.lock_names((&root, b"a"), (&root, b"b"));
    cache.exchange(&a, &b);
    drop((a, b));
    assert!(matches!(cache.peek(root.id(), b"a"), Peek::Hit(_, attr) if attr.ino == 6));
    cache.advance_clock(TEN_MINUTES + 1);
    assert_eq!(cache.peek(root.id(), b"a"), Peek::Miss);
    assert!(matches!(cache.peek(root.id(), b"b"), Peek::Hit(_, attr) if attr.ino == 5));
}

/// An id comes from outside: a front end's kernel, or a client.
#[test]
fn an_id_that_was_never_issued_leads_nowhere() {
    let (cache, sb) = world(true);
    let root = cache.root(sb).unwrap();
    for beyond in [1u64 << 12, 1 << 20, u64::from(u32::MAX) - 1] {
        let id = InodeId::from_u64(root.id().as_u64() + beyond);
        assert!(cache.get(id).is_none() && cache.pos(id).is_none() && cache.attr(id).is_none(), "{id:?}");
        cache.forget_lookups(id, 1);
    }
}
