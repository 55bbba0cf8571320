//! Notifying the kernel of changes that it did not make: a queue, and the threads that empty it.
//!
//! [`Outbox::push`] does not wait. One thread, which holds no lock, sends the messages one by one. It puts some off, as
//! said below; the others keep their order. To invalidate a name, the kernel takes the directory's lock, and a lookup
//! in that directory holds the lock until the server has answered. While the server's write to the kernel waits for
//! that lock, all other lookups in the directory wait too. So while a request about a node waits for a driver or memory
//! (`threads/waiting_by_node.rs`), messages about its names or content are put off. If no request has waited for 2 ms,
//! a message is put off four times at most.
//!
//! A second thread checks every few milliseconds, while messages are queued, whether one has waited for [`PATIENCE`].
//! It then sends the messages that never wait: all names must be asked for again (INC_EPOCH), and so must the
//! attributes of the waiting nodes. The waiting messages are still sent later. But answers that were already on their
//! way, and may be old, come before these messages.
//!
//! **A node that the kernel does not know**, although it was handed out, is in a reply on its way, perhaps with old
//! attributes. The message is sent again after pauses of up to 100 ms, while the node counts as handed out. A node's
//! attributes are given up after a minute.
//!
//! **A name that the kernel asks for again**, because its TTL was over, gets its new TTL without the directory's lock.
//! That may happen after the notification that the name leads elsewhere (`frontend/revalidation.rs`). If such an answer
//! was given in the last second ([`LATE`]), the name is sent again a second later; [`Outbox::settle`] does not wait for
//! that. If the name was not a directory's and leads nowhere, the kernel is told at once to drop it. So such a name is
//! wrong for a second at most, unless the process that looked it up stores the answer later. If there are many names to
//! send again ([`ECHOES`]), the kernel must ask for all names again instead.
//!
//! **Too many messages.** If more than [`ROOM`] messages wait, all are dropped, and the steps below follow for each of
//! their superblocks. They follow for one superblock if anything in it may have changed. First, the kernel must ask for
//! all names again. Then the first thread tells the kernel, for each node that it holds of the superblock, to drop
//! attributes and content. (For a directory, first a name that it cannot have is invalidated, to wait for the requests
//! in it.) Then the kernel must ask for all names again once more. If this pass is not done after [`PATIENCE`], the
//! second thread sends the messages that never wait, for each of these nodes.
//!
//! The mutex protects the state, is a leaf, and is never held across a write. The threads start with [`Outbox::start`]
//! or the first message, and end with the [`Outbox`]. They hold the device open. While it is open, a mount does not
//! end, even if its session has broken. So the thread that ends a session must close the outbox.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uvfs::{Errno, SbId};

use crate::threads::waiting_by_node::Wait;
use crate::transport::NodeId;
use messages::Message;

pub(crate) mod messages;

/// Notifications of changes that were made behind the kernel; see [`Mounted::notices`](crate::Mounted::notices).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// Names that may lead elsewhere.
    pub names: u64,
    /// Nodes whose attributes or content may be others.
    pub nodes: u64,
    /// Times that all names had to be asked for again at once, because it could not be told of one in time.
    pub epochs: u64,
    /// Times that everything that it holds was gone through.
    pub all: u64,
}

/// How long a message may wait before the kernel must ask for all names again.
const PATIENCE: Duration = Duration::from_millis(20);
/// The interval of that check while messages are queued.
const TICK: Duration = Duration::from_millis(5);
/// The maximum number of waiting messages, including those put off.
const ROOM: usize = 8192;
/// The first pause before a message that was put off is sent, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// How often a node is named that the kernel never gets to know: for a minute.
const TIMES_MAX: u32 = 600;
/// How often a message is put off for requests that have just come.
const MOMENTS: u32 = 4;
/// The time between two passes over all nodes.
const REST: Duration = Duration::from_millis(50);
/// The time that the kernel may take from getting an answer to storing it.
pub(crate) const LATE: Duration = Duration::from_secs(1);
/// The maximum number of names that wait to be sent again.
const ECHOES: usize = 1024;
/// A name that no directory has.
const NO_NAME: &[u8] = b".";

/// The receiver of messages.
pub(crate) trait Kernel: Send + Sync + 'static {
    /// Sends it; may take long.
    fn tell(&self, message: &Message<'_>) -> io::Result<()>;
}

/// The nodes that the kernel holds, as far as the server knows.
pub(crate) trait Nodes: Send + Sync + 'static {
    /// Whether requests about a node wait for a driver.
    fn waits(&self, node: NodeId) -> Wait;
    /// Whether the kernel holds the node, or is about to.
    fn is_held(&self, node: NodeId) -> bool;
    /// The possible effect of an answer about a name that the kernel had, now that the name leads elsewhere.
    fn late(&self, dir: NodeId, name: &[u8]) -> Late;
    /// Some of the nodes of a superblock that the kernel holds, and whether they are directories; and where to
    /// continue.
    fn held(&self, sb: SbId, from: u32) -> (Vec<(NodeId, bool)>, Option<u32>);
}

/// The possible effect of an answer that the kernel stores late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// There was no such answer.
    Nothing,
    /// A name that leads to its old node.
    Name,
    /// A non-directory's name that leads nowhere now.
    Dead,
}

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A name, and its directory's attributes and entries.
    Name { dir: NodeId, name: Box<[u8]> },
    /// Attributes, and with `content` also the content.
    Node { node: NodeId, content: bool },
}

impl Notice {
    /// The node whose attributes it concerns.
    fn node(&self) -> NodeId {
        match *self {
            Self::Name { dir: node, .. } | Self::Node { node, .. } => node,
        }
    }
}

struct Queued {
    number: u64,
    /// The least number of messages, counted from 1, for which a settler also waits for this one. 0 for a part of
    /// everything.
    settles: u64,
    since: Instant,
    sb: SbId,
    notice: Notice,
    /// How often it was put off.
    times: u32,
    /// Whether it was sent before.
    echo: bool,
}

impl Queued {
    fn about(&self) -> About {
        let Self { number, settles, since, .. } = *self;
        About { number, settles, since, node: self.notice.node() }
    }
}

/// The relevant facts about a message.
#[derive(Clone, Copy)]
struct About {
    number: u64,
    settles: u64,
    since: Instant,
    node: NodeId,
}

#[derive(Default)]
struct State {
    /// The receiver; `None` once the outbox is closed.
    kernel: Option<Arc<dyn Kernel>>,
    /// Whether the first and the second thread run.
    running: (bool, bool),
    queue: VecDeque<Queued>,
    /// Number of the next message.
    next: u64,
    /// The message being sent.
    saying: Option<About>,
    /// Every message below this number has been sent, or covered by an epoch.
    covered: u64,
    /// Superblocks to go through entirely; since when, if that is not covered; and the earliest time of the next
    /// pass.
    all: Vec<SbId>,
    all_since: Option<Instant>,
    not_before: Option<Instant>,
    /// Superblocks being gone through, and since when that waits, if it is not covered.
    going: Vec<SbId>,
    going_since: Option<Instant>,
    /// Messages that were put off, by the time of the next attempt and by number.
    again: BTreeMap<(Instant, u64), Queued>,
    /// Names to send again, and when.
    echoes: VecDeque<(Instant, SbId, Notice)>,
    /// Whether the second thread is checking by itself.
    ticking: bool,
    closed: bool,
}

impl State {
    /// Whether a message may have to be covered if it waits for too long.
    fn is_uncovered(&self) -> bool {
        self.covered != self.next || self.all_since.is_some() || self.going_since.is_some()
    }

    fn queued(&self) -> impl Iterator<Item = &Queued> {
        self.queue.iter().chain(self.again.values())
    }

    /// Whether any message below a number has not been sent.
    fn has_to_say(&self, upto: u64) -> bool {
        let waits = self.queued().map(Queued::about).chain(self.saying).any(|about| about.settles <= upto);
        waits || !self.all.is_empty() || !self.going.is_empty()
    }

    fn add(&mut self, sb: SbId, notice: Notice, now: Instant) {
        let number = self.next;
        self.next += 1;
        self.queue.push_back(Queued {
            number,
            settles: number + 1,
            since: now,
            sb,
            notice,
            times: 0,
            echo: false,
        });
    }

    /// Queues the names that are due to be sent again; returns whether there are any.
    fn echo(&mut self, now: Instant) -> bool {
        let due = self.echoes.partition_point(|(due, ..)| *due <= now);
        for (_, sb, notice) in self.echoes.drain(..due).collect::<Vec<_>>() {
            self.add(sb, notice, now);
            self.queue.back_mut().into_iter().for_each(|queued| queued.echo = true);
        }
        due != 0
    }

    /// Marks a superblock to be gone through entirely; its queued messages become part of that.
    fn everything(&mut self, sb: SbId, now: Instant) {
        self.queue.retain(|queued| queued.sb != sb);
        self.again.retain(|_, queued| queued.sb != sb);
        self.echoes.retain(|(_, of, _)| *of != sb);
        if !self.all.contains(&sb) {
            self.all.push(sb);
        }
        self.all_since.get_or_insert(now);
    }

    /// The overdue messages that are not covered yet: nodes whose attributes must be asked for again, and
    /// superblocks with all their nodes. They count as covered from now on.
    fn overdue(&mut self, now: Instant) -> Option<(Vec<NodeId>, Vec<SbId>)> {
        let late = |since: Instant| now.saturating_duration_since(since) >= PATIENCE;
        let uncovered = || {
            let queued = self.queued().map(Queued::about);
            queued.chain(self.saying).filter(|about| about.number >= self.covered)
        };
        let waits = uncovered().any(|about| late(about.since));
        let (all, going) = (self.all_since.is_some_and(late), self.going_since.is_some_and(late));
        if !waits && !all && !going {
            if uncovered().next().is_none() {
                self.covered = self.next;
            }
            return None;
        }
        let nodes = uncovered().map(|about| about.node).collect();
        self.covered = self.next;
        let mut sbs = Vec::new();
        // Each once; the first thread gets to the others, or is at it.
        if all {
            self.all_since = None;
            sbs.extend_from_slice(&self.all);
        }
        if going {
            self.going_since = None;
            sbs.extend_from_slice(&self.going);
        }
        Some((nodes, sbs))
    }
}

#[derive(Default)]
struct Counts {
    names: AtomicU64,
    nodes: AtomicU64,
    epochs: AtomicU64,
    all: AtomicU64,
}

struct Shared {
    nodes: Box<dyn Nodes>,
    state: Mutex<State>,
    /// There is a message to send.
    work: Condvar,
    /// There is something to check.
    tick: Condvar,
    /// A message was sent, or the outbox is closed.
    said: Condvar,
    counts: Counts,
}

/// The next task of the first thread.
enum Job {
    One(Queued),
    All(Vec<SbId>),
}

/// The queue of messages; dropping it closes it.
pub(crate) struct Outbox(Arc<Shared>);

impl Drop for Outbox {
    fn drop(&mut self) {
        self.close();
    }
}

impl Outbox {
    /// No thread runs before the first message, or [`Outbox::start`].
    pub(crate) fn new(kernel: Arc<dyn Kernel>, nodes: Box<dyn Nodes>) -> Self {
        Self(Arc::new(Shared {
            nodes,
            state: Mutex::new(State { kernel: Some(kernel), ..State::default() }),
            work: Condvar::new(),
            tick: Condvar::new(),
            said: Condvar::new(),
            counts: Counts::default(),
        }))
    }

    /// Starts those threads that do not run yet.
    pub(crate) fn start(&self) -> io::Result<()> {
        self.start_locked(&mut self.0.state.lock())
    }

    fn start_locked(&self, state: &mut State) -> io::Result<()> {
        let Some(kernel) = state.kernel.clone().filter(|_| state.running != (true, true)) else {
            return Ok(());
        };
        let teller = || Teller { shared: Arc::clone(&self.0), kernel: Arc::clone(&kernel) };
        let (first, second) = (teller(), teller());
        if !state.running.0 {
            thread::Builder::new().name("uvfs-notify".into()).spawn(move || first.run())?;
            state.running.0 = true;
        }
        if !state.running.1 {
            thread::Builder::new().name("uvfs-overdue".into()).spawn(move || second.look())?;
            state.running.1 = true;
        }
        Ok(())
    }

    /// Ends the threads, and releases the receiver. A message being sent is finished; no other is sent.
    pub(crate) fn close(&self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        state.queue.clear();
        state.again.clear();
        state.echoes.clear();
        let _kernel = state.kernel.take();
        drop(state);
        self.0.work.notify_all();
        self.0.tick.notify_all();
        self.0.said.notify_all();
    }

    /// Waits until all messages pushed before have been sent, for at most `time`; returns whether they have. A
    /// second sending may come later.
    pub(crate) fn settle(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut state = self.0.state.lock();
        let upto = state.next;
        while !state.closed && state.has_to_say(upto) {
            if self.0.said.wait_until(&mut state, deadline).timed_out() {
                return state.closed || !state.has_to_say(upto);
            }
        }
        true
    }

    /// Sends a message in this thread, before the server answers the request that caused it. Not for messages that
    /// wait for other requests.
    pub(crate) fn say(&self, message: &Message<'_>) {
        let kernel = self.0.state.lock().kernel.clone();
        if let Some(Err(error)) = kernel.map(|kernel| kernel.tell(message)) {
            tracing::debug!(%error, ?message, "the kernel did not accept the notification");
        }
    }

    /// Queues a message about a superblock.
    pub(crate) fn push(&self, sb: SbId, notice: Notice) {
        self.put(|state, now| {
            if state.all.contains(&sb) && state.all_since.is_some() {
                // A message that comes before its superblock is gone through is part of that.
            } else if state.queue.len() + state.again.len() < ROOM {
                state.add(sb, notice, now);
            } else {
                let mut sbs: Vec<SbId> = state.queued().map(|queued| queued.sb).chain([sb]).collect();
                sbs.dedup();
                sbs.into_iter().for_each(|sb| state.everything(sb, now));
            }
        });
    }

    /// Queues a notification that anything in a superblock may have changed.
    pub(crate) fn push_all(&self, sb: SbId) {
        self.put(|state, now| state.everything(sb, now));
    }

    fn put(&self, put: impl FnOnce(&mut State, Instant)) {
        let now = Instant::now();
        let mut state = self.0.state.lock();
        if state.closed {
            return;
        }
        put(&mut state, now);
        if let Err(error) = self.start_locked(&mut state) {
            tracing::error!(%error, "cannot start the thread that notifies the kernel of changes; the next change tries again");
        }
        let ticking = state.ticking;
        drop(state);
        self.0.work.notify_one();
        if !ticking {
            self.0.tick.notify_one();
        }
    }

    pub(crate) fn notices(&self) -> Notices {
        let counts = &self.0.counts;
        let [names, nodes, epochs, all] =
            [&counts.names, &counts.nodes, &counts.epochs, &counts.all].map(|count| count.load(Relaxed));
        Notices { names, nodes, epochs, all }
    }
}

impl Shared {
    fn put_off(&self, mut queued: Queued) {
        queued.times += 1;
        let pause = PAUSES.1.min(PAUSES.0 * (1 << queued.times.min(16) >> 1));
        if queued.times > TIMES_MAX && matches!(queued.notice, Notice::Node { .. }) {
            return;
        }
        self.state.lock().again.insert((Instant::now() + pause, queued.number), queued);
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        state.saying = None;
        state.going.clear();
        state.going_since = None;
        self.said.notify_all();
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            if state.echo(now) && !state.ticking {
                self.tick.notify_one();
            }
            let rested = state.not_before.is_none_or(|at| at <= now);
            if !state.all.is_empty() && rested {
                state.not_before = Some(now + REST);
                state.going = std::mem::take(&mut state.all);
                state.going_since = state.all_since.take();
                return Some(Job::All(state.going.clone()));
            }
            let due = state.again.first_key_value().map(|(&(due, _), _)| due);
            let queued = match due {
                Some(due) if due <= now => state.again.pop_first().map(|(_, queued)| queued),
                _ => state.queue.pop_front(),
            };
            if let Some(queued) = queued {
                state.saying = Some(queued.about());
                return Some(Job::One(queued));
            }
            let echo = state.echoes.front().map(|&(due, ..)| due);
            let rested = state.not_before.filter(|_| !state.all.is_empty());
            let until = [due, echo, rested].into_iter().flatten().min();
            match until {
                Some(until) => drop(self.work.wait_until(&mut state, until)),
                None => self.work.wait(&mut state),
            }
        }
    }

    /// Has a name sent again; false if there are too many.
    fn again(&self, sb: SbId, notice: Notice) -> bool {
        let mut state = self.state.lock();
        // The message just sent was that name's second one.
        state.echoes.retain(|(.., other)| *other != notice);
        let fits = state.echoes.len() < ECHOES;
        if fits && !state.closed {
            state.echoes.push_back((Instant::now() + LATE, sb, notice));
        }
        fits
    }

    /// Queues a part of everything as a message of its own.
    fn later(&self, sb: SbId, notice: Notice) {
        let mut state = self.state.lock();
        state.add(sb, notice, Instant::now());
        // A waiter for everything waits for this too, whatever its number.
        state.queue.back_mut().into_iter().for_each(|queued| queued.settles = 0);
        if !state.ticking {
            self.tick.notify_one();
        }
    }
}

/// The state of each thread. The kernel goes with them, so that the mount ends when they do.
struct Teller {
    shared: Arc<Shared>,
    kernel: Arc<dyn Kernel>,
}

impl Teller {
    /// The main loop of the first thread.
    fn run(&self) {
        while let Some(job) = self.shared.next() {
            match job {
                Job::One(queued) => {
                    if !self.one(&queued) {
                        self.shared.put_off(queued);
                    }
                }
                Job::All(all) => all.into_iter().for_each(|sb| self.everything(sb)),
            }
        }
    }

    /// Sends one message; false if it must be sent again, or was not sent.
    fn one(&self, queued: &Queued) -> bool {
        let free = |node| match self.shared.nodes.waits(node) {
            Wait::No => true,
            Wait::Moment => queued.times >= MOMENTS,
            Wait::Long => false,
        };
        match queued.notice {
            Notice::Name { dir, ref name } => {
                if !free(dir) {
                    return false;
                }
                self.name(queued, dir, name);
                if **name == *NO_NAME {
                    // A directory that could not be gone through with the others: see `everything`.
                    self.epoch();
                }
                // After the name: by now the requests in the directory that were on their way have been answered.
                // This removes their effect on the kept entries.
                self.node(dir, true)
            }
            Notice::Node { node, content } => (!content || free(node)) && self.node(node, content),
        }
    }

    fn name(&self, queued: &Queued, dir: NodeId, name: &[u8]) {
        let counts = &self.shared.counts;
        counts.names.fetch_add(1, Relaxed);
        let late = if queued.echo { Late::Nothing } else { self.shared.nodes.late(dir, name) };
        let message =
            if late == Late::Dead { Message::Gone { dir, name } } else { Message::Name { dir, name } };
        let _ = self.say(&message);
        if late == Late::Name && !self.shared.again(queued.sb, queued.notice.clone()) {
            // Instead of all those names: an epoch reaches names that are being asked for.
            self.shared.state.lock().echoes.clear();
            self.epoch();
        }
    }

    /// Notifies that a node's attributes, or also its content, must be asked for again. False: the kernel does not
    /// know the node yet.
    fn node(&self, node: NodeId, content: bool) -> bool {
        self.shared.counts.nodes.fetch_add(1, Relaxed);
        let unknown = self.say(&Message::Node { node, content }) == Err(Errno::NOENT);
        !(unknown && self.shared.nodes.is_held(node))
    }

    fn everything(&self, sb: SbId) {
        self.shared.counts.all.fetch_add(1, Relaxed);
        self.epoch();
        self.each_held(sb, |node, is_dir| {
            let waits = self.shared.nodes.waits(node) != Wait::No;
            let known = !waits && {
                if is_dir {
                    let _ = self.say(&Message::Name { dir: node, name: NO_NAME });
                }
                self.node(node, true)
            };
            if !known && is_dir {
                self.shared.later(sb, Notice::Name { dir: node, name: NO_NAME.into() });
            } else if !known {
                self.shared.later(sb, Notice::Node { node, content: true });
            }
        });
        self.epoch();
    }

    /// Goes through all nodes of a superblock that the kernel holds, and whether they are directories.
    fn each_held(&self, sb: SbId, mut each: impl FnMut(NodeId, bool)) {
        let mut from = Some(0);
        while let Some(at) = from {
            let (nodes, next) = self.shared.nodes.held(sb, at);
            nodes.into_iter().for_each(|(node, is_dir)| each(node, is_dir));
            from = next.filter(|_| !self.shared.state.lock().closed);
        }
    }

    fn epoch(&self) {
        self.shared.counts.epochs.fetch_add(1, Relaxed);
        let _ = self.say(&Message::Epoch);
    }

    fn say(&self, message: &Message<'_>) -> Result<(), Errno> {
        loop {
            let Err(error) = self.kernel.tell(message) else { return Ok(()) };
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::INTR) => {}
                Some(Errno::NOENT) => return Err(Errno::NOENT),
                errno => {
                    // ENODEV, or another error caused by the mount's end: the next one will be the same.
                    tracing::debug!(%error, ?message, "the kernel was not notified");
                    return Err(errno.unwrap_or(Errno::IO));
                }
            }
        }
    }

    /// The main loop of the second thread.
    fn look(&self) {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        while !state.closed {
            if !state.is_uncovered() {
                state.ticking = false;
                shared.tick.wait(&mut state);
                continue;
            }
            state.ticking = true;
            shared.tick.wait_for(&mut state, TICK);
            let Some((nodes, all)) = state.overdue(Instant::now()) else { continue };
            drop(state);
            self.epoch();
            let attributes = |node| {
                let _ = self.say(&Message::Node { node, content: false });
            };
            nodes.into_iter().for_each(attributes);
            all.into_iter().for_each(|sb| self.each_held(sb, |node, _| attributes(node)));
            state = shared.state.lock();
        }
    }
}

#[cfg(test)]
mod tests;
