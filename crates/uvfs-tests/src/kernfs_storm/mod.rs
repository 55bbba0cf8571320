//! Threads that read and write attributes while others add, move and remove them.
//!
//! Every attribute knows whether it may be called ([`gauge`]). The remover withdraws the permission when the
//! removal has returned, and a call without permission ends the storm as a failure. Readers ([`users`]) check that a
//! text is whole and that a file whose attribute is gone stays gone. Changers ([`changers`]) look at each of their
//! changes through the view as soon as it has returned, while readers look the same names up. Every attribute's end is
//! counted: when all are removed, none may be left.

mod changers;
pub mod command;
mod gauge;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::Mutex;
use uvfs::{Vfs, VfsConfig};
use uvfs_drivers::kernfs::{Kernfs, KernfsOptions, Meta, Node};

use gauge::Gauge;

/// Directories that stay.
const DIRS: usize = 4;
/// Names that each changer uses in each directory.
const NAMES: usize = 4;
/// Changers.
const CHANGERS: usize = 2;

/// The parameters of a storm.
#[derive(Clone, Copy, Debug)]
pub struct KernfsStormPlan {
    /// Length of the storm.
    pub time: Duration,
    /// Threads that read and write.
    pub users: usize,
    /// Time without any change after which the storm counts as hung and the process is aborted.
    pub patience: Duration,
}

/// The results of a storm.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernfsStormReport {
    /// Calls of attributes.
    pub calls: u64,
    /// Opens that found nothing, and reads and writes that came too late.
    pub late: u64,
    /// Nodes added.
    pub added: u64,
    /// Nodes moved.
    pub moved: u64,
    /// Nodes removed from outside.
    pub removed: u64,
    /// Attributes that removed themselves.
    pub removed_themselves: u64,
}

/// The state that all threads share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    broken: Mutex<Option<String>>,
    /// Attributes that have not ended.
    living: AtomicU64,
    calls: AtomicU64,
    late: AtomicU64,
    added: AtomicU64,
    moved: AtomicU64,
    removed: AtomicU64,
    removed_themselves: AtomicU64,
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }

    /// Records the first broken promise and ends the storm.
    fn break_off(&self, why: String) {
        self.broken.lock().get_or_insert(why);
        self.stop.store(true, SeqCst);
    }

    fn changes(&self) -> u64 {
        self.added.load(SeqCst) + self.removed.load(SeqCst) + self.moved.load(SeqCst)
    }
}

/// The objects that a thread works on.
struct World {
    shared: Arc<Shared>,
    vfs: Arc<Vfs>,
    dirs: Vec<Node>,
}

impl World {
    fn new() -> Result<Self> {
        let tree = Kernfs::new(KernfsOptions::default())?;
        let vfs = Vfs::new(VfsConfig::default(), tree.view(None))?;
        let shared = Arc::new(Shared::default());
        let mut dirs = Vec::new();
        for index in 0..DIRS {
            let dir = tree.root().add_dir(format!("d{index}"), Meta::new(0o755))?;
            dir.add_attr("always", Meta::new(0o644), Gauge::new(&shared))?;
            dirs.push(dir);
        }
        Ok(Self { shared, vfs, dirs })
    }
}

/// The `name`-th name of a changer.
fn name(changer: usize, name: usize) -> String {
    format!("c{changer}-{name}")
}

/// Runs a storm on a tree of its own.
pub fn storm(plan: KernfsStormPlan) -> Result<KernfsStormReport> {
    let world = Arc::new(World::new().context("preparing the tree")?);
    let mut threads = Vec::new();
    for seed in 0..plan.users {
        let world = Arc::clone(&world);
        threads.push(std::thread::spawn(move || guard(&world, |w| users::run(w, seed as u64))));
    }
    for changer in 0..CHANGERS {
        let world = Arc::clone(&world);
        threads.push(std::thread::spawn(move || guard(&world, |w| changers::run(w, changer))));
    }
    watch(&world.shared, plan);
    world.shared.stop.store(true, SeqCst);
    // Joined by handle, so the threads' stores are visible from here on.
    for thread in threads {
        ensure!(thread.join().is_ok(), "a thread panicked");
    }
    finish(&world)
}

/// Waits for the end of the storm; aborts the process if nothing changes any more.
fn watch(shared: &Shared, plan: KernfsStormPlan) {
    let end = Instant::now() + plan.time;
    let mut last = (shared.changes(), Instant::now());
    while Instant::now() < end && !shared.stopped() {
        std::thread::sleep(Duration::from_millis(20));
        let changes = shared.changes();
        if changes != last.0 {
            last = (changes, Instant::now());
        } else if last.1.elapsed() > plan.patience {
            eprintln!("nothing has changed for {:?}: a removal or a change hangs", plan.patience);
            std::process::abort();
        }
    }
}

/// Checks that nothing is left.
fn finish(world: &World) -> Result<KernfsStormReport> {
    let shared = &world.shared;
    if let Some(why) = shared.broken.lock().take() {
        bail!("{why}");
    }
    for dir in &world.dirs {
        dir.remove();
    }
    let living = shared.living.load(SeqCst);
    ensure!(living == 0, "{living} attributes are left of a tree without nodes");
    Ok(KernfsStormReport {
        calls: shared.calls.load(SeqCst),
        late: shared.late.load(SeqCst),
        added: shared.added.load(SeqCst),
        moved: shared.moved.load(SeqCst),
        removed: shared.removed.load(SeqCst),
        removed_themselves: shared.removed_themselves.load(SeqCst),
    })
}

/// Runs a thread's work. Its return or panic ends the storm.
fn guard(world: &World, work: impl FnOnce(&World) -> Result<()>) {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(world))) {
        Ok(Ok(())) => {}
        Ok(Err(why)) => world.shared.break_off(format!("{why:#}")),
        Err(_) => world.shared.break_off("a thread panicked; its message stands above".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_of_a_removed_attribute_and_no_leak_in_a_short_storm() {
        let plan =
            KernfsStormPlan { time: Duration::from_millis(700), users: 8, patience: Duration::from_secs(60) };
        let report = storm(plan).unwrap();
        assert!(report.calls > 0 && report.added > 0 && report.moved > 0 && report.removed > 0, "{report:?}");
    }
}
