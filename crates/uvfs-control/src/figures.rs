//! The figures, by name: the one source of `.uvfs`, of `uvfs stat` and of `--metrics`.
//!
//! A figure is taken out of a [`Snapshot`], which has all counts of one moment. Plain values, nothing is locked here.

use uvfs::counters::{DriverCall, VfsCounters};
use uvfs::{Bail, CacheCounters};
use uvfs_fuse::{Latency, Lookups, Notices, Passthrough, RequestKind, Requests, Shortages};

/// Figures that are levels: they go up and down, so a rate of them means nothing. The others only grow.
const LEVELS: [&str; 8] = [
    "inodes",
    "dentries",
    "dentries_negative",
    "bytes",
    "bytes_hash",
    "lookups_held",
    "calls_now",
    "memory/watermark",
];

/// Whether the figure of this path is a level.
pub fn is_level(path: &str) -> bool {
    LEVELS.contains(&path) || (path.starts_with("latency/") && !path.ends_with("_count"))
}

/// All counts, read at one time.
pub struct Snapshot {
    /// Of the caches.
    pub cache: CacheCounters,
    /// Of the whole process, not of one VFS.
    pub counters: VfsCounters,
    /// Nodes that the kernel was given.
    pub lookups: Lookups,
    /// Of the memory limit.
    pub shortages: Shortages,
    /// Notifications to the kernel.
    pub notices: Notices,
    /// Of the kernel.
    pub requests: Requests,
    /// Files lent to the kernel.
    pub passthrough: Passthrough,
    /// The times of requests, in the order of [`RequestKind::ALL`].
    pub latencies: Vec<Latency>,
}

/// One figure.
pub struct Figure {
    /// Its file in `.uvfs`.
    pub path: String,
    /// The figure's description; that of its directory if the directory has figures of one kind.
    pub help: &'static str,
    of: Box<dyn Fn(&Snapshot) -> u64 + Send + Sync>,
}

impl Figure {
    fn new(path: &str, help: &'static str, of: impl Fn(&Snapshot) -> u64 + Send + Sync + 'static) -> Self {
        Self { path: path.to_owned(), help, of: Box::new(of) }
    }

    /// Its value.
    pub fn of(&self, snapshot: &Snapshot) -> u64 {
        (self.of)(snapshot)
    }
}

const REQUESTS: &str = "Requests of the kernel that it makes once, or never, where it keeps what it knows";
const NOTICES: &str = "What the kernel was told of changes that were not made through the mount";
const PASSED: &str = "Files that were opened to be read and written in the source by the kernel itself";
const NOT_PASSED: &str =
    "Files that were opened to be read and written by requests, though the kernel could be lent some";
const CALLS: &str = "Calls of the file system that were begun";
const BAILS: &str = "Walks without references that gave up, by reason";

/// All of them, those of one directory one after the other.
pub(crate) fn all() -> Vec<Figure> {
    let mut all = of_the_cache();
    all.extend([
        Figure::new("requests/lookup", REQUESTS, |s| s.requests.lookup),
        Figure::new("requests/getattr", REQUESTS, |s| s.requests.getattr),
        Figure::new("requests/readdir", REQUESTS, |s| s.requests.readdir),
        Figure::new("requests/opendir", REQUESTS, |s| s.requests.opendir),
        Figure::new("requests/open", REQUESTS, |s| s.requests.open),
        Figure::new("requests/release", REQUESTS, |s| s.requests.release),
        Figure::new("passthrough/opens", PASSED, |s| s.passthrough.opens),
        Figure::new("passthrough/refused", NOT_PASSED, |s| s.passthrough.refused),
        Figure::new("notices/names", NOTICES, |s| s.notices.names),
        Figure::new("notices/nodes", NOTICES, |s| s.notices.nodes),
        Figure::new("notices/epochs", NOTICES, |s| s.notices.epochs),
        Figure::new("notices/all", NOTICES, |s| s.notices.all),
    ]);
    all.extend(of_memory());
    all.extend(of_lookasides());
    all.extend(RequestKind::ALL.into_iter().flat_map(of_latency));
    let call = |call: DriverCall| {
        Figure::new(&format!("calls/{}", call.name()), CALLS, move |s| s.counters.calls(call))
    };
    let bail = |bail: Bail| {
        Figure::new(&format!("bails/{}", bail.name()), BAILS, move |s| s.counters.bails().get(bail))
    };
    all.extend(DriverCall::ALL.into_iter().map(call));
    all.extend(Bail::ALL.into_iter().map(bail));
    all
}

fn of_the_cache() -> Vec<Figure> {
    vec![
        Figure::new("inodes", "Inodes that are cached", |s| s.cache.inodes),
        Figure::new("dentries", "Names that are cached", |s| s.cache.dentries),
        Figure::new("dentries_negative", "Names that are known not to exist", |s| s.cache.negative),
        Figure::new("bytes", "Memory committed for what is cached", |s| s.cache.bytes),
        Figure::new("bytes_hash", "Memory of that for hash tables", |s| s.cache.hash_bytes),
        Figure::new("hits", "Walks and names that the cache answered alone", |s| s.counters.hits()),
        Figure::new("misses", "Names that the file system was asked for", |s| s.counters.misses()),
        Figure::new("lock_waits", "Times that a thread waited for a lock of the caches", |s| {
            s.counters.lock_waits()
        }),
        Figure::new("name_waits", "Times that a thread waited for another's lookup of the same name", |s| {
            s.counters.name_waits()
        }),
        Figure::new("lookups_given", "Nodes that the kernel was given", |s| s.lookups.given),
        Figure::new("lookups_forgotten", "Nodes that the kernel has given back", |s| s.lookups.forgotten),
        Figure::new("lookups_held", "Nodes that the kernel has", |s| {
            s.lookups.given.saturating_sub(s.lookups.forgotten)
        }),
        Figure::new("calls_now", "Calls of the file system that have not returned", |s| {
            s.counters.calls_now()
        }),
    ]
}

fn of_memory() -> Vec<Figure> {
    vec![
        Figure::new("memory/watermark", "Bytes of the limit in force; 0 for none", |s| s.cache.watermark),
        Figure::new("memory/evicted", "Names that were evicted", |s| s.cache.evicted),
        Figure::new("memory/evicted_ahead", "Names that were evicted before their place was needed", |s| {
            s.cache.evicted_ahead
        }),
        Figure::new("memory/steps", "Steps of the thread that keeps the limit", |s| s.shortages.steps),
        Figure::new("memory/pressed", "Times that the system was short of memory", |s| s.shortages.pressed),
        Figure::new("memory/pruned", "Nodes that the kernel was asked to forget", |s| s.shortages.pruned),
        Figure::new("memory/invalidated", "Names that were invalidated to have the kernel forget", |s| {
            s.shortages.invalidated
        }),
        Figure::new("memory/waited", "Requests that waited for memory", |s| s.shortages.waited),
        Figure::new("memory/refused", "Requests that got no memory", |s| s.shortages.refused),
        Figure::new(
            "memory/overdrawn",
            "Times that a request that was waited for had more than the limit allows",
            |s| s.shortages.overdrawn,
        ),
        Figure::new("memory/plain", "Entries that were listed without their nodes", |s| s.shortages.plain),
    ]
}

/// Of one kind of requests.
fn of_latency(kind: RequestKind) -> [Figure; 4] {
    let figure = |what: &str, help, of: fn(&Latency) -> u64| {
        Figure::new(&format!("latency/{}_{what}", kind.name()), help, move |s: &Snapshot| {
            s.latencies.get(kind as usize).map_or(0, of)
        })
    };
    [
        figure("count", "Requests of the kind that were answered", |it| it.count),
        figure("p50", "Nanoseconds within which half of them were answered", |it| it.p50),
        figure("p99", "Nanoseconds within which 99 of 100 were answered", |it| it.p99),
        figure("max", "Nanoseconds of the slowest", |it| it.max),
    ]
}

/// A hit has one of two places: the last leaf, or the one place of the table that the leaf's number leads to.
fn of_lookasides() -> Vec<Figure> {
    vec![
        Figure::new("lookaside/last", "Blocks looked up in the leaf that the thread used last", |s| {
            s.counters.lookaside().last
        }),
        Figure::new("lookaside/table", "Blocks looked up in another leaf that the thread remembered", |s| {
            s.counters.lookaside().table
        }),
        Figure::new("lookaside/misses", "Blocks whose leaf the thread did not remember", |s| {
            s.counters.lookaside().misses
        }),
        Figure::new("lookaside/stale", "Blocks whose leaf the thread remembered, and which had gone", |s| {
            s.counters.lookaside().stale
        }),
        Figure::new("lookaside/bypassed", "Blocks looked up while the thread's table stood aside", |s| {
            s.counters.lookaside().bypassed
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_paths_of_their_own() {
        let figures = all();
        let paths: std::collections::HashSet<_> = figures.iter().map(|figure| &figure.path).collect();
        assert_eq!(paths.len(), figures.len());
        assert!(figures.iter().all(|figure| figure.path.matches('/').count() <= 1));
        assert!(LEVELS.iter().all(|level| figures.iter().any(|figure| figure.path == *level)));
    }
}
