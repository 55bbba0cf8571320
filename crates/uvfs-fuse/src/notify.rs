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
//! **Too much to say** ([`ROOM`]), or that anything may be different: the queue is emptied, all names are to be asked
//! for again, each node that the kernel holds is gone through (for a directory first a name that it cannot have,
//! to wait for the requests in it), and all names are to be asked for again once more.
//!
//! The mutex protects the state, is a leaf, and is never held over a write. The threads end with the [`Outbox`].

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
    /// Some of the nodes of a superblock that it holds, and whether they are directories; where to go on.
    fn held(&self, sb: SbId, from: u32) -> (Vec<(NodeId, bool)>, Option<u32>);
}

/// Something to be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A name, and its directory's attributes and entries.
    Name { dir: NodeId, name: Box<[u8]> },
    /// Attributes, and content too.
    Node { node: NodeId, content: bool },
    /// Anything in a superblock.
    All(SbId),
}

struct Waiting {
    number: u64,
    since: Instant,
    notice: Notice,
    /// How often it was put off.
    times: u32,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    /// Number of the next thing to be said.
    next: u64,
    /// What is being said, and since when it waits.
    saying: Option<(u64, Instant)>,
    /// Everything below this number has been covered by an epoch.
    covered: u64,
    /// Superblocks of which everything is to be said, since when, and from when on.
    all: Vec<SbId>,
    all_since: Option<Instant>,
    not_before: Option<Instant>,
    /// What was put off, by the time until when, and by number.
    again: BTreeMap<(Instant, u64), Waiting>,
    /// The second thread looks by itself.
    ticking: bool,
    closed: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.again.is_empty() && self.saying.is_none() && self.all.is_empty()
    }

    fn everything(&mut self, sb: SbId, now: Instant) {
        self.queue.clear();
        self.again.clear();
        if !self.all.contains(&sb) {
            self.all.push(sb);
        }
        self.all_since.get_or_insert(now);
    }

    /// What has waited too long and is not covered yet: nodes whose attributes are to be said, and superblocks with
    /// all theirs. It is covered from now on.
    fn overdue(&mut self, now: Instant) -> Option<(Vec<NodeId>, Vec<SbId>)> {
        let late = |since: Instant| now.saturating_duration_since(since) >= PATIENCE;
        let waiting = || self.queue.iter().chain(self.again.values());
        let numbers = waiting().map(|w| (w.number, w.since)).chain(self.saying);
        let mut uncovered = numbers.filter(|(number, _)| *number >= self.covered);
        let waits = uncovered.any(|(_, since)| late(since));
        let all = self.all_since.is_some_and(late);
        if !waits && !all {
            return None;
        }
        let nodes = waiting().filter(|w| w.number >= self.covered).filter_map(|w| match w.notice {
            Notice::Name { dir: node, .. } | Notice::Node { node, .. } => Some(node),
            Notice::All(_) => None,
        });
        let nodes = nodes.collect();
        self.covered = self.next;
        let all = if all { self.all.clone() } else { Vec::new() };
        if !all.is_empty() {
            // Said once; the first thread comes to the rest.
            self.all_since = None;
        }
        Some((nodes, all))
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
    kernel: Box<dyn Kernel>,
    nodes: Box<dyn Nodes>,
    state: Mutex<State>,
    /// There is something to say.
    work: Condvar,
    /// There is something to look at.
    tick: Condvar,
    counts: Counts,
}

/// What the first thread does next.
enum Job {
    One(Waiting),
    All(Vec<SbId>),
}

/// Where what is to be said is put; dropping it ends the threads.
pub(crate) struct Outbox(Arc<Shared>);

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.work.notify_all();
        self.0.tick.notify_all();
    }
}

impl Outbox {
    /// Starts the threads.
    pub(crate) fn start(kernel: Box<dyn Kernel>, nodes: Box<dyn Nodes>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            kernel,
            nodes,
            state: Mutex::default(),
            work: Condvar::new(),
            tick: Condvar::new(),
            counts: Counts::default(),
        });
        let outbox = Self(Arc::clone(&shared));
        let second = Arc::clone(&shared);
        thread::Builder::new().name("uvfs-notify".into()).spawn(move || shared.run())?;
        thread::Builder::new().name("uvfs-overdue".into()).spawn(move || second.look())?;
        Ok(outbox)
    }

    /// Has something said.
    pub(crate) fn push(&self, notice: Notice) {
        let now = Instant::now();
        let mut state = self.0.state.lock();
        match notice {
            Notice::All(sb) => state.everything(sb, now),
            // What comes before everything is gone through is part of it.
            _ if !state.all.is_empty() => return,
            _ => {
                let number = state.next;
                state.next += 1;
                state.queue.push_back(Waiting { number, since: now, notice, times: 0 });
            }
        }
        let ticking = state.ticking;
        drop(state);
        self.0.work.notify_one();
        if !ticking {
            self.0.tick.notify_one();
        }
    }

    /// Whether one thing more would be too much: then everything of a superblock is to be said instead.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.0.state.lock();
        state.queue.len() + state.again.len() >= ROOM
    }

    pub(crate) fn notices(&self) -> Notices {
        let counts = &self.0.counts;
        let [names, nodes, epochs, all] =
            [&counts.names, &counts.nodes, &counts.epochs, &counts.all].map(|count| count.load(Relaxed));
        Notices { names, nodes, epochs, all }
    }
}

impl Shared {
    /// The first thread.
    fn run(&self) {
        while let Some(job) = self.next() {
            match job {
                Job::One(waiting) => {
                    if !self.one(&waiting) {
                        self.put_off(waiting);
                    }
                }
                Job::All(all) => all.into_iter().for_each(|sb| self.everything(sb)),
            }
        }
    }

    /// Says one thing; false where it has to be said again, or was not said.
    fn one(&self, waiting: &Waiting) -> bool {
        let free = |node| match self.nodes.waits(node) {
            Wait::No => true,
            Wait::Moment => waiting.times >= MOMENTS,
            Wait::Long => false,
        };
        match waiting.notice {
            Notice::Name { dir, ref name } => {
                if !free(dir) {
                    return false;
                }
                self.counts.names.fetch_add(1, Relaxed);
                let _ = self.say(&Message::Name { dir, name });
                if **name == *NO_NAME {
                    // Of a directory that could not be gone through with the others: see `everything`.
                    self.epoch();
                }
                // After the name: requests in the directory that were on their way have been answered, and what they
                // left in the kept entries goes.
                self.node(dir, true)
            }
            Notice::Node { node, content } => (!content || free(node)) && self.node(node, content),
            // `push` has put it elsewhere.
            Notice::All(_) => true,
        }
    }

    fn put_off(&self, mut waiting: Waiting) {
        waiting.times += 1;
        let pause = PAUSES.1.min(PAUSES.0 * (1 << waiting.times.min(16) >> 1));
        if waiting.times > TIMES_MAX && matches!(waiting.notice, Notice::Node { .. }) {
            return;
        }
        self.state.lock().again.insert((Instant::now() + pause, waiting.number), waiting);
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        state.saying = None;
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            let rested = state.not_before.is_none_or(|at| at <= now);
            if !state.all.is_empty() && rested {
                state.not_before = Some(now + REST);
                state.all_since = None;
                return Some(Job::All(std::mem::take(&mut state.all)));
            }
            let due = state.again.first_key_value().map(|(&(due, _), _)| due);
            let waiting = match due {
                Some(due) if due <= now => state.again.pop_first().map(|(_, waiting)| waiting),
                _ => state.queue.pop_front(),
            };
            if let Some(waiting) = waiting {
                state.saying = Some((waiting.number, waiting.since));
                return Some(Job::One(waiting));
            }
            let until = due.into_iter().chain(state.not_before.filter(|_| !state.all.is_empty())).min();
            match until {
                Some(until) => drop(self.work.wait_until(&mut state, until)),
                None => self.work.wait(&mut state),
            }
        }
    }

    /// Says that a node's attributes, or content too, are to be asked for again. False: the kernel does not know it yet.
    fn node(&self, node: NodeId, content: bool) -> bool {
        self.counts.nodes.fetch_add(1, Relaxed);
        let unknown = self.say(&Message::Node { node, content }) == Err(Errno::NOENT);
        !(unknown && self.nodes.is_held(node))
    }

    /// A notice of our own.
    fn later(&self, notice: Notice) {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.queue.push_back(Waiting { number, since: Instant::now(), notice, times: 0 });
    }

    fn everything(&self, sb: SbId) {
        self.counts.all.fetch_add(1, Relaxed);
        self.epoch();
        let mut from = Some(0);
        while let Some(at) = from {
            let (nodes, next) = self.nodes.held(sb, at);
            for (node, is_dir) in nodes {
                let waits = self.nodes.waits(node) != Wait::No;
                let known = !waits && {
                    if is_dir {
                        let _ = self.say(&Message::Name { dir: node, name: NO_NAME });
                    }
                    self.node(node, true)
                };
                if !known && is_dir {
                    self.later(Notice::Name { dir: node, name: NO_NAME.into() });
                } else if !known {
                    self.later(Notice::Node { node, content: true });
                }
            }
            from = next.filter(|_| !self.state.lock().closed);
        }
        self.epoch();
    }

    fn epoch(&self) {
        self.counts.epochs.fetch_add(1, Relaxed);
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
        let mut state = self.state.lock();
        while !state.closed {
            if state.is_idle() {
                state.ticking = false;
                self.tick.wait(&mut state);
                continue;
            }
            state.ticking = true;
            self.tick.wait_for(&mut state, TICK);
            let Some((nodes, all)) = state.overdue(Instant::now()) else { continue };
            drop(state);
            self.epoch();
            let attributes = |node| {
                let _ = self.say(&Message::Node { node, content: false });
            };
            nodes.into_iter().for_each(attributes);
            for sb in all {
                let mut from = Some(0);
                while let Some(at) = from {
                    let (nodes, next) = self.nodes.held(sb, at);
                    nodes.into_iter().for_each(|(node, _)| attributes(node));
                    from = next;
                }
            }
            state = self.state.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was said, in words; names wait while `closed`.
    #[derive(Default)]
    struct Said {
        all: Mutex<(Vec<String>, bool)>,
        moved: Condvar,
        /// Nodes that the kernel does not know, and that are held all the same.
        unknown: Mutex<Vec<NodeId>>,
        /// Nodes at which a request waits.
        busy: Mutex<Vec<NodeId>>,
    }

    impl Said {
        /// Waits for as long as it takes until `holds`; a test that fails here hangs for a minute.
        fn until(&self, holds: impl Fn(&[String]) -> bool) -> Vec<String> {
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut all = self.all.lock();
            while !holds(&all.0) {
                assert!(!self.moved.wait_until(&mut all, deadline).timed_out(), "said: {:?}", all.0);
            }
            all.0.clone()
        }

        fn close(&self, closed: bool) {
            self.all.lock().1 = closed;
            self.moved.notify_all();
        }
    }

    struct Ear(Arc<Said>);

    impl Kernel for Ear {
        fn tell(&self, message: &Message<'_>) -> io::Result<()> {
            let mut all = self.0.all.lock();
            while all.1 && matches!(message, Message::Name { .. }) {
                self.0.moved.wait(&mut all);
            }
            all.0.push(match message {
                Message::Name { dir, name } => format!("name {dir} {}", String::from_utf8_lossy(name)),
                Message::Node { node, content: true } => format!("content {node}"),
                Message::Node { node, content: false } => format!("attributes {node}"),
                Message::Epoch => "epoch".into(),
                Message::Gone { .. } | Message::Prune { .. } | Message::Poll { .. } => {
                    unreachable!("said by others")
                }
            });
            self.0.moved.notify_all();
            let unknown =
                matches!(message, Message::Node { node, .. } if self.0.unknown.lock().contains(node));
            if unknown { Err(Errno::NOENT.into()) } else { Ok(()) }
        }
    }

    impl Nodes for Ear {
        fn waits(&self, node: NodeId) -> Wait {
            if self.0.busy.lock().contains(&node) { Wait::Long } else { Wait::No }
        }
        fn is_held(&self, node: NodeId) -> bool {
            self.0.unknown.lock().contains(&node)
        }
        fn held(&self, _: SbId, from: u32) -> (Vec<(NodeId, bool)>, Option<u32>) {
            if from == 0 { (vec![(1, true), (70, false)], Some(7)) } else { (vec![(71, false)], None) }
        }
    }

    fn outbox() -> (Arc<Said>, Outbox) {
        let said = Arc::<Said>::default();
        let ears = (Box::new(Ear(Arc::clone(&said))), Box::new(Ear(Arc::clone(&said))));
        (said, Outbox::start(ears.0, ears.1).unwrap())
    }

    fn name(dir: NodeId, name: &str) -> Notice {
        Notice::Name { dir, name: name.as_bytes().into() }
    }

    fn has(all: &[String], what: &str) -> bool {
        all.iter().any(|said| said == what)
    }

    fn sb() -> SbId {
        use uvfs::{Attr, Driver, Features, NewInode, Op, Result, StatFs, Vfs, mode};
        struct Empty;
        impl Driver for Empty {
            fn name(&self) -> &'static str {
                "empty"
            }
            fn features(&self) -> Features {
                Features::default()
            }
            fn root(&self, _: &Op) -> Result<NewInode> {
                let attr = Attr { ino: 1, mode: mode::S_IFDIR | 0o755, nlink: 2, ..Attr::default() };
                Ok(NewInode { attr, ..NewInode::default() })
            }
            fn statfs(&self, _: &Op) -> Result<StatFs> {
                Ok(StatFs::default())
            }
        }
        Vfs::new(uvfs::VfsConfig::default(), Arc::new(Empty)).unwrap().root().sb()
    }

    #[test]
    fn things_are_said_in_the_order_in_which_they_were_told() {
        let (said, outbox) = outbox();
        outbox.push(name(5, "a"));
        outbox.push(Notice::Node { node: 6, content: true });
        outbox.push(Notice::Node { node: 7, content: true });
        let all = said.until(|all| has(all, "content 7"));
        // What the second thread says besides, where this machine is slow, is no part of it.
        let first: Vec<_> =
            all.iter().filter(|s| s.starts_with("name") || s.starts_with("content")).collect();
        assert_eq!(first, ["name 5 a", "content 5", "content 6", "content 7"]);
        assert!(outbox.notices().names == 1 && outbox.notices().nodes >= 3);
    }

    #[test]
    fn what_waits_too_long_becomes_an_epoch_and_is_said_all_the_same() {
        let (said, outbox) = outbox();
        said.close(true);
        outbox.push(name(5, "slow"));
        outbox.push(name(6, "behind"));
        outbox.push(Notice::Node { node: 7, content: true });
        let all = said.until(|all| has(all, "epoch") && has(all, "attributes 6") && has(all, "attributes 7"));
        assert!(!has(&all, "name 5 slow") && !has(&all, "content 7"));
        // Once for all that waited.
        outbox.push(name(8, "later"));
        said.until(|all| has(all, "attributes 8"));
        said.close(false);
        let all = said.until(|all| has(all, "content 8"));
        for late in ["name 5 slow", "name 6 behind", "content 7", "name 8 later"] {
            assert!(has(&all, late), "{late}: {all:?}");
        }
    }

    #[test]
    fn nothing_is_said_of_a_directory_in_which_a_request_waits() {
        let (said, outbox) = outbox();
        said.busy.lock().push(5);
        outbox.push(name(5, "put off"));
        outbox.push(name(6, "said"));
        let all = said.until(|all| has(all, "name 6 said") && has(all, "epoch") && has(all, "attributes 5"));
        assert!(!has(&all, "name 5 put off"));
        said.busy.lock().clear();
        said.until(|all| has(all, "name 5 put off") && has(all, "content 5"));
    }

    #[test]
    fn a_node_on_its_way_is_named_until_it_is_known() {
        let (said, outbox) = outbox();
        said.unknown.lock().push(9);
        outbox.push(Notice::Node { node: 9, content: true });
        said.until(|all| all.iter().filter(|said| *said == "content 9").count() >= 4);
        said.unknown.lock().clear();
        outbox.push(Notice::Node { node: 10, content: false });
        said.until(|all| has(all, "attributes 10"));
    }

    #[test]
    fn too_much_to_say_becomes_everything() {
        let (said, outbox) = outbox();
        let sb = sb();
        said.close(true);
        let mut pushed = 0;
        while !outbox.is_full() {
            outbox.push(name(5, &pushed.to_string()));
            pushed += 1;
        }
        assert!(pushed >= ROOM);
        outbox.push(Notice::All(sb));
        outbox.push(name(6, "part of it"));
        assert!(!outbox.is_full());
        said.until(|all| has(all, "epoch"));
        said.close(false);
        let all = said.until(|all| {
            let gone_through = all.iter().position(|said| said == "content 71");
            gone_through.is_some_and(|at| has(&all[at..], "epoch"))
        });
        assert!(has(&all, "content 1") && has(&all, "content 70") && has(&all, "name 1 ."));
        assert!(!has(&all, "name 6 part of it"));
        assert_eq!(outbox.notices().all, 1);
    }
}
