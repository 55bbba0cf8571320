//! Active references behind one lock.

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    activated: bool,
    ended: bool,
    inside: usize,
}

/// A node's active references.
#[derive(Debug, Default)]
pub struct ActiveRef {
    state: Mutex<State>,
    out: Condvar,
}

/// One of them.
#[derive(Debug)]
pub struct Active<'a>(&'a ActiveRef);

impl ActiveRef {
    /// Hidden.
    pub fn new() -> Self {
        Self::default()
    }
    /// References can be had from now on.
    pub fn activate(&self) {
        self.state.lock().activated = true;
    }
    /// Whether one can be had.
    pub fn is_active(&self) -> bool {
        let state = self.state.lock();
        state.activated && !state.ended
    }
    /// A reference, if it is active.
    pub fn get(&self) -> Option<Active<'_>> {
        let mut state = self.state.lock();
        if !state.activated || state.ended {
            return None;
        }
        state.inside += 1;
        Some(Active(self))
    }
    /// None can be had any more; true for the call that did it.
    pub fn deactivate(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().ended, true)
    }
    /// Returns when nobody has one.
    pub fn drain(&self) {
        let mut state = self.state.lock();
        while state.inside != 0 {
            self.out.wait(&mut state);
        }
    }
    fn leave(&self) {
        self.state.lock().inside -= 1;
        self.out.notify_all();
    }
}

impl Active<'_> {
    /// Not waited for any more.
    pub fn break_protection(&self) {
        self.0.leave();
    }
    /// Waited for again.
    pub fn unbreak(&self) {
        self.0.state.lock().inside += 1;
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
