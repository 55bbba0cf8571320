//! Requests taken to the front end: the one place that knows which method of [`Frontend`] an operation is.
//!
//! A [`Dispatcher`] is one thread's. Its shared state is behind an `Arc` of its own, so that requests of two
//! threads count references in different cache lines. Waiting for drivers is the front end's business.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use uvfs::Errno;

use super::interrupts::Interrupts;
use super::latency_histograms::{RequestKind, Timed};
use super::reply::{Answering, Listing};
use super::reply_port::{IN_HEADER, Port};
use super::request::{Head, Operation};
use crate::frontend::Frontend;
use crate::notify::messages::Message;
use crate::transport::{Caller, Reply};

/// The state that all requests need, those included that are answered later.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) frontend: Arc<Frontend>,
    pub(super) interrupts: Arc<Interrupts>,
    /// The device by which the kernel is told that pollers are to ask again.
    device: Option<Arc<File>>,
}

/// See the module.
pub(crate) struct Dispatcher(Arc<Context>);

/// A poller in the kernel: woken, it asks again.
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

    /// Has one request answered through `port`: before this returns, or later, from another thread. `structure` and
    /// `payload` may be longer than the operation's.
    pub(crate) fn handle<P: Port>(
        &self,
        header: &[u8; IN_HEADER],
        structure: &[u8],
        payload: &[u8],
        port: P,
    ) {
        let head = Head::parse(header);
        let operation = Operation::parse(head.opcode, structure, payload);
        let timed = Timed::begin(RequestKind::of(head.opcode));
        let back = Back { port, unique: head.unique, timed, context: &self.0 };
        // A driver's panic costs its own request (whose answer, dropped, says EIO), not the thread that all others are
        // counting on.
        let handled = catch_unwind(AssertUnwindSafe(|| match operation {
            Ok(operation) => self.dispatch(&head, operation, back),
            Err(error) if head.is_answered() => back.for_change().error(error),
            Err(error) => tracing::debug!(%error, opcode = head.opcode, "not understood"),
        }));
        if handled.is_err() {
            tracing::error!(opcode = head.opcode, node = head.node, "a request made its driver panic");
        }
    }

    /// Calls the method of the front end that an operation belongs to. A question changes nothing, so it may be given
    /// up while it waits ([`Back::for_question`]). Without DONT_MASK the kernel has applied the umask; once more
    /// changes nothing.
    fn dispatch<P: Port>(&self, head: &Head, operation: Operation<'_>, back: Back<'_, P>) {
        use Operation as Op;
        let (frontend, who, node) = (&self.0.frontend, head.caller, head.node);
        let question = |back: Back<'_, P>| back.for_question(who.pid);
        let change = Back::for_change;
        match operation {
            Op::Lookup { name } => frontend.lookup(who, node, name, question(back)),
            Op::Forget { count } => frontend.forget(node, count),
            Op::BatchForget(all) => all.iter().for_each(|(node, count)| frontend.forget(node, count)),
            Op::GetAttr => frontend.getattr(who, node, question(back)),
            Op::Statx => frontend.statx(who, node, question(back)),
            Op::GetFlags(form) => frontend.get_flags(who, node, form, question(back)),
            Op::SetFlags(flags) => frontend.set_flags(who, node, flags, change(back)),
            Op::SetAttr { set, fh } => frontend.setattr(who, node, set, fh, change(back)),
            Op::ReadLink => frontend.readlink(who, node, question(back)),
            Op::Symlink { name, target } => frontend.symlink(who, node, name, target, change(back)),
            Op::MkNod { name, mode, rdev, umask } => {
                frontend.mknod(Caller { umask, ..who }, node, name, mode, rdev, change(back));
            }
            Op::MkDir { name, mode, umask } => {
                frontend.mkdir(Caller { umask, ..who }, node, name, mode, change(back));
            }
            Op::Unlink { name } => frontend.unlink(who, node, name, change(back)),
            Op::RmDir { name } => frontend.rmdir(who, node, name, change(back)),
            Op::Rename { name, to_dir, to_name, flags } => {
                frontend.rename(who, (node, name), (to_dir, to_name), flags, change(back));
            }
            Op::Link { node: linked, name } => frontend.link(who, linked, node, name, change(back)),
            Op::Open { flags } => frontend.open(who, node, flags, question(back)),
            Op::Create { name, mode, umask, flags } => {
                frontend.create(Caller { umask, ..who }, node, name, mode, flags, change(back));
            }
            Op::TmpFile { mode, umask, flags } => {
                frontend.tmpfile(Caller { umask, ..who }, node, mode, flags, change(back));
            }
            Op::Read { fh, offset, size } => frontend.read(who, node, fh, offset, size, question(back)),
            Op::Write(write, data) if write.written_back => {
                frontend.write(who, node, write, data, back.for_kernel());
            }
            Op::Write(write, data) => frontend.write(who, node, write, data, change(back)),
            Op::Release { fh } => frontend.release(who, node, fh, back.for_kernel()),
            Op::Fsync { fh, datasync } => frontend.fsync(who, node, fh, datasync, question(back)),
            Op::FsyncDir { datasync } => frontend.fsync_dir(who, node, datasync, question(back)),
            Op::OpenDir => frontend.opendir(who, node, question(back)),
            Op::Access { mask } => frontend.access(who, node, mask, question(back)),
            Op::ReadDir { cookie, size, plus } => {
                frontend.readdir(who, node, cookie, Listing::new(question(back), size as usize, plus));
            }
            Op::StatFs => frontend.statfs(who, node, question(back)),
            Op::SetXattr { name, value, flags } => {
                frontend.setxattr(who, node, name, value, flags, change(back));
            }
            Op::GetXattr { name, size } => frontend.getxattr(who, node, name, size, question(back)),
            Op::ListXattr { size } => frontend.listxattr(who, node, size, question(back)),
            Op::RemoveXattr { name } => frontend.removexattr(who, node, name, change(back)),
            Op::Poll { fh, kh, notify } => {
                frontend.poll(who, node, fh, self.poller(kh, notify), change(back));
            }
            Op::Fallocate { fh, offset, length, mode } => {
                frontend.fallocate(who, node, fh, (offset, length), mode, change(back));
            }
            Op::Lseek { fh, offset, whence } => frontend.lseek(who, node, fh, offset, whence, question(back)),
            Op::Interrupt { unique } => self.0.interrupts.interrupt(unique),
            Op::NotifyReply => tracing::debug!("an answer to a question that is never asked"),
            Op::ReleaseDir | Op::Destroy => Reply::<()>::send(change(back), Ok(())),
            // INIT comes first and once.
            Op::Init(_) => change(back).error(Errno::IO),
            Op::Unsupported => change(back).error(Errno::NOSYS),
        }
    }

    /// Wakes the kernel's pollers of the file that the kernel knows as `kh`, if it wants that.
    fn poller(&self, kh: u64, notify: bool) -> Option<Waker> {
        let device = self.0.device.as_ref().filter(|_| notify)?;
        Some(Waker::from(Arc::new(Poller { device: Arc::downgrade(device), kh })))
    }
}

/// The way back of a request of which nothing is known yet. Dropped, it sends nothing.
struct Back<'a, P: Port> {
    port: P,
    unique: u64,
    timed: Timed,
    context: &'a Arc<Context>,
}

impl<P: Port> Back<'_, P> {
    /// For a request that must not be given up once it has begun.
    fn for_change(self) -> Answering<P> {
        Answering::new(self.port, self.unique, self.timed, self.context)
    }

    /// For a change that the kernel makes in no user's name.
    fn for_kernel(self) -> Answering<P> {
        self.for_change().in_no_users_name()
    }

    /// For a request that changes nothing: it may be given up when the process `pid` is killed.
    fn for_question(self, pid: u32) -> Answering<P> {
        self.for_change().interruptible(pid)
    }
}
