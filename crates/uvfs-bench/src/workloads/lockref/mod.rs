//! `lockref`, `lockref-oversubscribed`: all threads take and drop references, while one of them takes the lock.
//!
//! **lockref** is for threads that all run, so at most as many as processors. Its subject is the fall in the mail of
//! Guzik ("vfs: move d_lockref out of the area used by RCU lookup", June 2024). Twenty running threads stay with the lock
//! after it was taken once. So with `--locker once` one thread takes the lock a single time, and the notes compare the
//! time before with the time after. With `--locker often` it takes the lock at intervals.
//!
//! **lockref-oversubscribed** has another subject, so it is a workload of its own: users of a lockref that are preempted
//! in its fair queue. It needs more threads than processors (`--threads 8`), and no batch is dropped. The thread that
//! takes the lock may be preempted while it holds it. A thread that waits in the queue may be preempted too. Either
//! happens about once in a hundred holds. So an arm that can degrade needs a turn of seconds (`--seconds 10
//! --per-second`), or longer holds, to show it.
//!
//! Each turn begins anew. Whether an arm degrades is judged round by round against `null`: with `--seconds 0.2` the
//! turns of a round are about one second. `uvfs` is the caches' own lockref; the others but `arc` model the kernel's
//! ([`arms::lockref`](crate::arms::lockref)).

mod objects;
mod turns;

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::builder::EnumValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, ValueEnum as _, value_parser};
use serde_json::json;
use uvfs_sync::lockref::LockRef;

use self::objects::{Counted, Locked, Private};
use self::turns::{Locker, Pace, Shared};
use crate::arms::lockref::{KernelRef, LOOKS, Spinning, StockRef, TicketLock};
use crate::harness::schedule::{Case, Params, Series};
use crate::harness::spread::Spread;
use crate::harness::{Arm, pin};
use crate::workloads::target::RunTarget;
use crate::workloads::{Maker, Prepare, Workload};

/// One of the two.
pub struct Lockref {
    name: &'static str,
    about: &'static str,
    /// Whether threads may be more than processors.
    oversubscribed: bool,
    lockers: &'static str,
}

/// Threads that all run.
pub const RUNNING: Lockref = Lockref {
    name: "lockref",
    about: "a reference taken and dropped by all threads, at most one a processor; one takes the lock, once or often",
    oversubscribed: false,
    lockers: "once,often",
};
/// More threads than processors.
pub const OVERSUBSCRIBED: Lockref = Lockref {
    name: "lockref-oversubscribed",
    about: "the same with more threads than processors: holders and waiters are preempted (--threads 8)",
    oversubscribed: true,
    lockers: "often",
};

impl Workload for Lockref {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn arms(&self) -> Vec<&'static str> {
        vec!["null", "arc", "stock", "spin", "ticket", "ticket-spin", "uvfs"]
    }

    fn args(&self) -> Vec<Arg> {
        let number = |name: &'static str, default, help| {
            Arg::new(name)
                .long(name)
                .value_name("N")
                .value_parser(value_parser!(u64).range(0..=1_000_000))
                .default_value(default)
                .help(help)
        };
        vec![
            number("hold-us", "20", "Microseconds for which the lock is held"),
            number("every-ms", "10", "Milliseconds before each hold; 0: the lock is not taken"),
            Arg::new("locker")
                .long("locker")
                .value_name("L,..")
                .value_delimiter(',')
                .value_parser(EnumValueParser::<Locker>::new())
                .default_value(self.lockers)
                .help("How often the lock is taken in a turn; each is a case"),
        ]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        self.check_threads(matches)?;
        let number =
            |name: &str| matches.get_one::<u64>(name).copied().with_context(|| format!("--{name} is needed"));
        let (hold, every) = (number("hold-us")?, number("every-ms")?);
        let case = |locker: &Locker| {
            let said = locker.to_possible_value().map(|value| value.get_name().to_owned());
            let params = Params::from_iter([
                ("locker".to_owned(), json!(said)),
                ("hold_us".to_owned(), json!(hold)),
                ("every_ms".to_owned(), json!(every)),
            ]);
            let (hold, every) = (Duration::from_micros(hold), Duration::from_millis(every));
            let pace = Pace { locker: *locker, hold, every };
            Prepare { params, variants: vec![Params::new()], maker: Box::new(pace) }
        };
        Ok(matches.get_many("locker").into_iter().flatten().map(case).collect())
    }

    fn preemption_is_the_subject(&self) -> bool {
        self.oversubscribed
    }

    fn has_targets(&self) -> bool {
        false
    }

    fn remarks(&self, case: &Case, series: &[Series]) -> Vec<String> {
        let find = |arm: &str, of: &Series| {
            series.iter().find(|s| s.width == of.width && case.arms[s.arm].name() == arm)
        };
        let remark = |s: &Series| {
            let least = least_of_first(&s.rates, &find("null", s)?.rates)?;
            let (arm, threads) = (case.arms[s.arm].name(), s.width.workers());
            Some(format!(
                "{arm}, {threads} threads: worst round over its first, both over null's: {least:.2}"
            ))
        };
        series.iter().filter(|s| case.arms[s.arm].name() != "null").filter_map(remark).collect()
    }
}

impl Lockref {
    /// More threads than processors measure something else, so they must not come under this name.
    fn check_threads(&self, matches: &ArgMatches) -> Result<()> {
        let asked = matches.value_source("threads") == Some(ValueSource::CommandLine);
        let most = matches.get_many::<u64>("threads").into_iter().flatten().copied().max().unwrap_or(1);
        let cpus = pin::cpus()?.len();
        ensure!(
            self.oversubscribed || !asked || most <= cpus as u64,
            "--threads {most}: there are {cpus} processors; lockref-oversubscribed has more threads than those"
        );
        Ok(())
    }
}

/// The least ratio of `a` over `b` in any round, over that of the first round.
fn least_of_first(a: &[Option<f64>], b: &[Option<f64>]) -> Option<f64> {
    let over: Vec<Option<f64>> = a.iter().zip(b).map(|(a, b)| Some((*a)? / (*b)?)).collect();
    let first = over.iter().flatten().next().copied()?;
    Some(Spread::of(over.into_iter().flatten())?.min / first)
}

impl Maker for Pace {
    fn arm(&self, name: &'static str, _threads: usize) -> Result<Box<dyn Arm>> {
        let pace = *self;
        Ok(match name {
            "null" => Box::new(Shared::new(name, pace, Private)),
            "arc" => Box::new(Shared::new(name, pace, Counted::new())),
            "stock" => Box::new(Shared::new(name, pace, Locked::<StockRef>::new())),
            "spin" => Box::new(Shared::new(name, pace, Locked::<Spinning>::new())),
            "ticket" => Box::new(Shared::new(name, pace, Locked::<KernelRef<TicketLock, 0>>::new())),
            "ticket-spin" => Box::new(Shared::new(name, pace, Locked::<KernelRef<TicketLock, LOOKS>>::new())),
            "uvfs" => Box::new(Shared::new(name, pace, Locked::<LockRef>::new())),
            other => bail!("{other:?} is no arm"),
        })
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        bail!("{target}: there are no system calls for references")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_was_slow_for_all_is_no_degradation() {
        let rates = |v: [f64; 3]| v.map(Some).to_vec();
        let least = |a, b| least_of_first(&rates(a), &rates(b)).unwrap();
        assert_eq!(least([8.0, 4.0, 8.0], [16.0, 8.0, 16.0]), 1.0);
        assert_eq!(least([8.0, 8.0, 2.0], [16.0, 16.0, 16.0]), 0.25);
        assert_eq!(least_of_first(&[None, Some(2.0), Some(1.0)], &rates([1.0, 1.0, 1.0])), Some(0.5));
        assert_eq!(least_of_first(&[None], &[None]), None);
    }
}
