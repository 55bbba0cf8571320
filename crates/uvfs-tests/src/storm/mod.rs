//! Threads that stat while others change the same names and the directories above them.
//!
//! Nothing is locked around the calls. Instead every name keeps a promise ([`promise`]): some always
//! exist, some never do, some lead to files that only grow younger. Attributes that are set
//! together repeat the same value ([`PromiseToken`]), so a torn copy is noticed. Writers
//! ([`writers`]) keep the promises if each operation is atomic. Readers ([`readers`]) stop the storm at the
//! first broken promise.

pub mod command;
mod promise;
mod readers;
mod writers;

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use uvfs::{Attr, Cred, SetAttr, SetTime, Time, Vfs, mode};

pub use promise::PromiseToken;

/// The state that threads share besides the file system.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    broken: Mutex<Option<String>>,
    stats: AtomicU64,
    found: AtomicU64,
    absent: AtomicU64,
    denied: AtomicU64,
    changes: AtomicU64,
    crowd: Crowd,
}

/// Position of the crowd's writer: files `gone..made` of this round certainly exist, files from
/// `making` on certainly do not. An odd round is a transition between two.
#[derive(Debug, Default)]
struct Crowd {
    round: AtomicU64,
    making: AtomicU32,
    made: AtomicU32,
    gone: AtomicU32,
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }

    /// Records the first broken promise and ends the storm.
    fn break_off(&self, why: String) {
        let mut broken = self.broken.lock();
        broken.get_or_insert(why);
        self.stop.store(true, SeqCst);
    }
}

/// The results of a storm.
#[derive(Clone, Copy, Debug)]
pub struct StormReport {
    /// stat calls.
    pub stats: u64,
    /// Those that found something.
    pub found: u64,
    /// Those that answered ENOENT.
    pub absent: u64,
    /// Those that answered EACCES.
    pub denied: u64,
    /// Rounds of changes.
    pub changes: u64,
}

/// The parameters of a storm.
#[derive(Clone, Copy, Debug)]
pub struct StormPlan {
    /// Length of the storm.
    pub time: Duration,
    /// Threads that stat.
    pub readers: usize,
    /// Files that are made and removed in the background, so that the hash grows and slots are
    /// reused.
    pub crowd: u32,
}

fn root() -> Cred {
    Cred::root()
}

/// Makes a file that carries `token` in all attributes, under a path that no reader knows.
fn make_file(vfs: &Vfs, path: &[u8], token: PromiseToken) -> Result<(), uvfs::Errno> {
    let context = vfs.context(root());
    context.mknod(path, mode::S_IFREG | 0o644, 0)?;
    stamp(vfs, path, token)
}

/// Sets all attributes that carry the token in one call.
fn stamp(vfs: &Vfs, path: &[u8], token: PromiseToken) -> Result<(), uvfs::Errno> {
    let inode = vfs.context(root()).resolve(path)?;
    let time = SetTime::At(Time::new(token.seconds(), token.nanoseconds()));
    let set = SetAttr {
        uid: Some(token.uid()),
        gid: Some(token.gid()),
        size: Some(token.size()),
        mtime: Some(time),
        atime: Some(time),
        ..SetAttr::default()
    };
    vfs.setattr(&vfs.op(&root()), &inode, &set).map(|_| ())
}

/// The tree that readers and writers know.
fn prepare(vfs: &Vfs) -> Result<(), uvfs::Errno> {
    let context = vfs.context(root());
    context.chmod(b"/", 0o777)?;
    for dir in [&b"/gate"[..], b"/left", b"/right", b"/crowd"] {
        context.mkdir(dir, 0o777)?;
        context.chmod(dir, 0o777)?;
    }
    for (path, token) in [
        (&b"/always"[..], promise::ALWAYS),
        (b"/swap-a", promise::SWAP_A),
        (b"/swap-b", promise::SWAP_B),
        (b"/restamped", promise::RESTAMPED),
        (b"/gate/inside", promise::INSIDE),
        (b"/left/file", promise::LEFT),
        (b"/right/file", promise::RIGHT),
    ] {
        make_file(vfs, path, token)?;
    }
    context.symlink(b"swap-a", b"/link")
}

/// Storms over `vfs`, which must be new and empty.
pub fn storm(vfs: &Vfs, plan: StormPlan) -> Result<StormReport> {
    prepare(vfs).context("preparing the tree")?;
    let shared = Shared::default();
    let end = Instant::now() + plan.time;
    std::thread::scope(|scope| {
        let shared = &shared;
        for seed in 0..plan.readers {
            scope.spawn(move || guard(shared, || readers::read(vfs, shared, seed as u64)));
        }
        scope.spawn(move || guard(shared, || writers::storm(vfs, shared)));
        scope.spawn(move || guard(shared, || writers::intrude(vfs, shared)));
        if plan.crowd > 0 {
            scope.spawn(move || guard(shared, || writers::crowd(vfs, shared, plan.crowd)));
        }
        while Instant::now() < end && !shared.stopped() {
            std::thread::sleep(Duration::from_millis(20));
        }
        shared.stop.store(true, SeqCst);
    });
    if let Some(why) = shared.broken.lock().take() {
        bail!("{why}");
    }
    Ok(StormReport {
        stats: shared.stats.load(SeqCst),
        found: shared.found.load(SeqCst),
        absent: shared.absent.load(SeqCst),
        denied: shared.denied.load(SeqCst),
        changes: shared.changes.load(SeqCst),
    })
}

/// Runs a thread's work. Its return or panic ends the storm.
fn guard(shared: &Shared, work: impl FnOnce() -> Result<(), String>) {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(Ok(())) => {}
        Ok(Err(why)) => shared.break_off(why),
        Err(_) => shared.break_off("a thread panicked; its message stands above".into()),
    }
}

/// The attributes that carry a token.
fn seen(attr: &Attr) -> promise::TokenSeen {
    promise::TokenSeen {
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        mtime: (attr.mtime.sec(), attr.mtime.nsec()),
        dir: attr.is_dir(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inproc::new_vfs;

    #[test]
    fn a_short_storm_breaks_no_promise() {
        let vfs = new_vfs().unwrap();
        let plan = StormPlan { time: Duration::from_secs(3), readers: 2, crowd: 20_000 };
        let report = storm(&vfs, plan).unwrap();
        assert!(
            report.found > 0 && report.absent > 0 && report.denied > 0 && report.changes > 0,
            "{report:?}"
        );
    }
}
