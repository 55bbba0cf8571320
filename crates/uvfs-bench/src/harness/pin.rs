//! Threads and processors: a worker stays where it is put.

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may run on.
///
/// # Errors
/// Where the kernel does not say, or says none.
pub fn cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot read the processors of this process")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    ensure!(!cpus.is_empty(), "this process may run on no processor");
    Ok(cpus)
}

/// Puts this thread on one processor of `cpus`: thread 0 on the first, and so on around.
///
/// # Errors
/// What `sched_setaffinity(2)` says.
pub fn pin(cpus: &[usize], index: usize) -> Result<()> {
    ensure!(!cpus.is_empty(), "no processor to pin to");
    only(&cpus[index % cpus.len()..][..1])
}

/// Lets this thread run on these processors.
///
/// # Errors
/// What `sched_setaffinity(2)` says.
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
