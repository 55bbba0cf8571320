//! The thread that keeps a mount's memory limit, so that requests need not.
//!
//! [`uvfs::Steps`] has the protocol: it evicts in small steps, and asks the kernel to forget leaves
//! ([`crate::limit::ask_to_forget`]). This thread sleeps between the steps. The system's own memory pressure ([`crate::limit::psi`]) lowers the limit for a while
//! ([`crate::limit::lowered_limit`]).
//!
//! One thread for each mount. It holds no lock at all, above all not across a write to the kernel, which may wait.
//! Between two steps it holds no reference to the front end. It listens for its end in every sleep, so it ends with
//! the session at once, or after the write that it is in.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use uvfs::{Next, Steps, Vfs};

use crate::frontend::Frontend;
use crate::limit::ask_to_forget::Kernel;
use crate::limit::lowered_limit::{WHOLE, Watermark};
use crate::limit::psi::{Heard, Psi, Source};
use crate::threads::eventfd::{Bell, listen};

/// A running thread; it ends when this is dropped.
pub(crate) struct Balancer {
    end: Arc<Bell>,
    watches: String,
}

impl Balancer {
    /// The watched source of the system's pressure, or why there is none.
    pub(crate) fn watches(&self) -> &str {
        &self.watches
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // Not waited for: the thread may be in a write that waits for the session's threads.
        self.end.ring();
    }
}

/// Starts the thread. `device` is the mount's, or a duplicate. `prune` says whether the kernel may be asked by
/// PRUNE.
pub(crate) fn start(device: OwnedFd, frontend: &Arc<Frontend>, prune: bool) -> io::Result<Balancer> {
    let (source, watches) = match Psi::open() {
        Ok(psi) => {
            let watches = psi.path().display().to_string();
            (Some(Box::new(psi) as Box<dyn Source>), watches)
        }
        Err(missing) => (None, format!("none ({missing})")),
    };
    let end = Arc::new(Bell::new()?);
    let work = Work::new(device, prune, frontend, Arc::clone(&end), source)?;
    thread::Builder::new().name("uvfs-balance".into()).spawn(move || work.run())?;
    Ok(Balancer { end, watches })
}

/// The state of the thread.
struct Work {
    end: Arc<Bell>,
    /// Rung when an allocation is short of memory.
    short: Arc<Bell>,
    waker: Waker,
    frontend: Weak<Frontend>,
    /// The thread may outlive the front end. It must then remove its watcher, which no longer watches.
    vfs: Weak<Vfs>,
    device: File,
    source: Option<Box<dyn Source>>,
    watermark: Watermark,
    steps: Steps,
}

/// The reason for the end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    End,
    /// The time is over, or memory runs short.
    Go,
    /// The watermark has moved, so the next action may differ.
    Moved,
}

impl Work {
    fn new(
        device: OwnedFd,
        prune: bool,
        frontend: &Arc<Frontend>,
        end: Arc<Bell>,
        source: Option<Box<dyn Source>>,
    ) -> io::Result<Self> {
        let short = Arc::new(Bell::new()?);
        let waker = Waker::from(Arc::clone(&short));
        let vfs = frontend.vfs();
        vfs.cache().watch_pressure(waker.clone());
        let (frontend, vfs) = (Arc::downgrade(frontend), Arc::downgrade(vfs));
        let (device, watermark, steps) = (File::from(device), Watermark::new(), Steps::new(prune));
        Ok(Self { end, short, waker, frontend, vfs, device, source, watermark, steps })
    }

    fn run(mut self) {
        // Events before the watcher was registered are not reported, so look once.
        let mut next = Next::Again;
        loop {
            next = match (self.sleep(next), next) {
                (Woken::End, _) => return,
                (Woken::Go, Next::Last(_)) => Next::Sleep,
                (Woken::Go | Woken::Moved, _) => match self.frontend.upgrade() {
                    Some(frontend) => self.step(&frontend),
                    None => return,
                },
            };
        }
    }

    /// Sleeps as `next` says, or until the end.
    fn sleep(&mut self, next: Next) -> Woken {
        let now = Instant::now();
        let (time, for_short) = match next {
            Next::Again => (Some(Duration::ZERO), false),
            Next::Pause(time) => (Some(time), false),
            Next::Last(time) => (Some(time), false),
            Next::Sleep => (None, true),
        };
        let until = time.map(|time| now + time);
        loop {
            let now = Instant::now();
            let left = until.map(|until| until.saturating_duration_since(now));
            let time = left.into_iter().chain(self.watermark.stays(now)).min();
            let short = if for_short { PollFlags::IN } else { PollFlags::empty() };
            let end = (self.end.as_fd(), PollFlags::IN);
            let short = (self.short.as_fd(), short);
            let heard = match &self.source {
                None => listen([end, short], time).map(|[end, short]| [end, short, PollFlags::empty()]),
                Some(source) => listen([end, short, (source.fd(), source.interest())], time),
            };
            let Ok([end, short, source]) = heard else { return Woken::End };
            if end.contains(PollFlags::IN) {
                return Woken::End;
            }
            if self.move_watermark(source) {
                return Woken::Moved;
            }
            if short.contains(PollFlags::IN) || until.is_some_and(|until| until <= Instant::now()) {
                return Woken::Go;
            }
        }
    }

    /// Moves the watermark by the system's pressure and by time. Returns whether it moved.
    fn move_watermark(&mut self, flags: PollFlags) -> bool {
        let now = Instant::now();
        let pressed = match self.source.as_mut().map_or(Heard::Nothing, |source| source.heard(flags)) {
            Heard::Nothing => false,
            Heard::Pressed => true,
            Heard::Over => {
                tracing::debug!("the system no longer reports its memory pressure");
                self.source = None;
                false
            }
        };
        if pressed {
            self.watermark.press(now);
        }
        let moved = pressed || self.watermark.pass(now);
        if moved && let Some(frontend) = self.frontend.upgrade() {
            if pressed {
                frontend.shortage().count_pressure();
            }
            frontend.vfs().cache().lower_watermarks(self.watermark.share());
        }
        moved
    }

    fn step(&mut self, frontend: &Frontend) -> Next {
        // Before the look: an allocation that runs short afterwards rings again.
        self.short.silence();
        frontend.shortage().count_step();
        let mut kernel = Kernel { device: &mut self.device, frontend };
        self.steps.step(frontend.vfs().cache(), &mut kernel)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(vfs) = self.vfs.upgrade() {
            vfs.cache().unwatch_pressure(&self.waker);
            // After this, no thread can raise the watermarks again.
            vfs.cache().lower_watermarks(WHOLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::test_frontend::Fixture;

    const MIB: u64 = 1 << 20;
    /// The time limit of a wait; the events themselves take milliseconds.
    const SOON: Duration = Duration::from_secs(60);

    /// A system whose pressure is a bell.
    struct Fake {
        bell: Arc<Bell>,
        says: Heard,
    }

    impl Source for Fake {
        fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.bell.as_fd()
        }
        fn interest(&self) -> PollFlags {
            PollFlags::IN
        }
        fn heard(&mut self, flags: PollFlags) -> Heard {
            if !flags.contains(PollFlags::IN) {
                return Heard::Nothing;
            }
            self.bell.silence();
            self.says
        }
    }

    struct Running {
        end: Arc<Bell>,
        thread: thread::JoinHandle<()>,
    }

    impl Running {
        fn start(frontend: &Arc<Frontend>, source: Option<Fake>) -> Self {
            let end = Arc::new(Bell::new().expect("an eventfd"));
            let device = std::fs::File::options().write(true).open("/dev/null").expect("/dev/null");
            let source = source.map(|source| Box::new(source) as Box<dyn Source>);
            let work =
                Work::new(device.into(), true, frontend, Arc::clone(&end), source).expect("an eventfd");
            Self { end, thread: thread::spawn(move || work.run()) }
        }

        fn end(self) {
            self.end.ring();
            self.thread.join().expect("no panic");
        }
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + SOON;
        while !holds() {
            assert!(Instant::now() < deadline, "{what} takes too long");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Looks all files up. If `forget` is set, the kernel forgets each at once. Returns how many lookups were
    /// refused.
    fn walk(fixture: &Fixture, files: usize, forget: bool) -> usize {
        let mut refused = 0;
        for file in 0..files {
            match fixture.look(file) {
                Ok(node) if forget => fixture.frontend.forget(node, 1),
                Ok(_) => {}
                Err(_) => refused += 1,
            }
        }
        refused
    }

    #[test]
    fn it_works_ahead_of_who_walks() {
        let fixture = Fixture::new();
        let cache = fixture.vfs.cache();
        cache.set_memory_limit(4 * MIB);
        let running = Running::start(&fixture.frontend, None);
        assert_eq!(walk(&fixture, 60_000, true), 0);
        until("evicting", || cache.counters().evicted_ahead > 0);
        assert!(cache.committed() <= 4 * MIB + 4 * MIB / 20);
        running.end();
    }

    /// It sleeps while there is nothing to do: however much time passes, it makes no step.
    #[test]
    fn it_sleeps_where_there_is_room() {
        let fixture = Fixture::new();
        fixture.vfs.cache().set_memory_limit(64 * MIB);
        let running = Running::start(&fixture.frontend, None);
        until("the first look", || fixture.frontend.shortage().counts().steps == 1);
        assert_eq!(walk(&fixture, 100, false), 0);
        running.end();
        assert_eq!(fixture.frontend.shortage().counts().steps, 1);
    }

    /// The kernel (/dev/null) is asked, and forgets nothing: the thread pauses, and then stops.
    #[test]
    fn it_gives_up_where_nothing_helps_and_ends_at_once() {
        let fixture = Fixture::new();
        fixture.vfs.cache().set_memory_limit(4 * MIB);
        let running = Running::start(&fixture.frontend, None);
        // Each refused lookup has waited for its second, so a few suffice.
        let mut file = 0;
        while fixture.vfs.cache().committed() < 4 * MIB - MIB / 2 {
            fixture.look(file).expect("there is room");
            file += 1;
        }
        fixture.vfs.cache().ask_memory_limit(2 * MIB);
        until("asking the kernel", || fixture.frontend.shortage().counts().pruned > 0);
        running.end();
        assert!(fixture.frontend.shortage().counts().steps < 1000);
    }

    #[test]
    fn a_lower_limit_is_reached_behind_who_asks() {
        let fixture = Fixture::new();
        let cache = fixture.vfs.cache();
        let running = Running::start(&fixture.frontend, None);
        assert_eq!(walk(&fixture, 40_000, true), 0);
        assert!(cache.committed() > 7 * MIB);
        cache.ask_memory_limit(4 * MIB);
        until("shrinking", || cache.committed() <= 4 * MIB + 4 * MIB / 64);
        running.end();
    }

    #[test]
    fn pressure_lowers_the_mark_and_its_end_is_survived() {
        let fixture = Fixture::new();
        let cache = fixture.vfs.cache();
        cache.set_memory_limit(8 * MIB);
        let bell = Arc::new(Bell::new().expect("an eventfd"));
        let source = Fake { bell: Arc::clone(&bell), says: Heard::Pressed };
        let running = Running::start(&fixture.frontend, Some(source));
        assert_eq!(walk(&fixture, 40_000, true), 0);
        for times in 1..=3 {
            bell.ring();
            until("hearing", || fixture.frontend.shortage().counts().pressed == times);
        }
        // Shares of 16, 12, 9, 7 sixteenths, unless a step up came between.
        until("lowering", || cache.counters().watermark < 6 * MIB);
        until("shrinking", || cache.committed() <= 6 * MIB);
        running.end();
        assert_eq!(cache.counters().watermark, 8 * MIB, "no thread is left to raise it again");
        let source = Fake { bell: Arc::clone(&bell), says: Heard::Over };
        let running = Running::start(&fixture.frontend, Some(source));
        bell.ring();
        cache.ask_memory_limit(4 * MIB);
        until("shrinking", || cache.committed() <= 4 * MIB + 4 * MIB / 64);
        running.end();
        assert_eq!(fixture.frontend.shortage().counts().pressed, 3);
    }

    /// The front end may end first.
    #[test]
    fn it_ends_without_a_front_end() {
        let fixture = Fixture::new();
        let running = Running::start(&fixture.frontend, None);
        until("the first look", || fixture.frontend.shortage().counts().steps == 1);
        let vfs = Arc::downgrade(&fixture.vfs);
        drop(fixture);
        until("the end of the front end", || vfs.upgrade().is_none());
        running.end();
    }
}
