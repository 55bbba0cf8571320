//! Requests taken to the front end: the one place that knows which method of [`Frontend`] an operation is.
//!
//! A [`Dispatcher`] is one thread's: what it shares with others is behind an `Arc` of its own, so that requests of two threads
//! count references in different cache lines. What may wait for a driver is the front end's business.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use uvfs::{Errno, Result};

use super::interrupts::Interrupts;
use super::reply::{Answering, Listing};
use super::request::{Head, Operation};
use super::{IN_HEADER, Port};
use crate::frontend::{Frontend, Write};
use crate::messages::Message;
use crate::transport::{Caller, Reply};

/// `fuse_write_in.write_flags`: pages that the kernel writes back.
const WRITE_CACHE: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: set-id bits are to go.
const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// What all requests need, those included that are answered later.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) frontend: Arc<Frontend>,
    pub(super) interrupts: Arc<Interrupts>,
    /// Where the kernel is told that who polls is to ask again.
    device: Option<Arc<File>>,
}

/// See the module.
pub(crate) struct Dispatcher(Arc<Context>);

/// Who polls in the kernel: woken, it asks again.
struct Poller {
    /// A driver may keep it for longer than there is a connection, which would not end as long as its device is open.
    device: Weak<File>,
    kh: u64,
}

impl Wake for Poller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // One write to the device, which waits for nobody. It fails where the file is closed or the
        // mount gone, and with it who polled.
        let Some(device) = self.device.upgrade() else { return };
        if let Err(error) = (Message::Poll { kh: self.kh }).send(&*device) {
            tracing::debug!(%error, "nobody polls any more");
        }
    }
}

impl Dispatcher {
    /// For the first thread of a connection. Without a device pollers are not woken.
    pub(crate) fn new(frontend: Arc<Frontend>, device: Option<Arc<File>>) -> Self {
        let queues = Arc::downgrade(&frontend);
        let given_up = move || queues.upgrade().iter().for_each(|frontend| frontend.remove_unwanted());
        Self(Arc::new(Context { frontend, interrupts: Arc::new(Interrupts::new(given_up)), device }))
    }

    /// For one more thread of the same connection.
    pub(crate) fn another(&self) -> Self {
        Self(Arc::new(Context::clone(&self.0)))
    }

    #[cfg(test)]
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.0
    }

    /// Has one request answered through `port`: before this returns, or later, from another thread. `structure` and `payload`
    /// may be longer than what the operation uses.
    pub(crate) fn handle<P: Port>(
        &self,
        header: &[u8; IN_HEADER],
        structure: &[u8],
        payload: &[u8],
        port: P,
    ) {
        let head = Head::parse(header);
        let operation = Operation::parse(head.opcode, structure, payload);
        // A driver's panic costs its own request (whose answer, dropped, says EIO), not the thread that all others are
        // counting on.
        let handled = catch_unwind(AssertUnwindSafe(|| match head.is_answered() {
            true => self.answer(&head, operation, Answering::new(port, head.unique, &self.0)),
            false => self.note(&head, operation),
        }));
        if handled.is_err() {
            tracing::error!(opcode = head.opcode, node = head.node, "a request made its driver panic");
        }
    }

    /// What is not answered.
    fn note(&self, head: &Head, operation: Result<Operation<'_>>) {
        let Context { frontend, interrupts, .. } = &*self.0;
        match operation {
            Ok(Operation::Forget { count }) => frontend.forget(head.node, count),
            Ok(Operation::BatchForget(all)) => {
                all.iter().for_each(|(node, count)| frontend.forget(node, count))
            }
            Ok(Operation::Interrupt { unique }) => interrupts.interrupt(unique),
            other => tracing::debug!(?other, opcode = head.opcode, "not understood"),
        }
    }

    fn answer<P: Port>(&self, head: &Head, operation: Result<Operation<'_>>, reply: Answering<P>) {
        use Operation as Op;
        match operation {
            Err(error) => reply.error(error),
            // Nothing is changed by these: they may be given up while they wait.
            Ok(
                operation @ (Op::Lookup { .. }
                | Op::GetAttr
                | Op::Statx
                | Op::GetFlags(_)
                | Op::ReadLink
                | Op::Open { .. }
                | Op::OpenDir
                | Op::Access { .. }
                | Op::Read { .. }
                | Op::ReadDir { .. }
                | Op::StatFs
                | Op::GetXattr { .. }
                | Op::ListXattr { .. }
                | Op::Lseek { .. }
                | Op::Fsync { .. }
                | Op::FsyncDir { .. }),
            ) => self.ask(head, operation, reply.interruptible(head.caller.pid)),
            Ok(
                operation @ (Op::Symlink { .. }
                | Op::MkNod { .. }
                | Op::MkDir { .. }
                | Op::Create { .. }
                | Op::TmpFile { .. }
                | Op::Link { .. }
                | Op::Unlink { .. }
                | Op::RmDir { .. }
                | Op::Rename { .. }),
            ) => self.change_names(head, operation, reply),
            Ok(operation) => self.change(head, operation, reply),
        }
    }

    /// Requests that find something out.
    fn ask<P: Port>(&self, head: &Head, operation: Operation<'_>, reply: Answering<P>) {
        let (frontend, who, node) = (&self.0.frontend, head.caller, head.node);
        match operation {
            Operation::Lookup { name } => frontend.lookup(who, node, name, reply),
            Operation::GetAttr => frontend.getattr(who, node, reply),
            Operation::Statx => frontend.statx(who, node, reply),
            Operation::GetFlags(form) => frontend.get_flags(who, node, form, reply),
            Operation::ReadLink => frontend.readlink(who, node, reply),
            Operation::Open { flags } => frontend.open(who, node, flags, reply),
            Operation::OpenDir => frontend.opendir(who, node, reply),
            Operation::Access { mask } => frontend.access(who, node, mask, reply),
            Operation::Read { fh, offset, size } => frontend.read(who, node, fh, offset, size, reply),
            Operation::ReadDir { cookie, size, plus } => {
                frontend.readdir(who, node, cookie, Listing::new(reply, size as usize, plus));
            }
            Operation::StatFs => frontend.statfs(who, node, reply),
            Operation::GetXattr { name, size } => frontend.getxattr(who, node, name, size, reply),
            Operation::ListXattr { size } => frontend.listxattr(who, node, size, reply),
            Operation::Lseek { fh, offset, whence } => frontend.lseek(who, node, fh, offset, whence, reply),
            Operation::Fsync { fh, datasync } => frontend.fsync(who, node, fh, datasync, reply),
            Operation::FsyncDir { datasync } => frontend.fsync_dir(who, node, datasync, reply),
            _ => reply.error(Errno::NOSYS),
        }
    }

    /// Requests that make and remove names. Without DONT_MASK the kernel has applied the umask; once more changes nothing.
    fn change_names<P: Port>(&self, head: &Head, operation: Operation<'_>, reply: Answering<P>) {
        let (frontend, who, dir) = (&self.0.frontend, head.caller, head.node);
        match operation {
            Operation::Symlink { name, target } => frontend.symlink(who, dir, name, target, reply),
            Operation::MkNod { name, mode, rdev, umask } => {
                frontend.mknod(Caller { umask, ..who }, dir, name, mode, rdev, reply);
            }
            Operation::MkDir { name, mode, umask } => {
                frontend.mkdir(Caller { umask, ..who }, dir, name, mode, reply);
            }
            Operation::Create { name, mode, umask, flags } => {
                frontend.create(Caller { umask, ..who }, dir, name, mode, flags, reply);
            }
            Operation::TmpFile { mode, umask, flags } => {
                frontend.tmpfile(Caller { umask, ..who }, dir, mode, flags, reply);
            }
            Operation::Link { node, name } => frontend.link(who, node, dir, name, reply),
            Operation::Unlink { name } => frontend.unlink(who, dir, name, reply),
            Operation::RmDir { name } => frontend.rmdir(who, dir, name, reply),
            Operation::Rename { name, to_dir, to_name, flags } => {
                frontend.rename(who, (dir, name), (to_dir, to_name), flags, reply);
            }
            _ => reply.error(Errno::NOSYS),
        }
    }

    /// Requests that change what is in a node, and the rest.
    fn change<P: Port>(&self, head: &Head, operation: Operation<'_>, reply: Answering<P>) {
        let (frontend, who, node) = (&self.0.frontend, head.caller, head.node);
        match operation {
            Operation::SetAttr { set, fh } => frontend.setattr(who, node, set, fh, reply),
            Operation::SetFlags(flags) => frontend.set_flags(who, node, flags, reply),
            Operation::Write { fh, offset, write_flags, flags, data } => {
                let kill_priv = write_flags & WRITE_KILL_SUIDGID != 0;
                // Pages that the kernel writes back belong where they are.
                let append = flags & libc::O_APPEND != 0 && write_flags & WRITE_CACHE == 0;
                frontend.write(who, node, Write { fh, offset, kill_priv, append }, data, reply);
            }
            Operation::Fallocate { fh, offset, length, mode } => {
                frontend.fallocate(who, node, fh, (offset, length), mode, reply);
            }
            Operation::SetXattr { name, value, flags } => {
                frontend.setxattr(who, node, name, value, flags, reply);
            }
            Operation::RemoveXattr { name } => frontend.removexattr(who, node, name, reply),
            Operation::Poll { fh, kh, notify } => {
                let device = self.0.device.as_ref().filter(|_| notify);
                let waker =
                    device.map(|device| Waker::from(Arc::new(Poller { device: Arc::downgrade(device), kh })));
                frontend.poll(who, node, fh, waker, reply);
            }
            Operation::Release { fh } => frontend.release(who, node, fh, reply),
            Operation::ReleaseDir | Operation::Destroy => Reply::<()>::send(reply, Ok(())),
            // INIT comes first and once.
            Operation::Init(_) => reply.error(Errno::IO),
            _ => reply.error(Errno::NOSYS),
        }
    }
}
