//! Waiting for memory, without a runtime's timer.
//!
//! At the limit, a request waits until the balancing thread has evicted something, or the kernel has forgotten nodes.
//! Nobody says when that is, so waiters look again every few milliseconds. While there are waiters, a thread wakes
//! them. The thread ends with the last one. The mutex is a leaf, and no waker is called with it held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest that a request waits for memory.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waker>,
    /// Moves when the waiters are woken.
    ticks: u64,
    /// The thread runs.
    ticking: bool,
}

/// The tasks that wait for memory.
#[derive(Clone, Debug, Default)]
pub struct Pauses(Arc<Mutex<State>>);

impl Pauses {
    /// A pause. If there can be no thread, there is none either.
    async fn pause(&self) {
        let begin = self.0.lock().ticks;
        std::future::poll_fn(|task| {
            let mut state = self.0.lock();
            if state.ticks != begin {
                return Poll::Ready(());
            }
            state.waiting.push(task.waker().clone());
            if !state.ticking {
                let pauses = self.clone();
                let started =
                    std::thread::Builder::new().name("uvfs-pauses".into()).spawn(move || pauses.tick());
                state.ticking = started.is_ok();
                if !state.ticking {
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        })
        .await;
    }

    fn tick(&self) {
        loop {
            std::thread::sleep(PAUSE);
            let woken = {
                let mut state = self.0.lock();
                state.ticks += 1;
                if state.waiting.is_empty() {
                    state.ticking = false;
                    return;
                }
                std::mem::take(&mut state.waiting)
            };
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

/// One request's patience.
#[derive(Debug)]
pub struct Patience<'a> {
    pauses: &'a Pauses,
    begin: Option<Instant>,
    /// The last attempt found no memory. An ENOMEM of the back end is no reason to ask it again.
    short: AtomicBool,
}

impl<'a> Patience<'a> {
    /// A request that has not waited yet.
    pub fn new(pauses: &'a Pauses) -> Self {
        Self { pauses, begin: None, short: AtomicBool::new(false) }
    }

    /// Whether the request may exceed the limit by 4% now: the balancing thread may be waiting for this very request.
    pub fn is_long(&self) -> bool {
        self.begin.is_some_and(|begin| begin.elapsed() > PATIENCE / 2)
    }

    /// An attempt found no memory.
    pub fn note_short(&self) {
        self.short.store(true, Ordering::Relaxed);
    }

    /// After an error: whether memory was short, and another attempt is due. Waits before it.
    pub async fn again(&mut self) -> bool {
        let short = std::mem::take(self.short.get_mut());
        if !short || self.begin.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return false;
        }
        self.pauses.pause().await;
        true
    }
}
