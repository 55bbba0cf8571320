//! Running a command for the reader of its file.
//!
//! The words are the program and its arguments, without a shell. The program runs in a process group of its own, with
//! nothing as standard input. It is over when it has ended and its output too. At its time limit the whole group is
//! killed, and also if its output is too long. The program is always waited for: only processes that left the group
//! by themselves remain. [`end_all`] kills all running groups when the mount ends. Any thread may call [`run`]; it
//! waits for the command. Costs a process per call.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
};
use uvfs::{Errno, Result};

use super::spec::ShownCommand;

/// Most bytes of standard error that are logged.
const COMPLAINTS_MAX: usize = 512;

/// How long [`end_all`] waits for commands that are just being started.
const STARTING_MAX: Duration = Duration::from_millis(200);

/// The commands of this process.
static COMMANDS: Mutex<Commands> =
    Mutex::new(Commands { running: BTreeSet::new(), starting: 0, ended: false });
/// One command less is being started.
static STARTED: Condvar = Condvar::new();

struct Commands {
    /// Groups that run, by their first process.
    running: BTreeSet<i32>,
    starting: usize,
    /// [`end_all`] was called: a command that has started since is killed at once.
    ended: bool,
}

/// A process group that is killed, and its first process waited for, when this is dropped.
struct Group {
    child: Child,
    pid: Pid,
}

impl Group {
    fn start(command: &ShownCommand) -> io::Result<Self> {
        let mut starting = std::process::Command::new(&command.run[0]);
        starting.args(&command.run[1..]).current_dir(&command.dir).process_group(0);
        starting.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        COMMANDS.lock().starting += 1;
        // Nothing is locked: it takes as long as the program's file system takes to answer, which may be this mount.
        let spawned = starting.spawn();
        let mut commands = COMMANDS.lock();
        commands.starting -= 1;
        STARTED.notify_all();
        let child = spawned?;
        let pid = Pid::from_child(&child);
        commands.running.insert(pid.as_raw_nonzero().get());
        let ended = commands.ended;
        drop(commands);
        let group = Self { child, pid };
        if ended { Err(io::ErrorKind::Interrupted.into()) } else { Ok(group) }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The number is only the group's until its first process has been waited for, which happens only here. An
        // error means that no process is left in it.
        let _ = kill_process_group(self.pid, Signal::KILL);
        COMMANDS.lock().running.remove(&self.pid.as_raw_nonzero().get());
        let _ = self.child.wait();
    }
}

/// Kills every running command: for the end of the process, which would leave them behind. A command that is being
/// started either is among them or finds `ended`. It is waited for only a moment: its start may hang in this mount, which
/// ends afterwards.
pub fn end_all() {
    let until = Instant::now() + STARTING_MAX;
    let mut commands = COMMANDS.lock();
    commands.ended = true;
    while commands.starting > 0 && !STARTED.wait_until(&mut commands, until).timed_out() {}
    for pid in commands.running.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Runs `command` and appends its standard output to `out`. If it fails, a line is logged, with `path`, its status,
/// and the beginning of its standard error.
///
/// # Errors
/// ETIMEDOUT at its time limit, EFBIG if its output is too long, EIO if it ends with a status other than 0; the
/// reason if it cannot be started. EIO also if there is no such program: the file of the command does exist.
pub fn run(command: &ShownCommand, path: impl FnOnce() -> String, out: &mut Vec<u8>) -> Result<()> {
    let program = &*command.run[0];
    let errno = |error: &io::Error| Errno::from_io_error(error).unwrap_or(Errno::IO);
    let mut group = match Group::start(command) {
        Ok(group) => group,
        Err(error) => {
            tracing::warn!(path = ?path(), program, %error, "the command cannot be started");
            return Err(if error.kind() == io::ErrorKind::NotFound { Errno::IO } else { errno(&error) });
        }
    };
    let mut heard = Heard { limit: command.limit, said: 0, out, complaints: Vec::new() };
    // None: beyond the clock's range.
    let deadline = Instant::now().checked_add(command.timeout);
    let ended = attend(&mut group, deadline, &mut heard);
    let how = match &ended {
        Ok(status) if status.exit_status() == Some(0) => return Ok(()),
        Ok(status) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
        },
        Err(error) => error.to_string(),
    };
    // As a string literal: a program's output must not look like lines of the log, nor control a terminal.
    let stderr = String::from_utf8_lossy(&heard.complaints);
    tracing::warn!(path = ?path(), program, how, ?stderr, "the command failed");
    Err(ended.err().unwrap_or(Errno::IO))
}

/// The output of a command, as it comes.
struct Heard<'o> {
    /// Most bytes of standard output.
    limit: usize,
    said: usize,
    out: &'o mut Vec<u8>,
    /// The beginning of standard error.
    complaints: Vec<u8>,
}

impl Heard<'_> {
    /// Reads some standard output. Returns whether there may be more.
    fn hear(&mut self, stdout: &mut ChildStdout) -> Result<bool> {
        let mut buffer = [0; 4096];
        match stdout.read(&mut buffer) {
            Ok(len) if self.said + len > self.limit => Err(Errno::FBIG),
            Ok(len) => {
                self.said += len;
                self.out.extend_from_slice(&buffer[..len]);
                Ok(len != 0)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    /// Reads some standard error. Returns whether there may be more. Output beyond the limit is read too: otherwise
    /// the command would wait until somebody reads it.
    fn hear_complaint(&mut self, stderr: &mut ChildStderr) -> bool {
        let mut buffer = [0; 4096];
        match stderr.read(&mut buffer) {
            Ok(len) => {
                let room = COMPLAINTS_MAX - self.complaints.len();
                self.complaints.extend_from_slice(&buffer[..len.min(room)]);
                len != 0
            }
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        }
    }
}

/// Reads its output until it ends, and returns its status. Its standard error need not end: another process may have
/// that open.
fn attend(group: &mut Group, deadline: Option<Instant>, heard: &mut Heard<'_>) -> Result<WaitIdStatus> {
    let (mut stdout, mut stderr) = (group.child.stdout.take(), group.child.stderr.take());
    let pidfd = pidfd_open(group.pid, PidfdFlags::empty())?;
    loop {
        // Its end counts once its output has ended.
        let first = stdout.as_ref().map_or(pidfd.as_fd(), AsFd::as_fd);
        let [is_ready, complains] = wait_for(first, stderr.as_ref().map(AsFd::as_fd), deadline)?;
        if let (true, Some(from)) = (complains, &mut stderr)
            && !heard.hear_complaint(from)
        {
            stderr = None;
        }
        let Some(from) = &mut stdout else {
            // Its last output may still be unread; the same poll has reported that.
            if is_ready && !complains {
                break;
            }
            continue;
        };
        if is_ready && !heard.hear(from)? {
            stdout = None;
        }
    }
    // It is not waited for yet, so that no other process has its number when the group is killed.
    loop {
        match waitid(WaitId::Pid(group.pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(Errno::INTR) => {}
            status => return status?.ok_or(Errno::IO),
        }
    }
}

/// Waits until a read of `first` or of `second` would not wait, and returns which. ETIMEDOUT at the deadline.
fn wait_for(
    first: BorrowedFd<'_>,
    second: Option<BorrowedFd<'_>>,
    deadline: Option<Instant>,
) -> Result<[bool; 2]> {
    let mut fds: Vec<_> = [Some(first), second]
        .into_iter()
        .flatten()
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    loop {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        // With no time left, one poll still reports output that is there.
        let time = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, time.as_ref()) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Err(Errno::TIMEDOUT),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok([0, 1].map(|at| fds.get(at).is_some_and(|fd| !fd.revents().is_empty()))),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn command(run: &[&str]) -> ShownCommand {
        let run = run.iter().map(|word| (*word).to_owned()).collect();
        ShownCommand { run, dir: "/".into(), timeout: Duration::from_secs(20), limit: 10_000 }
    }

    fn output(command: &ShownCommand) -> Result<String> {
        let mut out = Vec::new();
        run(command, String::new, &mut out)?;
        Ok(String::from_utf8(out).expect("UTF-8"))
    }

    #[test]
    fn words_are_arguments_and_no_shell_sees_them() {
        assert_eq!(output(&command(&["echo", "$HOME; *", "b c"])), Ok("$HOME; * b c\n".into()));
        assert_eq!(output(&command(&["pwd"])), Ok("/\n".into()));
        // Nothing to read, and nobody to ask.
        assert_eq!(output(&command(&["cat"])), Ok(String::new()));
    }

    #[test]
    fn failures_have_their_errno() {
        assert_eq!(output(&command(&["/nonexistent/program"])), Err(Errno::IO));
        assert_eq!(output(&command(&["/etc/passwd"])), Err(Errno::ACCESS));
        assert_eq!(output(&command(&["false"])), Err(Errno::IO));
        assert_eq!(output(&command(&["sh", "-c", "kill -9 $$"])), Err(Errno::IO));
        assert_eq!(output(&command(&["head", "-c", "10001", "/dev/zero"])), Err(Errno::FBIG));
        assert_eq!(output(&command(&["cat", "/dev/zero"])), Err(Errno::FBIG));
        assert_eq!(
            output(&command(&["head", "-c", "10000", "/dev/zero"])).map(|text| text.len()),
            Ok(10_000)
        );
    }

    #[test]
    fn complaints_are_read_to_the_end_and_kept_in_part() {
        for script in ["yes why | head -c 1000000 >&2; exit 1", "exec >&-; yes why | head -c 1000000 >&2"] {
            let mut group = Group::start(&command(&["sh", "-c", script])).expect("it starts");
            let mut heard = Heard { limit: 10, said: 0, out: &mut Vec::new(), complaints: Vec::new() };
            let deadline = Instant::now().checked_add(Duration::from_secs(20));
            assert!(attend(&mut group, deadline, &mut heard).is_ok(), "{script}");
            assert_eq!(heard.complaints, "why\n".repeat(COMPLAINTS_MAX / 4).into_bytes(), "{script}");
        }
        // A process that still has it open is not waited for.
        let left = command(&["sh", "-c", "sleep 1000 > /dev/null & echo done"]);
        assert_eq!(output(&left), Ok("done\n".into()));
    }

    /// The killer of a group by number must know that the number is still the group's.
    #[test]
    fn the_number_is_kept_until_the_group_is_killed() {
        let mut group = Group::start(&command(&["true"])).expect("it starts");
        let stat = format!("/proc/{}/stat", group.pid.as_raw_nonzero());
        let mut heard = Heard { limit: 10, said: 0, out: &mut Vec::new(), complaints: Vec::new() };
        assert!(attend(&mut group, None, &mut heard).is_ok());
        assert!(std::fs::exists(&stat).expect("proc"), "it was waited for");
        drop(group);
        assert!(!std::fs::exists(&stat).expect("proc"));
    }

    /// Whether a process with this number is there and not just waiting to be waited for.
    fn runs(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    }

    #[test]
    fn at_its_limit_the_whole_group_is_killed() {
        let dir = tempfile::tempdir().expect("a directory");
        let note = dir.path().join("pid");
        let note = note.to_str().expect("UTF-8");
        // One that hangs with its output open, one that has closed it, and one whose child has it open.
        for script in [
            "echo $$ > NOTE; exec sleep 1000",
            "echo $$ > NOTE; exec sleep 1000 > /dev/null",
            "sleep 1000 & echo $! > NOTE",
        ] {
            let script = script.replace("NOTE", note);
            let hangs =
                ShownCommand { timeout: Duration::from_millis(300), ..command(&["sh", "-c", &script]) };
            let start = Instant::now();
            assert_eq!(output(&hangs), Err(Errno::TIMEDOUT), "{script}");
            assert!(start.elapsed() < Duration::from_secs(20), "{script}");
            let pid = std::fs::read_to_string(note).expect("it has started");
            let end = Instant::now() + Duration::from_secs(20);
            while runs(pid.trim()) {
                assert!(Instant::now() < end, "{script}: still running");
                std::thread::yield_now();
            }
        }
        assert!(COMMANDS.lock().running.is_empty());
    }
}
