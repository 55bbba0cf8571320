//! The connection to the kernel: `/dev/fuse`, and rings if they are in use.
//!
//! [`Connection::greet`] answers INIT on a mounted device; [`Connection::start`] starts to answer all other
//! requests. If rings (`uring`) were agreed on, they carry requests, and one reader of the device takes FORGET and
//! INTERRUPT. Otherwise there are several readers. Each reader has a descriptor of its own, cloned so that the
//! kernel keeps a request list for each. An answer goes back by the descriptor that its request came from.
//!
//! Not all readers read at once (`leaders.rs`). A reader waits for a driver only while another one is left
//! (`readers.rs`). Readers end when the kernel reports that the mount is gone or was aborted. A message that is not
//! a request (the kernel sends none) is logged, and the reader goes on.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use uvfs::Errno;

use crate::frontend::Frontend;
use crate::frontend::passthrough::Kernel;
use crate::mount::options::{Options, TransportKind};
use crate::threads::leaders::{Leaders, Watching};
use crate::threads::readers::Readers;
use crate::threads::thread_failure::GiveUp;
use crate::transport::BackingId;
use crate::transport::uring::{self, Handler, RingPort, Rings};
use crate::wire::dispatch::Dispatcher;
use crate::wire::init::{Agreed, Greeting, Wishes};
use crate::wire::reply_port::{Answer, IN_HEADER, MAX_REQUEST, OUT_HEADER, Port};
use crate::wire::request::{Head, Operation, data_len, split};

pub(super) mod sys;

use sys::page_size;

/// Lends files to the kernel through the device, also if requests come by rings.
struct Lender(Weak<File>);

impl Kernel for Lender {
    fn borrow(&self, file: BorrowedFd<'_>) -> uvfs::Result<BackingId> {
        sys::lend(self.0.upgrade().ok_or(Errno::NOTCONN)?.as_fd(), file)
    }

    fn give_back(&self, id: BackingId) {
        // If the device is gone, the kernel has returned every file by itself.
        let Some(device) = self.0.upgrade() else { return };
        if let Err(error) = sys::take_back(device.as_fd(), id) {
            tracing::warn!(%error, id, "a file lent to the kernel could not be taken back");
        }
    }
}

/// The way by which requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reads and writes of `/dev/fuse`.
    Dev,
    /// FUSE over io_uring, with `/dev/fuse` for FORGET and INTERRUPT.
    Uring,
}

impl Transport {
    /// The name as in the option `transport`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Uring => "uring",
        }
    }
}

/// A device on which INIT was answered.
pub(crate) struct Connection {
    device: File,
    dispatcher: Arc<Dispatcher>,
    transport: Transport,
    threads: usize,
    readers: Arc<Readers>,
    /// Additional readers, if some may be away.
    spare: usize,
}

/// The answering threads.
pub(crate) struct Running {
    rings: Option<Rings>,
    readers: Arc<Readers>,
    _watching: Option<Watching>,
}

impl Connection {
    /// Answers the kernel's INIT on a mounted FUSE device.
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

    /// The way by which requests come.
    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Starts to answer. After an error the caller must give the mount up; the started threads end with it. Later
    /// errors call `give_up`.
    pub(crate) fn start(self, give_up: &GiveUp) -> io::Result<Running> {
        let count = match self.transport {
            Transport::Dev => self.threads + self.spare,
            Transport::Uring => 1,
        };
        // If fusermount3 had to open the device for this process, the threads must share it.
        let cloned = File::options().read(true).write(true).open("/dev/fuse").is_ok();
        let rings = match self.transport {
            Transport::Dev => None,
            // From the reply to INIT on, all callers wait for this.
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
    /// Answers until the file system is unmounted or aborted; returns the first error of a thread. It does not wait
    /// for threads in a driver's call, which may never return.
    pub(crate) fn run(self) -> io::Result<()> {
        let outcome = self.rings.map_or(Ok(()), Rings::run);
        outcome.and(self.readers.wait())
    }
}

/// Additional readers, if some may wait for a driver.
const SPARE: usize = 2;

/// A copy of this many bytes takes longer than most requests take in all.
const LARGE: usize = 64 << 10;

const NO_RINGS: &str = "transport=uring: this kernel does not offer FUSE over io_uring; use transport=auto";

/// Whether to ask for rings. A ring's thread cannot wait for a driver, because no other thread can answer requests
/// on its processor meanwhile. A reader of the device can. So `auto` does not choose rings for a driver that may
/// wait.
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

/// Answers INIT; returns the agreement.
fn exchange(device: &File, frontend: &Frontend, wishes: Wishes) -> io::Result<Agreed> {
    let mut buffer = vec![0; MAX_REQUEST];
    loop {
        let Some(len) = receive(device, &mut buffer)? else {
            let what = "the mount ended before the kernel sent INIT";
            return Err(io::Error::new(ErrorKind::NotConnected, what));
        };
        let invalid = || io::Error::new(ErrorKind::InvalidData, "the kernel's INIT request is invalid");
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
                // The request was given up during the read; or a signal came; or there is no request after all.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                // ECONNABORTED: the mount ended after the kernel took a request off the queue, before it delivered
                // it.
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                _ => return Err(error),
            },
        }
    }
}

/// Writes one answer; `room` is the memory that [`Answer::Room`] refers to.
fn transmit(mut device: &File, unique: u64, answer: Answer<'_>, room: &[u8]) -> io::Result<()> {
    /// Longer bodies are not copied again.
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
    /// Present if there are more readers than may read at once.
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
                    self.dispatcher.handle(header, structure, payload, AnyPort::Dev(port));
                }
                Err(error) => tracing::warn!(%error, len, "the kernel sent a message that is not a request"),
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
        Self::handle(self, header, structure, payload, AnyPort::Ring(port));
    }
}

/// The port of either transport. The front end is compiled for this one type: two copies of it were 400 kB.
enum AnyPort {
    Dev(DevPort),
    Ring(RingPort),
}

impl Port for AnyPort {
    fn room(&mut self, len: usize) -> &mut [u8] {
        match self {
            Self::Dev(port) => port.room(len),
            Self::Ring(port) => port.room(len),
        }
    }

    fn send(self, unique: u64, answer: Answer<'_>) {
        match self {
            Self::Dev(port) => port.send(unique, answer),
            Self::Ring(port) => port.send(unique, answer),
        }
    }

    fn may_lose_interrupt(&self) -> bool {
        matches!(self, Self::Ring(port) if port.may_lose_interrupt())
    }
}

/// The answer port of a request that was read from the device.
struct DevPort {
    device: Arc<File>,
    /// Empty, or this thread's buffer, borrowed.
    room: Vec<u8>,
}

thread_local! {
    /// Stays as large as the largest read, so a read allocates and clears nothing.
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
            // The caller or the mount has gone.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTCONN)) =>
            {
                tracing::debug!(%error, unique, "nobody waits for this answer any more");
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
