//! Whether a process is about to end by a signal, at the moment that its files are closed.
//!
//! The kernel closes the files of a process that was killed as it does for one that has called exit(2). The status that
//! wait(2) will tell is set before that, and `/proc/PID/stat` shows it to root and to the process's own user. Others get 0:
//! then a close looks like any other.
//!
//! A process that calls execve(2) closes its files too, those with O_CLOEXEC. On Linux 6.18 a
//! read of `/proc/PID/stat` waits until execve has ended, and execve waits for the answer to the close. So `/proc/PID/status`, which
//! waits for neither, is read first: a process that ends has no memory any more when its files are closed, and one in
//! execve has.

/// The number of the status among the fields after the name.
const STATUS: usize = 49;

/// Whether a thread ends by a signal.
pub(crate) fn is_killed(thread: u32) -> bool {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{thread}/{file}"));
    read("status").is_ok_and(|status| has_no_memory(&status))
        && read("stat").is_ok_and(|stat| is_by_signal(&stat))
}

fn has_no_memory(status: &str) -> bool {
    !status.lines().any(|line| line.starts_with("VmSize:"))
}

fn is_by_signal(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let status = fields.split_ascii_whitespace().nth(STATUS).and_then(|status| status.parse::<u32>().ok());
    // The low seven bits are the signal, as in the status of wait(2).
    status.is_some_and(|status| status & 0x7f != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_lives_has_memory() {
        let own = std::fs::read_to_string("/proc/self/status").expect("Linux");
        assert!(!has_no_memory(&own) && has_no_memory("Name:\tx\nState:\tD (disk sleep)\n"));
    }

    #[test]
    fn the_status_is_the_last_field_and_its_low_bits_are_the_signal() {
        let line = |status| format!("7 (a ) b) D {} {status}\n", vec!["0"; STATUS - 1].join(" "));
        assert!(is_by_signal(&line(9)) && is_by_signal(&line(0x8b)));
        assert!(!is_by_signal(&line(0)) && !is_by_signal(&line(3 << 8)));
        assert!(!is_by_signal("") && !is_killed(std::process::id()));
    }
}
