//! Servers killed with SIGKILL in a storm of two mounts of one bucket: what was acknowledged is there, and all is whole.
//!
//! Two mounts, each a process, are changed by threads of this one: creates, overwrites and removals of the same few names. One
//! of the servers is killed, its threads get errors, and no operation is under way when the bucket is looked at. Each
//! operation has a beginning and an end in one order. A key may have a content only if that was written under its name,
//! was not refused for a conflict, and no acknowledged operation began after it was acknowledged. A key may be absent
//! only if no acknowledged write began after every removal had ended. A write and a removal at the same time on one mount
//! prove nothing of the key: the removal may be of the file that is open and not sent yet. An operation of a killed server may be done, late
//! or never, so it has no end. Parts of uploads stay in the store, for its lifecycle rule; nothing else does.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tempfile::TempDir;

use crate::fixture::{Served, bytes, usual_or_full, within};
use crate::write_faults::{parse, version};

const NAMES: usize = 6;
/// Writers of each mount.
const WRITERS: usize = 2;
const PART: usize = 5 << 20;
/// Numbers of contents longer than one part are multiples of it.
const LONG: u64 = 16;

/// A server of a mount, in a process of its own.
struct Server {
    child: Child,
    dir: TempDir,
    /// The threads that change it end.
    stop: AtomicBool,
}

impl Server {
    fn new(served: &Served) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--serve", &served.address.to_string()])
            .arg(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut ready = [0; 8];
        child.stdout.take().expect("a pipe").read_exact(&mut ready).expect("mounted");
        Self { child, dir, stop: AtomicBool::new(false) }
    }

    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).stderr(Stdio::null()).status();
        let _ = Command::new("fusermount3").args(["-uz"]).arg(self.dir.path()).stderr(Stdio::null()).status();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Acknowledged,
    /// A conflict: nothing was done.
    Refused,
    Unknown,
}

/// An operation on a name, with its place in the order of all.
#[derive(Debug)]
struct Operation {
    mount: PathBuf,
    /// The number of the content; `None`: a removal.
    number: Option<u64>,
    begin: u64,
    /// When it was acknowledged; later than all, if nobody knows.
    end: u64,
    outcome: Outcome,
}

impl Operation {
    /// A write and a removal at the same time on one mount: the removal may be of the file that is being written. If
    /// nothing of that was sent, the key stays, which another mount may have written; later writes are of a file without a
    /// name.
    fn may_concern_an_open_file(&self, other: &Self) -> bool {
        let overlap = self.begin < other.end && other.begin < self.end;
        self.mount == other.mount && overlap && self.number.is_some() != other.number.is_some()
    }
}

#[derive(Default)]
struct Storm {
    order: AtomicU64,
    next: AtomicU64,
    /// By name.
    operations: Mutex<HashMap<usize, Vec<Operation>>>,
    /// Taken by each operation; the check takes it alone.
    quiet: RwLock<()>,
    acknowledged: AtomicU64,
}

fn content(name: usize, number: u64) -> Vec<u8> {
    let mut content = version(name, number);
    if number.is_multiple_of(LONG) {
        content.extend(bytes(PART, number));
    }
    content
}

/// The name and the number of a content, if it is whole.
fn whole(data: &[u8]) -> Option<(usize, u64)> {
    let (short, long) = data.split_at(data.len().saturating_sub(PART));
    if let Some((name, number)) = parse(short).filter(|(_, number)| number.is_multiple_of(LONG)) {
        return (long == bytes(PART, number)).then_some((name, number));
    }
    parse(data).filter(|(_, number)| !number.is_multiple_of(LONG))
}

impl Storm {
    fn run(
        &self,
        mount: &Path,
        (name, number): (usize, Option<u64>),
        operation: impl FnOnce() -> std::io::Result<()>,
    ) {
        let begin = self.order.fetch_add(1, SeqCst);
        let done = operation();
        let now = self.order.fetch_add(1, SeqCst);
        let (end, outcome) = match done.map_err(|error| error.raw_os_error()) {
            Ok(()) => (now, Outcome::Acknowledged),
            Err(Some(libc::EEXIST | libc::ESTALE | libc::ENOENT | libc::EBUSY)) => (now, Outcome::Refused),
            Err(_) => (u64::MAX, Outcome::Unknown),
        };
        self.acknowledged.fetch_add(u64::from(outcome == Outcome::Acknowledged), SeqCst);
        let operation = Operation { mount: mount.to_owned(), number, begin, end, outcome };
        self.operations.lock().entry(name).or_default().push(operation);
    }

    fn change(&self, server: &Path, stop: &AtomicBool, seed: u64) {
        let mut steps = bytes(1 << 12, seed).into_iter().cycle().map(usize::from);
        let mut step = || steps.next().unwrap_or_default();
        while !stop.load(SeqCst) {
            let _operation = self.quiet.read();
            let name = step() % NAMES;
            let path = server.join(format!("d/f{name}"));
            if step() % 6 == 0 {
                self.run(server, (name, None), || fs::remove_file(&path));
                continue;
            }
            let number = self.next.fetch_add(1, SeqCst);
            let is_new = step() % 3 == 0;
            self.run(server, (name, Some(number)), || {
                let mut file = if is_new { File::create_new(&path)? } else { File::create(&path)? };
                file.write_all(&content(name, number))?;
                file.sync_all()
            });
        }
    }

    /// Whether what a key has can be, after all that was done. Nothing is under way.
    fn check(&self, name: usize, stored: Option<&[u8]>) {
        let mut operations = self.operations.lock();
        let operations = operations.entry(name).or_default();
        let began_after = |end: u64, by: &dyn Fn(&Operation) -> bool| {
            operations
                .iter()
                .any(|other| other.outcome == Outcome::Acknowledged && other.begin > end && by(other))
        };
        let Some(stored) = stored else {
            let is_removal =
                |operation: &&Operation| operation.number.is_none() && operation.outcome != Outcome::Refused;
            let last = operations.iter().filter(is_removal).map(|removal| removal.end).max();
            let is_lost = match last {
                Some(end) => began_after(end, &|other| other.number.is_some()),
                None => operations.iter().any(|other| other.outcome == Outcome::Acknowledged),
            };
            assert!(!is_lost, "f{name} is absent, and what was acknowledged is lost");
            return;
        };
        let (of, number) = whole(stored).unwrap_or_else(|| panic!("f{name} is not whole"));
        assert_eq!(of, name, "a content of another name");
        let written = operations.iter().find(|operation| operation.number == Some(number));
        let written = written.unwrap_or_else(|| panic!("f{name} has {number}, which nobody wrote there"));
        assert!(written.outcome != Outcome::Refused, "f{name} has {number}, which was refused");
        let is_of_the_key =
            |other: &Operation| !operations.iter().any(|near| other.may_concern_an_open_file(near));
        assert!(
            !began_after(written.end, &is_of_the_key),
            "f{name} has {number} again, and what was acknowledged after it is lost: {operations:#?}"
        );
    }
}

/// Kills; usually few, and as many as `UVFS_KILLS` says.
pub fn storm() {
    let asked = std::env::var("UVFS_KILLS").ok().and_then(|kills| kills.parse().ok());
    let kills: usize = asked.unwrap_or(usual_or_full(8, 200));
    let served = Served::new();
    served.bucket.put("d/", "");
    let storm = Storm::default();
    let (mut left, mut absent) = (0, 0);
    let mut servers = [Server::new(&served), Server::new(&served)];
    for kill in 0..kills {
        let which = kill % 2;
        std::thread::scope(|scope| {
            let threads: Vec<_> = servers
                .iter()
                .flat_map(|server| (0..WRITERS).map(move |writer| (server, writer)))
                .enumerate()
                .map(|(at, (server, _))| {
                    let seed = (kill * 2 * WRITERS + at + 1) as u64;
                    let (storm, path, stop) = (&storm, server.dir.path().to_owned(), &server.stop);
                    scope.spawn(move || storm.change(&path, stop, seed))
                })
                .collect();
            // After some operations; the moment differs from kill to kill.
            let enough = storm.order.load(SeqCst) + 8 + (kill as u64 * 7) % 40;
            let begun = within(Duration::from_secs(60), || storm.order.load(SeqCst) >= enough);
            assert!(begun, "nothing is done any more");
            let pid = rustix::process::Pid::from_child(&servers[which].child);
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
            servers.iter().for_each(|server| server.stop.store(true, SeqCst));
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        });
        servers[which].kill();
        let _quiet = storm.quiet.write();
        for name in 0..NAMES {
            let stored = served.bucket.content(&format!("d/f{name}"));
            absent += usize::from(stored.is_none());
            storm.check(name, stored.as_deref());
        }
        let is_known = |key: &String| key == "d/" || (0..NAMES).any(|name| *key == format!("d/f{name}"));
        assert!(served.bucket.keys().iter().all(is_known), "{:?}", served.bucket.keys());
        let uploads = served.bucket.end_uploads();
        assert!(uploads <= WRITERS, "{uploads} uploads are left by {WRITERS} writers");
        left += uploads;
        servers[1 - which].stop.store(false, SeqCst);
        servers[which] = Server::new(&served);
    }
    let acknowledged = storm.acknowledged.load(SeqCst);
    assert!(acknowledged > kills as u64, "{acknowledged} acknowledged");
    eprintln!(
        "{kills} kills: {acknowledged} acknowledged, {absent} absences, {left} uploads for the lifecycle rule"
    );
}
