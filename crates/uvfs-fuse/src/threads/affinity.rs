//! Undoes the binding to a processor. Ring threads are bound to one, and threads that they start inherit that.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors on which this process's threads ran before some were bound.
static ANYWHERE: OnceLock<CpuSet> = OnceLock::new();

/// Notes the processors of the calling thread, which is about to start bound threads. Later calls change nothing.
pub(crate) fn note() {
    if let Ok(now) = sched_getaffinity(None) {
        ANYWHERE.get_or_init(|| now);
    }
}

/// Undoes the binding to a processor that a thread may have inherited from its creator.
pub(crate) fn run_anywhere() {
    if let Some(anywhere) = ANYWHERE.get() {
        // This is refused if binding was refused too.
        let _ = sched_setaffinity(None, anywhere);
    }
}
