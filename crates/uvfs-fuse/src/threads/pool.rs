//! Threads for requests that may wait: as many as there are waiting requests, up to a bound.
//!
//! A reader of `/dev/fuse` calls a driver itself while another reader is left ([`readers`](crate::threads::readers)).
//! The last reader submits to this pool each request that may wait, together with its reply. A ring's thread always
//! does so. So a slow answer delays no other name while the pool has a free thread. Users and nodes have shares of the
//! threads ([`fair_shares`](crate::threads::fair_shares)); a request beyond them waits in a queue. A thread that was
//! idle for [`IDLE`] ends.
//!
//! One mutex protects queues and counts; it is held for a push or a pop, never while a job runs. A submit costs that
//! mutex and a wake-up. After the pool is dropped, idle threads end at once. Busy threads end when the queue is
//! empty. The drop waits for neither, because a driver may never answer.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::threads::fair_shares::{Share, Shares};
use crate::transport::Asked;

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// A request and what is to be done for it.
trait Job: Send {
    /// False once the request has been given up.
    fn is_wanted(&self) -> bool;
    fn run(self: Box<Self>);
}

struct Work<R, F> {
    reply: R,
    work: F,
}

impl<R: Asked, F: FnOnce(R) + Send> Job for Work<R, F> {
    fn is_wanted(&self) -> bool {
        self.reply.is_wanted()
    }
    fn run(self: Box<Self>) {
        if self.is_wanted() {
            (self.work)(self.reply);
        }
    }
}

/// An elastic pool; see the module.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// The system refuses threads.
    #[cfg(test)]
    no_threads: AtomicBool,
}

struct State {
    /// Jobs that wait for their share.
    shares: Shares<Box<dyn Job>>,
    /// Jobs that a thread is to take, no more than there may be threads.
    ready: VecDeque<(Share, Box<dyn Job>)>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// A pool of at most `max` threads, with shares; none is started yet.
    pub(crate) fn new(max: usize) -> Self {
        Self::with(Shares::new(max))
    }

    /// A pool without shares, for jobs that end soon.
    pub(crate) fn first_come(max: usize) -> Self {
        Self::with(Shares::first_come(max))
    }

    fn with(shares: Shares<Box<dyn Job>>) -> Self {
        let state = State { shares, ready: VecDeque::new(), threads: 0, idle: 0, closed: false };
        let shared = Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            #[cfg(test)]
            no_threads: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `work` on a thread of the pool, when its share allows that, unless the request has been given up by then.
    /// If no thread can be had at all it runs here: slow, but answered.
    pub(crate) fn submit<R: Asked>(&self, share: Share, reply: R, work: impl FnOnce(R) + Send + 'static) {
        let mut state = self.shared.state.lock();
        let Some(job) = state.shares.add(share, Box::new(Work { reply, work })) else { return };
        state.ready.push_back((share, job));
        let orphan = self.shared.find_thread(&mut state);
        drop(state);
        if let Some(orphan) = orphan {
            self.shared.run_here(orphan);
        }
    }

    /// Requests have been given up: their jobs leave the queue, in which they might wait for ever. Costs a look at
    /// each job there.
    pub(crate) fn remove_unwanted(&self) {
        let removed = self.shared.state.lock().shares.remove_unwanted(|job| job.is_wanted());
        // Not under the mutex.
        drop(removed);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    /// Has a thread look at what is ready: an idle one, or a new one. Returns a job if there is no thread for it.
    fn find_thread(self: &Arc<Self>, state: &mut State) -> Option<(Share, Box<dyn Job>)> {
        if state.idle >= state.ready.len() {
            self.work.notify_one();
            return None;
        }
        if state.threads >= state.shares.max() {
            return None;
        }
        match self.spawn() {
            Ok(()) => {
                state.threads += 1;
                None
            }
            Err(error) => {
                tracing::warn!(%error, "no thread for a waiting request");
                // With other threads alive one of them comes to it; without, nobody would.
                if state.threads == 0 { state.ready.pop_front() } else { None }
            }
        }
    }

    /// A job has ended: others may have their share now.
    fn end(self: &Arc<Self>, state: &mut State, share: Share) {
        state.shares.end(share);
        let mut is_first = true;
        while let Some(job) = state.shares.next() {
            state.ready.push_back(job);
            // The calling thread takes the first.
            if !std::mem::take(&mut is_first)
                && let Some(orphan) = self.find_thread(state)
            {
                state.ready.push_front(orphan);
            }
        }
    }

    /// Runs a job for which there is no thread, and those that get its share and find none either. The calling thread
    /// has other work, so it takes none that a thread can have.
    fn run_here(self: &Arc<Self>, orphan: (Share, Box<dyn Job>)) {
        let mut orphans = VecDeque::from([orphan]);
        while let Some((share, job)) = orphans.pop_front() {
            // A panic costs its own request, neither the share nor the calling thread.
            let _ = catch_unwind(AssertUnwindSafe(|| job.run()));
            let mut state = self.state.lock();
            state.shares.end(share);
            while let Some(next) = state.shares.next() {
                state.ready.push_back(next);
                orphans.extend(self.find_thread(&mut state));
            }
        }
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        #[cfg(test)]
        if self.no_threads.load(Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let shared = Arc::clone(self);
        thread::Builder::new().name("uvfs-wait".into()).spawn(move || shared.work_until_idle()).map(drop)
    }

    fn work_until_idle(self: &Arc<Self>) {
        super::affinity::run_anywhere();
        let mut state = self.state.lock();
        loop {
            if let Some((share, job)) = state.ready.pop_front() {
                drop(state);
                // A driver's panic costs its own request (whose reply, dropped, says EIO), not
                // the thread that others are counting on.
                let _ = catch_unwind(AssertUnwindSafe(|| job.run()));
                state = self.state.lock();
                self.end(&mut state, share);
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let timeout = self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            // A job may have been queued for this thread just as its time ran out: look first.
            if timeout && state.ready.is_empty() {
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
    use crate::transport::{Caller, NodeId, Purpose};

    fn share(uid: u32, node: NodeId) -> Share {
        Share::of(Purpose::Question, Caller { uid, gid: 0, pid: 1, umask: 0 }, node)
    }

    /// A request that is wanted as long as the other end is there.
    struct Request(Arc<()>);

    impl Asked for Request {
        fn is_wanted(&self) -> bool {
            Arc::strong_count(&self.0) > 1
        }
    }

    impl Asked for () {}

    /// Fails, by never ending, if a user's jobs hold threads while they wait, or hold all of them while they run.
    #[test]
    fn a_user_whose_jobs_hang_holds_up_no_other() {
        let pool = Pool::new(16);
        let (end, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let (done, answered) = mpsc::channel();
        for node in 0..1000 {
            let (hangs, done) = (Arc::clone(&hangs), done.clone());
            pool.submit(share(1, node), (), move |()| {
                let _ = hangs.lock().recv();
                done.send(1).expect("the test is waiting");
            });
        }
        for node in 0..1000 {
            let done = done.clone();
            pool.submit(share(2, node), (), move |()| done.send(2).expect("the test is waiting"));
        }
        assert!((0..1000).all(|_| answered.recv() == Ok(2)));
        drop(end);
        assert!((0..1000).all(|_| answered.recv() == Ok(1)));
    }

    #[test]
    fn a_request_that_is_given_up_leaves_the_queue() {
        let pool = Pool::new(4);
        let (end, hangs) = mpsc::channel::<()>();
        let (done, answered) = mpsc::channel();
        pool.submit(share(1, 5), (), move |()| {
            let _ = hangs.recv();
        });
        for job in 0..1000 {
            let (asker, done) = (Arc::new(()), done.clone());
            let request = Request(Arc::clone(&asker));
            let memory = Arc::downgrade(&asker);
            pool.submit(share(1, 5), request, move |_| done.send(job).expect("the test is waiting"));
            assert_eq!(memory.strong_count(), 2);
            if job == 500 {
                pool.remove_unwanted();
                std::mem::forget(asker);
                continue;
            }
            drop(asker);
            pool.remove_unwanted();
            assert_eq!(memory.strong_count(), 0, "its memory is kept");
        }
        drop((end, done));
        assert_eq!(answered.iter().collect::<Vec<_>>(), [500]);
    }

    #[test]
    fn waiting_jobs_do_not_hold_up_others() {
        let pool = Pool::new(128);
        let together = Arc::new(Barrier::new(33));
        for node in 0..32 {
            let together = Arc::clone(&together);
            // Ends only if all 32 jobs and this test are in it at once.
            pool.submit(share(1, node), (), move |()| {
                together.wait();
            });
        }
        let (done, answered) = mpsc::channel();
        pool.submit(share(1, 0), (), move |()| done.send(()).expect("the test is waiting"));
        answered.recv().expect("the 33rd job runs while 32 wait");
        together.wait();
    }

    #[test]
    fn all_jobs_run_though_the_bound_is_small() {
        let pool = Pool::new(2);
        let (done, answered) = mpsc::channel();
        for i in 0..1000 {
            let done = done.clone();
            pool.submit(share(i as u32 % 3, 0), (), move |()| done.send(i).expect("the test is waiting"));
        }
        let mut seen: Vec<i32> = (0..1000).map(|_| answered.recv().expect("a job was lost")).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1000));
        assert!(pool.shared.state.lock().threads <= 2);
    }

    /// Fails, by never ending, if a job is given its share while no thread looks for one.
    #[test]
    fn a_job_that_waited_for_one_without_a_thread_is_run() {
        for (threads_again, panics) in [(true, false), (false, false), (true, true), (false, true)] {
            // One job of a node at a time.
            let pool = Arc::new(Pool::new(8));
            let (done, answered) = mpsc::channel();
            pool.shared.no_threads.store(true, Relaxed);
            let same = Arc::clone(&pool);
            pool.submit(share(1, 5), (), move |()| {
                for job in 0..3 {
                    let done = done.clone();
                    same.submit(share(1, 5), (), move |()| done.send(job).expect("the test is waiting"));
                }
                same.shared.no_threads.store(!threads_again, Relaxed);
                assert!(!panics, "a driver panics");
            });
            assert_eq!(answered.iter().collect::<Vec<_>>(), [0, 1, 2]);
        }
    }
}
