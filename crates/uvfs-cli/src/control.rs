//! `.uvfs`: what the caches of a mount do, and the few things that can be asked of them, as files.
//!
//! One value a file, and `stats` with all that are numbers, a line each; they are taken when they are read.
//! Nothing here asks the file system that is mounted or waits for it, and the tree says so
//! (`may_block`), so that the threads which read requests answer: also while the file system hangs and
//! under any load.
//! The tree holds the VFS weakly, because the VFS holds the tree.

use std::io::Write;
use std::sync::{Arc, OnceLock, Weak};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use uvfs::counters::{Call as DriverCall, Counters};
use uvfs::{Bail, CacheCounters, Errno, Vfs};
use uvfs_drivers::kernfs::{Kernfs, Meta, Node, Options, WeakNode, read_write};
use uvfs_fuse::{Lookups, Mounted, Notices, Requests, Shortages};

use crate::log;
use crate::options;
use crate::source::Said;

/// What the files look at.
pub struct Control {
    vfs: Weak<Vfs>,
    mounted: OnceLock<Weak<Mounted>>,
    reload: Mutex<Reload>,
}

/// How the last reload went.
struct Reload {
    said: String,
    node: Option<WeakNode>,
}

/// Everything that is counted, looked at once.
struct Snapshot {
    cache: CacheCounters,
    counters: Counters,
    lookups: Lookups,
    shortages: Shortages,
    notices: Notices,
    requests: Requests,
}

type Figure = Box<dyn Fn(&Snapshot) -> u64 + Send + Sync>;

/// Each figure with its file's path.
fn figures() -> Vec<(String, Figure)> {
    fn one(name: &str, of: impl Fn(&Snapshot) -> u64 + Send + Sync + 'static) -> (String, Figure) {
        (name.to_owned(), Box::new(of))
    }
    let mut all = vec![
        one("inodes", |s| s.cache.inodes),
        one("dentries", |s| s.cache.dentries),
        one("dentries_negative", |s| s.cache.negative),
        one("bytes", |s| s.cache.bytes),
        one("bytes_hash", |s| s.cache.hash_bytes),
        one("hits", |s| s.counters.hits()),
        one("misses", |s| s.counters.misses()),
        one("lock_waits", |s| s.counters.lock_waits()),
        one("name_waits", |s| s.counters.name_waits()),
        one("lookups_given", |s| s.lookups.given),
        one("lookups_forgotten", |s| s.lookups.forgotten),
        one("lookups_held", |s| s.lookups.given.saturating_sub(s.lookups.forgotten)),
        one("calls_now", |s| s.counters.calls_now()),
        one("requests/lookup", |s| s.requests.lookup),
        one("requests/getattr", |s| s.requests.getattr),
        one("requests/readdir", |s| s.requests.readdir),
        one("requests/opendir", |s| s.requests.opendir),
        one("requests/open", |s| s.requests.open),
        one("requests/release", |s| s.requests.release),
        one("notices/names", |s| s.notices.names),
        one("notices/nodes", |s| s.notices.nodes),
        one("notices/epochs", |s| s.notices.epochs),
        one("notices/all", |s| s.notices.all),
        one("memory/mark", |s| s.cache.mark),
        one("memory/evicted", |s| s.cache.evicted),
        one("memory/evicted_ahead", |s| s.cache.evicted_ahead),
        one("memory/steps", |s| s.shortages.steps),
        one("memory/pressed", |s| s.shortages.pressed),
        one("memory/pruned", |s| s.shortages.pruned),
        one("memory/invalidated", |s| s.shortages.invalidated),
        one("memory/waited", |s| s.shortages.waited),
        one("memory/refused", |s| s.shortages.refused),
        one("memory/plain", |s| s.shortages.plain),
    ];
    let call = |call: DriverCall| one(&format!("calls/{}", call.name()), move |s| s.counters.calls(call));
    let bail = |bail: Bail| one(&format!("bails/{}", bail.name()), move |s| s.counters.bails().get(bail));
    all.extend(DriverCall::ALL.into_iter().map(call));
    all.extend(Bail::ALL.into_iter().map(bail));
    all
}

impl Control {
    /// Puts the control directory into `vfs`. `source` is what is mounted; `listed`: whether listings of the root
    /// show it; `reloads`: whether there is a file about reloading; `lines`: further files, with what
    /// says what is in them.
    pub fn install(
        vfs: &Arc<Vfs>,
        source: &str,
        listed: bool,
        reloads: bool,
        lines: Vec<(&'static str, Said)>,
    ) -> Result<Arc<Self>> {
        let said = "not reloaded yet".to_owned();
        let control = Arc::new(Self {
            vfs: Arc::downgrade(vfs),
            mounted: OnceLock::new(),
            reload: Mutex::new(Reload { said, node: None }),
        });
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let tree = Kernfs::new(Options { uid, gid, may_block: false, ..Options::default() })?;
        control.fill(&tree.root(), source, reloads).context("cannot make the control directory")?;
        for (name, said) in lines {
            let show = move |out: &mut Vec<u8>| line(out, said());
            tree.root().add_attr(name, own(0o444), show).context("cannot make the control directory")?;
        }
        vfs.mount_control(tree.view(None), listed).context("cannot make the control directory .uvfs")?;
        Ok(control)
    }

    /// From now on what the kernel has been told can be counted too.
    pub fn set_mounted(&self, mounted: &Arc<Mounted>) {
        let _ = self.mounted.set(Arc::downgrade(mounted));
    }

    /// Notes how a reload went, and wakes who polls for that.
    pub fn reloaded(&self, said: String) {
        let mut reload = self.reload.lock();
        reload.said = said;
        if let Some(node) = reload.node.as_ref().and_then(WeakNode::upgrade) {
            node.notify();
        }
    }

    fn snapshot(&self) -> uvfs::Result<Snapshot> {
        let vfs = self.vfs.upgrade().ok_or(Errno::NODEV)?;
        let mounted = self.mounted.get().and_then(Weak::upgrade);
        let lookups =
            mounted.as_ref().map_or(Lookups { given: 0, forgotten: 0 }, |mounted| mounted.lookups());
        let shortages = mounted.as_ref().map(|mounted| mounted.shortages()).unwrap_or_default();
        let notices = mounted.as_ref().map(|mounted| mounted.notices()).unwrap_or_default();
        let requests = mounted.map(|mounted| mounted.requests()).unwrap_or_default();
        Ok(Snapshot {
            cache: vfs.cache().counters(),
            counters: uvfs::counters(),
            lookups,
            shortages,
            notices,
            requests,
        })
    }

    fn fill(self: &Arc<Self>, root: &Node, source: &str, reloads: bool) -> uvfs::Result<()> {
        let figures = Arc::new(figures());
        for dir in ["calls", "bails", "memory", "notices", "requests"] {
            root.add_dir(dir, own(0o755))?;
        }
        for (index, (path, _)) in figures.iter().enumerate() {
            let (control, figures) = (Arc::clone(self), Arc::clone(&figures));
            let show = move |out: &mut Vec<u8>| line(out, figures[index].1(&control.snapshot()?));
            match path.split_once('/') {
                None => root.add_attr(path, own(0o444), show)?,
                Some((dir, name)) => {
                    root.find(dir, None).ok_or(Errno::NOENT)?.add_attr(name, own(0o444), show)?
                }
            };
        }
        let control = Arc::clone(self);
        root.add_attr("stats", own(0o444), move |out: &mut Vec<u8>| {
            let snapshot = control.snapshot()?;
            figures.iter().try_for_each(|(path, of)| line(out, format_args!("{path} {}", of(&snapshot))))
        })?;
        let source = source.to_owned();
        root.add_attr("source", own(0o444), move |out: &mut Vec<u8>| line(out, &source))?;
        let control = Arc::clone(self);
        root.add_attr("transport", own(0o444), move |out: &mut Vec<u8>| {
            let mounted = control.mounted.get().and_then(Weak::upgrade);
            line(out, mounted.map_or("none (not mounted yet)", |mounted| mounted.transport().name()))
        })?;
        root.add_attr("version", own(0o444), |out: &mut Vec<u8>| line(out, env!("CARGO_PKG_VERSION")))?;
        self.add_knobs(root)?;
        let control = Arc::clone(self);
        let show = move |out: &mut Vec<u8>| match control.mounted.get().and_then(Weak::upgrade) {
            Some(mounted) => line(out, mounted.pressure()),
            None => line(out, "none (not mounted yet)"),
        };
        root.find("memory", None).ok_or(Errno::NOENT)?.add_attr("pressure", own(0o444), show)?;
        if reloads {
            let control = Arc::clone(self);
            let show = move |out: &mut Vec<u8>| line(out, &control.reload.lock().said);
            self.reload.lock().node = Some(root.add_attr("reload", own(0o444), show)?.downgrade());
        }
        Ok(())
    }

    fn add_knobs(self: &Arc<Self>, root: &Node) -> uvfs::Result<()> {
        let vfs = self.vfs.clone();
        let shrink = read_write(
            |_: &mut Vec<u8>| Err(Errno::ACCESS),
            move |_, data| {
                let bytes = number(data)?;
                // Not here: this thread reads requests.
                vfs.upgrade().ok_or(Errno::NODEV)?.cache().ask_shrink(bytes);
                Ok(())
            },
        );
        root.add_attr("shrink", own(0o200), shrink)?;
        let (shown, set) = (self.vfs.clone(), self.vfs.clone());
        let limit = read_write(
            move |out| line(out, shown.upgrade().ok_or(Errno::NODEV)?.cache().memory_limit()),
            move |_, data| {
                let bytes = options::memory(word(data)?).map_err(|error| {
                    tracing::warn!(%error, "bytes_limit is not set");
                    Errno::INVAL
                })?;
                set.upgrade().ok_or(Errno::NODEV)?.cache().ask_memory_limit(bytes);
                Ok(())
            },
        );
        root.add_attr("bytes_limit", own(0o644), limit)?;
        let log = read_write(
            |out| line(out, log::filter()),
            |_, data| log::set(word(data)?).map_err(|_| Errno::INVAL),
        );
        root.add_attr("log", own(0o644), log)?;
        Ok(())
    }
}

/// The mode, and the owner of the mount.
fn own(mode: u32) -> Meta {
    Meta::new(mode).owner(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn line(out: &mut Vec<u8>, what: impl std::fmt::Display) -> uvfs::Result<()> {
    writeln!(out, "{what}").map_err(|_| Errno::NOMEM)
}

/// What was written, without the newline.
fn word(data: &[u8]) -> uvfs::Result<&str> {
    str::from_utf8(data).map(str::trim).map_err(|_| Errno::INVAL)
}

fn number(data: &[u8]) -> uvfs::Result<u64> {
    word(data)?.parse().map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_paths_of_their_own() {
        let figures = figures();
        let paths: std::collections::HashSet<_> = figures.iter().map(|(path, _)| path).collect();
        assert_eq!(paths.len(), figures.len());
        assert!(figures.iter().all(|(path, _)| path.matches('/').count() <= 1));
    }
}
