//! Measuring: arms, one after the other and round by round, each on pinned threads.
//!
//! An [`Arm`] gives [`Worker`]s, a worker runs batches. A *turn* ([`turn`]) is one arm on so many threads for so
//! long; a round is one turn of each arm ([`schedule`]); what is reported is the median over the
//! rounds with the least and the greatest ([`spread`]). Ratios are formed within a round, because this kind of
//! machine drifts by half from minute to minute.
//!
//! The harness knows nothing of what is measured. It owns the threads; workers must not keep any.

pub mod batch;
pub mod machine;
pub mod pin;
pub mod processes;
pub mod schedule;
pub mod spread;
#[allow(unsafe_code, reason = "system calls")]
pub mod sys;
pub mod thp;
pub mod turn;
pub mod usage;

use std::time::Duration;

use anyhow::Result;

/// Something that is measured beside others.
pub trait Arm: Send + Sync {
    /// As `--arms` has it.
    fn name(&self) -> &str;

    /// Looks whether the arm does what it shall: a benchmark must not compare unequal work.
    ///
    /// # Errors
    /// What was wrong.
    fn check(&self) -> Result<()>;

    /// The work of one thread, made by that thread. `variant` is one of the case's variants.
    ///
    /// # Errors
    /// Where it cannot be set up.
    fn worker<'a>(&'a self, variant: usize, seat: Seat) -> Result<Box<dyn Worker + 'a>>;

    /// Work that goes on beside the measured threads, on a thread of its own, and is not measured.
    ///
    /// # Errors
    /// Where it cannot be set up.
    fn companion<'a>(&'a self) -> Result<Option<Box<dyn Companion + 'a>>> {
        Ok(None)
    }

    /// Operations of a batch, where trying them out on one thread would mislead.
    fn grain(&self, _variant: usize) -> Option<u64> {
        None
    }

    /// Whether a turn is one batch of each worker, because what it does can be done only once.
    fn once(&self, _variant: usize) -> bool {
        false
    }

    /// Done before each turn, outside of what is measured.
    ///
    /// # Errors
    /// The run is over then.
    fn prepare(&self, _variant: usize, _workers: usize) -> Result<()> {
        Ok(())
    }

    /// Processor time that has been used up to now by the processes that serve the arm, where there are such.
    fn server_cpu(&self) -> Option<Duration> {
        None
    }

    /// A sentence for the report's notes, after all rounds.
    fn remark(&self) -> Option<String> {
        None
    }

    /// What another process needs to do the same work, where it can be done from there.
    fn elsewhere(&self, _variant: usize) -> Option<serde_json::Value> {
        None
    }
}

/// Which of the workers this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Counted from 0.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

/// One thread's work.
pub trait Worker {
    /// Does `ops` operations.
    ///
    /// # Errors
    /// An operation that did not do what it shall; the run is over then.
    fn batch(&mut self, ops: u64) -> Result<()>;

    /// Done before each batch, outside of the measured time.
    fn between(&mut self) {}

    /// Whether it is done with all that there is for it in this turn, where that is a certain amount: the turn
    /// then lasts until it is, whatever the time. `None`: it works for as long as the turn lasts.
    fn finished(&self) -> Option<bool> {
        None
    }
}

/// Work beside the measured threads.
pub trait Companion: Send {
    /// A little of it, then returns; called again until the turn is over.
    ///
    /// # Errors
    /// The run is over then.
    fn step(&mut self) -> Result<()>;
}
