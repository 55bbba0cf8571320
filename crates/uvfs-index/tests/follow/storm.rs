//! A storm on a server's tree: four processes change it, and at quiet moments the server's answers are compared with walks of the
//! host by find(1).
//!
//! At one moment of twenty-five the server is stopped until the kernel's queue of events has overflown. At another one it is
//! killed while the changes go on, and another server begins with its snapshot. There the list of changes is complete, or the
//! answer is "all"; at the others it should be a list. Each list is compared with the difference of two walks.
//!
//! The full form has 50 moments after 20,000 changes each.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use uvfs_index::protocol::ShownChange;
use uvfs_index::{ChangeKind, ChangedName, IndexClient, IndexServer, IndexSocket, SnapshotDir, TreeLimits};

use super::form::usual_or_full;
use super::walk::{Walk, assert_complete, of_host};
use super::{CHANGERS, MINUTE, changers, temporary, wait};

/// The variable by which this program is told to serve the tree of a directory.
const ORDER: &str = "UVFS_TEST_SERVER";
/// A moment of so many is after an overflow, and one after a server was killed.
const OF: u64 = 25;

/// Runs as a server if that was ordered.
pub fn run_if_ordered() -> bool {
    let Some(dir) = std::env::var_os(ORDER) else { return false };
    let dir = Path::new(&dir);
    let snapshots = SnapshotDir::open(&dir.join("state")).expect("a directory");
    let root = dir.join("tree");
    let server = IndexServer::start(&[root], TreeLimits::default(), Some(&snapshots), || {});
    let socket = IndexSocket::bind(&dir.join("sock"), 0o600).expect("a socket");
    let server = Arc::new(server.expect("a server"));
    let saves = Arc::clone(&server);
    std::thread::spawn(move || saves.keep_snapshots());
    panic!("{}", server.serve(&socket));
}

/// A server in a process of its own.
struct Server {
    child: Child,
    client: IndexClient,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(dir: &Path) -> Self {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program).env(ORDER, dir).spawn().expect("a server");
        Self { child, client: IndexClient::new(Some(&dir.join("sock"))) }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
    }

    /// Waits until all is read and compared.
    fn follows(&mut self) {
        let until = Instant::now() + MINUTE;
        loop {
            let listed = self.client.list();
            match &listed {
                Ok(list) if list.trees[0].state == "following" => return,
                Ok(list) => assert_ne!(list.trees[0].state, "lost", "{list:?}"),
                Err(_) => assert!(self.child.try_wait().expect("a child").is_none(), "it has ended"),
            }
            assert!(Instant::now() < until, "{listed:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The present clock, and the changes since another one; nothing if that may be all.
    fn changed(&self, root: &Path, since: Option<&str>) -> (String, Option<Vec<ChangedName>>) {
        let (moment, changes) = self.client.changed(root, since, false).expect("an answer");
        assert_eq!(moment.warning, None);
        let changes = (!moment.fresh).then(|| changes.into_iter().map(named).collect());
        (moment.clock, changes)
    }

    fn find(&self, words: &[&str]) -> BTreeSet<Vec<u8>> {
        let (answer, mut output) = self.client.find(words, false, false).expect("an answer");
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).expect("its output");
        assert!(!answer.failed && answer.warning.is_none(), "{answer:?}");
        lines(&bytes)
    }
}

fn named(change: ShownChange) -> ChangedName {
    let kind = match &change.kind[..] {
        "created" => ChangeKind::Created,
        "changed" => ChangeKind::Changed,
        "removed" => ChangeKind::Removed,
        "renamed" => ChangeKind::Renamed,
        other => panic!("a change of the kind {other}"),
    };
    let path = change.path.bytes().expect("a path");
    let from = change.from.map(|from| from.bytes().expect("a path"));
    ChangedName { kind, path, from, file_type: change.file_type, whole: change.whole }
}

fn lines(output: &[u8]) -> BTreeSet<Vec<u8>> {
    output.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Words of find for all that it can print of a file. Only tmpfs allocates blocks at the time of a write.
fn words(root: &Path) -> [String; 3] {
    let of_tmpfs = rustix::fs::statfs(root).is_ok_and(|system| system.f_type == 0x0102_1994);
    let blocks = if of_tmpfs { "%b %k " } else { "" };
    let format = format!("%P %y %m %i %n %U %G %s %d %D %T@ %C@ {blocks}%l\\n");
    [root.to_str().expect("UTF-8").into(), "-printf".into(), format]
}

/// A tmpfs of this test alone, or the directory that was asked for: so nobody else's events fill the queue.
struct Place {
    dir: tempfile::TempDir,
    mounted: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.mounted {
            let _ = rustix::mount::unmount(self.dir.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl Place {
    fn new() -> Self {
        let mut place = Self { dir: temporary(), mounted: false };
        if std::env::var_os("UVFS_TEST_DIR").is_none() {
            let flags = rustix::mount::MountFlags::empty();
            let mounted = rustix::mount::mount("none", place.dir.path(), "tmpfs", flags, None);
            place.mounted = mounted.inspect_err(|errno| eprintln!("no tmpfs of its own: {errno}")).is_ok();
        }
        for name in ["tree", "outside"] {
            fs::create_dir_all(place.dir.path().join(name)).expect("a directory");
        }
        place
    }
}

/// Names that overflow the queue of a stopped server: their events are different, so none is merged with another.
fn flood(root: &Path) {
    let most = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").expect("a limit");
    mass(root, most.trim().parse::<u64>().expect("a number") + 1000);
}

/// Makes so many names, and removes all of them.
fn mass(root: &Path, names: u64) {
    let dir = root.join("mass");
    fs::create_dir(&dir).expect("a directory");
    for nth in 0..names {
        fs::write(dir.join(format!("{nth}")), "").expect("a file");
    }
    fs::remove_dir_all(&dir).expect("removed");
}

/// How the server fares before a quiet moment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Runs,
    IsStopped,
    IsKilled,
}

/// Changes the tree. Returns at a quiet moment.
fn change(server: &mut Server, dir: &Path, (round, changes): (u64, usize), fate: Fate) {
    let mut rng = fastrand::Rng::with_seed(round);
    if fate == Fate::IsStopped {
        server.signal(Signal::STOP);
        flood(&dir.join("tree"));
    }
    let running = changers(9000 + round, changes, dir);
    if fate == Fate::IsKilled {
        // The moment of its end is the test's variable.
        std::thread::sleep(Duration::from_micros(rng.u64(..200_000)));
        server.signal(Signal::KILL);
        server.child.wait().expect("its end");
        std::thread::sleep(Duration::from_micros(rng.u64(..50_000)));
        *server = Server::start(dir);
    }
    // Fewer than the queue has room for.
    mass(&dir.join("tree"), usual_or_full(300, 2000));
    wait(running);
    if fate == Fate::IsStopped {
        server.signal(Signal::CONT);
    }
}

pub fn storm() {
    let place = Place::new();
    let (dir, root) = (place.dir.path(), place.dir.path().join("tree"));
    let (moments, changes) = usual_or_full((OF, 150), (2 * OF, 5000));
    let words = words(&root);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut server = Server::start(dir);
    server.follows();
    // Clocks and walks of earlier moments.
    let mut known: Vec<(String, Walk)> = Vec::new();
    let (mut complete, mut all, mut listed, mut names) = (0, Vec::new(), 0, 0);
    for round in 0..moments {
        known.push((server.changed(&root, None).0, of_host(&root)));
        let fate = match round % OF {
            8 => Fate::IsStopped,
            16 => Fate::IsKilled,
            _ => Fate::Runs,
        };
        change(&mut server, dir, (round, changes), fate);
        let when = format!("moment {round}");
        // A kill leaves a socket that nobody serves for a while; else the first question is the first one to be answered.
        if fate == Fate::IsKilled {
            server.follows();
        }
        let host = of_host(&root);
        let answers = known.iter().rev().take(3).map(|(clock, before)| {
            let changes = server.changed(&root, Some(clock)).1;
            changes.iter().for_each(|changes| assert_complete(before, &host, changes, &when));
            changes.map(|changes| changes.len())
        });
        let answers: Vec<Option<usize>> = answers.collect();
        if fate != Fate::Runs {
            assert!(answers.iter().all(Option::is_none), "{when}: {answers:?}");
        }
        complete += usize::from(answers[0].is_some());
        listed += answers[0].unwrap_or(0);
        all.extend(answers[0].is_none().then_some(round));
        server.follows();
        let (index, found) = (server.find(&words), host_find(&words));
        let differ: Vec<_> = index.symmetric_difference(&found).take(6).map(|line| shown(line)).collect();
        assert!(differ.is_empty(), "{when}: {differ:#?}");
        names += found.len();
    }
    let sum = CHANGERS as usize * changes * moments as usize;
    eprintln!(
        "{sum} changes, {moments} moments with {names} names: {complete} lists with {listed} changes, \"all\" at {all:?}"
    );
    // Two of twenty-five are forced.
    assert!(complete as u64 * 5 >= moments * 4, "only {complete} lists; \"all\" at {all:?}");
}

fn host_find(words: &[&str]) -> BTreeSet<Vec<u8>> {
    let output = Command::new("find").env("LC_ALL", "C").args(words).output().expect("find");
    assert!(output.status.success(), "{output:?}");
    lines(&output.stdout)
}

fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}
