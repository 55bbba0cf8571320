//! The dispatcher without a kernel, for tests with messages that no kernel sends. Not part of the interface.
//!
//! Each message enters as it would from `/dev/fuse`. Answers are kept until a test asks for them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use uvfs::{Errno, Vfs};

use crate::frontend::Frontend;
use crate::mount::options::Permissions;
use crate::wire::dispatch::Dispatcher;
use crate::wire::reply_port::{Answer, IN_HEADER, Port};
use crate::wire::request::split;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuzzAnswer {
    /// The number of the request.
    pub unique: u64,
    /// The body, or the error.
    pub body: Result<Vec<u8>, Errno>,
}

/// A front end that answers any sender.
pub struct Dispatch {
    dispatcher: Dispatcher,
    ear: Sender<FuzzAnswer>,
    answers: Mutex<Receiver<FuzzAnswer>>,
}

/// The answer port of a request from a test.
pub(crate) struct Ear {
    said: Sender<FuzzAnswer>,
    room: Vec<u8>,
}

impl Ear {
    pub(crate) fn new(said: Sender<FuzzAnswer>) -> Self {
        Self { said, room: Vec::new() }
    }
}

impl Port for Ear {
    fn room(&mut self, len: usize) -> &mut [u8] {
        // Not zero: unwritten bytes must not look like bytes that were read.
        self.room.resize(len, 0xaa);
        &mut self.room
    }

    fn send(self, unique: u64, answer: Answer<'_>) {
        let body = match answer {
            Answer::Error(error) => Err(error),
            Answer::Body(body) => Ok(body.to_vec()),
            Answer::Room(len) => Ok(self.room[..len].to_vec()),
        };
        // A sender that no longer listens does not need the answer.
        let _ = self.said.send(FuzzAnswer { unique, body });
    }
}

impl Dispatch {
    /// A front end of `vfs`.
    pub fn new(vfs: Arc<Vfs>) -> Self {
        let frontend = Arc::new(Frontend::new(vfs, None, Permissions::Kernel));
        let (ear, answers) = channel();
        Self { dispatcher: Dispatcher::new(frontend, None), ear, answers: Mutex::new(answers) }
    }

    /// One message of `/dev/fuse`; false if it is not a request.
    pub fn message(&self, message: &[u8]) -> bool {
        let parts = split(message);
        if let Ok((header, structure, payload)) = parts {
            self.dispatcher.handle(header, structure, payload, self.ear());
        }
        parts.is_ok()
    }

    /// One message of a ring: its three parts, which need not agree about lengths.
    pub fn parts(&self, header: &[u8; IN_HEADER], structure: &[u8], payload: &[u8]) {
        self.dispatcher.handle(header, structure, payload, self.ear());
    }

    /// The answers since the last call.
    pub fn said(&self) -> Vec<FuzzAnswer> {
        self.answers.lock().try_iter().collect()
    }

    fn ear(&self) -> Ear {
        Ear::new(self.ear.clone())
    }
}
