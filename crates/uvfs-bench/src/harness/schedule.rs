//! The order of turns, and running a case in that order.
//!
//! A round covers every variant and every number of workers, and for each of them one turn of every
//! arm: A B C A B C. So compared turns are never more than a few turns apart. Round 0 warms
//! up and is not reported; it may be left out.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

use crate::harness::batch::{Batch, Rate, everything, undisturbed};
use crate::harness::{Arm, pin, processes, turn};

/// How often a turn is tried if none of it counts.
const ATTEMPTS: u32 = 4;

/// The workload's own parameters of a case or variant, as the report gives them.
pub type Params = Map<String, Value>;

/// Arms that are compared with each other, on one shared setup.
pub struct Case {
    /// The parameters that all rows of the case have in common.
    pub params: Params,
    /// Ways to run the same arms.
    pub variants: Vec<Params>,
    /// The arms.
    pub arms: Vec<Box<dyn Arm>>,
    /// Bytes of huge pages that each arm added.
    pub huge: Vec<u64>,
}

/// The number of simultaneous workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Threads of this process.
    Threads(usize),
    /// Processes of one thread each.
    Procs(usize),
}

impl std::fmt::Display for Width {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Threads(n) => write!(f, "{n} threads"),
            Self::Procs(n) => write!(f, "{n} processes"),
        }
    }
}

impl Width {
    /// The number of workers.
    pub fn workers(self) -> usize {
        match self {
            Self::Threads(n) | Self::Procs(n) => n,
        }
    }
}

/// How a case is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Numbers of workers.
    pub widths: Vec<Width>,
    /// Length of a turn.
    pub length: Duration,
    /// Rounds that are reported.
    pub rounds: usize,
    /// Whether a round that is not reported comes first.
    pub warm_up: bool,
    /// Whether batches with a preempted thread are dropped, if there are enough processors.
    pub drop_preempted: bool,
    /// Number of companion threads beside the measured ones.
    pub companions: usize,
}

/// The position of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The round; 0 is the warm-up.
    pub round: usize,
    /// Index of the variant.
    pub variant: usize,
    /// The workers.
    pub width: Width,
    /// Index of the arm.
    pub arm: usize,
}

/// The results of all rounds for one variant, width and arm. One value per round; `None` if a turn could not
/// be measured.
#[derive(Clone, Debug)]
pub struct Series {
    /// Index of the variant.
    pub variant: usize,
    /// The workers.
    pub width: Width,
    /// Index of the arm.
    pub arm: usize,
    /// Operations a second of all workers.
    pub rates: Vec<Option<f64>>,
    /// The same rates with nothing dropped.
    pub undropped: Vec<Option<f64>>,
    /// Share of batches that counted.
    pub kept: Vec<f64>,
    /// Nanoseconds of processor time per operation, nothing dropped, of the arm's server processes.
    pub server_cpu: Vec<Option<f64>>,
    /// Seconds until the last worker was done.
    pub took: Vec<f64>,
}

/// The order of turns. Round 0 is the warm-up.
pub fn order(
    rounds: RangeInclusive<usize>,
    variants: usize,
    widths: &[Width],
    arms: usize,
) -> impl Iterator<Item = Slot> + '_ {
    rounds.flat_map(move |round| {
        (0..variants).flat_map(move |variant| {
            widths
                .iter()
                .flat_map(move |width| (0..arms).map(move |arm| Slot { round, variant, width: *width, arm }))
        })
    })
}

/// Runs a case. Calls `seen` for every reported turn, with the batches of its workers.
///
/// # Errors
/// An arm's error, with the arm's name.
pub fn run(
    case: &Case,
    settings: &Settings,
    seen: &mut dyn FnMut(Slot, &[Vec<Batch>]),
) -> Result<Vec<Series>> {
    let cpus = pin::cpus()?;
    let mut series: Vec<Series> = Vec::new();
    let mut grains = vec![vec![None; case.arms.len()]; case.variants.len()];
    for slot in order(
        usize::from(!settings.warm_up)..=settings.rounds,
        case.variants.len(),
        &settings.widths,
        case.arms.len(),
    ) {
        let arm = &*case.arms[slot.arm];
        if matches!(slot.width, Width::Procs(_)) && arm.elsewhere(slot.variant).is_none() {
            continue;
        }
        let grain = match grains[slot.variant][slot.arm] {
            Some(grain) => grain,
            None => *grains[slot.variant][slot.arm].insert(
                turn::grain(arm, slot.variant, slot.width.workers())
                    .with_context(|| arm.name().to_owned())?,
            ),
        };
        let plan = turn::TurnPlan {
            variant: slot.variant,
            threads: slot.width.workers(),
            length: if arm.once(slot.variant) { Duration::ZERO } else { settings.length },
            grain,
            cpus: &cpus,
        };
        let drop = settings.drop_preempted && plan.threads + settings.companions <= cpus.len();
        let turn = Turn::of(arm, plan, slot.width, drop).with_context(|| arm.name().to_owned())?;
        if slot.round > 0 {
            seen(slot, &turn.batches);
            enter(&mut series, slot, &turn);
        }
    }
    Ok(series)
}

/// The result of one turn.
struct Turn {
    batches: Vec<Vec<Batch>>,
    counted: Option<Rate>,
    /// The servers' nanoseconds per operation.
    server_cpu: Option<f64>,
}

impl Turn {
    /// Runs a turn; repeats it if none of it counts. The last attempt is counted as it is, with all of it marked as
    /// dropped. That happens to a short turn on a busy machine.
    fn of(arm: &dyn Arm, plan: turn::TurnPlan<'_>, width: Width, drop: bool) -> Result<Self> {
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            arm.prepare(plan.variant, plan.threads)?;
            let before = arm.server_cpu();
            let batches = match width {
                Width::Threads(_) => turn::run(arm, plan)?,
                Width::Procs(_) => processes::run(arm, plan)?,
            };
            let used = before.and_then(|before| arm.server_cpu()?.checked_sub(before));
            let ops: u64 = batches.iter().flatten().map(|b| b.ops).sum();
            let server_cpu = used.map(|used| used.as_nanos() as f64 / ops.max(1) as f64);
            let counted = count(&batches, drop, left == 0);
            if counted.is_some() || left == 0 {
                return Ok(Self { batches, counted, server_cpu });
            }
        }
    }
}

fn count(batches: &[Vec<Batch>], drop: bool, last: bool) -> Option<Rate> {
    let all = everything(batches);
    match undisturbed(batches) {
        _ if !drop => all,
        None if last => all.map(|rate| Rate { kept: 0.0, ..rate }),
        rate => rate,
    }
}

fn enter(series: &mut Vec<Series>, slot: Slot, turn: &Turn) {
    let same = |s: &Series| (s.variant, s.width, s.arm) == (slot.variant, slot.width, slot.arm);
    let at = series.iter().position(same).unwrap_or_else(|| {
        series.push(Series {
            variant: slot.variant,
            width: slot.width,
            arm: slot.arm,
            rates: Vec::new(),
            undropped: Vec::new(),
            kept: Vec::new(),
            server_cpu: Vec::new(),
            took: Vec::new(),
        });
        series.len() - 1
    });
    let entry = &mut series[at];
    entry.rates.push(turn.counted.map(|rate| rate.ops_per_s));
    entry.undropped.push(everything(&turn.batches).map(|rate| rate.ops_per_s));
    entry.kept.push(turn.counted.map_or(0.0, |rate| rate.kept));
    entry.server_cpu.push(turn.server_cpu);
    let last = turn.batches.iter().filter_map(|batches| batches.last()).map(|batch| batch.to).max();
    entry.took.push(last.unwrap_or(0) as f64 / 1e9);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_take_turns_round_by_round() {
        let widths = [Width::Threads(1), Width::Threads(2)];
        let slots: Vec<_> =
            order(0..=2, 1, &widths, 3).map(|s| (s.round, s.width.workers(), s.arm)).collect();
        let round = |r| (1..=2).flat_map(move |w| (0..3).map(move |a| (r, w, a)));
        assert_eq!(slots, round(0).chain(round(1)).chain(round(2)).collect::<Vec<_>>());
    }

    #[test]
    fn series_keep_one_value_for_each_round() {
        let slot = Slot { round: 1, variant: 0, width: Width::Threads(1), arm: 0 };
        let turn = |preempted, drop, last| {
            let batches = vec![vec![Batch { from: 0, to: 1000, ops: 1, preempted, paused: 0 }]];
            Turn { counted: count(&batches, drop, last), batches, server_cpu: drop.then_some(7.0) }
        };
        let mut series = Vec::new();
        for turn in [
            turn(false, true, false),
            turn(true, true, false),
            turn(true, true, true),
            turn(true, false, false),
        ] {
            enter(&mut series, slot, &turn);
        }
        let [only] = &series[..] else { panic!("{series:?}") };
        assert_eq!(only.rates, [Some(1e6), None, Some(1e6), Some(1e6)]);
        assert_eq!(only.undropped, [Some(1e6); 4]);
        assert_eq!((&only.kept[..], &only.took[..]), (&[1.0, 0.0, 0.0, 1.0][..], &[1e-6; 4][..]));
        assert_eq!(only.server_cpu, [Some(7.0), Some(7.0), Some(7.0), None]);
    }
}
