//! Readers that only read while a turn lasts.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use super::locks::Lock;
use crate::harness::{Companion, pin};

/// Sections between two checks whether the turn is over.
const SECTIONS: u32 = 256;

/// The readers of a turn; they end with it.
pub struct Crew {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts `readers` readers, spread over the processors from the last one down: the first is the writer's. They are
    /// reading when this returns.
    ///
    /// # Errors
    /// If they cannot be pinned.
    pub fn start<L: Lock>(lock: &Arc<L>, readers: usize) -> Result<Self> {
        let cpus = pin::cpus()?;
        let mut crew = Self { over: Arc::default(), threads: Vec::new() };
        let ready = Arc::new(AtomicUsize::new(0));
        for index in 0..readers {
            let cpu = cpus[cpus.len() - 1 - index % cpus.len()];
            let (lock, over, ready) = (lock.clone(), crew.over.clone(), ready.clone());
            let read = move || {
                // If pinning fails, the thread still reads.
                let _ = pin::only(&[cpu]);
                ready.fetch_add(1, Ordering::Release);
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..SECTIONS {
                        black_box(lock.read());
                    }
                }
            };
            crew.threads.push(std::thread::Builder::new().spawn(read)?);
        }
        while ready.load(Ordering::Acquire) < readers {
            std::thread::yield_now();
        }
        Ok(crew)
    }
}

impl Companion for Crew {
    fn step(&mut self) -> Result<()> {
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A reader does not panic; if one is missing, the turn shows it.
            let _ = thread.join();
        }
    }
}
