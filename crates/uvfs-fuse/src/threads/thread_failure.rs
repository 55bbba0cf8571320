//! The end of a mount whose threads fail.

use std::io;
use std::sync::Arc;

/// Ends the mount when an answering thread cannot continue. Otherwise callers would wait for ever for that thread's
/// answers, while the other threads go on.
#[derive(Clone)]
pub(crate) struct GiveUp(Arc<dyn Fn() + Send + Sync>);

impl GiveUp {
    pub(crate) fn new(how: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(how))
    }

    /// Runs a thread, and gives up after an error or a panic. It logs nothing: the waiter for the session's end
    /// gets the error.
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
