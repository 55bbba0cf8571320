//! Pins threads to processors.

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may run on.
///
/// # Errors
/// If the kernel does not report them, or reports none.
pub fn cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot read the processors of this process")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    ensure!(!cpus.is_empty(), "this process may run on no processor");
    Ok(cpus)
}

/// Pins this thread to one of `cpus`: thread 0 to the first, and so on, wrapping around.
///
/// # Errors
/// The error of `sched_setaffinity(2)`.
pub fn pin(cpus: &[usize], index: usize) -> Result<()> {
    ensure!(!cpus.is_empty(), "no processor to pin to");
    only(&cpus[index % cpus.len()..][..1])
}

/// Restricts this thread to these processors.
///
/// # Errors
/// The error of `sched_setaffinity(2)`.
pub fn only(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).context("cannot pin a thread to its processor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_where_it_was_put() {
        let cpus = cpus().unwrap();
        std::thread::spawn(move || {
            for i in 0..2 * cpus.len() {
                pin(&cpus, i).unwrap();
                assert_eq!(rustix::thread::sched_getcpu(), cpus[i % cpus.len()]);
            }
        })
        .join()
        .unwrap();
    }
}
