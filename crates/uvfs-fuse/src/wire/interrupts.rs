//! INTERRUPT: requests that wait for a driver are given up when who asked is killed.
//!
//! The kernel says so once for a request, at the first signal that its process gets, whatever that does; from then on the process
//! waits uninterruptibly. A file system on a disk does not fail a call because a timer went off, and programs do not
//! expect it of stat(2). So a request is answered EINTR only when the process is about to end, which
//! `/proc/PID/status` shows as a pending SIGKILL (any signal that ends a process is one by then). Until the driver answers,
//! a thread looks every [`LOOK`] at processes that got some signal; it exists only while there are any.
//!
//! Only requests that change nothing and that wait for a driver are here; the rest are answered soon, or have to be done. The
//! driver's call itself goes on; its answer is dropped (`reply.rs`).
//!
//! An INTERRUPT is read by another thread than its request and can overtake it: the last [`EARLY`] that nothing was known of are
//! kept. Numbers of requests are not used again, so a stale one does no harm.
//!
//! A request that comes by rings may never get its INTERRUPT ([`Port::may_lose_interrupt`]). So its caller is asked about once
//! as it begins to wait, and counts as signalled if any signal is pending: a SIGKILL before that look is seen by it, and the kernel
//! tells of one after it.
//!
//! One mutex, a leaf, held for a look at a table that only waiting requests are in.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use uvfs::Errno;

use super::reply_port::{Answer, Port};

/// How often a process that got a signal is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Interrupts of requests that are not known yet.
const EARLY: usize = 64;
/// Bit of SIGKILL in the signal sets of `/proc/PID/status`.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

/// A request that waits, and the port through which it is answered or given up, whichever comes first.
pub(super) struct Waiting<P> {
    unique: u64,
    may_lose_interrupt: bool,
    port: Mutex<Option<P>>,
}

impl<P: Port> Waiting<P> {
    pub(super) fn new(port: P, unique: u64) -> Self {
        Self { unique, may_lose_interrupt: port.may_lose_interrupt(), port: Mutex::new(Some(port)) }
    }

    /// Whether it has been neither answered nor given up.
    pub(super) fn is_there(&self) -> bool {
        self.port.lock().is_some()
    }

    /// The port, to the first who asks.
    pub(super) fn take(&self) -> Option<P> {
        self.port.lock().take()
    }
}

trait GiveUp: Send + Sync {
    fn give_up(&self);
}

impl<P: Port> GiveUp for Waiting<P> {
    fn give_up(&self) {
        let port = self.take();
        if let Some(port) = port {
            port.send(self.unique, Answer::Error(Errno::INTR));
        }
    }
}

struct Request {
    pid: u32,
    signalled: bool,
    waiting: Arc<dyn GiveUp>,
}

#[derive(Default)]
struct Table {
    requests: HashMap<u64, Request>,
    early: VecDeque<u64>,
    /// The thread that looks exists.
    watched: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Interrupts {
    table: Mutex<Table>,
    /// Called when requests have been given up.
    given_up: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Interrupts {
    pub(super) fn new(given_up: impl Fn() + Send + Sync + 'static) -> Self {
        Self { table: Mutex::default(), given_up: Some(Box::new(given_up)) }
    }

    /// The request `unique` of process `pid` waits from now on.
    pub(super) fn begin(self: &Arc<Self>, unique: u64, pid: u32, waiting: Arc<Waiting<impl Port>>) {
        self.begin_with(unique, pid, waiting, pending_for);
    }

    fn begin_with(
        self: &Arc<Self>,
        unique: u64,
        pid: u32,
        waiting: Arc<Waiting<impl Port>>,
        pending: impl FnOnce(u32) -> u64,
    ) {
        // Not under the lock: it reads a file.
        let untold = waiting.may_lose_interrupt && pending(pid) != 0;
        let mut table = self.table.lock();
        let early = table.early.iter().position(|it| *it == unique);
        if let Some(at) = early {
            table.early.remove(at);
        }
        let signalled = untold || early.is_some();
        table.requests.insert(unique, Request { pid, signalled, waiting });
        if signalled {
            self.watch(&mut table);
        }
    }

    /// It is answered.
    pub(super) fn end(&self, unique: u64) {
        self.table.lock().requests.remove(&unique);
    }

    /// The kernel says that the caller of the request `unique` got a signal.
    pub(super) fn interrupt(self: &Arc<Self>, unique: u64) {
        let mut table = self.table.lock();
        if let Some(request) = table.requests.get_mut(&unique) {
            request.signalled = true;
            self.watch(&mut table);
        } else {
            if table.early.len() >= EARLY {
                table.early.pop_front();
            }
            table.early.push_back(unique);
        }
    }

    fn watch(self: &Arc<Self>, table: &mut Table) {
        if table.watched {
            return;
        }
        let this = Arc::downgrade(self);
        let spawned = thread::Builder::new().name("uvfs-signals".into()).spawn(move || watch(&this));
        table.watched = spawned.is_ok();
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread to look after interrupted requests: they wait for their drivers");
        }
    }

    /// As if the process of one request had been killed.
    #[cfg(test)]
    pub(super) fn end_with_eintr(&self, unique: u64) {
        let request = self.table.lock().requests.remove(&unique);
        request.expect("it waits").waiting.give_up();
        self.given_up.iter().for_each(|given_up| given_up());
    }

    /// Gives up what `is_killed` says; false, and the caller is not counted on any more, if nothing is left to look at.
    fn sweep(&self, is_killed: impl Fn(u32) -> bool) -> bool {
        let signalled: Vec<(u64, u32)> = {
            let mut table = self.table.lock();
            let signalled = table.requests.iter().filter(|(_, request)| request.signalled);
            let signalled: Vec<_> = signalled.map(|(unique, request)| (*unique, request.pid)).collect();
            table.watched = !signalled.is_empty();
            signalled
        };
        let mut any = false;
        for (unique, pid) in &signalled {
            if is_killed(*pid) {
                let request = self.table.lock().requests.remove(unique);
                if let Some(request) = request {
                    request.waiting.give_up();
                    any = true;
                }
            }
        }
        if any && let Some(given_up) = &self.given_up {
            given_up();
        }
        !signalled.is_empty()
    }
}

fn watch(interrupts: &Weak<Interrupts>) {
    while interrupts.upgrade().is_some_and(|interrupts| interrupts.sweep(is_killed)) {
        thread::sleep(LOOK);
    }
}

/// Whether a thread is about to end.
fn is_killed(pid: u32) -> bool {
    pending_for(pid) & KILLED != 0
}

/// Signals that are pending for a thread, and for its process. One that is not in our process namespace (0) is not known, and
/// one that is gone asks for nothing.
fn pending_for(pid: u32) -> u64 {
    if pid == 0 {
        return 0;
    }
    pending(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
}

/// The two sets of pending signals in such a file, as one.
fn pending(status: &str) -> u64 {
    let sets = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    sets.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).fold(0, |all, set| all | set)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Line(mpsc::Sender<(u64, Errno)>);

    /// As [`Line`], by rings.
    struct Ring;

    impl Port for Ring {
        fn room(&mut self, _: usize) -> &mut [u8] {
            &mut []
        }
        fn send(self, _: u64, _: Answer<'_>) {}
        fn may_lose_interrupt(&self) -> bool {
            true
        }
    }

    impl Port for Line {
        fn room(&mut self, _: usize) -> &mut [u8] {
            &mut []
        }
        fn send(self, unique: u64, answer: Answer<'_>) {
            if let Answer::Error(error) = answer {
                self.0.send((unique, error)).expect("the test listens");
            }
        }
    }

    #[test]
    fn only_the_killed_are_given_up() {
        let interrupts = Arc::<Interrupts>::default();
        // As if the thread were there: this test looks itself.
        interrupts.table.lock().watched = true;
        let (sender, given_up) = mpsc::channel();
        let wait = |unique, pid| {
            let waiting = Arc::new(Waiting::new(Line(sender.clone()), unique));
            interrupts.begin(unique, pid, Arc::clone(&waiting));
            waiting
        };
        let calm = wait(10, 1);
        let timer = wait(11, 2);
        let killed = wait(12, 3);
        interrupts.interrupt(11);
        interrupts.interrupt(12);
        assert!(interrupts.sweep(|pid| pid == 3));
        assert_eq!(given_up.try_recv(), Ok((12, Errno::INTR)));
        assert!(killed.take().is_none() && calm.take().is_some());
        // The driver answers the other one, and nothing is left to look at.
        interrupts.end(11);
        assert!(timer.take().is_some());
        assert!(!interrupts.sweep(|_| true));
        assert!(given_up.try_recv().is_err() && !interrupts.table.lock().watched);
    }

    #[test]
    fn an_interrupt_may_overtake_its_request() {
        let interrupts = Arc::<Interrupts>::default();
        interrupts.table.lock().watched = true;
        for unique in 0..1000 {
            interrupts.interrupt(unique);
        }
        assert_eq!(interrupts.table.lock().early.len(), EARLY);
        let (sender, given_up) = mpsc::channel();
        let late = Arc::new(Waiting::new(Line(sender), 999));
        interrupts.begin(999, 7, Arc::clone(&late));
        assert!(interrupts.sweep(|pid| pid == 7));
        assert_eq!(given_up.try_recv(), Ok((999, Errno::INTR)));
    }

    #[test]
    fn a_signal_before_a_request_by_rings_needs_no_interrupt() {
        let interrupts = Arc::<Interrupts>::default();
        interrupts.table.lock().watched = true;
        let (sender, _given_up) = mpsc::channel();
        let pending = |pid| if pid == 1 { 1 << 9 } else { 0 };
        interrupts.begin_with(10, 1, Arc::new(Waiting::new(Ring, 10)), pending);
        interrupts.begin_with(11, 2, Arc::new(Waiting::new(Ring, 11)), pending);
        // The kernel tells of every request that is read from the device.
        interrupts
            .begin_with(12, 1, Arc::new(Waiting::new(Line(sender), 12)), |_| unreachable!("nobody asks"));
        let signalled = |unique: u64| interrupts.table.lock().requests[&unique].signalled;
        assert_eq!([10, 11, 12].map(signalled), [true, false, false]);
    }

    #[test]
    fn pending_signals_are_read() {
        let status =
            "Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000002\nSigBlk:\tffffffffffffffff\n";
        assert_eq!(pending(status), 0x102);
        assert_eq!(pending(status) & KILLED, KILLED);
        assert_eq!(pending(""), 0);
    }
}
