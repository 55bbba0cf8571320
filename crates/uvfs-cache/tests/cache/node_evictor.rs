//! A cache within its limit although clients hold what they looked up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::{
    CacheError, Config, EvictorClient, InodeId, NodeCache, NodeEvictor, NodeLookup, NodeSuperblock, OwnedNode,
};
use uvfs_sync::primitives::Mutex;

use crate::nodes::{answer, attr};

const FILES: u64 = 120_000;
const LIMIT: u64 = 8 << 20;

/// A kernel: it holds every id that it was told of until it is asked to forget.
#[derive(Default)]
struct Kernel {
    known: Mutex<HashMap<InodeId, u64>>,
    /// Asked for a name in a directory in which a request was under way.
    wrong: AtomicBool,
    pending: AtomicBool,
}

struct Client {
    kernel: Arc<Kernel>,
    cache: NodeCache<u64>,
    prunes: bool,
}

impl Client {
    fn drop_id(&self, id: InodeId) -> bool {
        let known = self.kernel.known.lock().remove(&id);
        known.into_iter().for_each(|n| self.cache.forget_lookups(id, n));
        known.is_some()
    }
}

impl EvictorClient for Client {
    fn prune(&mut self, nodes: &[InodeId]) -> bool {
        if self.prunes {
            for id in nodes {
                self.drop_id(*id);
            }
        }
        self.prunes
    }

    fn invalidate(&mut self, dir: InodeId, name: &[u8]) -> bool {
        if self.kernel.pending.load(Ordering::Relaxed) {
            self.kernel.wrong.store(true, Ordering::Relaxed);
        }
        let dir = self.cache.node(dir).expect("a directory with a child");
        matches!(dir.try_lookup(name), Ok(NodeLookup::Hit(node)) if self.drop_id(node.id()))
    }

    fn is_pending(&self, _: InodeId) -> bool {
        self.kernel.pending.load(Ordering::Relaxed)
    }
}

fn walk(sb: &NodeSuperblock<u64>, root: &OwnedNode<u64>, kernel: &Kernel) -> u64 {
    let mut refused = 0;
    for i in 0..FILES {
        let node = match root.blocking_lookup(format!("file {i}").as_bytes()).unwrap() {
            NodeLookup::Hit(node) => node,
            NodeLookup::Miss(ticket) => match ticket.found(answer(attr(10 + i, S_IFREG), 10 + i)) {
                Ok(node) => node,
                Err(CacheError::NoMemory) => {
                    refused += 1;
                    std::thread::yield_now();
                    continue;
                }
                Err(error) => panic!("{error}"),
            },
            NodeLookup::Negative => panic!("nobody said so"),
        };
        assert_eq!(*node.data(), 10 + i);
        let mut known = kernel.known.lock();
        node.add_lookups(1);
        *known.entry(node.id()).or_default() += 1;
    }
    assert!(sb.by_number(1).is_some());
    refused
}

fn within_its_limit(prunes: bool) {
    let cache = NodeCache::new(Config { memory_limit: LIMIT, ..Config::default() }).unwrap();
    let sb = cache.add_superblock(false, answer(attr(1, S_IFDIR), 1)).unwrap();
    let (root, kernel, end) = (sb.root(), Arc::new(Kernel::default()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client { kernel: kernel.clone(), cache: cache.clone(), prunes };
            NodeEvictor::run(&cache, &mut client, &|| end.load(Ordering::Relaxed));
        });
        let refused = walk(&sb, &root, &kernel) + walk(&sb, &root, &kernel);
        // The limit holds at every moment; a request may find no memory while the kernel has not forgotten yet.
        assert!(refused < FILES / 2, "{refused} refused");
        end.store(true, Ordering::Relaxed);
    });
    let counters = cache.counters();
    assert!(counters.bytes <= LIMIT + LIMIT / 8, "{counters:?}");
    assert!(kernel.known.lock().len() as u64 <= counters.inodes);
    assert!(!kernel.wrong.load(Ordering::Relaxed));
}

#[test]
fn a_client_that_prunes_is_kept_within_the_limit() {
    within_its_limit(true);
}

#[test]
fn a_client_that_is_told_names_is_kept_within_the_limit() {
    within_its_limit(false);
}

#[test]
fn no_name_is_asked_for_where_a_request_is_pending() {
    let cache = NodeCache::new(Config { memory_limit: 1 << 20, ..Config::default() }).unwrap();
    let sb = cache.add_superblock(false, answer(attr(1, S_IFDIR), 1)).unwrap();
    let (root, kernel) = (sb.root(), Arc::new(Kernel::default()));
    while let NodeLookup::Miss(ticket) =
        root.blocking_lookup(format!("{}", cache.counters().inodes).as_bytes()).unwrap()
    {
        let Ok(node) = ticket.found(answer(attr(10 + cache.counters().inodes, S_IFREG), 0)) else { break };
        node.add_lookups(1);
        kernel.known.lock().insert(node.id(), 1);
    }
    let known = kernel.known.lock().len();
    let mut client = Client { kernel: kernel.clone(), cache: cache.clone(), prunes: false };
    let mut evictor = NodeEvictor::new(&cache, std::task::Waker::noop().clone());
    kernel.pending.store(true, Ordering::Relaxed);
    for _ in 0..8 {
        evictor.step(&mut client);
    }
    assert_eq!((kernel.known.lock().len(), kernel.wrong.load(Ordering::Relaxed)), (known, false));
    kernel.pending.store(false, Ordering::Relaxed);
    for _ in 0..8 {
        evictor.step(&mut client);
    }
    assert!(kernel.known.lock().len() < known, "asked now");
}
