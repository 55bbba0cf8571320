//! Threads for requests that may wait: as many as there are waiting requests, up to a bound.
//!
//! A thread that reads requests waits for a driver only while another one reads on ([`readers`](crate::readers)), and one that
//! has a ring never does; otherwise they hand such a request over here together with its reply. So a slow answer delays no other name, until `max`
//! requests wait at once; later ones then queue. A thread that was idle for [`IDLE`] ends.
//!
//! One mutex protects queue and counts; it is held for a push or a pop, never while a job runs.
//! A submit costs that mutex and a wake-up. Dropping the pool ends idle threads at once and busy
//! ones after their job; it waits for neither, because a driver may never answer.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// An elastic pool; see the module.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    max: usize,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// A pool of at most `max` threads; none is started yet.
    pub(crate) fn new(max: usize) -> Self {
        let shared = Shared { state: Mutex::new(State::default()), work: Condvar::new() };
        Self { shared: Arc::new(shared), max: max.max(1) }
    }

    /// Runs `job` on a thread of the pool. Where no thread can be had at all it runs here: slow,
    /// but answered.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.queue.push_back(Box::new(job));
        if state.idle >= state.queue.len() {
            self.shared.work.notify_one();
            return;
        }
        if state.threads >= self.max {
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let spawned = thread::Builder::new().name("uvfs-wait".into()).spawn(move || shared.work_until_idle());
        if let Err(error) = spawned {
            let mut state = self.shared.state.lock();
            state.threads -= 1;
            // With other threads alive one of them comes to it; without, nobody would.
            let orphan = if state.threads == 0 { state.queue.pop_front() } else { None };
            drop(state);
            tracing::warn!(%error, "no thread for a waiting request");
            if let Some(job) = orphan {
                job();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn work_until_idle(&self) {
        crate::uring::run_anywhere();
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                // A driver's panic costs its own request (whose reply, dropped, says EIO), not
                // the thread that others are counting on.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let timeout = self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            // A job may have been queued for this thread just as its time ran out: look first.
            if timeout && state.queue.is_empty() {
                break;
            }
        }
        // Under the same lock as the last look at the queue: a submit that comes first is seen by
        // that look, one that comes after no longer counts on this thread.
        state.threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn waiting_jobs_do_not_hold_up_others() {
        let pool = Pool::new(64);
        let together = Arc::new(Barrier::new(33));
        for _ in 0..32 {
            let together = Arc::clone(&together);
            // Ends only if all 32 jobs and this test are in it at once.
            pool.submit(move || {
                together.wait();
            });
        }
        let (done, answered) = mpsc::channel();
        pool.submit(move || done.send(()).expect("the test is waiting"));
        answered.recv().expect("the 33rd job runs while 32 wait");
        together.wait();
    }

    #[test]
    fn all_jobs_run_though_the_bound_is_small() {
        let pool = Pool::new(2);
        let (done, answered) = mpsc::channel();
        for i in 0..1000 {
            let done = done.clone();
            pool.submit(move || done.send(i).expect("the test is waiting"));
        }
        let mut seen: Vec<i32> = (0..1000).map(|_| answered.recv().expect("a job was lost")).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1000));
        assert!(pool.shared.state.lock().threads <= 2);
    }
}
