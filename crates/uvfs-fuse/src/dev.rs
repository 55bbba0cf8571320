//! The connection to the kernel: `/dev/fuse`, and the rings where there are any.
//!
//! [`Connection::greet`] answers INIT on a mounted device; [`Connection::start`] begins to answer the rest: through rings
//! (`uring`) if they were agreed on, with one reader of the device beside them for FORGET and INTERRUPT, else
//! with several readers. Each reader has a descriptor of its own, cloned so that the kernel keeps a list of requests for
//! each; an answer goes back by the descriptor that its request came from.
//!
//! Not all readers read at once (`leaders.rs`). A reader waits for a driver only while another one is left (`readers.rs`). They end when the kernel says that the mount is gone or was aborted. What is no request
//! (the kernel sends none such) is logged, and the next one read.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use uvfs::Errno;

use crate::frontend::{Frontend, Kernel};
use crate::leaders::{Leaders, Watching};
use crate::options::{Options, TransportKind};
use crate::readers::Readers;
use crate::transport::BackingId;
use crate::uring::{self, Handler, RingPort, Rings};
use crate::wire::init::{Agreed, Greeting, Wishes};
use crate::wire::request::{Head, Operation, data_len, split};
use crate::wire::{Answer, Dispatcher, IN_HEADER, MAX_REQUEST, OUT_HEADER, Port};

mod sys;

pub(crate) use sys::page_size;

/// Files that the kernel is lent, by the device: also where requests come by rings.
struct Lender(Weak<File>);

impl Kernel for Lender {
    fn borrow(&self, file: BorrowedFd<'_>) -> uvfs::Result<BackingId> {
        sys::lend(self.0.upgrade().ok_or(Errno::NOTCONN)?.as_fd(), file)
    }

    fn give_back(&self, id: BackingId) {
        // Where the device is gone, the kernel has given everything back by itself.
        let Some(device) = self.0.upgrade() else { return };
        if let Err(error) = sys::take_back(device.as_fd(), id) {
            tracing::warn!(%error, id, "a file that the kernel was lent is not given back");
        }
    }
}

/// What requests come through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reads and writes of `/dev/fuse`.
    Dev,
    /// FUSE over io_uring, with `/dev/fuse` for FORGET and INTERRUPT.
    Uring,
}

impl Transport {
    /// As the option `transport` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Uring => "uring",
        }
    }
}

/// A device that has greeted the kernel.
pub(crate) struct Connection {
    device: File,
    dispatcher: Arc<Dispatcher>,
    transport: Transport,
    threads: usize,
    readers: Arc<Readers>,
    /// Readers besides, where some may be away.
    spare: usize,
}

/// What is done to the mount when a thread that answers requests can go on no more: callers would wait for ever for what it
/// was to answer, as the others do for what they are asked.
#[derive(Clone)]
pub(crate) struct GiveUp(Arc<dyn Fn() + Send + Sync>);

impl GiveUp {
    pub(crate) fn new(how: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(how))
    }

    /// Runs a thread; gives up after an error or a panic of its. Nothing is logged: who waits for the end of the session is told.
    pub(crate) fn unless_well(self, thread: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        struct Unwinding(Option<GiveUp>);
        impl Drop for Unwinding {
            fn drop(&mut self) {
                if let Some(GiveUp(how)) = self.0.take() {
                    how();
                }
            }
        }
        let mut unwinding = Unwinding(Some(self));
        thread()?;
        unwinding.0 = None;
        Ok(())
    }
}

/// Threads that answer.
pub(crate) struct Running {
    rings: Option<Rings>,
    readers: Arc<Readers>,
    _watching: Option<Watching>,
}

impl Connection {
    /// Greets the kernel on a mounted FUSE device (the INIT exchange).
    pub(crate) fn greet(device: OwnedFd, frontend: Arc<Frontend>, options: &Options) -> io::Result<Self> {
        let (threads, kind) = (options.threads.max(2), options.transport);
        let device = File::from(device);
        let rings = rings(kind, frontend.may_wait())?;
        let page_size = page_size() as u32;
        let wishes = Wishes {
            page_size,
            acls: frontend.has_acls_checked(),
            unmasked: frontend.masks(),
            unseen: frontend.changes_unseen(),
            fixed_links: frontend.fixed_links(),
            passthrough: options.passthrough && frontend.lends(),
            uring: rings,
        };
        let agreed = exchange(&device, &frontend, wishes)?;
        let transport = if agreed.uring() { Transport::Uring } else { Transport::Dev };
        if kind == TransportKind::Uring && transport != Transport::Uring {
            return Err(io::Error::new(ErrorKind::Unsupported, NO_RINGS));
        }
        let (readers, spare) = (frontend.readers(), if frontend.may_wait() { SPARE } else { 0 });
        let shared = Arc::new(device.try_clone()?);
        if agreed.passthrough() {
            frontend.kernel_borrows(Box::new(Lender(Arc::downgrade(&shared))));
        }
        let dispatcher = Arc::new(Dispatcher::new(frontend, Some(shared)));
        Ok(Self { device, dispatcher, transport, threads, readers, spare })
    }

    /// What requests come through.
    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Starts to answer. After an error the mount is to be given up: what was started ends with it. Later that
    /// is done by `give_up`.
    pub(crate) fn start(self, give_up: &GiveUp) -> io::Result<Running> {
        let count = match self.transport {
            Transport::Dev => self.threads + self.spare,
            Transport::Uring => 1,
        };
        // Where fusermount3 had to open the device for us, the threads have to share it.
        let cloned = File::options().read(true).write(true).open("/dev/fuse").is_ok();
        let rings = match self.transport {
            Transport::Dev => None,
            // From the reply to INIT on all callers wait for this.
            Transport::Uring => {
                Some(Rings::register(self.device.as_fd(), give_up, || self.dispatcher.another())?)
            }
        };
        let few = self.threads / 2;
        let leaders = (count > few.max(1)).then(|| Leaders::new(few));
        let watching = leaders.as_ref().map(Leaders::watch);
        for number in 0..count {
            let device = match number {
                0 => self.device.try_clone()?,
                _ if cloned => sys::clone_device(self.device.as_fd())?,
                _ => self.device.try_clone()?,
            };
            let (dispatcher, leaders) = (self.dispatcher.another(), leaders.clone());
            let reader = Reader { device: Arc::new(device), dispatcher, leaders };
            let name = format!("uvfs-fuse/{number}");
            let give_up = give_up.clone();
            self.readers.start(name, move || give_up.unless_well(|| reader.run()))?;
        }
        Ok(Running { rings, readers: self.readers, _watching: watching })
    }
}

impl Running {
    /// Answers until the file system is unmounted or aborted; the first error of a thread. Not waited for are threads that are in
    /// a call of a driver, which may never answer.
    pub(crate) fn run(self) -> io::Result<()> {
        let outcome = self.rings.map_or(Ok(()), Rings::run);
        outcome.and(self.readers.wait())
    }
}

/// Readers besides those that there are otherwise, where some may wait for a driver meanwhile.
const SPARE: usize = 2;

/// Bytes that take longer to copy than most requests take in all.
const LARGE: usize = 64 << 10;

const NO_RINGS: &str = "transport=uring: this kernel does not offer FUSE over io_uring; use transport=auto";

/// Whether to ask for rings. A thread of theirs cannot wait for a driver, for nobody else can answer what comes to its
/// processor meanwhile; a reader of the device can. So by themselves they are not taken for a driver that may wait.
fn rings(kind: TransportKind, may_wait: bool) -> io::Result<bool> {
    match kind {
        TransportKind::Dev => Ok(false),
        TransportKind::Auto if may_wait => Ok(false),
        TransportKind::Auto => Ok(uring::available()
            .inspect_err(|why| tracing::info!(%why, "requests come by /dev/fuse"))
            .is_ok()),
        TransportKind::Uring => match uring::available() {
            Ok(()) => Ok(true),
            Err(why) => Err(io::Error::new(ErrorKind::Unsupported, format!("transport=uring: {why}"))),
        },
    }
}

/// Answers INIT; what was agreed.
fn exchange(device: &File, frontend: &Frontend, wishes: Wishes) -> io::Result<Agreed> {
    let mut buffer = vec![0; MAX_REQUEST];
    loop {
        let Some(len) = receive(device, &mut buffer)? else {
            let what = "the mount was gone before the kernel had greeted";
            return Err(io::Error::new(ErrorKind::NotConnected, what));
        };
        let invalid = || io::Error::new(ErrorKind::InvalidData, "the kernel's greeting is not understood");
        let (header, structure, payload) = split(&buffer[..len]).map_err(|_| invalid())?;
        let head = Head::parse(header);
        let Ok(Operation::Init(init)) = Operation::parse(head.opcode, structure, payload) else {
            return Err(invalid());
        };
        tracing::debug!(?init, ?wishes, "the kernel greets");
        let answer = Greeting::to(&init, wishes);
        let body = answer.map(|greeting| greeting.encode());
        let sent = match &body {
            Ok(body) => transmit(device, head.unique, Answer::Body(body), &[]),
            Err(error) => transmit(device, head.unique, Answer::Error(*error), &[]),
        };
        sent?;
        match answer {
            Ok(Greeting::Agreed(agreed)) => {
                frontend.kernel_can(agreed.spares_opendir());
                return Ok(agreed);
            }
            Ok(Greeting::Again) => {}
            Err(_) => {
                let what = format!(
                    "this kernel speaks version {}.{} of FUSE, which is too old; Linux 4.20 and later will do",
                    init.major, init.minor
                );
                return Err(io::Error::new(ErrorKind::Unsupported, what));
            }
        }
    }
}

/// Reads one request; `None` when the mount is gone.
fn receive(mut device: &File, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match device.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => return Ok(Some(len)),
            Err(error) => match error.raw_os_error() {
                // The request was given up while it was read; a signal; nothing there after all.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                // ECONNABORTED: it went when a request had been taken off the queue, and before it was handed over.
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                _ => return Err(error),
            },
        }
    }
}

/// Writes one answer; `room` is what [`Answer::Room`] speaks of.
fn transmit(mut device: &File, unique: u64, answer: Answer<'_>, room: &[u8]) -> io::Result<()> {
    /// Longer bodies are not copied once more.
    const SMALL: usize = 256;
    let (error, body) = match answer {
        Answer::Error(error) => (-error.raw_os_error(), &[][..]),
        Answer::Body(body) => (0, body),
        Answer::Room(len) => (0, room.get(..len).unwrap_or(room)),
    };
    let len = OUT_HEADER + body.len();
    let mut small = [0; OUT_HEADER + SMALL];
    small[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    small[4..8].copy_from_slice(&error.to_ne_bytes());
    small[8..16].copy_from_slice(&unique.to_ne_bytes());
    let written = match small.get_mut(OUT_HEADER..len) {
        Some(place) => {
            place.copy_from_slice(body);
            device.write(&small[..len])
        }
        None => device.write_vectored(&[IoSlice::new(&small[..OUT_HEADER]), IoSlice::new(body)]),
    };
    // The kernel takes an answer whole or not at all.
    written.map(drop)
}

/// One thread of the connection.
struct Reader {
    device: Arc<File>,
    dispatcher: Dispatcher,
    /// Where there are more readers than may read at once.
    leaders: Option<Arc<Leaders>>,
}

impl Reader {
    fn run(&self) -> io::Result<()> {
        let mut buffer = vec![0; MAX_REQUEST];
        let place = self.leaders.as_ref().map(|leaders| leaders.join());
        while let Some(len) = receive(&self.device, &mut buffer)? {
            let port = DevPort { device: Arc::clone(&self.device), room: Vec::new() };
            match split(&buffer[..len]) {
                Ok((header, structure, payload)) => {
                    if let Some(place) = &place {
                        place.begin(data_len(header, structure, payload) >= LARGE);
                    }
                    self.dispatcher.handle(header, structure, payload, port);
                }
                Err(error) => tracing::warn!(%error, len, "what the kernel sent is no request"),
            }
            if let Some(place) = &place {
                place.end();
            }
        }
        Ok(())
    }
}

impl Handler for Dispatcher {
    fn handle(&self, header: &[u8; IN_HEADER], structure: &[u8], payload: &[u8], port: RingPort) {
        Self::handle(self, header, structure, payload, port);
    }
}

/// The way back of a request that was read from the device.
struct DevPort {
    device: Arc<File>,
    /// Empty, or this thread's room, borrowed.
    room: Vec<u8>,
}

thread_local! {
    /// Stays as large as the largest read, so that a read allocates and clears nothing.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Port for DevPort {
    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.room.len() < len {
            let mut room = ROOM.take();
            if room.len() < len {
                room.resize(len, 0);
            }
            self.room = room;
        }
        &mut self.room[..len]
    }

    fn send(mut self, unique: u64, answer: Answer<'_>) {
        let sent = transmit(&self.device, unique, answer, &self.room);
        if !self.room.is_empty() {
            ROOM.set(std::mem::take(&mut self.room));
        }
        match sent {
            Ok(()) => {}
            // Who asked has gone, or the mount.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTCONN)) =>
            {
                tracing::debug!(%error, unique, "an answer that nobody waits for any more");
            }
            Err(error) => tracing::warn!(%error, unique, "the kernel did not take an answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_mount_is_given_up_after_an_error_or_a_panic() {
        let times = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&times);
        let give_up = GiveUp::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(give_up.clone().unless_well(|| Ok(())).is_ok());
        assert_eq!(times.load(Ordering::Relaxed), 0);
        assert!(give_up.clone().unless_well(|| Err(ErrorKind::Other.into())).is_err());
        assert_eq!(times.load(Ordering::Relaxed), 1);
        assert!(thread::spawn(move || give_up.unless_well(|| panic!("as it should"))).join().is_err());
        assert_eq!(times.load(Ordering::Relaxed), 2);
    }
}
