//! System calls without a safe wrapper: file handles, a mount of one's own, and the numbers of mounts. Safe from outside.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::table::HostHandle;

/// Longest handle of any file system (`MAX_HANDLE_SZ`).
const LONGEST: usize = 128;
/// Linux 6.5: the handle that fanotify reports.
const AT_HANDLE_FID: i32 = 0x200;

#[repr(C)]
struct RawFileHandle {
    len: u32,
    kind: i32,
    bytes: [u8; LONGEST],
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Returns the number of the mount.
fn handle_with(fd: BorrowedFd<'_>, raw: &mut RawFileHandle, flags: i32) -> Result<i32, Errno> {
    raw.len = LONGEST as u32;
    let mut mount: i32 = 0;
    // SAFETY: the path is a C string; `raw` starts as `struct file_handle` does and has the room that `len` says.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            c"".as_ptr(),
            std::ptr::from_mut(raw),
            std::ptr::from_mut(&mut mount),
            flags | libc::AT_EMPTY_PATH,
        )
    };
    if done == 0 { Ok(mount) } else { Err(last_error()) }
}

/// The handle of an open file, O_PATH or not.
pub(super) fn handle(fd: BorrowedFd<'_>) -> Result<HostHandle, Errno> {
    Ok(handle_and_mount(fd)?.0)
}

/// The handle of an open file, and the number of the mount that it is open on. Asks no server for them.
pub(super) fn handle_and_mount(fd: BorrowedFd<'_>) -> Result<(HostHandle, i32), Errno> {
    let mut raw = RawFileHandle { len: 0, kind: 0, bytes: [0; LONGEST] };
    let mount = match handle_with(fd, &mut raw, AT_HANDLE_FID) {
        // An older kernel does not know the flag.
        Err(Errno::INVAL) => handle_with(fd, &mut raw, 0)?,
        done => done?,
    };
    let bytes = raw.bytes.get(..raw.len as usize).ok_or(Errno::OVERFLOW)?;
    Ok((HostHandle::new(raw.kind, bytes), mount))
}

/// Opens a file by its handle, on the mount that `mount` is open on.
///
/// # Errors
/// ESTALE if it is gone, EPERM without CAP_DAC_READ_SEARCH.
pub(super) fn open_by_handle(
    mount: BorrowedFd<'_>,
    handle: &HostHandle,
    flags: i32,
) -> Result<OwnedFd, Errno> {
    // Linux answers ENOMEM also while another file with this inode number is being made. That is over soon, and the
    // answer is ESTALE then.
    const TRIES: usize = 1000;
    for _ in 0..TRIES {
        match open_once(mount, handle, flags) {
            Err(Errno::NOMEM) => std::thread::yield_now(),
            outcome => return outcome,
        }
    }
    Err(Errno::NOMEM)
}

fn open_once(mount: BorrowedFd<'_>, handle: &HostHandle, flags: i32) -> Result<OwnedFd, Errno> {
    let (kind, bytes) = handle.parts().ok_or(Errno::STALE)?;
    let mut raw = RawFileHandle { len: bytes.len() as u32, kind, bytes: [0; LONGEST] };
    raw.bytes.get_mut(..bytes.len()).ok_or(Errno::OVERFLOW)?.copy_from_slice(bytes);
    // SAFETY: `raw` starts as `struct file_handle` does, and has the bytes that `len` says.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            std::ptr::from_mut(&mut raw),
            flags | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// Lets a mount get no mounts from others any more (Linux 5.12).
pub(super) fn make_private(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let attributes = MountAttributes { set: 0, clear: 0, propagation: libc::MS_PRIVATE, userns: 0 };
    let path = c"";
    // SAFETY: a path that ends with a nul, and a struct of the size that is given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            path.as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(&attributes),
            size_of::<MountAttributes>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// System calls of Linux 6.8, which libc has not for each processor. Their numbers are the same for all but Alpha.
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;

/// `struct mnt_id_req`.
#[repr(C)]
struct MountRequest {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
}

impl MountRequest {
    fn new(mount: u64, param: u64) -> Self {
        Self { size: size_of::<Self>() as u32, spare: 0, mount, param }
    }
}

/// The lasting number of each mount that this process sees, by the number that it has in the table of mounts, which is given
/// again. Empty where the kernel has none (before Linux 6.8).
pub(super) fn mount_numbers() -> Result<HashMap<u64, u64>, Errno> {
    /// `LSMT_ROOT`.
    const ALL: u64 = u64::MAX;
    let (mut numbers, mut last, mut room) = (HashMap::new(), 0, [0u64; 512]);
    loop {
        let request = MountRequest::new(ALL, last);
        // SAFETY: a request with its size, and room for so many numbers.
        let count = unsafe {
            libc::syscall(SYS_LISTMOUNT, std::ptr::from_ref(&request), room.as_mut_ptr(), room.len(), 0)
        };
        match (usize::try_from(count), last_error()) {
            (Ok(count), _) => {
                for lasting in &room[..count.min(room.len())] {
                    // One that ended meanwhile has none.
                    if let Some(number) = number_in_table(*lasting)? {
                        numbers.insert(number, *lasting);
                    }
                    last = *lasting;
                }
                if count < room.len() {
                    return Ok(numbers);
                }
            }
            (Err(_), Errno::NOSYS | Errno::PERM) => return Ok(HashMap::new()),
            (Err(_), errno) => return Err(errno),
        }
    }
}

/// The number in the table of mounts of the mount with this lasting number.
fn number_in_table(lasting: u64) -> Result<Option<u64>, Errno> {
    /// `STATMOUNT_MNT_BASIC`.
    const BASIC: u64 = 2;
    // `struct statmount`, whose `mnt_id_old` is the lower half of the word at 7 in memory.
    let mut mount = [0u64; 64];
    let request = MountRequest::new(lasting, BASIC);
    // SAFETY: a request with its size, and room for so many bytes.
    let done = unsafe {
        libc::syscall(SYS_STATMOUNT, std::ptr::from_ref(&request), mount.as_mut_ptr(), size_of_val(&mount), 0)
    };
    match (done, last_error()) {
        (0, _) => {
            let [a, b, c, d, ..] = mount[7].to_ne_bytes();
            Ok(Some(u32::from_ne_bytes([a, b, c, d]).into()))
        }
        (_, Errno::NOENT | Errno::PERM) => Ok(None),
        (_, errno) => Err(errno),
    }
}
