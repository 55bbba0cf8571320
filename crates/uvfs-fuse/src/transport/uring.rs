//! The transport over io_uring: FUSE requests come through rings that are shared with the kernel, instead of reads
//! and writes of `/dev/fuse`.
//!
//! The kernel has a queue for each processor, and gives a request to the queue of its caller's processor. Each
//! queue is served by a thread with a ring of its own, bound to that processor. So caller and server hand over
//! without waking another processor, and one system call hands in the answer and fetches the next request. The
//! kernel uses the rings once every queue has an entry. Until then, and always for FORGET and INTERRUPT, requests
//! come by `/dev/fuse`.
//!
//! After a reply to INIT with FUSE_OVER_IO_URING, the kernel keeps all callers waiting until the rings are there.
//! So [`available`] is asked before, and a mount whose rings cannot be registered must be given up.
//!
//! Memory of an idle mount, for each processor: a thread, a ring (64 submissions of 128 bytes, 1024 completions of
//! 16), and the touched pages of 64 reserved megabytes. These are the two or three that small requests have used,
//! and 64 KiB of each entry that has moved data. No thread polls: the one that a poller would wait for must run on
//! the same processor.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::threads::affinity;
use crate::threads::thread_failure::GiveUp;
use crate::wire::reply_port::IN_HEADER;

mod ring_reply;
mod ring_thread;
mod sys;
#[cfg(test)]
mod tests;

pub(crate) use ring_reply::RingPort;
use ring_thread::Queue;

/// The kernel's switch for FUSE over io_uring; root may write to it.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Answers requests; see `wire.rs` for the parts.
pub(crate) trait Handler: Send + 'static {
    fn handle(&self, header: &[u8; IN_HEADER], op: &[u8], payload: &[u8], port: RingPort);
}

/// Whether this process may have rings with this kernel. If not, says what is missing and how to fix it.
pub(crate) fn available() -> Result<(), String> {
    match fs::read_to_string(SWITCH) {
        Ok(text) if text.starts_with(['Y', 'y', '1']) => {}
        Ok(_) => return Err(format!("FUSE over io_uring is switched off; as root: echo Y > {SWITCH}")),
        Err(_) => {
            return Err(
                "this kernel has no FUSE over io_uring (Linux 6.14 has, where it is configured)".into()
            );
        }
    }
    sys::Ring::probe().map_err(|error| {
        format!("io_uring cannot be used: {error} (see /proc/sys/kernel/io_uring_disabled; a container may forbid it)")
    })
}

/// Rings that are registered with the kernel, and not yet answered.
pub(crate) struct Rings {
    threads: Vec<JoinHandle<io::Result<()>>>,
    go: Vec<Sender<()>>,
}

impl Rings {
    /// Starts a thread for each processor. Each registers its ring with the kernel at `device`, on which INIT has
    /// been answered. Returns when all have done so. After an error the mount must be given up. Each thread gets
    /// its own handler from `handler`.
    pub(crate) fn register<H: Handler>(
        device: BorrowedFd<'_>,
        give_up: &GiveUp,
        handler: impl Fn() -> H,
    ) -> io::Result<Self> {
        let mut rings = Self { threads: Vec::new(), go: Vec::new() };
        affinity::note();
        let (ready, all_ready) = channel();
        let shares = shares(&processors("possible")?, &processors("online")?);
        let count = shares.len();
        for queues in shares {
            let (go, wait) = channel();
            let (device, handler, ready) = (device.try_clone_to_owned()?, handler(), ready.clone());
            let name = format!("uvfs-ring/{}", queues[0]);
            let give_up = give_up.clone();
            let begin = move || give_up.unless_well(|| begin(device, &queues, handler, ready, &wait));
            rings.threads.push(thread::Builder::new().name(name).spawn(begin)?);
            rings.go.push(go);
        }
        // A thread that fails early drops its sender; this sender must not keep the loop waiting.
        drop(ready);
        let mut registered = 0;
        for outcome in all_ready {
            outcome?;
            registered += 1;
        }
        if registered < count {
            return Err(io::Error::other("a thread of the rings has failed"));
        }
        Ok(rings)
    }

    /// Answers until the file system is unmounted or aborted; returns when the last thread has ended.
    pub(crate) fn run(self) -> io::Result<()> {
        for go in self.go {
            // A thread that has ended gives the reason below.
            let _ = go.send(());
        }
        let mut outcome = Ok(());
        for thread in self.threads {
            let ended =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the rings has panicked")));
            outcome = outcome.and(ended);
        }
        outcome
    }
}

/// A ring's thread. It reports that its entries are registered, and answers once it gets the go.
fn begin<H: Handler>(
    device: OwnedFd,
    queues: &[u16],
    handler: H,
    ready: Sender<io::Result<()>>,
    go: &Receiver<()>,
) -> io::Result<()> {
    let number = usize::from(queues[0]);
    if number < CpuSet::MAX_CPU {
        let mut here = CpuSet::new();
        here.set(number);
        // If that is forbidden, it works as well, with wake-ups between processors.
        if let Err(error) = sched_setaffinity(None, &here) {
            tracing::debug!(%error, number, "not bound to its processor");
        }
    }
    let queue = match Queue::new(device, queues, handler) {
        Ok(queue) => queue,
        Err(error) => {
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    let told = ready.send(Ok(()));
    drop(ready);
    if told.is_err() || go.recv().is_err() {
        return Ok(());
    }
    queue.run()
}

/// The numbers in one of the kernel's lists of processors.
fn processors(which: &str) -> io::Result<Vec<u16>> {
    let text = fs::read_to_string(format!("/sys/devices/system/cpu/{which}"))?;
    list(text.trim())
        .ok_or_else(|| io::Error::other(format!("the list of {which} processors reads {text:?}")))
}

/// `0-3,8` and the like; `None` for anything else, and for an empty list.
fn list(text: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(from.parse().ok()?..=to.parse::<u16>().ok()?);
    }
    (!numbers.is_empty()).then_some(numbers)
}

/// The queues that each thread serves: its own processor's, and a share of those of absent processors.
///
/// The kernel numbers its queues from 0 to the number of possible processors, whatever the processors' numbers.
fn shares(possible: &[u16], online: &[u16]) -> Vec<Vec<u16>> {
    let queues = 0..possible.len() as u16;
    let mut shares: Vec<Vec<u16>> = queues.clone().filter(|n| online.contains(n)).map(|n| vec![n]).collect();
    if shares.is_empty() {
        return vec![queues.collect()];
    }
    let count = shares.len();
    for (n, queue) in queues.filter(|n| !online.contains(n)).enumerate() {
        shares[n % count].push(queue);
    }
    shares
}
