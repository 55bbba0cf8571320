//! The dispatcher without a kernel, for tests that send it what no kernel would. Not part of the interface.
//!
//! Each message goes in as it would come from `/dev/fuse`; what is answered is kept until it is asked for.

use std::sync::Arc;

use parking_lot::Mutex;
use uvfs::{Errno, Vfs};

use crate::frontend::Frontend;
use crate::wire::request::split;
use crate::wire::{Answer, Dispatcher, IN_HEADER, Port};

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The number of the request.
    pub unique: u64,
    /// The body, or the error.
    pub body: Result<Vec<u8>, Errno>,
}

/// A front end that answers whoever asks.
pub struct Dispatch {
    dispatcher: Dispatcher,
    said: Arc<Mutex<Vec<Said>>>,
}

struct Ear {
    said: Arc<Mutex<Vec<Said>>>,
    room: Vec<u8>,
}

impl Port for Ear {
    fn room(&mut self, len: usize) -> &mut [u8] {
        self.room.resize(len, 0);
        &mut self.room
    }

    fn send(self, unique: u64, answer: Answer<'_>) {
        let body = match answer {
            Answer::Error(error) => Err(error),
            Answer::Body(body) => Ok(body.to_vec()),
            Answer::Room(len) => Ok(self.room[..len].to_vec()),
        };
        self.said.lock().push(Said { unique, body });
    }
}

impl Dispatch {
    /// A front end of `vfs`.
    pub fn new(vfs: Arc<Vfs>) -> Self {
        let frontend = Arc::new(Frontend::new(vfs, None));
        Self { dispatcher: Dispatcher::new(frontend, None), said: Arc::default() }
    }

    /// One message of `/dev/fuse`; false if it is no request at all.
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

    /// What was answered since the last call.
    pub fn said(&self) -> Vec<Said> {
        std::mem::take(&mut self.said.lock())
    }

    fn ear(&self) -> Ear {
        Ear { said: Arc::clone(&self.said), room: Vec::new() }
    }
}
