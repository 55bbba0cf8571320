//! Scripts' system calls on the host's kernel, in a directory of a tmpfs.
//!
//! The thread that owns a [`Host`] makes the calls. It has a root directory, a working directory and credentials of
//! its own (Linux has all three per thread). That needs root. Without root or a tmpfs, [`with_host`] says so and
//! the comparison is skipped.

use std::io::Write as _;
use std::sync::LazyLock;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawDir, RawMode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    Uid, XattrFlags as HostXattr,
};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use uvfs::{Access, Cred, OpenFlags, Protected, SetTime, mode};

use super::script::{Answer, Call, Sys, acl_text, show};

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The calling thread, below a temporary directory.
pub struct Host(());

/// Runs `act` on a thread that has an empty tmpfs directory as its root. False if the host does not permit it.
pub fn with_host(act: impl FnOnce(&mut Host) + Send) -> bool {
    let shm = std::path::Path::new("/dev/shm");
    let is_tmpfs = rustix::fs::statfs(shm).is_ok_and(|s| s.f_type == TMPFS_MAGIC);
    if !rustix::process::geteuid().is_root() || !is_tmpfs {
        // Not through the test's captured output: readers of the log must see it.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: comparing with the host needs root and a tmpfs at /dev/shm"
        );
        return false;
    }
    protected();
    let dir = tempfile::tempdir_in(shm).unwrap();
    rustix::fs::chmod(dir.path(), Mode::from_raw_mode(0o755)).unwrap();
    let entered = std::thread::scope(|s| {
        let thread = s.spawn(|| {
            // Root, working directory and umask of this thread only, which ends with the scope.
            #[expect(deprecated, reason = "unsound for descriptors only, which stay shared")]
            let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::FS);
            let inside = unshared.and_then(|()| rustix::process::chroot(dir.path()));
            if inside.and_then(|()| rustix::process::chdir("/")).is_err() {
                return false;
            }
            rustix::process::umask(Mode::empty());
            act(&mut Host(()));
            true
        });
        thread.join()
    });
    match entered {
        Ok(entered) => entered,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The host's `fs.protected_*` settings, read before any thread has another root.
pub fn protected() -> Protected {
    static RULES: LazyLock<Protected> = LazyLock::new(read_protected);
    *RULES
}

fn read_protected() -> Protected {
    let level = |name: &str| -> u8 {
        let text = std::fs::read_to_string(format!("/proc/sys/fs/protected_{name}")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    Protected {
        symlinks: level("symlinks") != 0,
        hardlinks: level("hardlinks") != 0,
        fifos: level("fifos"),
        regular: level("regular"),
    }
}

/// Sets the effective ids of this thread. The saved ids stay root's, for the way back.
fn become_user(cred: &Cred) {
    let groups: Vec<Gid> = cred.groups.iter().map(|&g| Gid::from_raw(g)).collect();
    set_thread_groups(&groups).unwrap();
    set_thread_res_gid(None, Gid::from_raw(cred.gid), Gid::ROOT).unwrap();
    set_thread_res_uid(None, Uid::from_raw(cred.uid), Uid::ROOT).unwrap();
}

fn become_root() {
    set_thread_res_uid(None, Uid::ROOT, Uid::ROOT).unwrap();
    set_thread_res_gid(None, Gid::ROOT, Gid::ROOT).unwrap();
}

impl Sys for Host {
    fn call(&mut self, cred: &Cred, call: &Call) -> Answer {
        become_user(cred);
        let answer = call_now(call);
        become_root();
        answer
    }
}

fn oflags(flags: OpenFlags) -> OFlags {
    let access = match (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    [
        (OpenFlags::CREATE, OFlags::CREATE),
        (OpenFlags::EXCL, OFlags::EXCL),
        (OpenFlags::TRUNC, OFlags::TRUNC),
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::DIRECTORY, OFlags::DIRECTORY),
        (OpenFlags::NOFOLLOW, OFlags::NOFOLLOW),
    ]
    .into_iter()
    // A FIFO without a peer must not wait.
    .fold(access | OFlags::NONBLOCK | OFlags::CLOEXEC, |all, (ours, hosts)| {
        if flags.contains(ours) { all | hosts } else { all }
    })
}

fn bits(mode: u32) -> Mode {
    Mode::from_raw_mode(mode as RawMode & 0o7777)
}

fn timespec(set: Option<SetTime>) -> Timespec {
    match set {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(t)) => Timespec { tv_sec: t.sec(), tv_nsec: t.nsec().into() },
    }
}

fn text(bytes: Vec<u8>) -> Answer {
    String::from_utf8(bytes).map_err(|_| Errno::ILSEQ)
}

fn names(mut names: Vec<Vec<u8>>) -> Answer {
    names.sort();
    text(names.join(&b' '))
}

fn list(path: &[u8]) -> Answer {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buf = Vec::with_capacity(8192);
    let mut entries = RawDir::new(fd, buf.spare_capacity_mut());
    let mut all = Vec::new();
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            all.push(name);
        }
    }
    names(all)
}

fn xattr(call: &Call) -> Answer {
    let mut buf = vec![0; 70000];
    match call {
        Call::SetXattr(path, name, value, flags) => {
            let flags = HostXattr::from_bits_retain(flags.bits());
            rustix::fs::setxattr(&**path, &**name, value, flags).map(|()| String::new())
        }
        Call::GetXattr(path, name) => {
            let len = rustix::fs::getxattr(&**path, &**name, &mut buf[..])?;
            text(buf[..len].to_vec())
        }
        Call::GetAcl(path, name) => {
            let len = rustix::fs::getxattr(&**path, &**name, &mut buf[..])?;
            acl_text(&buf[..len])
        }
        Call::ListXattr(path) => {
            let len = rustix::fs::listxattr(&**path, &mut buf[..])?;
            names(buf[..len].split(|&b| b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect())
        }
        Call::RemoveXattr(path, name) => rustix::fs::removexattr(&**path, &**name).map(|()| String::new()),
        _ => Err(Errno::NOSYS),
    }
}

fn call_now(call: &Call) -> Answer {
    use rustix::fs;
    let done = match call {
        Call::Mkdir(path, mode) => fs::mkdir(&**path, bits(*mode)),
        Call::Mknod(path, mode, rdev) => {
            let kind = FileType::from_raw_mode((mode & mode::S_IFMT) as RawMode);
            fs::mknodat(CWD, &**path, kind, bits(*mode), u64::from(*rdev))
        }
        Call::Symlink(target, path) => fs::symlink(&**target, &**path),
        Call::Link(old, new) => fs::link(&**old, &**new),
        Call::Unlink(path) => fs::unlink(&**path),
        Call::Rmdir(path) => fs::rmdir(&**path),
        Call::Rename(old, new, flags) => {
            let flags = fs::RenameFlags::from_bits_retain(flags.bits());
            fs::renameat_with(CWD, &**old, CWD, &**new, flags)
        }
        Call::Stat(path, follow) => {
            let s = if *follow { fs::stat(&**path) } else { fs::lstat(&**path) }?;
            return Ok(show(s.st_mode, s.st_uid, s.st_gid, s.st_nlink as u64, s.st_size as u64));
        }
        Call::Open(path, flags, mode) => fs::open(&**path, oflags(*flags), bits(*mode)).map(drop),
        Call::Write(path, flags, data) => {
            let fd = fs::open(&**path, oflags(*flags | OpenFlags::WRITE), bits(0o644))?;
            rustix::io::write(fd, data).map(|_| ())
        }
        Call::Cat(path) => {
            let fd = fs::open(&**path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let mut buf = vec![0; 4096];
            let len = rustix::io::read(fd, &mut buf[..])?;
            return text(buf[..len].to_vec());
        }
        Call::Readlink(path) => return text(fs::readlink(&**path, Vec::new())?.into_bytes()),
        Call::Chmod(path, mode) => fs::chmod(&**path, bits(*mode)),
        Call::Chown(path, uid, gid, follow) => {
            let flags = if *follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
            fs::chownat(CWD, &**path, uid.map(Uid::from_raw), gid.map(Gid::from_raw), flags)
        }
        Call::Utimes(path, atime, mtime) => {
            let times = Timestamps { last_access: timespec(*atime), last_modification: timespec(*mtime) };
            fs::utimensat(CWD, &**path, &times, AtFlags::empty())
        }
        Call::Truncate(path, size) => {
            // The crate has no call for paths; opening needs the same permission.
            let fd = fs::open(&**path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
            fs::ftruncate(fd, *size)
        }
        Call::Access(path, want) => {
            let mut how = fs::Access::EXISTS;
            for (ours, hosts) in [
                (Access::READ, fs::Access::READ_OK),
                (Access::WRITE, fs::Access::WRITE_OK),
                (Access::EXEC, fs::Access::EXEC_OK),
            ] {
                how.set(hosts, want.contains(ours));
            }
            fs::accessat(CWD, &**path, how, AtFlags::EACCESS)
        }
        Call::Chdir(path) => rustix::process::chdir(&**path),
        Call::Ls(path) => return list(path),
        Call::Umask(mask) => {
            rustix::process::umask(bits(*mask));
            Ok(())
        }
        _ => return xattr(call),
    };
    done.map(|()| String::new())
}
