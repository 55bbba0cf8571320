//! The choice of the threads that read requests: leaders read and answer, followers sleep.
//!
//! The kernel wakes the thread that has waited longest. If all threads read, successive requests go to different
//! threads, and so to the cold caches of other processors. Two clients would keep two readers awake, although one
//! reader finds the next request after each answer. So while requests are short, only some read (the pattern is
//! Leader/Followers, Schmidt et al., 2000).
//!
//! A leader seldom knows in advance that a request is slow: it may need a disk, meet a hanging driver, or remove a
//! file of gigabytes. Handing over before each such request would cost a wake-up each time. Instead a separate
//! thread, the *watch*, looks at the leaders while there are requests: each millisecond while only they read, and
//! every 25 ms while all read. All readers read in four cases:
//! - A leader has a request that the look before saw too, and sleeps in it.
//! - A leader has been at one request for five looks, asleep or not.
//! - On average over about eight looks, more than half of the busy leaders sleep. They wait for something, so more
//!   threads achieve more.
//! - A leader gets a large request, which it knows to be slow. All read at once, without the watch.
//!
//! So a slow request occasionally delays the requests behind it by one or two [`TICK`]s. When no slow request was
//! seen for [`HOLD`], surplus readers become followers after their next answer. If the watch cannot be started or
//! ends, all read.
//!
//! One mutex, a leaf, is taken twice per request. The watch and the followers sleep while there are no requests.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The interval between two looks of the watch.
const TICK: Duration = Duration::from_millis(1);
/// For this long after the last slow request all readers read.
const HOLD: Duration = Duration::from_millis(100);
/// After this many consecutive looks at the same request, it is slow although its thread did not sleep. On a busy
/// machine the thread may have waited for a processor all the time, and more threads would make that worse.
const MUCH: u32 = 4;
/// After this many consecutive looks without a request, the watch sleeps.
const QUIET: u32 = 2;
/// If more leaders than this share sleep, requests are slow; in units of [`Watch::asleep`], 256ths.
const MANY: u32 = 128;

/// See the module.
pub(crate) struct Leaders {
    /// The number of leaders while requests are short.
    few: usize,
    state: Mutex<State>,
    /// For followers: a leader's place is free.
    free: Condvar,
    /// For the watch: there are requests, or it must end.
    begun: Condvar,
}

#[derive(Default)]
struct State {
    /// Readers that are not followers.
    leading: usize,
    /// Whether any number may lead.
    all: bool,
    /// Whether a large request has come since the watch's last look.
    large: bool,
    /// Whether the watch is awake.
    watched: bool,
    closed: bool,
    /// By a number that is used once.
    readers: BTreeMap<u32, Turn>,
    next: u32,
}

/// The state of a reader.
struct Turn {
    /// The thread's id in Linux.
    thread: u32,
    /// Counts the requests.
    request: u64,
    /// Whether it is working on that request; otherwise it waits for the next.
    busy: bool,
}

/// A thread's place among the readers. Only that thread uses it.
pub(crate) struct Place<'l> {
    leaders: &'l Leaders,
    number: u32,
}

/// Ends the watch when dropped, and waits for its end.
pub(crate) struct Watching {
    leaders: Arc<Leaders>,
    thread: Option<JoinHandle<()>>,
}

/// From its drop on, all readers may lead.
struct Closing<'l>(&'l Leaders);

impl Leaders {
    /// Lets `few` readers (at least one) lead while requests are short.
    pub(crate) fn new(few: usize) -> Arc<Self> {
        let (state, free, begun) = Default::default();
        Arc::new(Self { few: few.max(1), state, free, begun })
    }

    /// Starts the watch. All lead once it has ended, or if it cannot be started.
    pub(crate) fn watch(self: &Arc<Self>) -> Watching {
        let leaders = Arc::clone(self);
        let watch = move || {
            // Also after a panic: then all lead.
            let _closing = Closing(&leaders);
            Watch::default().run(&leaders);
        };
        let thread = thread::Builder::new().name("uvfs-fuse/watch".into()).spawn(watch);
        if let Err(error) = &thread {
            tracing::warn!(%error, "cannot start the thread that looks for slow requests: all threads read");
            self.close();
        }
        Watching { leaders: Arc::clone(self), thread: thread.ok() }
    }

    /// Makes the calling thread a reader; returns when it may read.
    pub(crate) fn join(&self) -> Place<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        state.readers.insert(number, Turn { thread, request: 0, busy: false });
        // Until it leads it counts as a leader, so that its drop is right in every case.
        state.leading += 1;
        let place = Place { leaders: self, number };
        self.follow(&mut state);
        drop(state);
        place
    }

    /// Waits while there are too many leaders besides the caller, which counts as one at the start and at the end.
    fn follow(&self, state: &mut MutexGuard<'_, State>) {
        if state.all || state.leading <= self.few {
            return;
        }
        state.leading -= 1;
        while !state.all && state.leading >= self.few {
            self.free.wait(state);
        }
        state.leading += 1;
    }

    fn close(&self) {
        let mut state = self.state.lock();
        (state.closed, state.all) = (true, true);
        self.begun.notify_all();
        self.free.notify_all();
    }
}

impl Place<'_> {
    /// The reader has a request, which is known to be slow if it is `large`.
    pub(crate) fn begin(&self, large: bool) {
        let mut state = self.leaders.state.lock();
        if large {
            state.large = true;
            if !state.all {
                state.all = true;
                self.leaders.free.notify_all();
            }
        }
        if let Some(turn) = state.readers.get_mut(&self.number) {
            turn.request += 1;
            turn.busy = true;
        }
        if !state.watched {
            state.watched = true;
            self.leaders.begun.notify_one();
        }
    }

    /// The reader has finished the request; returns when it may read the next.
    pub(crate) fn end(&self) {
        let mut state = self.leaders.state.lock();
        if let Some(turn) = state.readers.get_mut(&self.number) {
            turn.busy = false;
        }
        self.leaders.follow(&mut state);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.leaders.state.lock();
        state.readers.remove(&self.number);
        state.leading -= 1;
        // The follower that takes the place finds out whether there is more to read, and passes the place on
        // likewise.
        self.leaders.free.notify_one();
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.leaders.close();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The watch's memory from look to look.
#[derive(Default)]
struct Watch {
    /// By reader: its request, and the number of consecutive earlier looks that saw it.
    seen: BTreeMap<u32, (u64, u32)>,
    /// The mean share of busy leaders that slept, in 256ths, over about the last eight looks.
    asleep: u32,
    /// Consecutive looks without a request.
    quiet: u32,
    /// When the last slow request was seen.
    slow: Option<Instant>,
    calls: Calls,
}

/// The most files of /proc that are kept open. Readers come and go while others wait for the host.
const KEPT: usize = 64;

/// For each reader, where /proc tells what it does. Kept open, because opening takes most of a look's time.
#[derive(Default)]
struct Calls(BTreeMap<u32, File>);

/// A reader that works on a request.
struct Busy {
    reader: u32,
    thread: u32,
    request: u64,
    /// The number of consecutive earlier looks that found it at the same request.
    looks: u32,
    asleep: bool,
}

impl Watch {
    fn run(mut self, leaders: &Leaders) {
        let mut state = leaders.state.lock();
        while !state.closed {
            if !state.watched {
                leaders.begun.wait(&mut state);
                continue;
            }
            // While all lead, an unseen slow request delays nobody.
            let time = if state.all { HOLD / 4 } else { TICK };
            leaders.begun.wait_for(&mut state, time);
            let mut busy = self.look(&state);
            // Threads are checked without the mutex, because a check takes as long as a request. If the time alone
            // decides, they are not checked: /proc may be slow.
            if busy.iter().all(|reader| reader.looks < MUCH) {
                let calls = &mut self.calls;
                MutexGuard::unlocked(&mut state, || {
                    busy.iter_mut().for_each(|reader| reader.asleep = calls.is_asleep(reader.thread));
                });
            }
            let slow = self.is_slow(&busy, &state);
            let slow = slow | std::mem::take(&mut state.large);
            self.decide(slow, leaders, &mut state);
        }
    }

    /// The readers that work on a request.
    fn look(&mut self, state: &State) -> Vec<Busy> {
        let before = std::mem::take(&mut self.seen);
        let mut busy = Vec::new();
        self.quiet += 1;
        for (&reader, turn) in &state.readers {
            let &Turn { thread, request, .. } = turn;
            let seen = before.get(&reader).copied();
            if turn.busy || seen.is_none_or(|seen| seen.0 != request) {
                self.quiet = 0;
            }
            let looks = seen.filter(|seen| turn.busy && seen.0 == request).map_or(0, |seen| seen.1);
            self.seen.insert(reader, (request, looks + u32::from(turn.busy)));
            if turn.busy {
                busy.push(Busy { reader, thread, request, looks, asleep: false });
            }
        }
        busy
    }

    /// Whether requests are slow. A reader of `busy` counts as asleep only if it still works on the same request. A
    /// reader that has finished may sleep because there is no other.
    fn is_slow(&mut self, busy: &[Busy], state: &State) -> bool {
        let mut slow = false;
        for one in busy {
            let same = |turn: &Turn| turn.busy && turn.request == one.request;
            let asleep = one.asleep && state.readers.get(&one.reader).is_some_and(same);
            slow |= one.looks >= MUCH || (one.looks > 0 && asleep);
            self.asleep = (self.asleep * 7 + if asleep { 256 } else { 0 }) / 8;
        }
        slow || self.asleep > MANY
    }

    fn decide(&mut self, slow: bool, leaders: &Leaders, state: &mut State) {
        let now = Instant::now();
        if slow {
            self.slow = Some(now);
        } else if self.slow.is_some_and(|then| now.duration_since(then) > HOLD) {
            self.slow = None;
        }
        let all = self.slow.is_some() || state.closed;
        if all && !state.all {
            leaders.free.notify_all();
        }
        state.all = all;
        if self.quiet >= QUIET && !all {
            state.watched = false;
            *self = Self::default();
        }
    }
}

impl Calls {
    /// Whether a thread of this process waits for something. If /proc does not tell, it counts as waiting, so all
    /// read.
    ///
    /// Only the beginning is read, in one call: this runs each millisecond.
    fn is_asleep(&mut self, thread: u32) -> bool {
        // "running" for a thread that runs or could; otherwise the system call that it is in.
        const RUNNING: [u8; 7] = *b"running";
        let mut call = [0; RUNNING.len()];
        if self.0.len() >= KEPT {
            // Some are of threads that have ended since the last look at them.
            self.0.clear();
        }
        let file = match self.0.entry(thread) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(place) => match File::open(format!("/proc/self/task/{thread}/syscall")) {
                Ok(file) => place.insert(file),
                Err(_) => return true,
            },
        };
        let read = file.read_at(&mut call, 0);
        if read.is_err() {
            // Of a thread that has ended. Its number may come again.
            self.0.remove(&thread);
        }
        read.is_err() || call != RUNNING
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// A reading thread: it sends a message when it may read, and then waits for the next order.
    struct Thread {
        orders: Sender<Order>,
        may_read: Receiver<()>,
    }

    enum Order {
        /// Begins a request.
        Begin,
        /// Begins a request with much data.
        BeginLarge,
        /// Ends the request.
        End,
    }

    fn thread(leaders: &Arc<Leaders>) -> Thread {
        let (orders, ordered) = mpsc::channel();
        let (may, may_read) = mpsc::channel();
        let leaders = Arc::clone(leaders);
        thread::spawn(move || {
            let place = leaders.join();
            may.send(()).expect("the test listens");
            while let Ok(order) = ordered.recv() {
                match order {
                    Order::Begin => place.begin(false),
                    Order::BeginLarge => place.begin(true),
                    Order::End => {
                        place.end();
                        // The test may have ended.
                        let _ = may.send(());
                    }
                }
            }
        });
        Thread { orders, may_read }
    }

    impl Thread {
        fn order(&self, order: Order) {
            self.orders.send(order).expect("the thread listens");
        }

        /// Waits until it may read.
        fn reads(&self) {
            self.may_read.recv_timeout(Duration::from_secs(60)).expect("it may read");
        }

        fn follows(&self) -> bool {
            self.may_read.try_recv().is_err()
        }
    }

    /// Waits until the state satisfies `what`.
    fn until(leaders: &Leaders, what: impl Fn(&State) -> bool) {
        let began = Instant::now();
        while !what(&leaders.state.lock()) {
            assert!(began.elapsed() < Duration::from_secs(60), "the state was not reached");
            thread::yield_now();
        }
    }

    /// A reader that leads, and one that follows.
    fn two() -> (Arc<Leaders>, Thread, Thread) {
        let leaders = Leaders::new(1);
        let one = thread(&leaders);
        one.reads();
        let other = thread(&leaders);
        until(&leaders, |state| state.readers.len() == 2 && state.leading == 1);
        (leaders, one, other)
    }

    #[test]
    fn who_follows_takes_the_place_of_who_ends() {
        let (leaders, one, other) = two();
        one.order(Order::Begin);
        one.order(Order::End);
        one.reads();
        assert!(other.follows(), "two lead");
        drop(one);
        other.reads();
        until(&leaders, |state| state.readers.len() == 1 && state.leading == 1);
    }

    #[test]
    fn all_read_while_one_sleeps_in_a_request_and_then_few_again() {
        let (leaders, one, other) = two();
        let watching = leaders.watch();
        one.order(Order::Begin);
        // It sleeps until its next order.
        other.reads();
        one.order(Order::End);
        one.reads();
        until(&leaders, |state| !state.all);
        // The first reader to end a request finds one leader too many.
        other.order(Order::Begin);
        other.order(Order::End);
        until(&leaders, |state| state.leading == 1);
        assert!(other.follows());
        // The watch sleeps too.
        until(&leaders, |state| !state.watched);
        drop(watching);
        other.reads();
    }

    /// There is no watch to notice.
    #[test]
    fn a_large_request_lets_all_read_at_once() {
        let (_leaders, one, other) = two();
        one.order(Order::BeginLarge);
        other.reads();
    }

    #[test]
    fn without_a_watch_all_read() {
        let (_leaders, _one, other) = {
            let (leaders, one, other) = two();
            drop(leaders.watch());
            (leaders, one, other)
        };
        other.reads();
    }

    /// One reader's looks at the watch: for each, whether the reader is found slow.
    fn looks(count: u32, turn: impl Fn(u32) -> (u64, bool), asleep: impl Fn(u32) -> bool) -> Vec<bool> {
        let mut watch = Watch::default();
        let look = |at| {
            let (request, busy) = turn(at);
            let readers = BTreeMap::from([(0, Turn { thread: 1, request, busy })]);
            let state = State { readers, ..State::default() };
            let mut busy = watch.look(&state);
            busy.iter_mut().for_each(|reader| reader.asleep = asleep(at));
            watch.is_slow(&busy, &state)
        };
        (0..count).map(look).collect()
    }

    #[test]
    fn a_request_is_slow_that_sleeps_at_two_looks_or_runs_for_many() {
        assert_eq!(looks(3, |_| (7, true), |_| true), [false, true, true]);
        let running = looks(MUCH + 1, |_| (7, true), |_| false);
        assert_eq!(running.iter().position(|slow| *slow), Some(MUCH as usize));
        // Each look finds another request.
        assert!(looks(100, |at| (u64::from(at), true), |_| false).iter().all(|slow| !slow));
        // One in three sleeps, as it may for a lock.
        assert!(looks(100, |at| (u64::from(at), true), |at| at % 3 == 0).iter().all(|slow| !slow));
        // All sleep, each for less than a tick.
        assert!(looks(100, |at| (u64::from(at), true), |_| true)[10..].iter().all(|slow| *slow));
        // None works on a request.
        assert!(looks(100, |_| (7, false), |_| true).iter().all(|slow| !slow));
    }

    #[test]
    fn a_thread_that_waits_is_asleep_and_one_that_runs_is_not() {
        let (told, numbers) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, until_stop) = (told.clone(), Arc::clone(&stop));
        let number = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let spins = thread::spawn(move || {
            tell.send(number()).expect("the test listens");
            while !until_stop.load(Ordering::Relaxed) {}
        });
        let spinning = numbers.recv().expect("its number");
        let sleeps = thread::spawn(move || {
            told.send(number()).expect("the test listens");
            let _ = ended.recv();
        });
        let sleeping = numbers.recv().expect("its number");
        let began = Instant::now();
        let mut calls = Calls::default();
        while !calls.is_asleep(sleeping) {
            assert!(began.elapsed() < Duration::from_secs(60), "the thread does not fall asleep");
        }
        assert!((0..100).all(|_| !calls.is_asleep(spinning)));
        stop.store(true, Ordering::Relaxed);
        drop(end);
        spins.join().expect("it ends");
        sleeps.join().expect("it ends");
        while std::fs::exists(format!("/proc/self/task/{sleeping}")).unwrap_or(false) {
            thread::yield_now();
        }
        for calls in [&mut calls, &mut Calls::default()] {
            assert!(calls.is_asleep(sleeping), "a thread that /proc does not show counts as asleep");
        }
        assert!(!calls.0.contains_key(&sleeping));
    }

    #[test]
    fn files_of_readers_that_come_and_go_do_not_pile_up() {
        let (mut calls, mut sleepers) = (Calls::default(), Vec::new());
        for _ in 0..KEPT + 10 {
            let (number, tells) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            let sleeps = thread::spawn(move || {
                number.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).expect("it is awaited");
                let _ = ended.recv();
            });
            calls.is_asleep(tells.recv().expect("its number"));
            assert!(!calls.0.is_empty() && calls.0.len() <= KEPT);
            sleepers.push((end, sleeps));
        }
        for (end, sleeps) in sleepers {
            drop(end);
            sleeps.join().expect("it ends");
        }
    }
}
