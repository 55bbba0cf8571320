//! Waking a thread that sleeps in poll(2): an eventfd for each reason.
//!
//! A bell stays rung until it is silenced, however often it was rung. If the ring comes before poll(2), poll returns
//! at once. If it comes later, it wakes the sleeper. Any thread may ring; it costs one write(2) that never waits. One
//! thread listens.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// See the module.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the listener.
    pub(crate) fn ring(&self) {
        // This fails if the count is at its maximum; the bell is rung then.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Resets the bell.
    pub(crate) fn silence(&self) {
        // This fails if the bell was not rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// Waits until one of `fds` has a requested event, for at most `time` (without it, for ever). Returns the events of
/// each; none if the time ran out or a signal came.
pub(crate) fn listen<const N: usize>(
    fds: [(BorrowedFd<'_>, PollFlags); N],
    time: Option<Duration>,
) -> io::Result<[PollFlags; N]> {
    let mut fds = fds.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
    // A time out of range means for ever.
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    match poll(&mut fds, time.as_ref()) {
        Ok(_) => Ok(fds.map(|fd| fd.revents())),
        Err(Errno::INTR) => Ok([PollFlags::empty(); N]),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(bell: &Bell, time: Option<Duration>) -> bool {
        let [heard] = listen([(bell.as_fd(), PollFlags::IN)], time).expect("poll");
        heard.contains(PollFlags::IN)
    }

    #[test]
    fn a_ring_before_the_sleep_is_heard_until_it_is_silenced() {
        let bell = Bell::new().expect("an eventfd");
        bell.silence();
        assert!(!rung(&bell, Some(Duration::ZERO)));
        bell.ring();
        bell.ring();
        assert!(rung(&bell, None) && rung(&bell, None));
        bell.silence();
        assert!(!rung(&bell, Some(Duration::ZERO)));
    }

    #[test]
    fn who_sleeps_is_woken() {
        let bell = Arc::new(Bell::new().expect("an eventfd"));
        let waker = std::task::Waker::from(Arc::clone(&bell));
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake_by_ref());
            assert!(rung(&bell, None));
        });
    }
}
