//! The store against a back end in memory, with a client that forgets what it was told.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use uvfs_fuse_backend::{Attr, InodeAnswer, InodeHolder, InodeKey, InodeStore, ROOT, StoreOptions, Ttl};

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;

/// A value that counts those that are left.
struct Data {
    ino: u64,
    alive: Arc<AtomicUsize>,
}

impl Drop for Data {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// By directory and name.
type ByName<V> = HashMap<(u64, Vec<u8>), V>;

#[derive(Default)]
struct Back {
    /// Number and mode.
    names: Mutex<ByName<(u64, u32)>>,
    calls: AtomicUsize,
    alive: Arc<AtomicUsize>,
}

impl Back {
    fn names(&self) -> MutexGuard<'_, ByName<(u64, u32)>> {
        self.names.lock()
    }

    fn put(&self, dir: u64, name: &str, ino: u64, mode: u32) {
        self.names().insert((dir, name.into()), (ino, mode));
    }

    fn describe(&self, ino: u64, mode: u32) -> InodeAnswer<Data> {
        self.alive.fetch_add(1, Ordering::Relaxed);
        let data = Data { ino, alive: Arc::clone(&self.alive) };
        let attr = Attr { ino, mode, nlink: 1, ..Attr::default() };
        InodeAnswer { key: InodeKey::of_inode(7, ino, 1), attr, data }
    }

    fn ask(&self, dir: u64, name: &[u8]) -> io::Result<InodeAnswer<Data>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let (ino, mode) = *self.names().get(&(dir, name.into())).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.describe(ino, mode))
    }

    fn store(&self, options: StoreOptions) -> InodeStore<Data> {
        InodeStore::new(options, self.describe(100, DIR)).unwrap()
    }

    fn look_up(&self, store: &InodeStore<Data>, parent: u64, name: &str) -> io::Result<u64> {
        let found =
            store.lookup(parent, name.as_bytes(), |dir| match self.ask(dir.ino, name.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(io::Error::from_raw_os_error(2)),
                answer => answer,
            })?;
        Ok(found.give())
    }

    fn calls(&self) -> usize {
        self.calls.swap(0, Ordering::Relaxed)
    }

    fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }
}

fn forever() -> StoreOptions {
    StoreOptions { name_ttl: Ttl::Forever, ..StoreOptions::default() }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn an_inode_stays_while_lookups_are_counted_and_is_dropped_once() {
    let back = Back::default();
    back.put(100, "a", 5, FILE);
    // Nothing is kept by name, so only the client holds inodes.
    let store = back.store(StoreOptions { name_ttl: Ttl::ZERO, ..StoreOptions::default() });
    let a = back.look_up(&store, ROOT, "a").unwrap();
    assert_eq!((a, back.look_up(&store, ROOT, "a").unwrap()), (2, 2));
    assert_eq!((store.get(a).unwrap().ino, store.get(a).unwrap().lookups()), (5, 2));
    store.forget(a, 1);
    assert!(store.get(a).is_ok());
    let held = store.get(a).unwrap();
    store.batch_forget([(a, 1), (ROOT, 9), (77, 1)]);
    // A request that holds it may go on.
    assert_eq!((held.ino, back.alive()), (5, 2));
    drop(held);
    assert_eq!((errno(store.get(a)), back.alive()), (Some(libc::EBADF), 1));
    assert!(store.get(ROOT).is_ok());
    // Numbers are not used again.
    assert_eq!(back.look_up(&store, ROOT, "a").unwrap(), 3);
    drop(store);
    assert_eq!(back.alive(), 0);
}

#[test]
fn a_lookup_that_is_not_given_to_the_client_is_taken_back() {
    let back = Back::default();
    back.put(100, "a", 5, FILE);
    let store = back.store(StoreOptions { name_ttl: Ttl::ZERO, ..StoreOptions::default() });
    let entry = store.lookup(ROOT, b"a", |_| back.ask(100, b"a")).unwrap();
    let a = entry.number();
    assert_eq!(entry.lookups(), 1);
    drop(entry);
    assert_eq!((errno(store.get(a)), back.alive()), (Some(libc::EBADF), 1));
}

#[test]
fn a_known_name_is_answered_without_the_back_end_and_has_a_path() {
    let back = Back::default();
    back.put(100, "d", 5, DIR);
    back.put(5, "f", 6, FILE);
    let store = back.store(forever());
    let d = back.look_up(&store, ROOT, "d").unwrap();
    let f = back.look_up(&store, d, "f").unwrap();
    assert_eq!(back.calls(), 2);
    assert_eq!(back.look_up(&store, d, "f").unwrap(), f);
    assert_eq!(back.calls(), 0);
    assert_eq!(store.path_of(f).unwrap(), Path::new("d/f"));
    assert_eq!(store.path_of(ROOT).unwrap(), Path::new(""));
    // Attributes are asked for each time, unless there is a TTL.
    let asked = |size| store.attr(f, |_| Ok(Attr { mode: FILE, size, ..Attr::default() })).unwrap().size;
    assert_eq!((asked(1), asked(2)), (1, 2));
    store.forget(f, 2);
    assert!(store.path_of(f).is_ok(), "the name still holds it");
    store.invalidate(d, b"f");
    assert_eq!(errno(store.path_of(f)), Some(libc::EBADF));
}

#[test]
fn the_root_is_found_by_its_key_and_a_link_by_the_first_ones_number() {
    let back = Back::default();
    back.put(100, ".", 100, DIR);
    back.put(100, "a", 5, FILE);
    back.put(100, "b", 5, FILE);
    let store = back.store(forever());
    assert_eq!(back.look_up(&store, ROOT, ".").unwrap(), ROOT);
    let a = back.look_up(&store, ROOT, "a").unwrap();
    assert_eq!(back.look_up(&store, ROOT, "b").unwrap(), a);
    assert_eq!(store.get(a).unwrap().lookups(), 2);
    let key = |ino| InodeKey::of_inode(7, ino, 1);
    assert_eq!(store.by_key(&key(100), DIR).unwrap().number(), ROOT);
    assert_eq!(store.by_key(&key(5), FILE).unwrap().number(), a);
    assert!(store.by_key(&key(5), DIR).is_none() && store.by_key(&key(6), FILE).is_none());
    let asked = store.ask();
    assert_eq!(store.found(asked, back.describe(5, FILE)).unwrap().give(), a);
    assert_eq!(store.get(a).unwrap().lookups(), 3);
    // Another type is another file.
    back.put(100, "c", 5, DIR);
    assert_ne!(back.look_up(&store, ROOT, "c").unwrap(), a);
}

#[test]
fn a_number_of_its_own_leads_to_the_newest_file_that_has_it() {
    let back = Back::default();
    let store = back.store(forever());
    let answer = |handle: &[u8], number| {
        let key = InodeKey::of_handle(1, 1, handle).unwrap().with_number(number);
        Ok(InodeAnswer { key, ..back.describe(5, FILE) })
    };
    assert_eq!(store.lookup(ROOT, b"a", |_| answer(b"first", 50)).unwrap().give(), 50);
    let pending = store.lookup(ROOT, b"a", |_| unreachable!()).unwrap();
    let held = store.get(50).unwrap();
    // The host has freed the number, and given it to another file.
    let new = store.lookup(ROOT, b"b", |_| answer(b"second", 50)).unwrap();
    assert_eq!(new.number(), 50);
    assert!(!std::ptr::eq(held.data(), new.data()));
    assert!(std::ptr::eq(store.get(50).unwrap().data(), new.data()));
    // The client has a lookup of the number from before, and may get another one.
    assert_eq!((held.lookups(), new.lookups()), (0, 3));
    drop(pending);
    assert_eq!(new.lookups(), 2);
    for refused in [0, 1] {
        let found = store.lookup(ROOT, b"c", |_| answer(b"third", refused));
        assert_eq!(errno(found), Some(libc::EINVAL));
    }
}

#[test]
fn concurrent_misses_of_one_name_make_one_call_and_an_absence_is_remembered_on_demand() {
    let back = Back::default();
    back.put(100, "a", 5, FILE);
    let absent_ttl = Ttl::Forever;
    let store = back.store(StoreOptions { absent_ttl, ..forever() });
    let together = Barrier::new(4);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                together.wait();
                let found = store.lookup(ROOT, b"a", |dir| {
                    std::thread::sleep(Duration::from_millis(20));
                    back.ask(dir.ino, b"a")
                });
                found.unwrap().give();
            });
        }
    });
    assert_eq!((back.calls(), store.get(2).unwrap().lookups()), (1, 4));
    assert_eq!(errno(back.look_up(&store, ROOT, "none")), Some(libc::ENOENT));
    assert_eq!(errno(back.look_up(&store, ROOT, "none")), Some(libc::ENOENT));
    assert_eq!(back.calls(), 1);
    back.put(100, "none", 6, FILE);
    store.invalidate(ROOT, b"none");
    assert!(back.look_up(&store, ROOT, "none").is_ok());
}

#[test]
fn an_answer_from_before_a_change_is_late() {
    let back = Back::default();
    back.put(100, "a", 5, FILE);
    let store = back.store(forever());
    let found = store.lookup(ROOT, b"a", |dir| {
        let answer = back.ask(dir.ino, b"a");
        store.invalidate(ROOT, b"a");
        answer
    });
    found.unwrap().give();
    back.put(100, "a", 6, FILE);
    let new = back.look_up(&store, ROOT, "a").unwrap();
    assert_eq!(store.get(new).unwrap().ino, 6);
}

#[test]
fn paths_follow_renames_and_removed_names_are_gone() {
    let back = Back::default();
    for (dir, name, ino, mode) in
        [(100, "d", 5, DIR), (100, "e", 6, DIR), (5, "f", 7, FILE), (6, "f", 8, FILE)]
    {
        back.put(dir, name, ino, mode);
    }
    let store = back.store(forever());
    let d = back.look_up(&store, ROOT, "d").unwrap();
    let e = back.look_up(&store, ROOT, "e").unwrap();
    let (df, ef) = (back.look_up(&store, d, "f").unwrap(), back.look_up(&store, e, "f").unwrap());
    store
        .rename((d, b"f"), (e, b"f"), 0, |from, to| {
            let file = back.names().remove(&(from.ino, b"f".to_vec())).unwrap();
            back.names().insert((to.ino, b"f".to_vec()), file);
            Ok(())
        })
        .unwrap();
    assert_eq!(store.path_of(df).unwrap(), Path::new("e/f"));
    assert_eq!(errno(store.path_of(ef)), Some(libc::ENOENT));
    store.rename((ROOT, b"e"), (d, b"e"), 0, |_, _| Ok(())).unwrap();
    assert_eq!(store.path_of(df).unwrap(), Path::new("d/e/f"));
    back.calls();
    let refused = store.rename((ROOT, b"d"), (e, b"d"), 0, |_, _| Ok(()));
    assert_eq!(errno(refused), Some(libc::EINVAL));
    // An error of the back end changes nothing.
    let failed = store.remove(e, b"f", |_| Err(io::Error::from_raw_os_error(libc::EACCES)));
    assert_eq!((errno(failed), store.path_of(df).unwrap()), (Some(libc::EACCES), "d/e/f".into()));
    store
        .remove(e, b"f", |dir| {
            assert_eq!(dir.ino, 6);
            back.names().remove(&(6, b"f".to_vec()));
            Ok(())
        })
        .unwrap();
    assert_eq!(errno(store.path_of(df)), Some(libc::ENOENT));
    assert_eq!(errno(back.look_up(&store, e, "f")), Some(libc::ENOENT));
}

#[test]
fn trusted_attributes_are_not_asked_for_until_they_change() {
    let back = Back::default();
    back.put(100, "a", 5, FILE);
    let store = back.store(StoreOptions { attr_ttl: Ttl::Forever, ..forever() });
    let a = back.look_up(&store, ROOT, "a").unwrap();
    assert_eq!(store.attr(a, |_| unreachable!()).unwrap().ino, a);
    store.attr_changed(a);
    let size = |size| store.attr(a, |_| Ok(Attr { mode: FILE, size, ..Attr::default() })).unwrap().size;
    assert_eq!((size(3), size(4)), (3, 3));
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODEV)
}

/// A client that holds all it was told of, until it is asked to forget.
struct Client {
    store: Weak<InodeStore<Data>>,
    holds: Arc<Mutex<ByName<u64>>>,
    prunes: bool,
}

impl InodeHolder for Client {
    fn prune(&mut self, inodes: &[u64]) -> io::Result<()> {
        if !self.prunes {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        self.holds.lock().retain(|_, ino| !inodes.contains(ino));
        self.store.upgrade().ok_or_else(gone)?.batch_forget(inodes.iter().map(|ino| (*ino, 1)));
        Ok(())
    }

    fn invalidate(&mut self, parent: u64, name: &[u8]) -> io::Result<()> {
        let known = self.holds.lock().remove(&(parent, name.to_vec()));
        let ino = known.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        self.store.upgrade().ok_or_else(gone)?.forget(ino, 1);
        Ok(())
    }
}

fn walk_within_a_limit(prunes: bool) {
    const LIMIT: u64 = 12 << 20;
    let back = Back::default();
    let store = Arc::new(back.store(StoreOptions { limit: LIMIT, data_bytes: 100, ..forever() }));
    let holds = Arc::new(Mutex::new(HashMap::new()));
    store.keep_limit(Client { store: Arc::downgrade(&store), holds: Arc::clone(&holds), prunes }).unwrap();
    let mut most = 0;
    for ino in 200..60_200 {
        let name = ino.to_string();
        // The client knows the name when it has the reply; it may be asked to forget from then on.
        let entry = store.lookup(ROOT, name.as_bytes(), |_| Ok(back.describe(ino, FILE))).unwrap();
        holds.lock().insert((ROOT, name.into_bytes()), entry.give());
        most = most.max(store.counters().bytes);
    }
    // A 25th for late requests, and a 64th for lines of the hash tables.
    assert!(most < LIMIT + LIMIT / 16, "{most} bytes");
    let held = holds.lock().len();
    assert!((5_000..50_000).contains(&held), "{held} inodes held");
    // All go with the store; the thread may be in a call still.
    drop(store);
    let begin = Instant::now();
    while back.alive() > 0 && begin.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    assert_eq!(back.alive(), 0);
}

/// Threads that look up, forget, invalidate, rename and remove the same few names. `own`: two files share each number,
/// so each takes it from the other now and then.
fn storm(own: bool, name_ttl: Ttl) {
    let back = Back::default();
    let store = back.store(StoreOptions { name_ttl, ..forever() });
    let answer = |n: u64, file: u64| {
        let key = InodeKey::of_inode(7, 1000 + n + if own { file * 100 } else { 0 }, 1);
        let key = if own { key.with_number(50 + n) } else { key };
        Ok(InodeAnswer { key, ..back.describe(1000 + n, FILE) })
    };
    std::thread::scope(|threads| {
        for thread in 0..4_u64 {
            let (store, answer) = (&store, &answer);
            threads.spawn(move || {
                let mut held = Vec::new();
                for step in 0..20_000_u64 {
                    let random = (step * 4 + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                    let (n, name) = (random % 8, (random % 8).to_string());
                    match random / 8 % 8 {
                        0..=3 => match store.lookup(ROOT, name.as_bytes(), |_| answer(n, random / 64 % 2)) {
                            Ok(entry) if random % 5 != 0 => held.push(entry.give()),
                            Ok(entry) => assert_eq!(entry.ino, 1000 + n),
                            Err(error) => assert_eq!((own, error.raw_os_error()), (true, Some(libc::ESTALE))),
                        },
                        4 => store.invalidate(ROOT, name.as_bytes()),
                        5 => store.remove(ROOT, name.as_bytes(), |_| Ok(())).unwrap(),
                        6 => {
                            store.rename((ROOT, name.as_bytes()), (ROOT, b"moved"), 0, |_, _| Ok(())).unwrap()
                        }
                        _ => store.batch_forget(held.drain(..).map(|ino| (ino, 1))),
                    }
                    assert!(own || held.iter().all(|ino| store.get(*ino).is_ok()), "the client holds it");
                }
                store.batch_forget(held.drain(..).map(|ino| (ino, 1)));
            });
        }
    });
    for name in (0..8).map(|n| n.to_string()).chain(["moved".to_owned()]) {
        store.invalidate(ROOT, name.as_bytes());
    }
    // A file that lost its number while a lookup of it was being counted stays until the end.
    assert!(own || (store.counters().inodes, back.alive()) == (1, 1), "{store:?}");
    drop(store);
    assert_eq!(back.alive(), 0);
}

#[test]
fn a_storm_loses_no_inode_that_the_client_holds_and_keeps_no_other() {
    storm(false, Ttl::Forever);
    storm(false, Ttl::ZERO);
}

#[test]
fn a_storm_of_files_that_share_numbers_drops_each_value_once() {
    storm(true, Ttl::Forever);
    storm(true, Ttl::ZERO);
}

#[test]
fn data_counts_in_the_limit_while_it_lives() {
    let back = Back::default();
    back.put(100, "a", 5, FILE);
    let store = back.store(StoreOptions { data_bytes: 1 << 30, name_ttl: Ttl::ZERO, ..forever() });
    let bytes = || store.counters().bytes >> 30;
    let before = bytes();
    let a = back.look_up(&store, ROOT, "a").unwrap();
    assert_eq!(bytes(), before + 1);
    store.forget(a, 1);
    assert_eq!(bytes(), before);
}

#[test]
fn a_walk_stays_within_the_limit_by_pruning() {
    walk_within_a_limit(true);
}

#[test]
fn a_walk_stays_within_the_limit_by_invalidating_names() {
    walk_within_a_limit(false);
}
