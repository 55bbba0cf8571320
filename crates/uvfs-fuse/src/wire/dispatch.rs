//! (to come: the seam only)

use std::sync::Arc;

use super::{IN_HEADER, Port};
use crate::frontend::Frontend;

/// Takes requests to the front end.
pub(crate) struct Dispatcher {
    frontend: Arc<Frontend>,
}

impl Dispatcher {
    /// Has one request answered through `port`: before this returns, or later, from another thread.
    /// `structure` and `payload` may be longer than what the operation uses.
    pub(crate) fn handle<P: Port>(&self, header: &[u8; IN_HEADER], structure: &[u8], payload: &[u8], port: P) {
        let _ = (&self.frontend, header, structure, payload, port);
        unimplemented!()
    }
}
