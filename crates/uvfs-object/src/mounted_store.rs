//! Mounting: the runtime, the session, and their end.
//!
//! The runtime has two workers and at most eight threads for blocking calls (name resolution, `fs`). However many requests
//! wait for the store, no more threads wait with them. It belongs to the mount, and no caller needs one.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fuse3::MountOptions;
use fuse3::raw::{MountHandle, Session};
use parking_lot::{Condvar, Mutex};
use rustix::mount::{MountFlags, UnmountFlags};
use tokio::runtime::Runtime;

use crate::location::Location;
use crate::object_fs::{ObjectFs, ObjectHandle};
use crate::options::{Flags, ObjectOptions};
use crate::store::{OpenError, Store};

const WORKERS: usize = 2;
const BLOCKING: usize = 8;
/// How long calls have to end after the mount.
const GRACE: Duration = Duration::from_secs(1);
/// How long the kernel has to begin the session.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a session ended, once it did.
#[derive(Default)]
struct Ended {
    outcome: Mutex<Option<io::Result<()>>>,
    changed: Condvar,
}

/// A mounted store.
pub struct MountedStore {
    runtime: Option<Runtime>,
    handle: ObjectHandle,
    dir: PathBuf,
    /// The number of the connection to the kernel.
    connection: u32,
    ended: std::sync::Arc<Ended>,
}

impl std::fmt::Debug for MountedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MountedStore({}, {:?})", self.dir.display(), self.handle)
    }
}

/// Mount the store at a location on a directory. Returns when the mount answers. Blocks.
///
/// # Errors
/// One sentence: the store does not answer a LIST, or the mount fails.
pub fn mount(location: &Location, options: &ObjectOptions, dir: &Path) -> Result<MountedStore, OpenError> {
    let runtime = runtime()?;
    let store = runtime.block_on(Store::open(location, options))?;
    serve(runtime, ObjectFs::of(store, options)?, &format!("object:{location}"), options, dir)
}

/// Mount a file system on a directory, with a runtime of its own. `name`: what mount(8) shows as the source.
///
/// # Errors
/// One sentence: the mount fails.
pub fn mount_fs(
    fs: ObjectFs,
    name: &str,
    options: &ObjectOptions,
    dir: &Path,
) -> Result<MountedStore, OpenError> {
    serve(runtime()?, fs, name, options, dir)
}

fn runtime() -> Result<Runtime, OpenError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING)
        .thread_name("uvfs-object")
        .enable_all()
        .build()
        .map_err(|error| OpenError::new(format!("cannot start threads: {error}")))
}

fn serve(
    runtime: Runtime,
    fs: ObjectFs,
    name: &str,
    options: &ObjectOptions,
    dir: &Path,
) -> Result<MountedStore, OpenError> {
    let failed = |error: io::Error| OpenError::new(format!("cannot mount on {}: {error}", dir.display()));
    let handle = fs.handle();
    let root = rustix::process::geteuid().is_root();
    let mut mount = MountOptions::default();
    // A comma would end the option in which fusermount3 passes it on.
    mount.fs_name(options.fsname.as_deref().unwrap_or(name).replace(',', "\\,"));
    mount
        .read_only(options.read_only)
        .default_permissions(true)
        // As with mount(8), files below are hidden until the unmount.
        .nonempty(true)
        .allow_other(options.allow_other)
        .custom_options(if root { "subtype=uvfs".to_owned() } else { helpers(options.flags) });
    let session = Session::new(mount);
    let session = runtime.block_on(async {
        let is_direct = root && !has_helper();
        if is_direct { session.mount(fs, dir).await } else { session.mount_with_unprivileged(fs, dir).await }
    });
    let session = session.map_err(failed)?;
    let ended = std::sync::Arc::new(Ended::default());
    runtime.spawn(watch(session, ended.clone()));
    let mut mounted =
        MountedStore { runtime: Some(runtime), handle, dir: dir.to_owned(), connection: 0, ended };
    mounted.wait_until_it_answers().map_err(failed)?;
    if root {
        set_flags(options, dir).map_err(failed)?;
    }
    let device = rustix::fs::stat(dir).map_err(|error| failed(error.into()))?.st_dev;
    mounted.connection = rustix::fs::minor(device);
    Ok(mounted)
}

/// Whether fusermount3 is there. Root needs none; but the device that fuse3 opens by itself blocks, and is read in a thread
/// of its own. So each request costs five switches of threads there, and one with the helper's device.
fn has_helper() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file())
}

/// The options for fusermount3, which knows the flags by their words, and refuses `suid` and `dev` itself.
fn helpers(flags: Flags) -> String {
    let asked = [flags.suid.then_some("suid"), flags.dev.then_some("dev")].into_iter().flatten();
    flags.words().chain(asked).fold("subtype=uvfs".to_owned(), |all, word| format!("{all},{word}"))
}

/// Set the mount's flags. fuse3 passes root's mount(2) only `ro`; so the flags are set before [`mount`] returns, and before
/// anyone is told that the store is mounted.
fn set_flags(options: &ObjectOptions, dir: &Path) -> io::Result<()> {
    let bits = options.flags.words().fold(MountFlags::BIND, |bits, word| {
        bits | match word {
            "nosuid" => MountFlags::NOSUID,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            "noatime" => MountFlags::NOATIME,
            "nodiratime" => MountFlags::NODIRATIME,
            "strictatime" => MountFlags::STRICTATIME,
            _ => MountFlags::empty(),
        }
    });
    // Flags that are not named are cleared.
    let bits = if options.read_only { bits | MountFlags::RDONLY } else { bits };
    Ok(rustix::mount::mount_remount(dir, bits, "")?)
}

/// Notes how the session ends.
async fn watch(session: MountHandle, ended: std::sync::Arc<Ended>) {
    let outcome = session.await;
    *ended.outcome.lock() = Some(outcome);
    ended.changed.notify_all();
}

impl MountedStore {
    /// Figures.
    pub fn handle(&self) -> &ObjectHandle {
        &self.handle
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// fuse3 returns before the kernel has its first answer, and nobody says when the mount answers. So it is asked
    /// again and again, for a bounded time; an early answer would only be an error that is asked about once more.
    fn wait_until_it_answers(&self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            match rustix::fs::statfs(&self.dir) {
                Ok(_) => return Ok(()),
                Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Wait until it was unmounted, here or by others.
    ///
    /// # Errors
    /// The connection to the kernel broke.
    pub fn wait(&self) -> io::Result<()> {
        let mut outcome = self.ended.outcome.lock();
        while outcome.is_none() {
            self.ended.changed.wait(&mut outcome);
        }
        outcome.take().unwrap_or(Ok(()))
    }

    /// Whether it has ended within a time.
    pub fn wait_for(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut outcome = self.ended.outcome.lock();
        while outcome.is_none() {
            if self.ended.changed.wait_until(&mut outcome, deadline).timed_out() {
                return outcome.is_some();
            }
        }
        true
    }

    /// Unmount, also while it is in use: then the name goes now, and open files get errors once the mount is dropped.
    ///
    /// # Errors
    /// It is not mounted any more, or may not be unmounted.
    pub fn unmount(&self) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            let helper = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(&self.dir).status()?;
            return if helper.success() { Ok(()) } else { Err(io::Error::other("fusermount3 -u failed")) };
        }
        match rustix::mount::unmount(&self.dir, UnmountFlags::NOFOLLOW) {
            Err(rustix::io::Errno::BUSY) => {
                Ok(rustix::mount::unmount(&self.dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?)
            }
            done => Ok(done?),
        }
    }

    /// Unmount, and end the connection to the kernel with it: callers that wait in the mount get an error. fuse3 reads the
    /// requests of root's mounts in a thread that nothing else would wake.
    fn end(&self) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return self.unmount();
        }
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH;
        Ok(rustix::mount::unmount(&self.dir, flags)?)
    }
}

impl MountedStore {
    /// Give up what is being written, for a process that ends while its mount is in use: so no parts stay in the store. The
    /// programs that write get errors.
    pub fn end_writers(&self) {
        if let Some(runtime) = &self.runtime {
            let ends = self.handle.end_writers();
            if runtime.block_on(async { tokio::time::timeout(PATIENCE, ends).await }).is_err() {
                tracing::warn!("the store does not answer: parts of uploads may be left in it");
            }
        }
    }

    /// End the connection of a mount that was detached before.
    fn abort(&self) {
        let file = format!("/sys/fs/fuse/connections/{}/abort", self.connection);
        if let Err(error) = std::fs::write(&file, "1") {
            tracing::warn!("the connection to the kernel is not aborted: {file}: {error}");
        }
    }
}

impl Drop for MountedStore {
    /// Unmounts if that was not done, and ends the calls under way: their callers get an error.
    fn drop(&mut self) {
        if !self.wait_for(Duration::ZERO)
            && let Err(error) = self.end()
        {
            tracing::warn!("{} was not unmounted: {error}", self.dir.display());
        }
        if !self.wait_for(GRACE) {
            self.abort();
            self.wait_for(GRACE);
        }
        self.end_writers();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(GRACE);
        }
    }
}
