//! A mounted file system: how it is started, waited for and ended.
//!
//! The session's threads own the device; when the last user of the mount is gone, or the mount is
//! aborted, their reads fail and they end, which is how an unmount from outside is noticed. One
//! mutex holds the outcome. [`Mounted`] may be shared; any thread but the session's own may
//! unmount, since an unmount can wait for an answer of the session.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uvfs::Vfs;

use crate::frontend::passthrough::Passthrough;
use crate::frontend::proc_status;
use crate::frontend::request_counters::{Lookups, Requests};
use crate::frontend::{Frontend, change_listener};
use crate::limit::balancing_thread;
use crate::limit::memory_shortage::Shortages;
use crate::mount::abort::Abort;
use crate::mount::attach_device::{self, Detach};
use crate::mount::error::MountError;
use crate::mount::mountinfo::{self, Mount};
use crate::mount::options::{Options, Permissions};
use crate::notify::Notices;
use crate::threads::thread_failure::GiveUp;
use crate::transport::dev_fuse::{Connection, Transport};
use crate::wire::latency_histograms::{Latency, RequestKind};

/// How long a session that failed may take to say why.
const SETTLE: Duration = Duration::from_secs(1);

/// How long an unmount by force may take from the abort to its end.
const FORCED: Duration = Duration::from_millis(200);

/// A mounted file system. Dropping it unmounts, lazily if need be.
pub struct Mounted {
    mount: Mount,
    abort: Option<Arc<Abort>>,
    frontend: Arc<Frontend>,
    session: Arc<Session>,
    pressure: String,
    transport: Transport,
}

/// How an unmount went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It is gone; nobody was using it.
    Clean,
    /// It was in use: the name is gone, and what was open works until it is closed or this
    /// process ends.
    Detached,
}

#[derive(Default)]
struct Session {
    /// `Some` when the threads have ended.
    outcome: Mutex<Option<Outcome>>,
    ended: Condvar,
}

type Outcome = Result<(), Arc<io::Error>>;

impl Session {
    /// Waits until the threads have ended, for at most `time`.
    fn settle(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut outcome = self.outcome.lock();
        while outcome.is_none() {
            if self.ended.wait_until(&mut outcome, deadline).timed_out() {
                return;
            }
        }
    }

    /// How the threads ended, if they did within `time`.
    fn ended_by(&self, time: Duration) -> io::Result<()> {
        self.settle(time);
        self.outcome.lock().as_ref().map_or(Ok(()), told)
    }
}

/// An outcome for one more who asks.
fn told(outcome: &Outcome) -> io::Result<()> {
    outcome.as_ref().copied().map_err(|error| io::Error::new(error.kind(), Arc::clone(error)))
}

/// Mounts `vfs` on `dir`. It answers when this returns.
///
/// Not to be called in a child that was forked without exec: the VFS and its threads stay behind
/// in the parent.
pub fn mount(vfs: Arc<Vfs>, dir: &Path, options: &Options) -> Result<Mounted, MountError> {
    let dir = attach_device::mount_point(dir)?;
    let fsname = options.fsname.clone().unwrap_or_else(|| vfs.driver_name(&vfs.root()).into());
    let options = &Options { fsname: Some(fsname), ..options.clone() };
    let permissions = permissions(options, &vfs);
    let before = mountinfo::mounts().map_err(|error| MountError::os("cannot read mountinfo", error))?;
    let fuse = attach_device::attach(&dir, options, permissions)?;
    // If another server has mounted there at the same time, none is known to be ours. If the list cannot be read
    // (no descriptor is left), the topmost mount is taken for ours.
    let now = mountinfo::mounts();
    let is_read = now.is_ok();
    let ours = now.ok().and_then(|now| mountinfo::made_since(&before, now, &dir));
    let abort = ours.clone().map(|mount| Arc::new(Abort::of(mount)));
    let failing = abort.clone();
    let give_up = GiveUp::new(move || failing.iter().for_each(|abort| abort.give_up()));
    let frontend = Arc::new(Frontend::new(vfs, options.timeout, permissions));
    let started = start(fuse, &frontend, options, &give_up).and_then(|(session, pressure, transport)| {
        // The first question, to be sure that there is an answer.
        match attach_device::first_question(&dir) {
            Ok(mount) if is_read && ours.as_ref() != Some(&mount) => {
                Err(io::Error::other("another file system was mounted there at the same time"))
            }
            Ok(mount) => {
                Ok(Mounted { mount, abort, frontend: Arc::clone(&frontend), session, pressure, transport })
            }
            // Why the session ended says more than that it did.
            Err(error) => Err(session.ended_by(SETTLE).err().unwrap_or(error)),
        }
    });
    match started {
        Ok(mounted) => Ok(mounted),
        Err(error) => {
            let doing = format!("cannot start the file system on {}", dir.display());
            // An unmount takes the topmost, which may be another server's by now.
            let is_covered = is_read && mountinfo::at(&dir).is_ok_and(|top| top.is_some() && top != ours);
            if is_covered {
                tracing::warn!(dir = %dir.display(), "left behind below another mount");
            } else if let Err(error) = attach_device::detach(&dir, Detach::Now) {
                tracing::warn!(%error, "left behind");
            }
            Err(MountError::os(doing, error))
        }
    }
}

/// The side that checks permissions if `vfs` is mounted with these options.
fn permissions(options: &Options, vfs: &Vfs) -> Permissions {
    let believes = options.timeout.is_none_or(|timeout| !timeout.is_zero());
    let asked = options.default_permissions.unwrap_or(options.allow_other);
    if believes || asked || vfs.passes_through(&vfs.root()) || !proc_status::can_be_seen() {
        Permissions::Kernel
    } else {
        Permissions::Server
    }
}

/// The session, the watched source of the system's memory pressure, and the transport of requests.
fn start(
    fuse: OwnedFd,
    frontend: &Arc<Frontend>,
    options: &Options,
    give_up: &GiveUp,
) -> io::Result<(Arc<Session>, String, Transport)> {
    let balancer = balancing_thread::start(fuse.try_clone()?, frontend, options.prune)?;
    let pressure = balancer.watches().to_owned();
    let notices = fuse.try_clone()?;
    let connection = Connection::greet(fuse, Arc::clone(frontend), options)?;
    let transport = connection.transport();
    change_listener::start(notices, frontend)?;
    let running = connection.start(give_up)?;
    let session = Arc::new(Session::default());
    let (theirs, told) = (Arc::clone(&session), Arc::clone(frontend));
    thread::Builder::new().name("uvfs-session".into()).spawn(move || {
        let outcome = running.run();
        // They end with the session, for they have the device too.
        drop(balancer);
        told.stop_telling();
        *theirs.outcome.lock() = Some(outcome.map_err(Arc::new));
        theirs.ended.notify_all();
    })?;
    Ok((session, pressure, transport))
}

impl Mounted {
    /// Where it is mounted: an absolute path.
    pub fn dir(&self) -> &Path {
        &self.mount.point
    }

    /// Waits until it is unmounted, by whomever. An error says that the connection to the kernel
    /// broke before that.
    pub fn wait(&self) -> io::Result<()> {
        let mut outcome = self.session.outcome.lock();
        loop {
            if let Some(outcome) = outcome.as_ref() {
                return told(outcome);
            }
            self.session.ended.wait(&mut outcome);
        }
    }

    /// Whether its session has ended and it still stands in the table of mounts: then the connection was aborted, by
    /// `/sys/fs/fuse/connections` or by an unmount that was forced while it was in use.
    pub fn is_listed(&self) -> bool {
        // By these alone: it may have been moved.
        let is_it = |other: &Mount| (&other.id, &other.dev) == (&self.mount.id, &self.mount.dev);
        // An unmount by force aborts first and takes it out of the table then.
        let is_gone = |mounts: &[Mount]| !mounts.iter().any(is_it);
        let has_ended = self.session.outcome.lock().is_some();
        if !has_ended || mountinfo::wait_until(FORCED, is_gone).unwrap_or(true) {
            return false;
        }
        let Some(listed) = mountinfo::mounts().ok().and_then(|all| all.into_iter().find(is_it)) else {
            return false;
        };
        // A successor may have the same numbers, here or elsewhere, and answers. What is mounted over it is not asked.
        let is_on_top = mountinfo::at(&listed.point).is_ok_and(|top| top.as_ref().is_some_and(is_it));
        if is_on_top { attach_device::is_dead(&listed.point) } else { listed == self.mount }
    }

    /// Waits for at most `time`; whether it has been unmounted by then.
    pub fn wait_for(&self, time: Duration) -> bool {
        self.session.settle(time);
        self.session.outcome.lock().is_some()
    }

    /// Unmounts; where it is in use, detaches it. The session ends with the last user: see
    /// [`Mounted::wait`].
    pub fn unmount(&self) -> Result<Unmounted, MountError> {
        // A mount that is gone may have a successor that looks like it in every way.
        if self.session.outcome.lock().is_some() {
            return Ok(Unmounted::Clean);
        }
        let mounts = mountinfo::mounts().map_err(|error| MountError::os("cannot read mountinfo", error))?;
        if !mounts.contains(&self.mount) {
            return Ok(Unmounted::Clean);
        }
        let dir = self.dir();
        if mounts.iter().rfind(|mount| mount.point == dir) != Some(&self.mount) {
            return Err(MountError::Covered(dir.into()));
        }
        match attach_device::detach(dir, Detach::WhenIdle) {
            Ok(()) => Ok(Unmounted::Clean),
            // Somebody else was faster.
            Err(MountError::NotMounted(_)) => Ok(Unmounted::Clean),
            Err(MountError::Busy(dir)) => {
                attach_device::detach(&dir, Detach::Now).map(|()| Unmounted::Detached)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the connection to the kernel: every request that waits gets an error (ECONNABORTED), every later one too
    /// (ENOTCONN). Whether it could: without fusectl in the kernel, or without the right to use it, only root can, and only while the mount
    /// is in the table of mounts. For the end of a process whose threads may wait in its own mount, since they cannot be killed.
    pub fn abort(&self) -> bool {
        self.abort.as_ref().is_some_and(|abort| abort.abort())
    }

    /// Measures taken, since the mount, because the cache had no memory.
    pub fn shortages(&self) -> Shortages {
        self.frontend.shortage().counts()
    }

    /// Notifications of changes that were made behind the kernel, since the mount.
    pub fn notices(&self) -> Notices {
        self.frontend.notices()
    }

    /// Waits until the kernel has been told of all changes made behind it that the cache was told of before this
    /// call, for at most `time`; whether it has. Changes in a published tree are then visible through the mount to
    /// their author. Of changes in a mirror's source the cache is told by its watcher, a moment later. A name that
    /// somebody looks up meanwhile may be believed for a second more. Not to be called by a driver: it may be what
    /// is waited for.
    pub fn settle(&self, time: Duration) -> bool {
        self.frontend.settle(time)
    }

    /// The times that requests of a kind have taken.
    pub fn latency(&self, kind: RequestKind) -> Latency {
        self.frontend.latencies().of(kind)
    }

    /// Some of the requests that the kernel has made since the mount.
    pub fn requests(&self) -> Requests {
        self.frontend.requests()
    }

    /// Whether, and how often since the mount, the kernel reads and writes files of the host's by itself.
    pub fn passthrough(&self) -> Passthrough {
        self.frontend.passthrough()
    }

    /// The file of the system's memory pressure that lowers the limit; "none" and why, where there is none.
    pub fn pressure(&self) -> &str {
        &self.pressure
    }

    /// The side that checks permissions.
    pub fn permissions(&self) -> Permissions {
        self.frontend.permissions()
    }

    /// The transport of requests.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Lookups that the kernel has been given since the mount, and how many of them it has
    /// forgotten again; equal when it knows no node but the root. For tests and statistics.
    pub fn lookups(&self) -> Lookups {
        self.frontend.lookups()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.outcome.lock().is_some() {
            return;
        }
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "not unmounted");
        }
    }
}
