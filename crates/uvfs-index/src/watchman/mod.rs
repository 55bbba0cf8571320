//! Watchman's protocol, for the clients of Meta's `watchman`, over the trees of an index.
//!
//! A second Unix socket speaks JSON and BSER. The README of the crate lists the commands, and all differences.
//!
//! | file | content |
//! |---|---|
//! | `value`, `bser`, `wire` | values, both encodings, and PDUs |
//! | `clocks`, `query`, `terms`, `wildmatch` | queries as clients write them |
//! | `run` | answers from the table of a tree |
//! | `roots` | directories that clients have asked to be watched |
//! | `connection`, `commands`, `subscriptions` | a client's connection |
//! | `client` | the other side, for the command line |
//!
//! # Threads and locks
//!
//! A connection is a thread, which alone reads and writes it. For subscriptions it waits for its socket and for an
//! `eventfd` of its [`Inbox`]. A thread for each tree rings the inboxes when the tree has changed; it is started by the
//! first subscription.
//!
//! `known` is the state that connections share. It is a leaf but for the inboxes' own locks: no system call that waits, and no
//! question to a tree, is made under it. So an inbox gets states in the order in which they were entered and left.
//!
//! # Limits
//!
//! A connection keeps one request, at most [`value::LONGEST`] bytes, the rows of an answer in memory up to 4 MiB, and
//! [`SUBSCRIPTIONS`] subscriptions of [`WEIGHT`] bytes in all. A client that does not read for half a minute is cut off.

mod bser;
mod client;
mod clocks;
mod commands;
mod connection;
mod query;
mod roots;
mod run;
mod subscriptions;
mod terms;
mod value;
mod wildmatch;
mod wire;

pub use client::{watchman_command, watchman_socket};

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use self::connection::Connection;
use self::roots::Watched;
use self::subscriptions::{Inbox, StateEvent};
use crate::clock::ChangeClock;
use crate::server::{Connections, IndexServer, IndexSocket, accept};
use crate::tree::IndexPhase;

/// The version whose protocol is spoken: clients compare it, and print it.
pub const WATCHMAN_VERSION: &str = "4.9.0";
/// Cursors of a server.
const CURSORS: usize = 4096;
/// Subscriptions of a connection.
const SUBSCRIPTIONS: usize = 256;
/// Bytes of memory of a connection's subscriptions.
const WEIGHT: usize = 16 << 20;
/// Bytes of the name of a cursor, of a state and of a subscription.
const NAME: usize = 1024;
/// About the bytes of memory of a state's metadata.
const METADATA: usize = 256 << 10;
/// Bytes of a root's path.
const ROOT_PATH: usize = 4096;
/// States that are entered at a time.
const STATES: usize = 1024;
/// How often a thread that rings looks whether the server is still there.
const LOOK: Duration = Duration::from_secs(1);

/// A server of watchman's protocol.
pub struct WatchmanServer {
    index: Arc<IndexServer>,
    socket: PathBuf,
    connections: Arc<Connections>,
    sessions: AtomicU64,
    /// The threads that ring have been started.
    rings: AtomicBool,
    known: Mutex<Known>,
}

/// The state that connections share.
#[derive(Default)]
struct Known {
    roots: HashMap<Vec<u8>, Arc<Watched>>,
    /// The last moment of each cursor, by root and name.
    cursors: HashMap<(Vec<u8>, Vec<u8>), ChangeClock>,
    states: Vec<AssertedState>,
    inboxes: Vec<Arc<Inbox>>,
}

struct AssertedState {
    root: Vec<u8>,
    name: Vec<u8>,
    session: u64,
}

impl Known {
    fn tell(&self, event: &StateEvent) {
        self.inboxes.iter().for_each(|inbox| inbox.put(event.clone()));
    }
}

impl WatchmanServer {
    /// A server for the trees of an index, at a socket. The trees must have been started with
    /// [`TreeLimits::names_below`](crate::TreeLimits::names_below); otherwise every answer has all names.
    pub fn new(index: Arc<IndexServer>, socket: &Path) -> Self {
        Self {
            index,
            socket: socket.to_owned(),
            connections: Arc::default(),
            sessions: AtomicU64::new(0),
            rings: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    /// Serves connections for ever.
    ///
    /// # Errors
    /// The reason why no connection can be accepted any more.
    pub fn serve(self: &Arc<Self>, socket: &IndexSocket) -> std::io::Error {
        let server = Arc::clone(self);
        accept(socket, &self.connections, move |stream| {
            let session = server.sessions.fetch_add(1, Relaxed);
            // A client that has gone needs no answer.
            let _ = Connection::new(&server, stream, session).and_then(Connection::serve);
        })
    }

    /// Starts the threads that ring, at the first call.
    fn ring_from_now_on(self: &Arc<Self>) -> Result<(), String> {
        if self.rings.swap(true, Relaxed) {
            return Ok(());
        }
        for nth in 0..self.index.trees().len() {
            let server = Arc::downgrade(self);
            let thread = thread::Builder::new().name("uvfs-watchman".into());
            let ring = move || {
                let mut last = None;
                while let Some(server) = server.upgrade() {
                    server.ring_for(nth, &mut last);
                }
            };
            if let Err(error) = thread.spawn(ring) {
                self.rings.store(false, Relaxed);
                return Err(format!("no thread to wait for changes: {error}"));
            }
        }
        Ok(())
    }

    /// Waits for a change of a tree, for a while, and rings if there was one.
    fn ring_for(&self, nth: usize, last: &mut Option<ChangeClock>) {
        let Some(tree) = self.index.trees().get(nth).cloned() else { return thread::park_timeout(LOOK) };
        let figures = tree.figures();
        match figures.phase {
            IndexPhase::Following if *last == Some(figures.clock) => {
                if !tree.wait_for_change(figures.clock, LOOK) && tree.is_there() {
                    return;
                }
                if !tree.is_there() {
                    // The next question begins it anew.
                    thread::park_timeout(LOOK);
                }
            }
            IndexPhase::Scanning => drop(tree.wait_scanned(LOOK)),
            // Questions wait for the walk that compares a snapshot with the host.
            IndexPhase::Checking | IndexPhase::Lost(_) => thread::park_timeout(LOOK),
            IndexPhase::Following => {}
        }
        *last = Some(figures.clock);
        self.known.lock().inboxes.iter().for_each(|inbox| inbox.ring());
    }
}
