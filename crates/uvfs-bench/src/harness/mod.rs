//! Measuring: arms take turns, round by round, each on pinned threads.
//!
//! An [`Arm`] makes [`Worker`]s, and a worker runs batches. A *turn* ([`turn`]) is one arm on a number of threads for
//! a length of time. A *round* is one turn of each arm ([`schedule`]). The report gives the median over the rounds,
//! with the least and the greatest ([`spread`]). Ratios are formed within a round, because this kind of
//! machine drifts by half from minute to minute.
//!
//! The harness does not know what is measured. It owns the threads; workers must not keep any.

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

/// One of the things that are compared.
pub trait Arm: Send + Sync {
    /// Its name in `--arms`.
    fn name(&self) -> &str;

    /// Checks that the arm gives right results: a benchmark must not compare unequal work.
    ///
    /// # Errors
    /// The error says what was wrong.
    fn check(&self) -> Result<()>;

    /// The work of one thread, made by that thread. `variant` is one of the case's variants.
    ///
    /// # Errors
    /// If it cannot be set up.
    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>>;

    /// Unmeasured work that runs on its own thread beside the measured threads.
    ///
    /// # Errors
    /// If it cannot be set up.
    fn companion<'a>(&'a self) -> Result<Option<Box<dyn Companion + 'a>>> {
        Ok(None)
    }

    /// Operations of a batch, if calibrating on one thread would mislead.
    fn grain(&self, _variant: usize) -> Option<u64> {
        None
    }

    /// Whether a turn is one batch of each worker, because the work can be done only once.
    fn once(&self, _variant: usize) -> bool {
        false
    }

    /// Called before each turn, outside the measured time.
    ///
    /// # Errors
    /// An error ends the run.
    fn prepare(&self, _variant: usize, _workers: usize) -> Result<()> {
        Ok(())
    }

    /// Processor time used so far by the arm's server processes, if it has any.
    fn server_cpu(&self) -> Option<Duration> {
        None
    }

    /// A sentence for the report's notes, after all rounds.
    fn remark(&self) -> Option<String> {
        None
    }

    /// The description that another process needs to do the same work, if it can be done from there.
    fn elsewhere(&self, _variant: usize) -> Option<serde_json::Value> {
        None
    }
}

/// Which of the workers this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSeat {
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
    /// If an operation gave a wrong result; this ends the run.
    fn batch(&mut self, ops: u64) -> Result<()>;

    /// Called before each batch, outside the measured time.
    fn between(&mut self) {}

    /// Whether the worker has done its fixed amount of work for this turn. The turn then lasts until all is done,
    /// however long that takes. `None`: there is no fixed amount, and the worker works until the turn ends.
    fn finished(&self) -> Option<bool> {
        None
    }
}

/// Work beside the measured threads.
pub trait Companion: Send {
    /// Does a little work and returns. The harness calls it until the turn is over.
    ///
    /// # Errors
    /// An error ends the run.
    fn step(&mut self) -> Result<()>;
}
