//! The example, mounted for one test.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{RawDir, SeekFrom};
use tempfile::TempDir;
use uvfs_fuser::{Nodes, NodesOptions};

use crate::passthrough::{Object, mount};

/// Why a mount is not possible here, if it is not.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.err().map(|error| format!("/dev/fuse: {error}"))
}

/// A host directory and its mount; unmounted when dropped.
pub struct Fixture {
    session: Option<fuser::BackgroundSession>,
    nodes: Nodes<Object>,
    host: TempDir,
    dir: TempDir,
}

impl Fixture {
    pub fn new(limit: u64) -> Self {
        Self::with_threads(limit, 4)
    }

    pub fn with_threads(limit: u64, threads: usize) -> Self {
        Self::with(NodesOptions { limit, ..NodesOptions::default() }, threads)
    }

    pub fn with_options(options: NodesOptions) -> Self {
        Self::with(options, 4)
    }

    fn with(options: NodesOptions, threads: usize) -> Self {
        let temporary = || tempfile::tempdir().expect("a temporary directory");
        let (host, dir) = (temporary(), temporary());
        let (session, nodes) = mount(host.path(), dir.path(), options, threads).expect("a mount");
        Self { session: Some(session), nodes, host, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn host(&self, name: &str) -> PathBuf {
        self.host.path().join(name)
    }

    pub fn nodes(&self) -> &Nodes<Object> {
        &self.nodes
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let ended = self.session.take().map(fuser::BackgroundSession::umount_and_join);
        if let Some(Err(error)) = ended {
            eprintln!("unmount: {error}");
        }
    }
}

/// The names of a directory, sorted, read with a buffer for few names; each step begins with a seek to where the last
/// one ended, as a caller with `telldir` and `seekdir` does.
pub fn names_in_small_steps(path: &Path) -> Vec<OsString> {
    let dir = File::open(path).expect("a directory");
    let mut names = Vec::new();
    let mut at = 0;
    loop {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 600];
        let mut entries = RawDir::new(&dir, &mut buffer);
        let mut step = 0;
        // Fewer than the buffer has: the next step begins inside it.
        while let Some(entry) = (step < 3).then(|| entries.next()).flatten() {
            let entry = entry.expect("an entry");
            at = entry.next_entry_cookie();
            step += 1;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(std::ffi::OsStr::from_bytes(name).to_owned());
            }
        }
        if step == 0 {
            break;
        }
        rustix::fs::seek(&dir, SeekFrom::Start(at)).expect("a seek");
    }
    names.sort();
    names
}

/// Makes the kernel drop unused names and inodes.
pub fn drop_caches() {
    std::fs::write("/proc/sys/vm/drop_caches", "2").expect("root may drop caches");
}

/// Checks repeatedly until it holds, for at most `time`.
pub fn within(time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
