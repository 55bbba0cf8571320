//! Attaching a FUSE device to a directory and detaching it: mount(2) where that is allowed, else
//! fusermount3, the set-user-id helper of libfuse, which opens the device, mounts, and hands the
//! descriptor over a socket.
//!
//! Nothing here looks inside a mounted file system: unmounting must work where its server hangs
//! or is dead. Paths are made absolute through the parent directory for that reason.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::geteuid;

use crate::mount::error::MountError;
use crate::mount::mountinfo::{self, Mount, ServerState};
use crate::mount::options::{Options, Permissions};

/// The type that `/proc/mounts` shows.
pub(crate) const FSTYPE: &str = "fuse.uvfs";

/// Checks that `dir` can be mounted on and returns its absolute path. A directory that is not
/// empty may be mounted on, as with mount(8): its content is hidden until unmount.
///
/// # Errors
/// A sentence: it is missing, is no directory, this user may not look at it, or the mount there has no server.
pub fn mount_point(dir: &Path) -> Result<PathBuf, MountError> {
    let dir = fs::canonicalize(dir).map_err(|error| MountError::at(dir, error))?;
    match fs::metadata(&dir) {
        // Else each server that dies would have the next one mount on what it left behind.
        Ok(meta) if meta.is_dir() && is_dead(&dir) => Err(MountError::Dead(dir)),
        Ok(meta) if meta.is_dir() => Ok(dir),
        Ok(_) => Err(MountError::NotDirectory(dir)),
        Err(error) => Err(MountError::at(&dir, error)),
    }
}

/// Mounts on `dir` and returns the device through which the kernel asks.
pub(crate) fn attach(dir: &Path, options: &Options, permissions: Permissions) -> Result<OwnedFd, MountError> {
    let device = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(device) => device,
        Err(error) => {
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Err(MountError::NoDevice),
                Some(libc::EACCES | libc::EPERM) => attach_by_helper(dir, options, permissions),
                _ => Err(MountError::os("cannot open /dev/fuse", error)),
            };
        }
    };
    match attach_directly(&device, dir, options, permissions) {
        Ok(()) => Ok(device.into()),
        Err(Errno::PERM) => attach_by_helper(dir, options, permissions),
        Err(Errno::NODEV) => Err(MountError::NoDevice),
        Err(error) => Err(MountError::os(format!("cannot mount on {}", dir.display()), error)),
    }
}

fn attach_directly(
    device: &File,
    dir: &Path,
    options: &Options,
    permissions: Permissions,
) -> Result<(), Errno> {
    let data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},{}",
        device.as_raw_fd(),
        libc::S_IFDIR,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        options.fuse_options(permissions),
    );
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(options.fsname(), dir, FSTYPE, options.flags(), data.as_c_str())
}

fn attach_by_helper(dir: &Path, options: &Options, permissions: Permissions) -> Result<OwnedFd, MountError> {
    let os = |error| MountError::os("cannot talk to fusermount3", error);
    let (ours, theirs) = UnixStream::pair().map_err(os)?;
    let text = options.for_fusermount(permissions);
    // The socket goes over as standard input, so that no other descriptor has to survive an exec.
    let child =
        helper(&["-o", &text, "--"], dir).env("_FUSE_COMMFD", "0").stdin(OwnedFd::from(theirs)).spawn();
    let child = child.map_err(|error| no_helper("mount on", dir, error))?;
    // With an error it ends without sending; then its end of the socket is closed.
    let received = receive_device(&ours);
    let said = finish(child).map_err(os)?;
    match (received, said) {
        (Ok(device), None) => Ok(device),
        (Err(error), None) => Err(os(error)),
        (_, Some(said)) => Err(refusal(dir, said)),
    }
}

/// Why fusermount3 does not mount on `dir`. It runs as root, whom the kernel does not let into a user's mount, and takes that for
/// a lack of the user's rights.
fn refusal(dir: &Path, said: String) -> MountError {
    let in_the_way = match mountinfo::over(dir) {
        Ok(Some(mount)) if said.contains("Permission denied") && said.contains("mountpoint") => mount,
        _ => return MountError::Fusermount { dir: dir.into(), said },
    };
    match in_the_way.owner() {
        Some((owner, _)) if owner != geteuid().as_raw() => MountError::Fusermount { dir: dir.into(), said },
        Some(_) if in_the_way.point == dir => MountError::YoursAlready(dir.into()),
        Some(_) => MountError::InsideYours { dir: dir.into(), mount: in_the_way.point },
        None => MountError::Fusermount { dir: dir.into(), said },
    }
}

fn receive_device(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(device) = descriptors.next()
        {
            return Ok(device);
        }
    }
    Err(io::Error::other("it sent no descriptor"))
}

fn helper(args: &[&str], dir: &Path) -> Command {
    let mut command = Command::new("fusermount3");
    command.args(args).arg(dir).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Waits for the helper; returns its message if it failed.
fn finish(mut child: Child) -> io::Result<Option<String>> {
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said)?;
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(None);
    }
    let said = said.trim().trim_start_matches("fusermount3: ");
    Ok(Some(if said.is_empty() { status.to_string() } else { said.to_owned() }))
}

fn no_helper(doing: &'static str, dir: &Path, error: io::Error) -> MountError {
    let is_anywhere = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists())
    };
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoRight { doing, dir: dir.into() },
        // A directory in PATH that this user may not search makes it EACCES.
        io::ErrorKind::PermissionDenied if !is_anywhere() => MountError::NoRight { doing, dir: dir.into() },
        _ => MountError::os("cannot run fusermount3", error),
    }
}

/// How an unmount treats a file system in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detach {
    /// It is refused.
    WhenIdle,
    /// The name goes at once, the rest with its last user.
    Now,
}

/// Unmounts what is topmost on `dir`, an absolute path.
pub(crate) fn detach(dir: &Path, how: Detach) -> Result<(), MountError> {
    let (flags, args): (_, &[&str]) = match how {
        Detach::WhenIdle => (UnmountFlags::NOFOLLOW, &["-u", "--"]),
        Detach::Now => (UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z", "--"]),
    };
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(dir.into())),
        Err(Errno::INVAL) => Err(MountError::NotMounted(dir.into())),
        Err(Errno::ACCESS) => Err(MountError::Closed(dir.into())),
        Err(Errno::PERM) => {
            let child = helper(args, dir).stdin(Stdio::null()).spawn();
            let child =
                child.map_err(|error| others(dir).unwrap_or_else(|| no_helper("unmount", dir, error)))?;
            match finish(child).map_err(|error| MountError::os("cannot talk to fusermount3", error))? {
                None => Ok(()),
                Some(said) if said.contains("busy") => Err(MountError::Busy(dir.into())),
                Some(said) => {
                    Err(others(dir).unwrap_or_else(|| MountError::Fusermount { dir: dir.into(), said }))
                }
            }
        }
        Err(error) => Err(MountError::os(format!("cannot unmount {}", dir.display()), error)),
    }
}

/// The error for a mount of another user. Only asked after a refusal: in another user namespace the numbers may differ.
fn others(dir: &Path) -> Option<MountError> {
    let (owner, _) = mountinfo::at(dir).ok()??.owner()?;
    (owner != geteuid().as_raw()).then(|| MountError::NotYours { doing: "unmount", dir: dir.into(), owner })
}

/// Unmounts the uvfs file system on `dir`, of whatever user. With `lazy` also while it is in use; one whose server
/// has died is always detached, for what it holds is lost already.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let dir = absolute(dir).map_err(|error| MountError::at_mounted(dir, error))?;
    let mount = mountinfo::at(&dir).map_err(|error| MountError::os("cannot read mountinfo", error))?;
    match mount {
        None if dir.symlink_metadata().is_err() => return Err(MountError::NothingThere(dir)),
        None => return Err(MountError::NotMounted(dir)),
        Some(mount) if mount.fstype != FSTYPE => {
            let is_below =
                |mounts: Vec<Mount>| mounts.iter().any(|it| it.point == dir && it.fstype == FSTYPE);
            return Err(match mountinfo::mounts().is_ok_and(is_below) {
                true => MountError::Covered(dir),
                false => MountError::NotFuse { dir, fstype: mount.fstype },
            });
        }
        Some(_) => {}
    }
    if lazy {
        return detach(&dir, Detach::Now);
    }
    match detach(&dir, Detach::WhenIdle) {
        Err(MountError::Busy(dir)) if is_dead(&dir) => detach(&dir, Detach::Now),
        outcome => outcome,
    }
}

/// The absolute path of a mount point without asking what is mounted there.
pub(crate) fn absolute(dir: &Path) -> io::Result<PathBuf> {
    let (parent, name) = match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) if parent == Path::new("") => (Path::new("."), name),
        (Some(parent), Some(name)) => (parent, name),
        // `/`, `.`, `..`: no name to keep apart.
        _ => return fs::canonicalize(dir),
    };
    let path = fs::canonicalize(parent)?.join(name);
    match fs::read_link(&path) {
        Ok(_) => fs::canonicalize(&path),
        Err(_) => Ok(path),
    }
}

/// Whether nobody answers any more. The kernel may keep the root's attributes for ever, so it is made to ask. A
/// dead server's mount answers at once, and a server that hangs is not waited for.
pub(crate) fn is_dead(dir: &Path) -> bool {
    server_state(dir) == ServerState::Dead
}

/// [`is_dead`], with the other outcomes told apart.
pub(crate) fn server_state(dir: &Path) -> ServerState {
    let (said, answer) = channel();
    let dir = dir.to_owned();
    let asking = move || {
        let _ = said.send(match rustix::fs::statfs(&dir) {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => ServerState::Dead,
            // Another error is an answer too.
            _ => ServerState::Serving,
        });
    };
    match thread::Builder::new().name("uvfs-ask".into()).spawn(asking) {
        Ok(_) => answer.recv_timeout(Duration::from_secs(1)).unwrap_or(ServerState::Silent),
        Err(_) => ServerState::Silent,
    }
}

/// Asks what is mounted on `dir` for its root's attributes, and says which mount that is.
pub(crate) fn first_question(dir: &Path) -> io::Result<Mount> {
    let stat = rustix::fs::stat(dir)?;
    let dev = format!("{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let mount = mountinfo::at(dir)?.filter(|mount| mount.dev == dev);
    mount.ok_or_else(|| io::Error::other("it was mounted over, or unmounted, at once"))
}
