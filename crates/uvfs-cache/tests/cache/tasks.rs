//! A small executor for the tests of futures: a queue of tasks and a few threads. A task that is aborted is dropped
//! before its next poll, as runtimes do it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use uvfs_sync::primitives::{Condvar, Mutex};

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One task. It is in the queue at most once.
pub struct Task {
    job: Mutex<Option<Job>>,
    queued: AtomicBool,
    aborted: AtomicBool,
    queue: Weak<Queue>,
}

#[derive(Default)]
struct Queue {
    ready: Mutex<VecDeque<Arc<Task>>>,
    arrived: Condvar,
    /// Tasks that have not ended.
    live: AtomicUsize,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if let Some(queue) = self.queue.upgrade()
            && !self.queued.swap(true, Ordering::AcqRel)
        {
            queue.ready.lock().push_back(self);
            queue.arrived.notify_all();
        }
    }
}

impl Task {
    /// Drop the future, wherever it waits.
    pub fn abort(self: &Arc<Self>) {
        self.aborted.store(true, Ordering::Release);
        self.clone().wake();
    }

    fn poll(self: &Arc<Self>, queue: &Queue) {
        self.queued.store(false, Ordering::Release);
        let mut job = self.job.lock();
        let Some(future) = job.as_mut() else { return };
        let waker = Waker::from(self.clone());
        if self.aborted.load(Ordering::Acquire)
            || future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(())
        {
            *job = None;
            queue.live.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// See the module's head.
#[derive(Clone, Default)]
pub struct Executor(Arc<Queue>);

impl Executor {
    pub fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) -> Arc<Task> {
        self.0.live.fetch_add(1, Ordering::AcqRel);
        let task = Arc::new(Task {
            job: Mutex::new(Some(Box::pin(job))),
            queued: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            queue: Arc::downgrade(&self.0),
        });
        task.clone().wake();
        task
    }

    /// Poll tasks on `threads` threads until all have ended; returns how many had not by the deadline.
    pub fn run(&self, threads: usize, within: Duration) -> usize {
        let end = Instant::now() + within;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while self.0.live.load(Ordering::Acquire) != 0 && Instant::now() < end {
                        let next = {
                            let mut ready = self.0.ready.lock();
                            if ready.is_empty() {
                                ready = self.0.arrived.wait_for(ready, Duration::from_millis(5));
                            }
                            ready.pop_front()
                        };
                        if let Some(task) = next {
                            task.poll(&self.0);
                        }
                    }
                });
            }
        });
        self.0.live.load(Ordering::Acquire)
    }
}

/// Give way `times` times.
pub async fn yields(times: usize) {
    for _ in 0..times {
        let mut polled = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut polled, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}
