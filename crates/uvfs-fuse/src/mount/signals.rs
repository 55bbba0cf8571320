//! Serving until a signal, for a program that does nothing else.
//!
//! SIGINT, SIGTERM and SIGHUP are handled until the first of them; after that, and after the end of the mount, they
//! end the process, as they do by default. The handlers come from `signal-hook` and only write to a pipe. One thread reads it and unmounts. So no
//! signal has to be blocked, and the program may start threads before.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::mount::mounted::Mounted;

const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

impl Mounted {
    /// Serves until the file system is unmounted. The first SIGINT, SIGTERM or SIGHUP unmounts it: if it is in use, its
    /// name goes at once, and the call returns when the last user is gone. A second signal ends the process, as it does
    /// by default; the users then get ENOTCONN.
    ///
    /// # Errors
    /// The handlers cannot be set, or as for [`Mounted::wait`].
    pub fn serve_until_signal(&self) -> io::Result<()> {
        let is_default = Arc::new(AtomicBool::new(false));
        for signal in ENDING {
            // Handlers stay for the life of the process. This one restores the default action.
            flag::register_conditional_default(signal, Arc::clone(&is_default))?;
        }
        let mut signals = Signals::new(ENDING)?;
        let handle = signals.handle();
        thread::scope(|scope| {
            scope.spawn(|| {
                if signals.forever().next().is_some() {
                    is_default.store(true, Ordering::SeqCst);
                    if let Err(error) = self.unmount() {
                        tracing::warn!(%error, "not unmounted");
                    }
                }
            });
            let outcome = self.wait();
            is_default.store(true, Ordering::SeqCst);
            handle.close();
            outcome
        })
    }
}
