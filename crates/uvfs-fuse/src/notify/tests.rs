//! The outbox against a fake kernel, which records its messages.

use super::*;

/// The messages as text; messages about names wait while `closed`.
#[derive(Default)]
struct Said {
    all: Mutex<(Vec<String>, bool)>,
    moved: Condvar,
    /// Nodes that the kernel does not know, although they count as held.
    unknown: Mutex<Vec<NodeId>>,
    /// Nodes about which a request waits.
    busy: Mutex<Vec<NodeId>>,
    /// The effect of answers about names.
    late: Mutex<Option<Late>>,
}

impl Said {
    /// Waits until `holds`; a failing test hangs for a minute.
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
            Message::Gone { dir, name } => format!("gone {dir} {}", String::from_utf8_lossy(name)),
            Message::Prune { .. } | Message::Poll { .. } => unreachable!("said by others"),
        });
        self.0.moved.notify_all();
        let unknown = matches!(message, Message::Node { node, .. } if self.0.unknown.lock().contains(node));
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
    fn late(&self, _: NodeId, _: &[u8]) -> Late {
        self.0.late.lock().unwrap_or(Late::Nothing)
    }
    fn held(&self, _: SbId, from: u32) -> (Vec<(NodeId, bool)>, Option<u32>) {
        if from == 0 { (vec![(1, true), (70, false)], Some(7)) } else { (vec![(71, false)], None) }
    }
}

fn outbox() -> (Arc<Said>, Outbox) {
    let said = Arc::<Said>::default();
    let ears = (Arc::new(Ear(Arc::clone(&said))), Box::new(Ear(Arc::clone(&said))));
    (said, Outbox::new(ears.0, ears.1))
}

fn name(dir: NodeId, name: &str) -> Notice {
    Notice::Name { dir, name: name.as_bytes().into() }
}

fn has(all: &[String], what: &str) -> bool {
    all.iter().any(|said| said == what)
}

/// Two superblocks of one VFS.
fn sbs() -> [SbId; 2] {
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
    let vfs = Vfs::new(uvfs::VfsConfig::default(), Arc::new(Empty)).unwrap();
    let first = vfs.root().sb();
    vfs.mount(&vfs.root(), Arc::new(Empty)).unwrap();
    [first, vfs.root().sb()]
}

#[test]
fn things_are_said_in_the_order_in_which_they_were_told() {
    let (said, outbox) = outbox();
    let [sb, _] = sbs();
    outbox.push(sb, name(5, "a"));
    outbox.push(sb, Notice::Node { node: 6, content: true });
    outbox.push(sb, Notice::Node { node: 7, content: true });
    let all = said.until(|all| has(all, "content 7"));
    // On a slow machine the second thread's messages come in between; they do not count here.
    let first: Vec<_> = all.iter().filter(|s| s.starts_with("name") || s.starts_with("content")).collect();
    assert_eq!(first, ["name 5 a", "content 5", "content 6", "content 7"]);
    assert!(outbox.notices().names == 1 && outbox.notices().nodes >= 3);
}

#[test]
fn it_is_settled_when_all_that_came_before_has_been_said() {
    let (said, outbox) = outbox();
    let [sb, _] = sbs();
    let now = || outbox.settle(Duration::ZERO);
    assert!(now(), "there was no message");
    said.busy.lock().push(5);
    outbox.push(sb, name(5, "put off"));
    assert!(!now() && !outbox.settle(Duration::from_millis(30)));
    said.busy.lock().clear();
    assert!(outbox.settle(Duration::from_secs(60)));
    assert!(has(&said.all.lock().0, "content 5"));
    said.close(true);
    outbox.push(sb, name(6, "held up"));
    outbox.push_all(sb);
    assert!(!now());
    said.close(false);
    assert!(outbox.settle(Duration::from_secs(60)) && has(&said.all.lock().0, "content 71"));
    said.busy.lock().push(5);
    outbox.push(sb, name(5, "never said"));
    thread::scope(|s| {
        let begun = Instant::now();
        let waits = s.spawn(|| outbox.settle(Duration::from_secs(600)));
        // Until the waiter is there, this wakes nobody.
        while outbox.0.said.notify_all() == 0 && begun.elapsed() < Duration::from_secs(60) {
            thread::yield_now();
        }
        outbox.close();
        assert!(waits.join().expect("no panic"), "the receiver is gone");
        assert!(begun.elapsed() < Duration::from_secs(300), "the waiter was not woken");
    });
}

#[test]
fn what_waits_too_long_becomes_an_epoch_and_is_said_all_the_same() {
    let (said, outbox) = outbox();
    let [sb, _] = sbs();
    said.close(true);
    outbox.push(sb, name(5, "slow"));
    outbox.push(sb, name(6, "behind"));
    outbox.push(sb, Notice::Node { node: 7, content: true });
    let all = said.until(|all| has(all, "epoch") && has(all, "attributes 6") && has(all, "attributes 7"));
    assert!(!has(&all, "name 5 slow") && !has(&all, "content 7"));
    // Once for all that waited.
    outbox.push(sb, name(8, "later"));
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
    let [sb, _] = sbs();
    said.busy.lock().push(5);
    outbox.push(sb, name(5, "put off"));
    outbox.push(sb, name(6, "said"));
    let all = said.until(|all| has(all, "name 6 said") && has(all, "epoch") && has(all, "attributes 5"));
    assert!(!has(&all, "name 5 put off"));
    said.busy.lock().clear();
    said.until(|all| has(all, "name 5 put off") && has(all, "content 5"));
}

#[test]
fn a_node_on_its_way_is_named_until_it_is_known() {
    let (said, outbox) = outbox();
    let [sb, _] = sbs();
    said.unknown.lock().push(9);
    outbox.push(sb, Notice::Node { node: 9, content: true });
    said.until(|all| all.iter().filter(|said| *said == "content 9").count() >= 4);
    said.unknown.lock().clear();
    outbox.push(sb, Notice::Node { node: 10, content: false });
    said.until(|all| has(all, "attributes 10"));
}

#[test]
fn a_name_that_is_being_asked_for_again_is_said_twice_or_taken_away() {
    let (said, outbox) = outbox();
    let [sb, _] = sbs();
    let times = |all: &[String], what: &str| all.iter().filter(|said| *said == what).count();
    outbox.push(sb, name(5, "once"));
    said.until(|all| has(all, "name 5 once") && has(all, "content 5"));
    *said.late.lock() = Some(Late::Name);
    outbox.push(sb, name(6, "twice"));
    assert!(outbox.settle(Duration::from_secs(60)));
    *said.late.lock() = Some(Late::Dead);
    outbox.push(sb, name(7, "dead"));
    let all = said.until(|all| times(all, "name 6 twice") == 2);
    assert!(has(&all, "gone 7 dead") && !has(&all, "name 7 dead") && times(&all, "name 5 once") == 1);
    // By then, an answer that was given before has been stored.
    let waits = || outbox.0.state.lock().echoes.len();
    assert_eq!(waits(), 0, "a name is not sent a third time");
    *said.late.lock() = Some(Late::Name);
    let before = times(&said.all.lock().0, "epoch");
    (0..=ECHOES).for_each(|nth| outbox.push(sb, name(8, &nth.to_string())));
    (0..3).for_each(|_| outbox.push(sb, name(9, "the same")));
    assert!(outbox.settle(Duration::from_secs(60)));
    assert!(waits() <= ECHOES && times(&said.all.lock().0, "epoch") > before);
}

/// Here for a waiter that began before the message had a number.
#[test]
fn what_everything_could_not_say_yet_is_waited_for() {
    let (said, outbox) = outbox();
    let [sb, _] = sbs();
    said.busy.lock().push(70);
    let upto = outbox.0.state.lock().next;
    outbox.0.later(sb, Notice::Node { node: 70, content: true });
    outbox.start().expect("threads");
    // It has been put off by now.
    said.until(|all| has(all, "attributes 70"));
    assert!(outbox.0.state.lock().has_to_say(upto));
    said.busy.lock().clear();
    assert!(outbox.settle(Duration::from_secs(60)) && has(&said.all.lock().0, "content 70"));
    assert!(!outbox.0.state.lock().has_to_say(upto));
}

#[test]
fn too_much_to_say_becomes_everything() {
    let (said, outbox) = outbox();
    let [sb, _] = sbs();
    said.close(true);
    let queued = || outbox.0.state.lock().queue.len();
    outbox.push(sb, name(5, "being said"));
    while queued() != 0 {
        thread::yield_now();
    }
    (0..ROOM).for_each(|nth| outbox.push(sb, name(5, &nth.to_string())));
    assert_eq!(queued(), ROOM);
    outbox.push(sb, name(5, "too much"));
    assert_eq!(queued(), 0);
    said.until(|all| has(all, "epoch"));
    said.close(false);
    let all = said.until(|all| {
        let gone_through = all.iter().position(|said| said == "content 71");
        gone_through.is_some_and(|at| has(&all[at..], "epoch"))
    });
    assert!(has(&all, "content 1") && has(&all, "content 70") && has(&all, "name 1 ."));
    assert!(!has(&all, "name 5 too much") && !has(&all, "name 5 0"));
    assert_eq!(outbox.notices().all, 1);
}

#[test]
fn lost_changes_of_one_superblock_take_nothing_from_another() {
    let (said, outbox) = outbox();
    let [sb, other] = sbs();
    said.close(true);
    outbox.push(sb, name(5, "holds the others up"));
    outbox.push(other, Notice::Node { node: 8, content: true });
    outbox.push(sb, name(6, "part of everything"));
    outbox.push_all(sb);
    outbox.push(other, Notice::Node { node: 9, content: true });
    said.close(false);
    let all = said.until(|all| has(all, "content 8") && has(all, "content 9") && has(all, "content 71"));
    assert!(!has(&all, "name 6 part of everything"));
}

/// Here the request came after the check for waiting requests.
#[test]
fn a_request_that_hangs_keeps_no_attributes_back_after_lost_changes() {
    let (said, outbox) = outbox();
    let [sb, _] = sbs();
    said.close(true);
    outbox.push_all(sb);
    let all = said.until(|all| has(all, "attributes 70") && has(all, "attributes 71"));
    assert!(!has(&all, "content 70"));
    // A change made meanwhile is not part of that pass any more.
    outbox.push(sb, Notice::Node { node: 9, content: true });
    said.until(|all| has(all, "attributes 9"));
    said.close(false);
    said.until(|all| has(all, "content 71") && has(all, "content 9"));
}

#[test]
fn nobody_looks_again_and_again_at_what_is_put_off() {
    let (said, outbox) = outbox();
    let [sb, _] = sbs();
    said.busy.lock().push(5);
    outbox.push(sb, name(5, "put off"));
    said.until(|all| has(all, "attributes 5"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while outbox.0.state.lock().ticking {
        assert!(Instant::now() < deadline, "the second thread does not sleep");
        thread::yield_now();
    }
    // It wakes for what is new.
    outbox.push(sb, name(5, "put off too"));
    said.until(|all| all.iter().filter(|said| *said == "epoch").count() == 2);
    said.busy.lock().clear();
    said.until(|all| has(all, "name 5 put off") && has(all, "name 5 put off too"));
}

#[test]
fn a_closed_outbox_lets_go_of_the_kernel_and_says_nothing() {
    let said = Arc::<Said>::default();
    let kernel = Arc::new(Ear(Arc::clone(&said)));
    let outbox = Outbox::new(Arc::clone(&kernel) as _, Box::new(Ear(Arc::clone(&said))));
    let [sb, _] = sbs();
    outbox.push(sb, name(5, "said"));
    said.until(|all| has(all, "content 5"));
    outbox.close();
    let deadline = Instant::now() + Duration::from_secs(60);
    while Arc::strong_count(&kernel) > 1 {
        assert!(Instant::now() < deadline, "somebody has it still");
        thread::yield_now();
    }
    outbox.push(sb, name(5, "too late"));
    assert!(outbox.start().is_ok());
    assert_eq!(Arc::strong_count(&kernel), 1);
}
