//! Looks that another file system may have to answer, each within a bound.
//!
//! A mount inside a tree, or over it, may be served by a program that does not answer (FUSE) or by a machine that is gone
//! (NFS). A system call that asks it waits without an end. So a thread of its own makes such calls, one
//! after the other, and others wait for it at most [`PATIENCE`]. While a call has no answer, no further one is made,
//! and nobody waits again. The thread ends with the last call.
//!
//! No caller holds a lock of a tree meanwhile. The mutex here is held while a call waits, so it is taken with the same bound.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// How long a file system may take for an answer. A disk that has to begin to turn takes longer, and counts as one that does not
/// answer.
const PATIENCE: Duration = Duration::from_secs(1);

type Call = Box<dyn FnOnce() + Send>;

/// See the module's head.
#[derive(Default)]
pub(super) struct Elsewhere(Mutex<State>);

#[derive(Default)]
struct State {
    calls: Option<SyncSender<Call>>,
    /// Hears when a call has ended that took too long.
    late: Option<Receiver<()>>,
}

impl State {
    /// Hands a call to the thread. False if there is none.
    fn hand(&mut self, call: Call) -> bool {
        if self.calls.is_none() {
            let (send, receive) = sync_channel::<Call>(1);
            let run = move || receive.iter().for_each(|call| call());
            let thread = thread::Builder::new().name("uvfs-elsewhere".into()).spawn(run);
            self.calls = thread.is_ok().then_some(send);
        }
        self.calls.as_ref().is_some_and(|calls| calls.send(call).is_ok())
    }
}

impl Elsewhere {
    /// The outcome of a call; nothing if it is not there in time, or if an earlier one still has no outcome.
    pub(super) fn ask<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.ask_for(PATIENCE, call)
    }

    fn ask_for<T: Send + 'static>(
        &self,
        patience: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let mut state = self.0.try_lock_for(patience)?;
        if let Some(late) = &state.late {
            if late.try_recv() == Err(TryRecvError::Empty) {
                return None;
            }
            state.late = None;
        }
        let (tell, told) = sync_channel(1);
        let (end, ended) = sync_channel(1);
        let call = Box::new(move || {
            // The asker may have gone.
            let _ = tell.send(call());
            let _ = end.send(());
        });
        if !state.hand(call) {
            return None;
        }
        match told.recv_timeout(patience) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => {
                state.late = Some(ended);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_an_answer_holds_nobody_up() {
        let elsewhere = Elsewhere::default();
        let short = Duration::from_millis(20);
        assert_eq!(elsewhere.ask(|| 1), Some(1));
        let (release, released) = sync_channel::<()>(0);
        assert_eq!(elsewhere.ask_for(short, move || released.recv()), None);
        // At once, whatever its patience.
        assert_eq!(elsewhere.ask_for(Duration::from_secs(3600), || 2), None);
        drop(release);
        while elsewhere.ask(|| 3).is_none() {
            thread::yield_now();
        }
    }

    /// A call that many make at once is made for each of them.
    #[test]
    fn calls_wait_for_one_another() {
        let elsewhere = Elsewhere::default();
        thread::scope(|scope| {
            for nth in 0..8 {
                let elsewhere = &elsewhere;
                scope.spawn(move || {
                    assert_eq!(elsewhere.ask_for(Duration::from_secs(60), move || nth), Some(nth))
                });
            }
        });
    }
}
