//! The unsafe part of the ring transport: memory that the kernel writes to, and the ring that tells it where. The
//! interface is safe.
//!
//! **The right to an entry's memory** is a value: [`Entry`]. There is one for each entry, and it cannot be copied.
//! Its holder reads and writes the entry's memory. [`Ring::register`] and [`Ring::commit`] take the value. The
//! kernel has the memory until the ring's thread finds the completion, and [`Ring::next`] returns the value. A ring
//! that is dropped while the kernel has entries leaves their memory mapped for ever, because nothing says when the
//! kernel has released it.
//!
//! An entry's *head* is `fuse_uring_req_header` in the kernel's interface: 128 bytes for the header of the request
//! or the answer, 128 for the operation's structure, and 32 for the entry itself. Its *payload* is the rest: names
//! and data of a request, the whole body of an answer. Heads are together in the first page of an area. Payloads
//! are reserved for the largest write, and become memory when they are used. Huge pages are refused, so that a
//! small answer costs a page, not 2 MiB.
//!
//! The ring belongs to one thread (`SINGLE_ISSUER`). The kernel copies requests into entries only while that thread
//! is in a system call of the ring (`DEFER_TASKRUN`), so [`Ring::trim`] cannot lose a request.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::transport::dev_fuse::sys::page_size;
use crate::wire::reply_port::IN_HEADER;

/// `FUSE_IO_URING_CMD_REGISTER`: registers an entry and its memory.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: commits the answer in an entry, which is then free for the next request.
const COMMIT_AND_FETCH: u32 = 2;

// The operations of io_uring_register(2) on a task's table of rings: insert one, remove one.
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;

/// The largest size of an operation's structure in bytes.
pub(super) const OP: usize = 128;

// Offsets in a head.
const OP_AT: usize = 128;
const COMMIT_ID_AT: usize = 264;
const PAYLOAD_SIZE_AT: usize = 272;
/// The `struct iovec` of the head and of the payload, to which the registration points.
const IOVECS_AT: usize = 288;
/// Bytes of a head in the kernel's interface.
const HEAD: usize = 288;
/// The distance from one head to the next.
const STRIDE: usize = 320;
const _: () = assert!(IOVECS_AT + 2 * mem::size_of::<libc::iovec>() <= STRIDE && STRIDE.is_multiple_of(64));

/// The user data of an eventfd's poll completion, in place of an entry's number.
const BELL: u64 = u64::MAX;

/// The memory of some entries.
struct Area {
    base: NonNull<u8>,
    len: usize,
    /// Bytes of all heads, in whole pages.
    heads: usize,
    /// Bytes of one payload, in whole pages.
    payload: usize,
}

// SAFETY: plain memory. The entries, of which there is one for each part, say which thread may touch which part.
unsafe impl Send for Area {}
// SAFETY: as above; the fields never change.
unsafe impl Sync for Area {}

impl Area {
    fn new(entries: usize, payload: usize) -> io::Result<Self> {
        let heads = (entries * STRIDE).next_multiple_of(page_size());
        let payload = payload.next_multiple_of(page_size());
        let len = heads + entries * payload;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, flags)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let area = Self { base, len, heads, payload };
        // SAFETY: the new mapping, of that length. The call fails if there are no huge pages.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
        Ok(area)
    }

    fn head(&self, slot: usize) -> *mut u8 {
        // SAFETY: heads of all slots are inside the mapping.
        unsafe { self.base.as_ptr().add(slot * STRIDE) }
    }

    fn payload(&self, slot: usize) -> *mut u8 {
        // SAFETY: payloads of all slots are inside the mapping.
        unsafe { self.base.as_ptr().add(self.heads + slot * self.payload) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: this value's mapping. The last entry is gone, and entries that the kernel has are never dropped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The right to the memory of one entry.
pub(super) struct Entry {
    area: Arc<Area>,
    slot: usize,
    /// Its number in its ring.
    id: usize,
    /// The kernel's queue that it serves.
    queue: u16,
}

impl Entry {
    /// Memory for `count` entries of a queue, numbered from `first` on, with `payload` bytes each.
    pub(super) fn several(queue: u16, first: usize, count: usize, payload: usize) -> io::Result<Vec<Self>> {
        let area = Arc::new(Area::new(count, payload)?);
        Ok((0..count).map(|slot| Self { area: Arc::clone(&area), slot, id: first + slot, queue }).collect())
    }

    pub(super) fn id(&self) -> usize {
        self.id
    }

    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    fn head(&self) -> &[u8; HEAD] {
        // SAFETY: inside the mapping, and initialized as all mapped memory is. The kernel writes to it only while the
        // ring holds this value, and other threads never do.
        unsafe { &*self.area.head(self.slot).cast() }
    }

    fn head_mut(&mut self) -> &mut [u8; HEAD] {
        // SAFETY: as in `head`; `self` is borrowed mutably, so nobody reads it.
        unsafe { &mut *self.area.head(self.slot).cast() }
    }

    /// The request's header.
    pub(super) fn header(&self) -> &[u8; IN_HEADER] {
        let (header, _) = self.head().split_first_chunk().expect("a head is longer");
        header
    }

    /// The operation's structure, and the bytes after it.
    pub(super) fn op(&self) -> &[u8; OP] {
        let (op, _) = self.head()[OP_AT..].split_first_chunk().expect("a head is longer");
        op
    }

    fn commit_id(&self) -> u64 {
        let (bytes, _) = self.head()[COMMIT_ID_AT..].split_first_chunk().expect("a head is longer");
        u64::from_ne_bytes(*bytes)
    }

    /// The rest of the request.
    pub(super) fn payload(&self) -> &[u8] {
        let (bytes, _) = self.head()[PAYLOAD_SIZE_AT..].split_first_chunk().expect("a head is longer");
        let len = (u32::from_ne_bytes(*bytes) as usize).min(self.area.payload);
        // SAFETY: inside the mapping, initialized. The kernel writes to it only while the ring holds this value, and
        // other threads never do.
        unsafe { slice::from_raw_parts(self.area.payload(self.slot), len) }
    }

    /// The first `len` bytes of the payload's memory (fewer if it is smaller), with arbitrary content.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(self.area.payload);
        // SAFETY: inside the mapping, initialized. The kernel uses it only while the ring holds this value, and the
        // mutable borrow of `self` excludes all others.
        unsafe { slice::from_raw_parts_mut(self.area.payload(self.slot), len) }
    }

    /// Writes the answer's header (`fuse_out_header`): `error` 0 and a body of `len` bytes, or a negative error.
    pub(super) fn answer(&mut self, unique: u64, error: i32, len: usize) {
        let len = if error == 0 { len.min(self.area.payload) as u32 } else { 0 };
        let head = self.head_mut();
        head[..4].copy_from_slice(&(len + 16).to_ne_bytes());
        head[4..8].copy_from_slice(&error.to_ne_bytes());
        head[8..16].copy_from_slice(&unique.to_ne_bytes());
        head[PAYLOAD_SIZE_AT..PAYLOAD_SIZE_AT + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Writes the two iovecs of the entry, and returns their address.
    fn iovecs(&mut self) -> *const libc::iovec {
        let (head, payload) = (self.area.head(self.slot), self.area.payload(self.slot));
        let iovecs = [
            libc::iovec { iov_base: head.cast(), iov_len: HEAD },
            libc::iovec { iov_base: payload.cast(), iov_len: self.area.payload },
        ];
        // SAFETY: behind the head and before the next one (asserted above), aligned to 32 bytes because `STRIDE`
        // is. They belong to this entry alone.
        unsafe {
            let at = head.add(IOVECS_AT).cast::<[libc::iovec; 2]>();
            at.write(iovecs);
            at.cast()
        }
    }
}

/// An event of the ring.
pub(super) enum Completion {
    /// A request is in the entry.
    Request(Entry),
    /// The kernel has released the entry, for this reason.
    Ended(Entry, i32),
    /// The bell was rung; the flag says whether the ring still listens to it.
    Bell(bool),
}

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

/// A ring of one thread.
pub(super) struct Ring {
    uring: Uring,
    /// Its place among the rings of its thread, if it got one.
    place: Option<u32>,
    /// Also the first of the ring's own files.
    device: OwnedFd,
    /// The entries that the kernel has, by number.
    inside: Vec<Option<Entry>>,
}

impl Ring {
    /// A ring for at most `entries` entries; only this thread may use it.
    pub(super) fn new(device: OwnedFd, entries: usize) -> io::Result<Self> {
        let mut inside = Vec::new();
        inside.resize_with(entries, || None);
        // One more for the bell.
        let completions = (entries + 1).next_power_of_two() as u32;
        let uring = build(completions.min(64), completions)?;
        // Otherwise each call would change the reference count of the ring's file, and each command that of the
        // device, which the threads of all rings share.
        uring.submitter().register_files(&[device.as_raw_fd()])?;
        let place = place(&uring, REGISTER_RING_FDS, u32::MAX).ok();
        Ok(Self { uring, place, device, inside })
    }

    /// Whether this process may have such a ring.
    pub(super) fn probe() -> io::Result<()> {
        build(1, 2).map(drop)
    }

    /// The number of entries that it can have.
    pub(super) fn places(&self) -> usize {
        self.inside.len()
    }

    /// Gives the kernel an entry for requests.
    pub(super) fn register(&mut self, mut entry: Entry) -> io::Result<()> {
        let mut sqe = self.command(REGISTER, &entry, 0);
        let iovecs = entry.iovecs();
        // SAFETY: `Entry128` is `repr(C)` and 128 bytes. In a submission, bytes 16 to 24 are the address and 24 to
        // 28 the length; the command builder has no names for them. All bytes of it are plain numbers.
        unsafe {
            let at = (&raw mut sqe).cast::<u8>();
            at.add(16).cast::<u64>().write_unaligned(iovecs as u64);
            at.add(24).cast::<u32>().write_unaligned(2);
        }
        self.push(sqe, entry)
    }

    /// Gives the kernel the answer in an entry, and the entry for the next request.
    pub(super) fn commit(&mut self, entry: Entry) -> io::Result<()> {
        let sqe = self.command(COMMIT_AND_FETCH, &entry, entry.commit_id());
        self.push(sqe, entry)
    }

    /// `struct fuse_uring_cmd_req`: flags, the request, the queue.
    fn command(&self, op: u32, entry: &Entry, commit_id: u64) -> squeue::Entry128 {
        let mut cmd = [0; 80];
        cmd[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        cmd[16..18].copy_from_slice(&entry.queue.to_ne_bytes());
        opcode::UringCmd80::new(types::Fixed(0), op).cmd(cmd).build().user_data(entry.id as u64)
    }

    fn push(&mut self, sqe: squeue::Entry128, entry: Entry) -> io::Result<()> {
        let Some(slot) = self.inside.get_mut(entry.id).filter(|slot| slot.is_none()) else {
            return Err(io::Error::other("an entry that the ring has no place for"));
        };
        // SAFETY: the memory that the command names is the entry's, which stays in `inside` until the completion
        // comes. The device is open as long as the ring.
        while unsafe { self.uring.submission().push(&sqe) }.is_err() {
            submit(&self.uring)?;
        }
        *slot = Some(entry);
        Ok(())
    }

    /// From now on a write to `bell`, an eventfd, completes with [`Completion::Bell`].
    pub(super) fn listen(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let fd = types::Fd(bell.as_fd().as_raw_fd());
        let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build().user_data(BELL);
        let poll = squeue::Entry128::from(poll);
        // SAFETY: it names no memory; the kernel holds the file by itself.
        while unsafe { self.uring.submission().push(&poll) }.is_err() {
            submit(&self.uring)?;
        }
        Ok(())
    }

    /// Submits what was pushed; its errors come later as completions.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        submit(&self.uring)
    }

    /// Submits what was pushed, and sleeps until an event comes. False if `time` runs out first.
    pub(super) fn wait(&mut self, time: Option<Duration>) -> io::Result<bool> {
        let outcome = match time {
            None => self.enter(None),
            Some(time) => {
                let time = types::Timespec::from(time);
                self.enter(Some(&types::SubmitArgs::new().timespec(&time)))
            }
        };
        match outcome {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME) => Ok(false),
                // First take the completions that are there already.
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(true),
                _ => Err(error),
            },
        }
    }

    /// io_uring_enter(2), for at least one completion. Waiting for requests is not waiting for a disk. Without
    /// `NO_IOWAIT` an unused mount would look stuck, in the system's iowait and in `/proc/pressure/io`.
    fn enter(&mut self, args: Option<&types::SubmitArgs<'_, '_>>) -> io::Result<()> {
        let pushed = self.uring.submission().len() as u32;
        let mut flags = EnterFlags::GETEVENTS;
        flags.set(EnterFlags::NO_IOWAIT, self.uring.params().is_feature_no_iowait());
        flags.set(EnterFlags::EXT_ARG, args.is_some());
        flags.set(EnterFlags::REGISTERED_RING, self.place.is_some());
        let ring = self.place.map_or(self.uring.as_raw_fd(), u32::cast_signed);
        let (at, len) = args.map_or((ptr::null(), 0), |args| (ptr::from_ref(args), mem::size_of_val(args)));
        // SAFETY: what was pushed is valid, as `push` says. The arguments, if any, are a `struct
        // io_uring_getevents_arg`. They, and the time that they point to, live as long as this call.
        let done = unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, pushed, 1, flags.bits(), at, len) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether the connection to the kernel is gone.
    pub(super) fn is_cut_off(&self) -> bool {
        let mut device = [PollFd::new(&self.device, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut device, Some(&now)).is_ok() && device[0].revents().contains(PollFlags::ERR)
    }

    /// The next event, if there is one.
    pub(super) fn next(&mut self) -> Option<Completion> {
        loop {
            let done = self.uring.completion().next()?;
            if done.user_data() == BELL {
                return Some(Completion::Bell(cqueue::more(done.flags())));
            }
            // A number that is not inside cannot come; if it did, no memory would be touched.
            let slot = usize::try_from(done.user_data()).ok().and_then(|id| self.inside.get_mut(id));
            if let Some(entry) = slot.and_then(Option::take) {
                return Some(match done.result() {
                    result if result < 0 => Completion::Ended(entry, -result),
                    _ => Completion::Request(entry),
                });
            }
        }
    }

    /// Returns the memory of entry `id`'s payload except its first `keep` bytes, if the kernel has the entry and
    /// `next` has nothing. Returns whether the kernel has it.
    pub(super) fn trim(&mut self, id: usize, keep: usize) -> bool {
        let Some(entry) = self.inside.get(id).and_then(Option::as_ref) else { return false };
        let (keep, payload) = (keep.next_multiple_of(page_size()), entry.area.payload);
        if keep < payload {
            // SAFETY: inside the mapping, whole pages. They read as zeroes afterwards, and nobody has a reference
            // to them. The kernel writes to them only while this thread is in a call of the ring.
            let _ = unsafe {
                let from = entry.area.payload(entry.slot).add(keep);
                madvise(from.cast(), payload - keep, Advice::LinuxDontNeed)
            };
        }
        true
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may write to them until it has cancelled its requests, and nothing says when.
        self.inside.drain(..).flatten().for_each(mem::forget);
        // Otherwise the ring would live as long as this thread, which made it.
        if let Some(number) = self.place {
            let _ = place(&self.uring, UNREGISTER_RING_FDS, number);
        }
    }
}

/// Submits what was pushed. A temporary lack of kernel memory, or an interruption, is no reason to give the mount
/// up. The completion queue has room for all possible completions, so the kernel never requires taking them first.
fn submit(uring: &Uring) -> io::Result<()> {
    loop {
        match uring.submit() {
            Ok(_) => return Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                thread::yield_now();
            }
            Err(error) => return Err(error),
        }
    }
}

/// Gives a ring the place `number` among those of the calling thread (any, if that is `u32::MAX`), or removes it.
/// Returns the place.
fn place(uring: &Uring, how: u32, number: u32) -> io::Result<u32> {
    /// `struct io_uring_rsrc_update`.
    #[repr(C)]
    struct Place {
        number: u32,
        reserved: u32,
        ring: u64,
    }
    let ring = if how == REGISTER_RING_FDS { uring.as_raw_fd() as u64 } else { 0 };
    let mut place = Place { number, reserved: 0, ring };
    // SAFETY: one structure, which the kernel reads and writes during the call.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, uring.as_raw_fd(), how, &raw mut place, 1) };
    if done == 1 { Ok(place.number) } else { Err(io::Error::last_os_error()) }
}

fn build(entries: u32, completions: u32) -> io::Result<Uring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().dontfork();
    builder.setup_cqsize(completions.max(entries * 2)).build(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_is_laid_out_as_the_kernel_reads_it() {
        assert_eq!(mem::size_of::<squeue::Entry128>(), 128);
        let fd = types::Fd(7);
        let mut cmd = [0; 80];
        cmd[0] = 0xaa;
        cmd[79] = 0xbb;
        let sqe = opcode::UringCmd80::new(fd, 0x0102_0304).cmd(cmd).build().user_data(9);
        // SAFETY: 128 bytes of plain numbers.
        let bytes: [u8; 128] = unsafe { mem::transmute(sqe) };
        assert_eq!(bytes[4..8], 7i32.to_ne_bytes());
        assert_eq!(bytes[8..12], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(bytes[16..28], [0; 12], "address and length are free to be set");
        assert_eq!(bytes[32..40], 9u64.to_ne_bytes());
        assert_eq!((bytes[48], bytes[127]), (0xaa, 0xbb));
    }

    #[test]
    fn entries_have_memory_of_their_own() {
        let mut entries = Entry::several(3, 10, 8, 5000).expect("memory");
        assert_eq!(entries.iter().map(Entry::id).collect::<Vec<_>>(), (10..18).collect::<Vec<_>>());
        for (n, entry) in entries.iter_mut().enumerate() {
            let whole = 5000usize.next_multiple_of(page_size());
            assert_eq!((entry.queue(), entry.room(1 << 30).len()), (3, whole));
            entry.room(5000).fill(n as u8);
            entry.answer(100 + n as u64, 0, n);
            entry.iovecs();
        }
        for (n, entry) in entries.iter_mut().enumerate() {
            assert!(entry.room(5000).iter().all(|byte| *byte == n as u8));
            assert_eq!(entry.payload().len(), n);
            assert_eq!(entry.header()[8..16], (100 + n as u64).to_ne_bytes());
        }
        let mut last = entries.pop().expect("an entry");
        drop(entries);
        last.answer(1, -5, 77);
        assert_eq!(
            (&last.header()[..4], &last.header()[4..8]),
            (&16u32.to_ne_bytes()[..], &(-5i32).to_ne_bytes()[..])
        );
        assert!(last.payload().is_empty());
    }
}
