//! Resources used by this process and its threads: processor time, memory, waits for a processor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Processor time of this process so far, system time included.
pub fn processor_time() -> Option<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    u64::try_from(micros).ok().map(Duration::from_micros)
}

/// Resident bytes of this process.
///
/// # Errors
/// If proc(5) does not report it.
pub fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let word = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_ascii_whitespace().next());
    let kib: Option<u64> = word.and_then(|word| word.parse().ok());
    Ok(kib.context("/proc/self/status has no VmRSS")? << 10)
}

/// How long one thread has waited for a processor while runnable.
pub struct RunQueue(File);

impl RunQueue {
    /// For the calling thread.
    ///
    /// # Errors
    /// If the kernel does not record it.
    pub fn of_this_thread() -> Result<Self> {
        let path = "/proc/thread-self/schedstat";
        let this = Self(File::open(path).with_context(|| format!("cannot open {path}"))?);
        this.waited().with_context(|| format!("{path} does not tell how long a thread waited"))?;
        Ok(this)
    }

    /// The wait so far; `None` if it cannot be read.
    pub fn waited(&self) -> Option<Duration> {
        let mut bytes = [0; 96];
        let len = self.0.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..len]).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_touched_is_resident() {
        let before = resident().unwrap();
        let touched = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident().unwrap();
        assert!(after > before + (48 << 20), "{before} {after}");
        drop(touched);
    }

    #[test]
    fn waits_do_not_shrink() {
        let Ok(queue) = RunQueue::of_this_thread() else {
            println!("skipped: this kernel keeps no waits for processors");
            return;
        };
        let before = queue.waited().unwrap();
        assert!(queue.waited().unwrap() >= before);
    }
}
