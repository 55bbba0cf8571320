//! Telling the kernel of changes that it did not make: a queue, and the threads that empty it.
//!
//! [`Outbox::push`] waits for nobody. One thread, which holds nothing, says one thing after the other in the order
//! in which it was told, but for this: the kernel takes a directory's lock to invalidate a name in it, and who looks a
//! name up in that directory holds it until we have answered. Who then waits for the lock has everybody else wait
//! who looks for a name there. So where requests about a node wait for a driver (`pending.rs`), what is to be said of it
//! is put off, for as long as one of them has been there for long.
//!
//! A second thread looks every few milliseconds, while there is something to say, whether something has waited for
//! [`PATIENCE`]; it then says what never waits: that all names are to be asked for again (INC_EPOCH), and which nodes'
//! attributes are. What was waiting is said all the same later, because only that comes after answers that were on their
//! way, which may be old.
//!
//! **A node that the kernel does not know** although it was handed out is in a reply on its way, with old
//! attributes perhaps. It is named again after a while, for as long as it counts as handed out.
//!
//! **A name that the kernel asks for again**, because its time was over, gets its new time without the directory's lock, maybe after
//! it was said that the name leads elsewhere (`frontend/revalidated.rs`). Where such an answer was given in the last second
//! ([`LATE`]) the name is said again a second later, for which [`Outbox::settle`] does not wait; or it is taken away at once where it was
//! no directory's and leads nowhere. So such a name is wrong for a second at most, unless who asked takes longer than that from
//! being woken to storing the answer. Where many are to be said again ([`ECHOES`]) all names are to be asked for again instead.
//!
//! **Too much to say** ([`ROOM`]), or that anything of a superblock may be different: what was to be said of it is left out, all
//! names are to be asked for again, each node of it that the kernel holds is gone through (for a directory first a name that it
//! cannot have, to wait for the requests in it), and all names are to be asked for again once more. Where that waits, the
//! second thread goes through them too, and says what never waits.
//!
//! The mutex protects the state, is a leaf, and is never held over a write. The threads start with the first thing that
//! there is to say, and end with the [`Outbox`]. They have the device, which keeps a mount whose session has
//! broken from ending: who ends a session closes the outbox.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uvfs::{Errno, SbId};

use crate::messages::Message;
use crate::mounted::Notices;
use crate::pending::Wait;
use crate::transport::NodeId;

/// How long something may wait before all names are to be asked for again.
const PATIENCE: Duration = Duration::from_millis(20);
/// How often that is looked at while there is something to say.
const TICK: Duration = Duration::from_millis(5);
/// Things that may wait to be said, those that were put off among them.
const ROOM: usize = 8192;
/// The first pause before something that was put off is said, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// How often a node is named that the kernel does not get to know: a minute long.
const TIMES_MAX: u32 = 600;
/// How often something is put off for requests that have just come.
const MOMENTS: u32 = 4;
/// Between two times that everything is gone through.
const REST: Duration = Duration::from_millis(50);
/// How long the kernel may take from getting an answer to storing it.
pub(crate) const LATE: Duration = Duration::from_secs(1);
/// Names that may wait to be said again.
const ECHOES: usize = 1024;
/// A name that no directory has.
const NO_NAME: &[u8] = b".";

/// Who is told.
pub(crate) trait Kernel: Send + Sync + 'static {
    /// Says it; may take long.
    fn tell(&self, message: &Message<'_>) -> io::Result<()>;
}

/// What the kernel holds, as far as we know.
pub(crate) trait Nodes: Send + Sync + 'static {
    /// What waits for a driver at a node.
    fn waits(&self, node: NodeId) -> Wait;
    /// Whether it holds the node, or is about to.
    fn is_held(&self, node: NodeId) -> bool;
    /// What an answer about a name that the kernel had may leave behind, where the name leads elsewhere now.
    fn late(&self, dir: NodeId, name: &[u8]) -> Late;
    /// Some of the nodes of a superblock that it holds, and whether they are directories; where to go on.
    fn held(&self, sb: SbId, from: u32) -> (Vec<(NodeId, bool)>, Option<u32>);
}

/// What an answer may leave behind that the kernel stores late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// There was none.
    Nothing,
    /// A name that leads where it did.
    Name,
    /// One of no directory, that leads nowhere any more.
    Dead,
}

/// Something to be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A name, and its directory's attributes and entries.
    Name { dir: NodeId, name: Box<[u8]> },
    /// Attributes, and content too.
    Node { node: NodeId, content: bool },
}

impl Notice {
    /// The node whose attributes it is about.
    fn node(&self) -> NodeId {
        match *self {
            Self::Name { dir: node, .. } | Self::Node { node, .. } => node,
        }
    }
}

struct Queued {
    number: u64,
    /// Who settles so many things waits for this: counted from 1, and 0 for a part of everything.
    settles: u64,
    since: Instant,
    sb: SbId,
    notice: Notice,
    /// How often it was put off.
    times: u32,
    /// It was said before.
    echo: bool,
}

impl Queued {
    fn about(&self) -> About {
        let Self { number, settles, since, .. } = *self;
        About { number, settles, since, node: self.notice.node() }
    }
}

/// What there is to know of something that is to be said.
#[derive(Clone, Copy)]
struct About {
    number: u64,
    settles: u64,
    since: Instant,
    node: NodeId,
}

#[derive(Default)]
struct State {
    /// Who is told; none once it is closed.
    kernel: Option<Arc<dyn Kernel>>,
    /// Which threads run: the first one, and the second.
    running: (bool, bool),
    queue: VecDeque<Queued>,
    /// Number of the next thing to be said.
    next: u64,
    /// What is being said.
    saying: Option<About>,
    /// Everything below this number has been said, or covered by an epoch.
    covered: u64,
    /// Superblocks of which everything is to be said; since when, where that is not covered; and from when on.
    all: Vec<SbId>,
    all_since: Option<Instant>,
    not_before: Option<Instant>,
    /// Superblocks that are being gone through, and since when that waits, where it is not covered.
    going: Vec<SbId>,
    going_since: Option<Instant>,
    /// What was put off, by the time until when, and by number.
    again: BTreeMap<(Instant, u64), Queued>,
    /// Names that are to be said again, and when.
    echoes: VecDeque<(Instant, SbId, Notice)>,
    /// The second thread looks by itself.
    ticking: bool,
    closed: bool,
}

impl State {
    /// Whether there may be something that has to be covered if it waits for too long.
    fn is_uncovered(&self) -> bool {
        self.covered != self.next || self.all_since.is_some() || self.going_since.is_some()
    }

    fn queued(&self) -> impl Iterator<Item = &Queued> {
        self.queue.iter().chain(self.again.values())
    }

    /// Whether anything below a number has not been said.
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

    /// What is to be said again by now goes into the queue; whether anything does.
    fn echo(&mut self, now: Instant) -> bool {
        let due = self.echoes.partition_point(|(due, ..)| *due <= now);
        for (_, sb, notice) in self.echoes.drain(..due).collect::<Vec<_>>() {
            self.add(sb, notice, now);
            self.queue.back_mut().into_iter().for_each(|queued| queued.echo = true);
        }
        due != 0
    }

    /// Everything of a superblock is to be said, and with it what waits to be said of it.
    fn everything(&mut self, sb: SbId, now: Instant) {
        self.queue.retain(|queued| queued.sb != sb);
        self.again.retain(|_, queued| queued.sb != sb);
        self.echoes.retain(|(_, of, _)| *of != sb);
        if !self.all.contains(&sb) {
            self.all.push(sb);
        }
        self.all_since.get_or_insert(now);
    }

    /// What has waited too long and is not covered yet: nodes whose attributes are to be said, and superblocks with
    /// all theirs. It is covered from now on.
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
        // Each once; the first thread comes to the rest, or is at it.
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
    /// There is something to say.
    work: Condvar,
    /// There is something to look at.
    tick: Condvar,
    /// Something has been said, or it is closed.
    said: Condvar,
    counts: Counts,
}

/// What the first thread does next.
enum Job {
    One(Queued),
    All(Vec<SbId>),
}

/// Where what is to be said is put; dropping it closes it.
pub(crate) struct Outbox(Arc<Shared>);

impl Drop for Outbox {
    fn drop(&mut self) {
        self.close();
    }
}

impl Outbox {
    /// No thread runs before there is something to say, or [`Outbox::start`].
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

    /// Starts the threads, those that do not run yet.
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

    /// Ends the threads, and lets go of who is told; a message that is being said is said first. Nothing more is said.
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

    /// Waits until all has been said that was pushed before, for at most `time`; whether it has. What is to be said a
    /// second time may come later.
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

    /// Says it in this thread, before a request is answered that has made it so. Not what waits for other requests.
    pub(crate) fn say(&self, message: &Message<'_>) {
        let kernel = self.0.state.lock().kernel.clone();
        if let Some(Err(error)) = kernel.map(|kernel| kernel.tell(message)) {
            tracing::debug!(%error, ?message, "the kernel does not have it");
        }
    }

    /// Has something of a superblock said.
    pub(crate) fn push(&self, sb: SbId, notice: Notice) {
        self.put(|state, now| {
            if state.all.contains(&sb) && state.all_since.is_some() {
                // What comes before everything is gone through is part of it.
            } else if state.queue.len() + state.again.len() < ROOM {
                state.add(sb, notice, now);
            } else {
                let mut sbs: Vec<SbId> = state.queued().map(|queued| queued.sb).chain([sb]).collect();
                sbs.dedup();
                sbs.into_iter().for_each(|sb| state.everything(sb, now));
            }
        });
    }

    /// Has it said that anything in a superblock may be different.
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
            tracing::error!(%error, "no thread to tell the kernel of changes; the next change tries again");
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

    /// Has a name said again; false where too many are.
    fn again(&self, sb: SbId, notice: Notice) -> bool {
        let mut state = self.state.lock();
        // What has just been said was that name's second time.
        state.echoes.retain(|(.., other)| *other != notice);
        let fits = state.echoes.len() < ECHOES;
        if fits && !state.closed {
            state.echoes.push_back((Instant::now() + LATE, sb, notice));
        }
        fits
    }

    /// A part of everything that is said by itself.
    fn later(&self, sb: SbId, notice: Notice) {
        let mut state = self.state.lock();
        state.add(sb, notice, Instant::now());
        // Who waits for everything waits for this too, whatever its number.
        state.queue.back_mut().into_iter().for_each(|queued| queued.settles = 0);
        if !state.ticking {
            self.tick.notify_one();
        }
    }
}

/// What each of the threads has. The kernel goes with them, so that the mount ends when they do.
struct Teller {
    shared: Arc<Shared>,
    kernel: Arc<dyn Kernel>,
}

impl Teller {
    /// The first thread.
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

    /// Says one thing; false where it has to be said again, or was not said.
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
                    // Of a directory that could not be gone through with the others: see `everything`.
                    self.epoch();
                }
                // After the name: requests in the directory that were on their way have been answered, and what they
                // left in the kept entries goes.
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
            // Instead of all those: it reaches names that are being asked for.
            self.shared.state.lock().echoes.clear();
            self.epoch();
        }
    }

    /// Says that a node's attributes, or content too, are to be asked for again. False: the kernel does not know it yet.
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

    /// Goes through the nodes of a superblock that the kernel holds, and whether they are directories, until the end.
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
                    // ENODEV, or an error that the mount's end brings along: the next one will be the same.
                    tracing::debug!(%error, ?message, "the kernel was not told");
                    return Err(errno.unwrap_or(Errno::IO));
                }
            }
        }
    }

    /// The second thread.
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
