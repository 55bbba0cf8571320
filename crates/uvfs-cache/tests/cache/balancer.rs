//! The balancing thread of a server, with a client that holds every node that it looks up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Wake;
use std::time::{Duration, Instant};

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions};
use uvfs_cache::{Attr, Balancer, Cache, CacheError, Config, Errno, InodeId, NodeHolder, Ttl};
use uvfs_sync::primitives::Mutex;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 4 * MIB;
/// Four times as many as fit.
const FILES: u64 = 80_000;
/// The time limit of a wait; the events themselves take milliseconds.
const SOON: Duration = Duration::from_secs(60);

/// A client: the nodes that it holds, by name.
#[derive(Default)]
struct Client {
    nodes: Mutex<HashMap<Vec<u8>, InodeId>>,
    can_prune: bool,
    pruned: AtomicU64,
    invalidated: AtomicU64,
    /// Calls to come that panic.
    panics: AtomicU64,
    /// The directory waits: an invalidation would hang.
    is_waited_in: AtomicBool,
}

struct Asked {
    client: Arc<Client>,
    cache: Weak<Cache>,
    /// Dropped with the thread.
    _alive: Arc<()>,
}

impl Asked {
    fn forget(&self, id: InodeId) {
        self.cache.upgrade().expect("the thread works for it").forget_lookups(id, 1);
    }
}

impl NodeHolder for Asked {
    fn prune(&mut self, nodes: &[InodeId]) -> Result<(), Errno> {
        if !self.client.can_prune {
            return Err(Errno::INVAL);
        }
        let left = |n: u64| n.checked_sub(1);
        let panics = self.client.panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        assert!(panics.is_err(), "a test's panic");
        let mut held = self.client.nodes.lock();
        held.retain(|_, id| {
            let named = nodes.contains(id);
            if named {
                self.forget(*id);
            }
            !named
        });
        self.client.pruned.fetch_add(nodes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn invalidate(&mut self, _: InodeId, name: &[u8]) -> Result<(), Errno> {
        assert!(!self.client.is_waited_in.load(Ordering::Relaxed), "the thread would hang");
        let id = self.client.nodes.lock().remove(name).ok_or(Errno::NOENT)?;
        self.forget(id);
        self.client.invalidated.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn is_waited_in(&self, _: InodeId, _: bool) -> bool {
        self.client.is_waited_in.load(Ordering::Relaxed)
    }
}

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: 0, ttl: Ttl::Forever }
}

/// Looks all files up as a kernel does: it holds each. A lookup that finds no memory waits, as a server's would.
fn walk(cache: &Cache, client: &Client, files: u64) -> Result<(), CacheError> {
    let sb = cache
        .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
        .expect("a superblock");
    let root = cache.make_root(sb, &fresh(1, S_IFDIR)).expect("a root");
    for file in 0..files {
        let name = format!("{file:012}").into_bytes();
        let looked = cache.with_patience(Instant::now() + Duration::from_secs(2), || {
            match cache.lookup(&root, &name) {
                Lookup::Miss(ticket) => match ticket.found(&fresh(file + 2, S_IFREG)) {
                    Err(CacheError::NoMemory) => None,
                    found => Some(found),
                },
                other => panic!("{other:?}"),
            }
        });
        let inode = looked.unwrap_or(Err(CacheError::NoMemory))?;
        inode.add_lookups(1);
        client.nodes.lock().insert(name, inode.id());
    }
    Ok(())
}

fn limited(client: &Arc<Client>) -> (Arc<Cache>, Balancer, Arc<()>) {
    let config = Config { max_inodes: 1 << 20, memory_limit: LIMIT, ..Config::default() };
    let (cache, alive) = (Cache::new(config).expect("a cache"), Arc::new(()));
    let asked =
        Asked { client: Arc::clone(client), cache: Arc::downgrade(&cache), _alive: Arc::clone(&alive) };
    let balancer = Balancer::start(&cache, asked).expect("a thread");
    (cache, balancer, alive)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_client_that_prunes_keeps_the_limit() {
    let client = Arc::new(Client { can_prune: true, ..Client::default() });
    let (cache, balancer, alive) = limited(&client);
    walk(&cache, &client, FILES).expect("memory for all, one after the other");
    assert!(cache.counters().bytes <= LIMIT + LIMIT / 20, "{:?}", cache.counters());
    let counts = [&client.pruned, &client.invalidated].map(|count| count.load(Ordering::Relaxed));
    assert!(counts[0] > FILES / 2 && counts[1] == 0, "{counts:?}");
    drop(balancer);
    until("the end of the thread", || Arc::strong_count(&alive) == 1);
}

#[test]
fn a_client_that_cannot_prune_is_told_names() {
    let client = Arc::new(Client::default());
    let (cache, _balancer, _) = limited(&client);
    walk(&cache, &client, FILES).expect("memory for all, one after the other");
    assert!(cache.counters().bytes <= LIMIT + LIMIT / 20, "{:?}", cache.counters());
    assert!(client.invalidated.load(Ordering::Relaxed) > FILES / 2);
}

/// Its only directory has pending requests: no name is invalidated there, so memory runs out.
#[test]
fn no_name_is_invalidated_where_requests_wait() {
    let client = Arc::new(Client { is_waited_in: AtomicBool::new(true), ..Client::default() });
    let (cache, _balancer, _) = limited(&client);
    assert_eq!(walk(&cache, &client, FILES), Err(CacheError::NoMemory));
    assert_eq!(client.invalidated.load(Ordering::Relaxed), 0);
}

#[test]
fn the_thread_ends_when_it_is_dropped_asleep() {
    let client = Arc::new(Client::default());
    let (cache, balancer, alive) = limited(&client);
    walk(&cache, &client, 10).expect("memory");
    drop(balancer);
    until("the end of the thread", || Arc::strong_count(&alive) == 1);
    walk(&cache, &client, 10).expect("the cache is as good without it");
}

#[test]
fn the_thread_ends_with_its_cache() {
    let client = Arc::new(Client::default());
    let (cache, _balancer, alive) = limited(&client);
    walk(&cache, &client, 10).expect("memory");
    drop(cache);
    until("the end of the thread", || Arc::strong_count(&alive) == 1);
}

/// A thread that waits for pressure for an hour hears of the end too.
#[test]
fn the_end_of_a_cache_wakes_its_watchers() {
    struct Woken(AtomicU64);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let woken = Arc::new(Woken(AtomicU64::new(0)));
    let cache = Cache::new(Config { max_inodes: 1 << 10, ..Config::default() }).expect("a cache");
    cache.watch_pressure(Arc::clone(&woken).into());
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    drop(cache);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
}

/// A callback that panics once has no effect, and the next one is called.
#[test]
fn a_callback_that_panics_does_not_end_the_balancing() {
    let client = Arc::new(Client { can_prune: true, panics: AtomicU64::new(3), ..Client::default() });
    let (cache, _balancer, _) = limited(&client);
    walk(&cache, &client, FILES).expect("memory for all, one after the other");
    assert_eq!(client.panics.load(Ordering::Relaxed), 0);
    assert!(client.pruned.load(Ordering::Relaxed) > FILES / 2);
}
