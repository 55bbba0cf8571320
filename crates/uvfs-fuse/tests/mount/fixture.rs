//! A file system mounted on a directory of its own, for one test.

use std::fs::{File, OpenOptions};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use uvfs::{Access, Attr, Cred, Driver, Found, Vfs, VfsConfig, mode};
use uvfs_drivers::tmpfs::{Tmpfs, TmpfsOptions};
use uvfs_fuse::{Mounted, Options, Passthrough};

/// The size of a test: the second one if the environment has `UVFS_FULL`, as in `ci/test.sh --full`.
pub fn usual_or_full<T>(usual: T, full: T) -> T {
    if std::env::var_os("UVFS_FULL").is_some() { full } else { usual }
}

/// The requirements of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A mount.
    Mount,
    /// A mount, and root: for acting as another user and for dropping the kernel's caches.
    Root,
}

impl Needs {
    /// Why the test cannot run here, if it cannot.
    pub fn missing(self) -> Option<String> {
        let root = rustix::process::geteuid().is_root();
        if self == Self::Root && !root {
            return Some("not root".into());
        }
        if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            return Some(format!("/dev/fuse: {error}"));
        }
        if !root && Command::new("fusermount3").arg("-V").output().is_err() {
            return Some("neither root nor fusermount3".into());
        }
        None
    }
}

/// A mounted VFS; unmounted when dropped.
pub struct Fixture {
    pub mounted: Mounted,
    pub vfs: Arc<Vfs>,
    // After `mounted`: the directory can be removed only when nothing is mounted on it.
    dir: TempDir,
}

/// Opens files on a thread of its own, whose next file the server does not expect to be small.
pub fn by_a_new_thread<T: Send>(open: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(open).join().expect("a thread"))
}

impl Fixture {
    pub fn new(driver: Arc<dyn Driver>, options: &Options) -> Self {
        let vfs = Vfs::new(VfsConfig::default(), driver).expect("a VFS");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mounted = uvfs_fuse::mount(Arc::clone(&vfs), dir.path(), options).expect("a mount");
        Self { mounted, vfs, dir }
    }

    /// A tmpfs that all users may use.
    pub fn tmpfs() -> Self {
        Self::tmpfs_with(|_| {})
    }

    pub fn tmpfs_with(change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::default();
        options.allow_other = rustix::process::geteuid().is_root();
        options.suid = options.allow_other;
        change(&mut options);
        Self::new(tmpfs(), &options)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The attributes in the VFS, without a request to the kernel.
    pub fn vfs_attr(&self, name: &str) -> Attr {
        let op = self.vfs.op(&Cred::root());
        match self.vfs.lookup(&op, &self.vfs.root(), name.as_bytes()).expect("a lookup") {
            Found::Node(_, attr) => attr,
            Found::Absent(_) => panic!("{name} is missing"),
        }
    }

    /// Makes a file in the root directory without the kernel's knowledge.
    pub fn make_behind_the_kernels_back(&self, name: &str, data: &[u8]) {
        let op = self.vfs.op(&Cred::root());
        let made = self.vfs.mknod(&op, &self.vfs.root(), name.as_bytes(), mode::S_IFREG | 0o644, 0);
        let (inode, _) = made.expect("mknod");
        let fh = self.vfs.open(&op, &inode, Access::WRITE, false).expect("open");
        assert_eq!(self.vfs.write(&op, fh, 0, data, false, false).expect("write"), data.len());
        self.vfs.release(fh);
    }

    /// Opens a file to read and write; it must be lent.
    pub fn open_lent(&self, name: &str) -> File {
        let before = self.mounted.passthrough();
        let path = self.path(name);
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = by_a_new_thread(open).expect("open");
        assert_eq!(self.mounted.passthrough(), Passthrough { opens: before.opens + 1, ..before });
        file
    }

    /// Waits until the kernel has reported that all files are closed, which it does a moment later.
    pub fn all_closed(&self) {
        let state = || self.mounted.passthrough();
        let closed = || self.mounted.requests().release == state().opens + state().refused;
        assert!(within(Duration::from_secs(60), closed), "{:?}", state());
    }

    /// Sees that an open file and its two names, `file` and `other`, have a size, to `ls` too.
    pub fn all_have_size(&self, file: &File, size: u64) {
        let listed = sh_as(0, self, "ls -l file | awk '{print $5}'").expect("ls").parse();
        let sizes = [self.path("file").metadata(), self.path("other").metadata(), file.metadata()];
        assert!(sizes.iter().all(|meta| meta.as_ref().is_ok_and(|meta| meta.len() == size)), "{sizes:?}");
        assert_eq!(listed, Ok(size));
    }

    /// Waits until the kernel knows no node but the root; false if that takes too long. Nothing waits for FORGETs,
    /// so there is nothing better to wait for.
    pub fn all_forgotten(&self) -> bool {
        within(Duration::from_secs(10), || {
            drop_caches();
            self.outstanding() == 0
        })
    }

    /// Lookups that the kernel has and has not forgotten.
    pub fn outstanding(&self) -> u64 {
        let lookups = self.mounted.lookups();
        lookups.given - lookups.forgotten
    }
}

impl Deref for Fixture {
    type Target = Path;
    fn deref(&self) -> &Path {
        self.dir.path()
    }
}

pub fn tmpfs() -> Arc<dyn Driver> {
    Tmpfs::new(TmpfsOptions::default()).expect("memory for a tmpfs")
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

/// Runs a shell script as this user; its output if it succeeds.
pub fn sh_as(uid: u32, dir: &Path, script: &str) -> Result<String, String> {
    use std::os::unix::process::CommandExt;
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).uid(uid).gid(uid).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// Runs a program of the host; returns its output if it succeeds.
pub fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let said = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    if !said.status.success() {
        return Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&said.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}
