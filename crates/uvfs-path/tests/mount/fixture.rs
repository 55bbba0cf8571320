//! A store, mounted for one test.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use fuse3::MountOptions;
use fuse3::raw::{MountHandle, Session};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use uvfs_path::{PathFs, PathHandle, PathOptions};

use crate::objects::Store;

/// Why a mount is not possible here, if it is not. Root mounts directly, others through fusermount3.
pub fn missing() -> Option<String> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match device {
        Err(error) => Some(format!("/dev/fuse: {error}")),
        Ok(_) if !is_root() && !has_helper() => Some("neither root nor fusermount3".into()),
        Ok(_) => None,
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether fusermount3 is installed.
pub fn has_helper() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists())
}

/// A mounted store; unmounted when dropped.
pub struct Fixture {
    runtime: Runtime,
    session: Option<MountHandle>,
    pub handle: PathHandle,
    pub store: Store,
    dir: TempDir,
}

impl Fixture {
    pub fn new(options: PathOptions) -> Self {
        Self::with(Store::new(Duration::ZERO), options, !is_root())
    }

    pub fn with(store: Store, options: PathOptions, helper: bool) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()
            .expect("a runtime");
        let fs = PathFs::new(store.clone(), options).expect("a table");
        let handle = fs.handle();
        let mounted = runtime.block_on(async {
            let session = Session::new(MountOptions::default());
            if helper {
                session.mount_with_unprivileged(fs, dir.path()).await
            } else {
                session.mount(fs, dir.path()).await
            }
        });
        let fixture = Self { runtime, session: Some(mounted.expect("a mount")), handle, store, dir };
        // fuse3 returns before the kernel has its first answer.
        assert!(
            within(Duration::from_secs(10), || fixture.dir.path().metadata().is_ok()),
            "the mount answers"
        );
        fixture
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        if let Err(error) = self.runtime.block_on(session.unmount()) {
            eprintln!("unmount: {error}");
        }
    }
}

/// Makes the kernel drop unused names and inodes, if this is root.
pub fn drop_caches() {
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "2");
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
