//! How long a change takes to be seen through the mount: from the return of the system call that made it to the first
//! look at the mount that shows it. A look comes every 50 µs or so, and is a system call itself.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Worker;
use super::worker::now;

/// The longest that is waited for one change.
const GIVE_UP: Duration = Duration::from_secs(20);

/// Nanoseconds that changes took to be seen, sorted.
#[derive(Clone, Debug, Default)]
pub struct Staleness(Vec<u64>);

impl Staleness {
    /// The time that so many of a hundred changes do not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        let at = (self.0.len() * percent).div_ceil(100).saturating_sub(1).min(last);
        Duration::from_nanos(self.0.get(at).copied().unwrap_or_default())
    }

    /// Changes that were measured.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// Makes `count` changes in `source`, a hundred a second, and looks for each in `mount`. Every file that is looked
/// for was looked at before, so that each cache on the way has it.
///
/// # Errors
/// A change that is never seen.
pub fn staleness(source: &Path, mount: &Path, count: usize) -> Result<Staleness> {
    let mut worker = Worker::start(source, 0)?;
    let mut all = Vec::with_capacity(count);
    let mode = |name: &str| fs::metadata(mount.join(name)).map_or(0, |meta| meta.mode() & 0o777);
    let len = |name: &str| fs::metadata(mount.join(name)).map_or(u64::MAX, |meta| meta.size());
    let links = |name: &str| fs::metadata(mount.join(name)).map_or(0, |meta| meta.nlink());
    let exists = |name: &str| fs::symlink_metadata(mount.join(name)).is_ok();
    for round in 0..count.div_ceil(8) {
        let (a, b, c) = (format!("stale{round}"), format!("moved{round}"), format!("link{round}"));
        let text = "x".repeat(1 + round % 100);
        let mut step = |order: String, seen: &dyn Fn() -> bool| -> Result<()> {
            let begin = Instant::now();
            if seen() {
                bail!("{order}: seen before it was done");
            }
            worker.order(&order)?;
            let done: u64 = worker.answer()?;
            while !seen() {
                if begin.elapsed() > GIVE_UP {
                    bail!("{order}: not seen after {GIVE_UP:?}");
                }
                thread::sleep(Duration::from_micros(50));
            }
            all.push(now().saturating_sub(done));
            thread::sleep(Duration::from_millis(10).saturating_sub(begin.elapsed()));
            Ok(())
        };
        step(format!("make {a}"), &|| exists(&a))?;
        step(format!("write {a} {text}"), &|| len(&a) == text.len() as u64)?;
        step(format!("mode {a} 600"), &|| mode(&a) == 0o600)?;
        step(format!("cut {a} 0"), &|| len(&a) == 0)?;
        step(format!("link {a} {c}"), &|| links(&c) == 2 && links(&a) == 2)?;
        step(format!("move {a} {b}"), &|| exists(&b) && !exists(&a))?;
        step(format!("remove {b}"), &|| !exists(&b))?;
        step(format!("remove {c}"), &|| !exists(&c))?;
    }
    all.sort_unstable();
    Ok(Staleness(all))
}
