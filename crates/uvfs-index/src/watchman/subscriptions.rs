//! Subscriptions of a connection, and states that clients enter and leave.
//!
//! A subscription is a query that is asked again when something has changed: once nothing has for [`SETTLE`], and at
//! the latest after [`LATEST`]. Each time it gives the changes since the last time. It waits while a state of its
//! `defer` is entered, or source control has its lock. While a state of its `drop` is entered, changes are forgotten.
//!
//! States come as events to the inbox of each connection that has subscriptions, in their order. Changes before
//! an event are sent before it.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::clocks::{self, Since};
use super::connection::Connection;
use super::query::Query;
use super::roots::Root;
use super::run::{NoAnswer, join, run, synchronise};
use super::value::Value;
use super::wire::Answer;
use crate::clock::ChangeClock;
use crate::tree::IndexPhase;

/// How long nothing changes before subscriptions are answered.
pub(super) const SETTLE: Duration = Duration::from_millis(20);
/// How long they wait at most while changes go on.
pub(super) const LATEST: Duration = Duration::from_millis(500);
/// Events that may wait for a connection; one that is further behind is cut off.
const EVENTS: usize = 1024;
/// Files that say that source control is at work.
const LOCKS: [&[u8]; 2] = [b".git/index.lock", b".hg/wlock"];

/// A state that was entered or left.
#[derive(Clone)]
pub(super) struct StateEvent {
    pub(super) root: Vec<u8>,
    pub(super) name: Vec<u8>,
    pub(super) entered: bool,
    pub(super) abandoned: bool,
    /// None if the tree is not known any more.
    pub(super) clock: Option<ChangeClock>,
    pub(super) metadata: Option<Arc<Value>>,
}

/// How a connection learns of changes and states.
pub(super) struct Inbox {
    wake: OwnedFd,
    /// Nothing once there were too many.
    events: Mutex<Option<Vec<StateEvent>>>,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wake, events: Mutex::new(Some(Vec::new())) })
    }

    /// Something has changed.
    pub(super) fn ring(&self) {
        // A full counter rings already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(super) fn put(&self, event: StateEvent) {
        let mut events = self.events.lock();
        match &mut *events {
            Some(waiting) if waiting.len() < EVENTS => waiting.push(event),
            _ => *events = None,
        }
        drop(events);
        self.ring();
    }

    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Ends the ringing.
    pub(super) fn hear(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// The events; nothing if there were too many.
    pub(super) fn take(&self) -> Option<Vec<StateEvent>> {
        self.events.lock().as_mut().map(std::mem::take)
    }
}

/// A subscription.
pub(super) struct Subscription {
    pub(super) name: Vec<u8>,
    /// The path of the root.
    pub(super) root: Vec<u8>,
    pub(super) query: Query,
    /// Up to where its client knows.
    pub(super) since: Option<Since>,
    pub(super) defer: Vec<Vec<u8>>,
    pub(super) drop: Vec<Vec<u8>>,
    pub(super) defer_vcs: bool,
    /// States of the root, as far as its client has been told.
    pub(super) states: HashSet<Vec<u8>>,
}

/// The outcome of asking a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Sent,
    Nothing,
    /// It waits for the end of something.
    Deferred,
    Dropped,
    /// Its root is not there any more, so it is none.
    Cancelled,
}

impl Subscription {
    fn drops(&self) -> bool {
        self.drop.iter().any(|state| self.states.contains(state))
    }

    fn defers(&self) -> bool {
        self.defer.iter().any(|state| self.states.contains(state))
    }

    /// The beginning of a PDU that nobody asked for.
    fn entries(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("version", super::WATCHMAN_VERSION.into()),
            ("unilateral", true.into()),
            ("subscription", self.name[..].into()),
            ("root", self.root[..].into()),
        ]
    }
}

/// Whether source control is at work in a root.
fn is_busy(root: &Root) -> bool {
    let is_there = |lock: &&[u8]| {
        let path = join(&root.below, lock);
        root.tree.look(|table, _, _| table.name_at(&path).is_some()).unwrap_or(false)
    };
    LOCKS.iter().any(is_there)
}

impl Connection<'_> {
    /// Asks all subscriptions. A cancelled one is removed.
    pub(super) fn ask_all(&mut self) -> io::Result<()> {
        let mut nth = 0;
        while nth < self.subscriptions.len() {
            nth += usize::from(self.ask(nth, false)? != Asked::Cancelled);
        }
        Ok(())
    }

    /// Asks a subscription, and sends its client the changes. `now`: even while it would wait.
    pub(super) fn ask(&mut self, nth: usize, now: bool) -> io::Result<Asked> {
        let subscription = &self.subscriptions[nth];
        if subscription.drops() {
            return Ok(Asked::Dropped);
        }
        if !now && subscription.defers() {
            return Ok(Asked::Deferred);
        }
        let root = match self.server.watched(&subscription.root, self.asker) {
            Ok(root) => root,
            Err(why) => return self.cancel(nth, why),
        };
        // A tree that is slow, or is read anew, is asked again at the next change. One that is lost stays so.
        let is_lost = |root: &Root| matches!(root.tree.figures().phase, IndexPhase::Lost(_));
        if let Err(why) = synchronise(&root, subscription.query.sync_timeout) {
            return if is_lost(&root) { self.cancel(nth, why) } else { Ok(Asked::Deferred) };
        }
        if !now && subscription.defer_vcs && is_busy(&root) {
            return Ok(Asked::Deferred);
        }
        let Some(turn) = self.turn(&root) else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let mut found = match run(&root, &subscription.query, subscription.since, self.client()) {
            Ok(found) => found,
            // It would take as much the next time.
            Err(NoAnswer::TooMuch(why)) => return self.cancel(nth, why),
            Err(NoAnswer::Unknown(why)) if is_lost(&root) => return self.cancel(nth, why),
            Err(NoAnswer::Unknown(_)) => return Ok(Asked::Deferred),
        };
        drop(turn);
        let subscription = &mut self.subscriptions[nth];
        let before = subscription.since.replace(Since::Clock(found.clock));
        if found.rows.count() == 0 && !found.fresh {
            return Ok(Asked::Nothing);
        }
        let mut entries = subscription.entries();
        if let Some(Since::Clock(clock)) = before {
            entries.push(("since", clocks::text(clock).into()));
        }
        if subscription.query.omit_changed_files {
            found.rows = found.rows.without_rows();
        }
        self.send(found.answer(entries)).map(|()| Asked::Sent)
    }

    fn cancel(&mut self, nth: usize, why: String) -> io::Result<Asked> {
        let mut entries = self.subscriptions.remove(nth).entries();
        entries.extend([("canceled", true.into()), ("warning", why.into())]);
        self.send(Answer::new(entries)).map(|()| Asked::Cancelled)
    }

    /// Tells subscriptions of states. Returns whether any must be asked.
    pub(super) fn hear_events(&mut self) -> io::Result<bool> {
        let Some(inbox) = &self.inbox else { return Ok(false) };
        let events = inbox.take().ok_or_else(|| io::Error::other("the client is too far behind"))?;
        let any = !events.is_empty();
        for event in events {
            let mut nth = 0;
            while nth < self.subscriptions.len() {
                let concerned = self.subscriptions[nth].root == event.root;
                // Earlier changes are told before the event.
                if concerned && self.ask(nth, false)? == Asked::Cancelled {
                    continue;
                }
                if concerned {
                    self.tell(nth, &event)?;
                }
                nth += 1;
            }
        }
        Ok(any)
    }

    fn tell(&mut self, nth: usize, event: &StateEvent) -> io::Result<()> {
        let subscription = &mut self.subscriptions[nth];
        let dropped = subscription.drops();
        if event.entered {
            subscription.states.insert(event.name.clone());
        } else {
            subscription.states.remove(&event.name);
        }
        if let Some(clock) = event.clock.filter(|_| dropped && !subscription.drops()) {
            subscription.since = Some(Since::Clock(clock));
        }
        let mut entries = subscription.entries();
        entries.push((if event.entered { "state-enter" } else { "state-leave" }, event.name[..].into()));
        entries.extend(event.clock.map(|clock| ("clock", clocks::text(clock).into())));
        entries.extend(event.metadata.as_deref().map(|metadata| ("metadata", metadata.clone())));
        if event.abandoned {
            entries.push(("abandoned", true.into()));
        }
        self.send(Answer::new(entries))
    }

    /// Asks the subscriptions that ask for it, at their moment. Returns how long to wait for that.
    pub(super) fn settle(&mut self) -> io::Result<Option<Duration>> {
        let Some((first, last)) = self.rung else { return Ok(None) };
        let due = (last + SETTLE).min(first + LATEST);
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return Ok(Some(wait));
        }
        self.rung = None;
        self.ask_all().map(|()| None)
    }
}
