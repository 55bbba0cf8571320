//! Pressure stall information: the system reports when programs wait for memory.
//!
//! A *trigger* is set by a write to one of the kernel's files. poll(2) then returns POLLPRI when tasks have waited
//! for memory that long within a window (Documentation/accounting/psi.rst). The file of this process's own cgroup
//! is tried first, because a container's limit is the one that binds; then the file of the whole system. Both may
//! be missing (the kernel was built or booted without them, or they may not be opened). Then the reasons are
//! reported, and nothing is watched.
//!
//! One thread owns and polls a source.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::event::PollFlags;

use crate::mount::mountinfo::{self, Mount};

/// A tenth of the time, in microseconds. An unprivileged process must use a window of a multiple of two seconds.
/// The nul is part of the trigger.
const TRIGGER: &[u8] = b"some 200000 2000000\0";
/// The file of the whole system.
const SYSTEM: &str = "/proc/pressure/memory";

/// The report of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    /// Programs waited for memory.
    Pressed,
    /// It will report nothing more.
    Over,
}

/// A source of memory pressure reports.
pub(crate) trait Source: Send {
    /// The descriptor to poll.
    fn fd(&self) -> BorrowedFd<'_>;
    /// The events to poll for.
    fn interest(&self) -> PollFlags;
    /// Interprets the events that poll(2) returned.
    fn heard(&mut self, flags: PollFlags) -> Heard;
}

/// A trigger that is set.
pub(crate) struct Psi {
    file: File,
    path: PathBuf,
}

impl Psi {
    /// Sets a trigger, on the first file that takes one.
    pub(crate) fn open() -> Result<Self, Missing> {
        let own = fs::read_to_string("/proc/self/cgroup").ok();
        let mounts = mountinfo::mounts().unwrap_or_default();
        let own = own.and_then(|groups| own_file(&groups, &mounts));
        Self::open_first(own.as_deref().into_iter().chain([Path::new(SYSTEM)]))
    }

    fn open_first<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<Self, Missing> {
        let mut missing = Missing(Vec::new());
        for path in paths {
            match Self::set(path) {
                Ok(file) => return Ok(Self { file, path: path.into() }),
                Err(error) => missing.0.push((path.into(), error)),
            }
        }
        Err(missing)
    }

    fn set(path: &Path) -> io::Result<File> {
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        // The kernel accepts the trigger whole or not at all, and keeps it as long as the descriptor.
        file.write_all(TRIGGER)?;
        Ok(file)
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Source for Psi {
    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn interest(&self) -> PollFlags {
        PollFlags::PRI
    }

    fn heard(&mut self, flags: PollFlags) -> Heard {
        // The cgroup is gone.
        if flags.intersects(PollFlags::ERR | PollFlags::NVAL | PollFlags::HUP) {
            Heard::Over
        } else if flags.contains(PollFlags::PRI) {
            Heard::Pressed
        } else {
            Heard::Nothing
        }
    }
}

/// Why nothing is watched: the files that were tried, each with its error.
#[derive(Debug)]
pub(crate) struct Missing(Vec<(PathBuf, io::Error)>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (path, error)) in self.0.iter().enumerate() {
            let before = if i == 0 { "" } else { "; " };
            write!(f, "{before}{}: {error}", path.display())?;
        }
        Ok(())
    }
}

/// The file of this process's own cgroup. `groups` is the content of `/proc/self/cgroup` (cgroups(7)), in which
/// version 2 has the line `0::PATH`. `None` if it is not mounted where this process sees it.
fn own_file(groups: &str, mounts: &[Mount]) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.iter().rfind(|mount| mount.fstype == "cgroup2")?;
    // A container may see only a part of the tree.
    let below = Path::new(group).strip_prefix(&mount.root).ok()?;
    // `..`: the group lies outside this cgroup namespace.
    let inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    inside.then(|| mount.point.join(below).join("memory.pressure"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(root: &str, point: &str, fstype: &str) -> Mount {
        Mount {
            id: "1".into(),
            dev: "0:1".into(),
            root: root.into(),
            point: point.into(),
            fstype: fstype.into(),
            source: "none".into(),
            flags: String::new(),
        }
    }

    #[test]
    fn our_own_group_is_found_where_it_is_mounted() {
        let groups = "4:memory:/x\n0::/user/me\n";
        let file = |root: &str, groups: &str| {
            let mounts = [mount("/", "/old", "cgroup"), mount(root, "/sys/fs/cgroup", "cgroup2")];
            own_file(groups, &mounts)
        };
        let whole = file("/", groups).expect("a file");
        assert_eq!(whole, Path::new("/sys/fs/cgroup/user/me/memory.pressure"));
        let part = file("/user", groups).expect("a file");
        assert_eq!(part, Path::new("/sys/fs/cgroup/me/memory.pressure"));
        let root = file("/", "0::/\n").expect("a file");
        assert_eq!(root, Path::new("/sys/fs/cgroup/memory.pressure"));
        for bad in ["", "0:", "0::", "0::/..", "0::/../other", "1:name=x:/a", "\n\n", "0::relative"] {
            assert_eq!(file("/", bad), None, "{bad:?}");
        }
        assert_eq!(file("/other", groups), None);
        assert_eq!(own_file(groups, &[]), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = [dir.path().join("none"), dir.path().to_path_buf()];
        let missing = Psi::open_first(paths.iter().map(PathBuf::as_path)).err().expect("no such files");
        let text = missing.to_string();
        assert!(text.contains("none: No such file") && text.contains("; "), "{text}");
    }

    /// The kernel accepts the trigger and does not end it at once.
    #[test]
    fn the_system_takes_a_trigger() {
        let mut psi = match Psi::open() {
            Ok(psi) => psi,
            Err(missing) => return eprintln!("skipped: the_system_takes_a_trigger: {missing}"),
        };
        let time = Some(std::time::Duration::ZERO);
        let [flags] = crate::threads::eventfd::listen([(psi.fd(), psi.interest())], time).expect("poll");
        assert_ne!(psi.heard(flags), Heard::Over, "{}", psi.path().display());
    }

    #[test]
    fn an_error_is_the_end() {
        let file = File::open("/dev/null").expect("/dev/null");
        let mut psi = Psi { file, path: PathBuf::new() };
        assert_eq!(psi.heard(PollFlags::empty()), Heard::Nothing);
        assert_eq!(psi.heard(PollFlags::PRI), Heard::Pressed);
        assert_eq!(psi.heard(PollFlags::PRI | PollFlags::ERR), Heard::Over);
    }
}
