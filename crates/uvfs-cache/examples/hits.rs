//! Looks a cached name up again and again, to count the instructions of a call.
//!
//! The difference of two runs of `perf stat -e instructions:u`, divided by the difference of their arguments, is the
//! cost of a call. `hits CALL N` makes N calls. CALL is `peek` or `lookup` of [`Cache`], or `node-peek`,
//! `node-child`, `node-lookup` of [`NodeCache`] without data, or `miss` and `node-miss`: an answer that is invalidated
//! at once.

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions};
use uvfs_cache::{Attr, Cache, Config, NodeAnswer, NodeCache, NodeKnown, NodeLookup, Peek, Ttl};

const NAME: &[u8] = b"a-file";

fn attr(ino: u64, mode: u32) -> Attr {
    Attr { ino, mode, nlink: 1, ..Attr::default() }
}

fn of_cache(what: &str, count: u64) -> Option<()> {
    let fresh = |ino, mode| Fresh { attr: attr(ino, mode), private: 0, ttl: Ttl::Forever };
    let cache = Cache::new(Config::default()).ok()?;
    let options = SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) };
    let sb = cache.add_superblock(options).ok()?;
    let root = cache.make_root(sb, &fresh(1, S_IFDIR | 0o755)).ok()?;
    let miss = || match cache.lookup(&root, NAME) {
        Lookup::Miss(ticket) => ticket.found(&fresh(2, S_IFREG | 0o644)).ok(),
        _ => None,
    };
    let (_file, id) = (miss()?, root.id());
    for _ in 0..count {
        let hit = match what {
            "peek" => matches!(cache.peek(id, NAME), Peek::Hit(..)),
            "lookup" => matches!(cache.lookup(&root, NAME), Lookup::Hit(..)),
            "miss" => {
                cache.invalidate(&root, NAME);
                miss().is_some()
            }
            _ => false,
        };
        if !hit {
            return None;
        }
    }
    Some(())
}

fn of_nodes(what: &str, count: u64) -> Option<()> {
    let answer = |ino, mode| NodeAnswer {
        attr: attr(ino, mode),
        name_ttl: Ttl::Forever,
        attr_ttl: Ttl::Forever,
        data: (),
    };
    let cache = NodeCache::new(Config::default()).ok()?;
    let superblock = cache.add_superblock(false, answer(1, S_IFDIR | 0o755)).ok()?;
    let root = superblock.root();
    let miss = || match root.try_lookup(NAME) {
        Ok(NodeLookup::Miss(ticket)) => ticket.found(answer(2, S_IFREG | 0o644)).ok(),
        _ => None,
    };
    let (_file, id) = (miss()?, root.id());
    let borrowed = cache.borrow(id)?;
    for _ in 0..count {
        let hit = match what {
            "node-peek" => matches!(cache.peek(id, NAME), Peek::Hit(..)),
            "node-child" => match borrowed.child(NAME) {
                NodeKnown::Hit(node) => node.attr().ino == 2,
                _ => false,
            },
            "node-lookup" => matches!(root.try_lookup(NAME), Ok(NodeLookup::Hit(_))),
            "node-miss" => {
                root.invalidate(NAME);
                miss().is_some()
            }
            _ => false,
        };
        if !hit {
            return None;
        }
    }
    Some(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (what, count) = (args.next().ok_or("which call?")?, args.next().ok_or("how many?")?.parse()?);
    let done = if what.starts_with("node-") { of_nodes(&what, count) } else { of_cache(&what, count) };
    done.ok_or_else(|| format!("{what}: no such call, or not a hit").into())
}
