//! A client's connection: reads requests, answers each, and sends what subscriptions bring.

use std::io::{self, BufWriter, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::io::Errno;

use super::WatchmanServer;
use super::roots::{Asker, Root};
use super::run::Client;
use super::subscriptions::{Inbox, StateEvent, Subscription};
use super::wire::{Answer, Encoding, Unread};
use crate::server::{Patience, RegexShare, Turn, is_of_master};

/// How long a client may take to read a part of an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the states of a client that has gone wait for changes that ended before.
const LAST_LOOK: Duration = Duration::from_secs(5);
/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// A connection.
pub(super) struct Connection<'a> {
    pub(super) server: &'a Arc<WatchmanServer>,
    stream: &'a UnixStream,
    pub(super) asker: Asker,
    pub(super) session: u64,
    /// That of the last request.
    pub(super) encoding: Encoding,
    unread: Unread,
    pub(super) subscriptions: Vec<Subscription>,
    /// There is one from the first subscription on.
    pub(super) inbox: Option<Arc<Inbox>>,
    /// When it rang, for the first time and for the last time since subscriptions were asked.
    pub(super) rung: Option<(Instant, Instant)>,
}

impl Drop for Connection<'_> {
    /// States that the client has entered are left.
    fn drop(&mut self) {
        let mut known = self.server.known.lock();
        if let Some(inbox) = &self.inbox {
            known.inboxes.retain(|other| !Arc::ptr_eq(other, inbox));
        }
        let (own, others) = known.states.drain(..).partition(|state| state.session == self.session);
        known.states = others;
        drop(known);
        for state in own {
            let state: super::AssertedState = state;
            // Changes while the state was entered belong to it, so it ends after them.
            let clock = self.server.watched(&state.root, self.asker).ok().map(|root| {
                root.tree.settle_until(Instant::now() + LAST_LOOK);
                root.tree.figures().clock
            });
            let (entered, abandoned, metadata) = (false, true, None);
            let event =
                StateEvent { root: state.root, name: state.name, entered, abandoned, clock, metadata };
            self.server.known.lock().tell(&event);
        }
    }
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        server: &'a Arc<WatchmanServer>,
        stream: &'a UnixStream,
        session: u64,
    ) -> io::Result<Self> {
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            server,
            stream,
            asker: if is_of_master(stream) { Asker::Master } else { Asker::Other },
            session,
            encoding: Encoding::Json,
            unread: Unread::default(),
            subscriptions: Vec::new(),
            inbox: None,
            rung: None,
        })
    }

    /// Serves the client until it goes.
    pub(super) fn serve(mut self) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        loop {
            loop {
                match self.unread.next() {
                    Ok(None) => break,
                    Ok(Some((encoding, request))) => {
                        self.encoding = encoding;
                        let answer = request.and_then(|request| self.command(&request));
                        self.send(answer.unwrap_or_else(|why| self.failure(why)))?;
                    }
                    Err((encoding, why)) => {
                        self.encoding = encoding;
                        return self.send(self.failure(why));
                    }
                }
            }
            if self.hear_events()? {
                self.ring();
            }
            let wait = self.settle()?;
            let (readable, rung) = self.wait(wait)?;
            if rung {
                self.ring();
            }
            if readable {
                let read = match (&mut &*self.stream).read(&mut chunk) {
                    Ok(0) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                };
                self.unread.push(&chunk[..read]);
            }
        }
    }

    /// Subscriptions are to be asked.
    pub(super) fn ring(&mut self) {
        let now = Instant::now();
        self.rung = Some((self.rung.map_or(now, |(first, _)| first), now));
    }

    /// Waits for the client, or for changes. Returns which of them came.
    fn wait(&self, at_most: Option<Duration>) -> io::Result<(bool, bool)> {
        let timeout = at_most
            .map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) });
        let client = PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN);
        let mut both;
        let mut one;
        let fds = match &self.inbox {
            Some(inbox) => {
                both = [client, PollFd::from_borrowed_fd(inbox.wake(), PollFlags::IN)];
                &mut both[..]
            }
            None => {
                one = [client];
                &mut one[..]
            }
        };
        match poll(fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = |nth: usize| fds.get(nth).is_some_and(|fd| !fd.revents().is_empty());
        let (readable, rung) = (ready(0), ready(1));
        if rung && let Some(inbox) = &self.inbox {
            inbox.hear();
        }
        Ok((readable, rung))
    }

    /// Waits until an answer may be made; nothing if the client has gone.
    pub(super) fn turn(&self, root: &Root) -> Option<Turn<'a>> {
        self.server.index.turn(&root.tree, self.stream)
    }

    /// For the regular expressions of a query.
    pub(super) fn regex_share(&self) -> RegexShare {
        self.server.index.regex_share(self.stream)
    }

    /// For the answer to a query.
    pub(super) fn client(&self) -> Client<'a> {
        let file = self.server.index.answer_file(self.stream);
        Client { encoding: self.encoding, file, patience: Patience::new(self.stream) }
    }

    fn failure(&self, why: String) -> Answer<'a> {
        Answer::new([("version", super::WATCHMAN_VERSION.into()), ("error", why.into())])
    }

    /// Sends a PDU.
    pub(super) fn send(&self, answer: Answer<'_>) -> io::Result<()> {
        // Rows are encoded while a request is answered, so they have its encoding.
        let encoding = answer.files.as_ref().map_or(self.encoding, super::wire::Rows::encoding);
        answer.send(encoding, BufWriter::new(self.stream))
    }
}
