//! Many readers of what takes long: no user takes all threads, none is kept from another file, and a killed reader's turn is
//! not used.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Dir, Server, Test, within};

pub const MOUNTING: &[Test] = &[
    ("readers_that_wait_hold_up_no_other_user_or_file", readers_that_wait_hold_up_no_other_user_or_file),
    ("a_reader_that_is_killed_in_the_queue_runs_nothing", a_reader_that_is_killed_in_the_queue_runs_nothing),
];

/// Far longer than anything here takes that is not held up, far shorter than the slow command.
const PROMPT: Duration = Duration::from_secs(60);

/// Of users that nobody is.
const USERS: [u32; 2] = [64_001, 64_002];

/// A tree of a command that waits until the pipe `gate` is opened and closed by a writer, and of one that does not wait. Each
/// run of the first leaves a byte in `begun`.
struct Slow {
    files: tempfile::TempDir,
    dir: Dir,
    server: Server,
}

impl Slow {
    fn new() -> Self {
        let files = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| files.path().join(name);
        assert!(Command::new("mkfifo").arg(at("gate")).status().expect("mkfifo(1)").success());
        let wait = format!("printf . >> {:?}; exec cat {:?}", at("begun"), at("gate"));
        let spec = format!(
            "[[command]]\npath = \"slow\"\nrun = [\"sh\", \"-c\", {wait:?}]\ntimeout = 600\n\
             [[command]]\npath = \"quick\"\nrun = [\"echo\", \"answer\"]\n"
        );
        fs::write(at("tree.toml"), spec).expect("write");
        let dir = Dir::new();
        let source = format!("kernfs:{}", at("tree.toml").display());
        let server = Server::start(&["-o", "allow_other", &source, dir.text()]);
        Self { files, dir, server }
    }

    /// Runs of the slow command so far.
    fn begun(&self) -> u64 {
        fs::metadata(self.files.path().join("begun")).map_or(0, |meta| meta.len())
    }

    /// Waits until no more of them begin.
    fn settle(&self) -> u64 {
        let mut last = (self.begun(), Instant::now());
        within(PROMPT, || {
            if self.begun() != last.0 {
                last = (self.begun(), Instant::now());
            }
            last.0 > 0 && last.1.elapsed() > Duration::from_secs(2)
        });
        last.0
    }

    /// Ends the commands that run, again and again, until none does any more; whether that came to pass.
    fn let_them_end(&self) -> bool {
        let gate = self.files.path().join("gate");
        within(PROMPT, || {
            let open = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
            drop(rustix::fs::open(&gate, open, rustix::fs::Mode::empty()));
            !runs(&gate)
        })
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        // A killed server leaves its commands behind.
        self.let_them_end();
    }
}

/// Readers of one user, killed at the end.
struct Readers(Child);

impl Readers {
    fn start(user: u32, count: usize, path: &Path) -> Self {
        let script = format!("for i in $(seq {count}); do cat \"$0\" & done; wait");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).arg(path).uid(user).gid(user).process_group(0);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(shell.spawn().expect("sh(1)"))
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Whether one of them is there still; those that have ended and not been waited for are not.
    fn is_any_left(&self) -> bool {
        let group = self.group().as_raw_nonzero().to_string();
        let processes = fs::read_dir("/proc").expect("proc").flatten();
        let stats = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
        stats.into_iter().any(|stat| {
            let mut rest = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            rest.next() != Some("Z") && rest.nth(1) == Some(&group)
        })
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let _ = kill_process_group(self.group(), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Reads `path` as `user`, who must not be held up.
fn reads(user: u32, path: &Path) {
    let mut cat = Command::new("timeout");
    cat.args(["-s", "KILL", &PROMPT.as_secs().to_string(), "cat"]).arg(path).uid(user).gid(user);
    let output = cat.stdin(Stdio::null()).output().expect("timeout(1)");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "answer\n", "user {user}: {output:?}");
}

fn readers_that_wait_hold_up_no_other_user_or_file() {
    let tree = Slow::new();
    let (slow, quick) = (tree.dir.path().join("slow"), tree.dir.path().join("quick"));
    let _first = Readers::start(USERS[0], 300, &slow);
    let alone = tree.settle();
    for user in [USERS[1], 0, USERS[0]] {
        reads(user, &quick);
    }
    let _second = Readers::start(USERS[1], 300, &slow);
    let both = tree.settle();
    for user in [0, USERS[1], USERS[0]] {
        reads(user, &quick);
    }
    assert!(alone >= 32 && both >= alone + 32, "each user has a share: {alone}, then {both}");
    assert!(both < 150, "{both} run at once");
}

fn a_reader_that_is_killed_in_the_queue_runs_nothing() {
    let mut tree = Slow::new();
    let readers = Readers::start(USERS[0], 200, &tree.dir.path().join("slow"));
    let begun = tree.settle();
    assert!((1..150).contains(&begun), "{begun}");
    kill_process_group(readers.group(), Signal::KILL).expect("kill");
    assert!(within(PROMPT, || !readers.is_any_left()), "a killed reader waits on");
    assert!(tree.let_them_end());
    assert_eq!(tree.begun(), begun, "commands ran for readers that are gone");
    reads(USERS[0], &tree.dir.path().join("quick"));
    tree.server.signal(Signal::TERM);
    assert!(tree.server.ended().success());
}

/// Whether a command waits at `gate`.
fn runs(gate: &Path) -> bool {
    let words = fs::read_dir("/proc").expect("proc").flatten();
    let words = words.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let gate = gate.as_os_str().as_encoded_bytes();
    words.into_iter().any(|words| words.windows(gate.len()).any(|part| part == gate))
}
