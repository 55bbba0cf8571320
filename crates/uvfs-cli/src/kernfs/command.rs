//! Running a command for who reads its file.
//!
//! No shell is between: the words are the program and its arguments. It runs in a process group of its own, with
//! nothing as standard input, and is over when it has ended and its output too. At its time limit the
//! whole group is killed, and so it is where it says too much. It is always waited for: nothing is left
//! behind but what left the group by itself. [`end_all`] kills what runs when the mount ends.
//! Any thread may call [`run`]; it waits for the command. Costs a process a call.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use uvfs::{Errno, Result};

use super::spec::Command;

/// Groups that run, by their first process.
static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// A process group that is killed, and its first process waited for, when this is dropped.
struct Group {
    child: Child,
    pid: Pid,
}

impl Group {
    fn start(command: &Command) -> io::Result<Self> {
        let mut starting = std::process::Command::new(&command.run[0]);
        starting.args(&command.run[1..]).current_dir(&command.dir).process_group(0);
        starting.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Held while it starts, so that `end_all` does not come between the start and the note of it.
        let mut running = RUNNING.lock();
        let child = starting.spawn()?;
        let pid = Pid::from_child(&child);
        running.insert(pid.as_raw_nonzero().get());
        Ok(Self { child, pid })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The number is the group's, and no other's, until its first process has been waited for, which is here only. An
        // error means that nobody is left in it.
        let _ = kill_process_group(self.pid, Signal::KILL);
        RUNNING.lock().remove(&self.pid.as_raw_nonzero().get());
        let _ = self.child.wait();
    }
}

/// Kills every command that runs: for the end of the process, which would leave them behind.
pub fn end_all() {
    for pid in RUNNING.lock().iter().filter_map(|pid| Pid::from_raw(*pid)) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Runs `command` and appends its standard output to `out`.
///
/// # Errors
/// ETIMEDOUT at its time limit, EFBIG where it says too much, EIO where it ends with a status other than 0; where
/// it cannot be started, why (ENOENT: no such program).
pub fn run(command: &Command, out: &mut Vec<u8>) -> Result<()> {
    let errno = |error: &io::Error| Errno::from_io_error(error).unwrap_or(Errno::IO);
    let mut group = Group::start(command).map_err(|error| {
        tracing::warn!(program = command.run[0], %error, "the command cannot be started");
        errno(&error)
    })?;
    // None: longer than the clock goes.
    let deadline = Instant::now().checked_add(command.timeout);
    let outcome = attend(&mut group, command.limit, deadline, out);
    if let Err(error) = outcome {
        tracing::warn!(program = command.run[0], %error, "the command failed");
        return Err(error);
    }
    outcome
}

/// Reads what it says until it ends.
fn attend(group: &mut Group, limit: usize, deadline: Option<Instant>, out: &mut Vec<u8>) -> Result<()> {
    let mut stdout = group.child.stdout.take().ok_or(Errno::IO)?;
    read_all(&mut stdout, limit, deadline, out)?;
    let ended = pidfd_open(group.pid, PidfdFlags::empty())?;
    wait_for(&ended, deadline)?;
    // It stays to be waited for, so that its number is nobody else's when the group is killed.
    let status = loop {
        match waitid(WaitId::Pid(group.pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(Errno::INTR) => {}
            status => break status?.ok_or(Errno::IO)?,
        }
    };
    if status.exit_status() == Some(0) {
        return Ok(());
    }
    let (code, signal) = (status.exit_status(), status.terminating_signal());
    tracing::warn!(code, signal, "the command ended badly");
    Err(Errno::IO)
}

fn read_all(
    stdout: &mut ChildStdout,
    limit: usize,
    deadline: Option<Instant>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut buffer = [0; 4096];
    let start = out.len();
    loop {
        wait_for(&*stdout, deadline)?;
        match stdout.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) if out.len() - start + len > limit => return Err(Errno::FBIG),
            Ok(len) => out.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

/// Waits until a read of `fd` would not wait; ETIMEDOUT at the deadline.
fn wait_for(fd: &impl AsFd, deadline: Option<Instant>) -> Result<()> {
    loop {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        // A time that has run out still lets what is there be seen.
        let time = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], time.as_ref()) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Err(Errno::TIMEDOUT),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn command(run: &[&str]) -> Command {
        let run = run.iter().map(|word| (*word).to_owned()).collect();
        Command { run, dir: "/".into(), timeout: Duration::from_secs(20), limit: 10_000 }
    }

    fn output(command: &Command) -> Result<String> {
        let mut out = Vec::new();
        run(command, &mut out)?;
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
        assert_eq!(output(&command(&["/nonexistent/program"])), Err(Errno::NOENT));
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

    /// Who kills a group by number must know that it is the group's.
    #[test]
    fn the_number_is_kept_until_the_group_is_killed() {
        let mut group = Group::start(&command(&["true"])).expect("it starts");
        let stat = format!("/proc/{}/stat", group.pid.as_raw_nonzero());
        assert_eq!(attend(&mut group, 10, None, &mut Vec::new()), Ok(()));
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
            let hangs = Command { timeout: Duration::from_millis(300), ..command(&["sh", "-c", &script]) };
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
        assert!(RUNNING.lock().is_empty());
    }
}
