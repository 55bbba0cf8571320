//! The attribute of the storm: it detects forbidden calls and torn texts.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use uvfs::{Errno, Result};
use uvfs_drivers::kernfs::{Attribute, Call};

use super::Shared;

/// How often a text repeats its value.
const COPIES: usize = 40;

/// Withdraws the permission to call a gauge; see [`Gauge::permission`].
#[derive(Clone)]
pub(super) struct Permission(Arc<AtomicBool>);

impl Permission {
    /// From now on any call is a fault.
    pub(super) fn end(&self) {
        self.0.store(false, SeqCst);
    }
}

/// See the module's head.
pub(super) struct Gauge {
    shared: Arc<Shared>,
    may: Arc<AtomicBool>,
    value: AtomicU64,
}

impl Gauge {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        shared.living.fetch_add(1, SeqCst);
        Self { shared: Arc::clone(shared), may: Arc::new(AtomicBool::new(true)), value: AtomicU64::new(0) }
    }

    pub(super) fn permission(&self) -> Permission {
        Permission(Arc::clone(&self.may))
    }

    fn check(&self, when: &str) {
        if !self.may.load(SeqCst) {
            self.shared.break_off(format!("{when} a call, the attribute's removal had returned"));
        }
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.shared.living.fetch_sub(1, SeqCst);
    }
}

/// Whether a text is whole: one value, repeated.
pub(super) fn is_whole(text: &[u8]) -> bool {
    let mut lines = text.split(|b| *b == b'\n');
    let first = lines.next();
    let copies = lines.clone().filter(|line| Some(*line) == first).count() + 1;
    copies == COPIES && lines.filter(|line| Some(*line) != first).eq([&b""[..]])
}

impl Attribute for Gauge {
    fn show(&self, _: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        self.check("at the beginning of");
        self.shared.calls.fetch_add(1, SeqCst);
        let value = self.value.load(SeqCst);
        for _ in 0..COPIES {
            writeln!(out, "{value}").map_err(|_| Errno::IO)?;
        }
        self.check("at the end of");
        Ok(())
    }

    /// A number; or `remove`, or `break`.
    fn store(&self, call: &Call<'_>, data: &[u8]) -> Result<usize> {
        self.check("at the beginning of");
        self.shared.calls.fetch_add(1, SeqCst);
        match data {
            b"remove" => {
                if call.remove_self() {
                    self.shared.removed_themselves.fetch_add(1, SeqCst);
                }
                // All other calls are forbidden now, whether this call removed the node or waited for the removal.
                self.may.store(false, SeqCst);
            }
            b"break" => {
                call.break_protection();
                std::thread::yield_now();
                if call.unbreak() {
                    self.check("at the end of");
                }
            }
            number => {
                let text = std::str::from_utf8(number).map_err(|_| Errno::INVAL)?;
                let value = text.parse::<u64>().map_err(|_| Errno::INVAL)?;
                self.value.store(value, SeqCst);
                self.check("at the end of");
            }
        }
        Ok(data.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_text_is_not_whole() {
        let whole = b"12\n".repeat(COPIES);
        assert!(is_whole(&whole));
        let mut torn = whole.clone();
        torn[30] = b'7';
        assert!(!is_whole(&torn) && !is_whole(&whole[..60]) && !is_whole(b""));
    }
}
