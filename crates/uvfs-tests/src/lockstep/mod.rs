//! Runs the same operations on two targets and compares every answer.
//!
//! [`Pair::run`] stops at the first difference. [`shrink()`] finds a short list of operations that
//! still shows one. The caller's function makes new targets for every run.

pub mod command;
pub mod hunt;
mod lent;
pub mod object_store;
mod shrink;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::ops::{FileOp, TargetPath, TestStep};
use crate::results_agree::{Outcome, Side, UserView, trees_differ};

pub use lent::LentFiles;
pub use shrink::{same_kind, shrink};

/// Where and how two targets differ.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// Index of the operation after which the difference was seen.
    pub at: usize,
    /// The difference, first target's side before the slash.
    pub what: String,
}

/// How a run observes its targets.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Looks at everything that an operation touches, before and after it. Without this, kernel caches stay
    /// colder, and other paths are tested.
    pub each_step: bool,
    /// Lets the kernel's coarse clock tick before operations for which a kernel file system may use
    /// one object's time for another. Otherwise an unmoved time proves nothing.
    pub ticks: bool,
    /// Compares whole trees after this many operations (and at the end).
    pub tree_every: usize,
    /// Print every operation and both answers.
    pub trace: bool,
}

/// Two targets.
pub struct Pair<'a> {
    /// The first, under test.
    pub a: Box<dyn Side + 'a>,
    /// The second, which is right.
    pub b: Box<dyn Side + 'a>,
    /// Names an answer of the first side that refuses an operation, as its documents say. The second side then does not do it.
    pub refusal: fn(&FileOp, &Outcome) -> Option<&'static str>,
    /// Refusals so far, by name.
    pub refused: BTreeMap<&'static str, u64>,
    /// The files of the second side, if the first lends its files to the kernel.
    pub lent: Option<LentFiles>,
}

impl<'a> Pair<'a> {
    /// Two targets of which neither refuses anything.
    pub fn new(a: Box<dyn Side + 'a>, b: Box<dyn Side + 'a>) -> Self {
        Self { a, b, refusal: |_, _| None, refused: BTreeMap::new(), lent: None }
    }
}

impl Pair<'_> {
    /// Runs `steps` and returns the first difference between the targets.
    pub fn run(&mut self, steps: &[TestStep], watch: Watch) -> Result<Option<Mismatch>> {
        for (at, step) in steps.iter().enumerate() {
            if let Some(what) = self.step(at, step, watch) {
                return Ok(Some(Mismatch { at, what }));
            }
            let last = at + 1 == steps.len();
            let settled = !matches!(step.op, FileOp::Truncate { .. });
            if settled
                && ((at + 1).is_multiple_of(watch.tree_every) || last)
                && let Some(what) = self.compare_trees()
            {
                return Ok(Some(Mismatch { at, what }));
            }
        }
        Ok(None)
    }

    fn compare_trees(&mut self) -> Option<String> {
        match (self.a.tree(), self.b.tree()) {
            (Ok(a), Ok(b)) => trees_differ(&a, &b),
            (a, b) => Some(format!("reading the trees: {:?} / {:?}", a.err(), b.err())),
        }
    }

    fn step(&mut self, at: usize, step: &TestStep, watch: Watch) -> Option<String> {
        let instead = self.lent.as_ref().and_then(|lent| lent.instead(step, &mut *self.b));
        let step = instead.as_ref().unwrap_or(step);
        let touched = if watch.each_step { step.op.touched() } else { Vec::new() };
        let before = (times(&mut *self.a, &touched), times(&mut *self.b, &touched));
        if watch.ticks && watch.each_step {
            let shares = matches!(
                step.op,
                FileOp::Link { .. } | FileOp::Unlink { .. } | FileOp::Rmdir { .. } | FileOp::Rename { .. }
            );
            if shares {
                wait_for_tick();
            }
        }
        let a = self.a.apply(step);
        let refused = (self.refusal)(&step.op, &a);
        let b = if let Some(name) = refused {
            *self.refused.entry(name).or_default() += 1;
            Outcome::Unspecified
        } else {
            self.b.apply(step)
        };
        if watch.trace {
            println!("{at:5} {:?} {:?}\n        {a:?} / {b:?}", step.who, step.op);
        }
        if let Some(what) = a.differs(&b) {
            return Some(format!("{:?} {:?}: {what}", step.who, step.op));
        }
        self.settle_slots(step, &a, &b);
        if let Some(lent) = &mut self.lent {
            lent.note(step, &mut *self.b);
        }
        for target in &touched {
            let what = match (self.a.look(target), self.b.look(target)) {
                (Some(x), Some(mut y)) => {
                    let moves = moves_differ(&step.op, &x, &y, &before);
                    if matches!(step.op, FileOp::Truncate { .. }) {
                        (y.mtime, y.ctime) = (x.mtime, x.ctime);
                    }
                    x.differs(&y).or(moves)
                }
                (None, None) => None,
                (x, _) => {
                    Some(format!("exists only on the {} side", if x.is_some() { "first" } else { "second" }))
                }
            };
            if let Some(what) = what {
                return Some(format!("{:?} {:?} ({a:?}), then {target:?}: {what}", step.who, step.op));
            }
        }
        None
    }

    /// If one target gives no result for an open, neither keeps the file.
    fn settle_slots(&mut self, step: &TestStep, a: &Outcome, b: &Outcome) {
        if let FileOp::Open { slot, .. } = step.op
            && (*a == Outcome::Unspecified || *b == Outcome::Unspecified)
        {
            self.a.drop_slot(slot);
            self.b.drop_slot(slot);
        }
    }
}

/// Returns once the coarse clock has passed this moment: at most one tick of the kernel.
fn wait_for_tick() {
    let now = clock_gettime(ClockId::Realtime);
    let late = |t: Timespec| (t.tv_sec, t.tv_nsec) > (now.tv_sec, now.tv_nsec);
    while !late(clock_gettime(ClockId::RealtimeCoarse)) {
        std::thread::sleep(Duration::from_micros(200));
    }
}

type Before = BTreeMap<u64, UserView>;

fn times(side: &mut dyn Side, touched: &[TargetPath]) -> Before {
    touched.iter().filter_map(|t| side.look(t)).map(|v| (v.ino, v)).collect()
}

fn moves_differ(op: &FileOp, x: &UserView, y: &UserView, before: &(Before, Before)) -> Option<String> {
    let (was_x, was_y) = (before.0.get(&x.ino)?, before.1.get(&y.ino)?);
    // It is left open whether a truncation to the same size counts as one; the kernel's tmpfs counts it
    // only if the file has pages.
    if matches!(op, FileOp::Truncate { .. }) && was_x.size == x.size && was_y.size == y.size {
        return None;
    }
    let (a, b) = (x.moved(was_x), y.moved(was_y));
    let times = |was: &UserView, is: &UserView| {
        format!("{:?} {:?} -> {:?} {:?}", was.mtime, was.ctime, is.mtime, is.ctime)
    };
    (a != b).then(|| {
        let how = format!("first {}; second {}", times(was_x, x), times(was_y, y));
        format!("(mtime moved, ctime moved) {a:?} / {b:?}: {how}")
    })
}

/// Operations as text, one a line.
pub fn listing(steps: &[TestStep], first: usize) -> String {
    let mut out = String::new();
    for (i, step) in steps.iter().enumerate() {
        let _ = writeln!(out, "  {:5} {:?} {:?}", first + i, step.who, step.op);
    }
    out
}

/// Reads `FROM..TO`, both ends included, as a range of seeds.
///
/// # Errors
/// A sentence that says what was expected.
pub fn seeds(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("expected FROM..TO, for example 1..100")?;
    let number = |s: &str| s.trim_start_matches('=').parse::<u64>().map_err(|e| format!("{s:?}: {e}"));
    Ok((number(from)?, number(to)?))
}
