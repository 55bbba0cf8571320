//! Servers: processes that each mount a file system, from start to end, and the processor time they use.
//!
//! The time is that of the started process and of its living descendants. It is read from their clocks
//! (clock_getcpuclockid(3)), which count nanoseconds and include ended threads; `/proc/PID/stat` only has
//! hundredths of a second. A server may have work left after it answered its client (nobody waits for FORGET
//! and RELEASE), so a reading waits until the server is quiet.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::workloads::fuse::place::ServerPlace;

/// Time for a server to mount.
const MOUNTS_WITHIN: Duration = Duration::from_secs(20);
/// Time for a server to end after its unmount; then it is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// A server that used less than [`IDLE`] of this time is quiet.
const LOOK: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_micros(20);
/// Longest wait for a quiet server: one that polls is never quiet.
const QUIET_WITHIN: Duration = Duration::from_millis(500);

/// `--peer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the arm.
    pub name: String,
    /// Command for `sh -c`, with `{dir}` and optionally `{src}`.
    pub command: String,
}

impl std::str::FromStr for Peer {
    type Err = String;

    /// `CMD` or `NAME=CMD`. Without a name, the command's is taken.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_name =
            |name: &str| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '{');
        let (name, command) = match text.split_once('=') {
            Some((name, command)) if is_name(name) => (name, command),
            _ => {
                let program = text.split_whitespace().next().unwrap_or_default();
                (program.rsplit('/').next().unwrap_or_default(), text)
            }
        };
        if name.is_empty() || !command.contains("{dir}") {
            return Err(format!("{text:?}: a peer is [NAME=]CMD, and CMD mounts on {{dir}}"));
        }
        Ok(Self { name: name.to_owned(), command: command.to_owned() })
    }
}

impl Peer {
    /// Whether it shows the source directory of its place.
    pub fn uses_source(&self) -> bool {
        self.command.contains("{src}")
    }

    /// The command, for a place.
    pub fn command(&self, place: &ServerPlace) -> Command {
        let quoted =
            |path: &std::path::Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        let line =
            self.command.replace("{dir}", &quoted(place.mount())).replace("{src}", &quoted(place.source()));
        let mut command = Command::new("sh");
        command.args(["-c", &line]);
        command
    }
}

/// A running server. The owner unmounts before dropping it; a server that does not end then is killed.
pub struct BenchServer {
    child: Child,
}

impl BenchServer {
    /// Starts a server and waits for its mount.
    ///
    /// # Errors
    /// If it does not start, ends, or mounts nothing within some seconds; includes its error output.
    pub fn start(mut command: Command, place: &ServerPlace) -> Result<Self> {
        // In this process's group, so that an interrupt from the terminal ends all of them.
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(place.log()?).spawn();
        let mut server = Self { child: child.with_context(|| format!("cannot start {command:?}"))? };
        let deadline = Instant::now() + MOUNTS_WITHIN;
        let problem = loop {
            if place.is_mounted()? {
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait()? {
                break format!("it ended ({status})");
            }
            if Instant::now() > deadline {
                break format!("it has mounted nothing after {} s", MOUNTS_WITHIN.as_secs());
            }
            std::thread::sleep(LOOK);
        };
        server.kill();
        bail!("{problem}; it said: {}", place.said())
    }

    /// Processor time used so far, read when the server is quiet. `None` if the clocks cannot be read.
    pub fn cpu(&self) -> Option<Duration> {
        let clocks: Vec<ClockId> = family(self.child.id() as i32)
            .into_iter()
            .filter_map(|pid| clock_getcpuclockid(pid).ok())
            .collect();
        // A process may end meanwhile. Its time is then lost, and the caller sees that the sum has decreased.
        let read =
            || clocks.iter().filter_map(|clock| clock.now().ok()).map(Duration::from).sum::<Duration>();
        let first = (!clocks.is_empty()).then(read)?;
        let (mut last, deadline) = (first, Instant::now() + QUIET_WITHIN);
        while Instant::now() < deadline {
            std::thread::sleep(LOOK);
            let now = read();
            if now.saturating_sub(last) < IDLE {
                return Some(now);
            }
            last = now;
        }
        Some(first)
    }

    fn kill(&mut self) {
        for pid in family(self.child.id() as i32) {
            // It may have ended already.
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        let deadline = Instant::now() + ENDS_WITHIN;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        self.kill();
    }
}

/// A process and its descendants.
fn family(ancestor: i32) -> Vec<Pid> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parents: Vec<(i32, i32)> = pids
        .filter_map(|pid| Some((pid, parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect();
    let mut family = vec![ancestor];
    let mut at = 0;
    while let Some(one) = family.get(at).copied() {
        family.extend(parents.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        at += 1;
    }
    family.into_iter().map(Pid::from_raw).collect()
}

/// Parses `PID (name) state ppid …`; a name may contain blanks and brackets.
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read() {
        let peer = |name: &str, command: &str| Ok(Peer { name: name.into(), command: command.into() });
        assert_eq!("/usr/bin/a -f {dir}".parse(), peer("a", "/usr/bin/a -f {dir}"));
        assert_eq!("b=a -f {dir}".parse(), peer("b", "a -f {dir}"));
        assert_eq!("a -o x=1 {src} {dir}".parse(), peer("a", "a -o x=1 {src} {dir}"));
        for wrong in ["", "a", "b=a", "=a {src}", "a /mnt"] {
            assert!(wrong.parse::<Peer>().unwrap_err().contains("a peer is [NAME=]CMD"), "{wrong}");
        }
    }

    #[test]
    fn a_family_has_its_grandchildren_and_their_time() {
        assert_eq!(parent("7 (a) b) S 3 1 1"), Some(3));
        let line = "sh -c 'while :; do :; done' & wait";
        let child = Command::new("sh").args(["-c", line]).spawn().unwrap();
        let mut server = BenchServer { child };
        let deadline = Instant::now() + Duration::from_secs(20);
        // It is never quiet, but its clocks still advance.
        while server.cpu().is_none_or(|used| used < Duration::from_millis(20)) {
            assert!(Instant::now() < deadline, "no time is seen");
        }
        assert!(family(server.child.id() as i32).len() >= 2);
        server.kill();
        assert_eq!(server.child.try_wait().unwrap().map(|status| status.success()), Some(false));
    }
}
