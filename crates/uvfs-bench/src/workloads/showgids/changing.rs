//! The thread that changes the tree: it adds and removes nodes at a steady rate, and times each change.
//!
//! A change adds or removes one node, or with a storm one directory of attributes, as a cgroup is made and removed. It
//! is made in the directory that is read, then in one beside it, and so on in turn. A change's time is that of both trees:
//! the product's, and the model's if the arm has one. The model's part, which has the lock's waits, is kept too.

use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;
use uvfs_drivers::kernfs::Node;

use crate::harness::Companion;
use crate::harness::spread::Spread;
use crate::workloads::showgids::inproc::ShowgidsInProcess;

/// Longest sleep: the thread must soon notice that a turn is over.
const PAUSE: Duration = Duration::from_millis(1);
/// Changes at a time.
const BURST: u64 = 256;

/// One turn.
#[derive(Debug)]
struct Turn {
    threads: usize,
    /// Changes made and how long that went on.
    rate: Option<(u64, Duration)>,
    /// Nanoseconds of each addition and removal: of the whole, and of the model's part.
    times: [Vec<[f64; 2]>; 2],
}

/// The changes of all turns of an arm, in order of time.
#[derive(Debug, Default)]
pub struct ChangeBook(Mutex<Vec<Turn>>);

impl ChangeBook {
    /// A turn begins.
    pub fn begin(&self, threads: usize) {
        self.0.lock().push(Turn { threads, rate: None, times: Default::default() });
    }

    /// The turn's changes are done.
    fn end(&self, done: u64, took: Duration, times: &mut [Vec<[f64; 2]>; 2]) {
        if let Some(turn) = self.0.lock().last_mut() {
            turn.rate = Some((done, took));
            turn.times = std::mem::take(times);
        }
    }

    /// A remark for each number of threads.
    pub fn remark(&self, wanted: u64, modelled: bool) -> Option<String> {
        let turns = self.0.lock();
        let mut widths: Vec<_> = turns.iter().map(|turn| turn.threads).collect();
        widths.sort_unstable();
        widths.dedup();
        let said: Vec<_> = widths
            .into_iter()
            .filter_map(|width| {
                // The first round is the warm-up.
                let of_width: Vec<_> = turns.iter().filter(|turn| turn.threads == width).skip(1).collect();
                sentence(&of_width, wanted, modelled)
            })
            .collect();
        (!said.is_empty()).then(|| said.join("; "))
    }
}

fn sentence(turns: &[&Turn], wanted: u64, modelled: bool) -> Option<String> {
    let rates = turns.iter().filter_map(|turn| turn.rate.map(|(n, took)| n as f64 / took.as_secs_f64()));
    let rate = Spread::of(rates)?.median;
    let mut said = format!("beside {} threads {rate:.0} changes a second of {wanted}", turns[0].threads);
    for (kind, name) in ["an addition", "a removal"].into_iter().enumerate() {
        for part in 0..=usize::from(modelled) {
            let of = ["", "'s part in the model"][part];
            let spread =
                |share| Spread::of(turns.iter().filter_map(|t| quantile(&t.times[kind], part, share)));
            let (Some(median), Some(p99)) = (spread(0.5), spread(0.99)) else { continue };
            said.push_str(&format!(", {name}{of} {} (99th percentile {}) us", micros(median), micros(p99)));
        }
    }
    Some(said)
}

/// The value below which this share of a part's times lies.
fn quantile(times: &[[f64; 2]], part: usize, share: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = times.iter().map(|time| time[part]).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1))).copied()
}

fn micros(ns: Spread) -> String {
    let Spread { median, min, max } = ns;
    format!("{:.1} [{:.1} to {:.1}]", median / 1e3, min / 1e3, max / 1e3)
}

/// Adds and removes nodes.
pub struct Changing<'a> {
    arm: &'a ShowgidsInProcess,
    began: Instant,
    done: u64,
    every: Duration,
    added: Option<Node>,
    times: [Vec<[f64; 2]>; 2],
}

impl<'a> Changing<'a> {
    /// So many changes a second.
    pub fn new(arm: &'a ShowgidsInProcess, rate: u64) -> Self {
        let every = Duration::from_nanos(1_000_000_000 / rate);
        Self { arm, began: Instant::now(), done: 0, every, added: None, times: Default::default() }
    }

    /// Makes the next change.
    ///
    /// # Errors
    /// The error of uvfs.
    pub fn change(&mut self) -> Result<()> {
        let tree = self.arm.changed_tree();
        let began = Instant::now();
        let (kind, modelled) = match self.added.take() {
            Some(node) => (1, tree.remove(&node)),
            None => {
                let dir = if self.done % 4 < 2 { &tree.gids } else { &tree.beside };
                let (node, modelled) = tree.add(dir, self.arm.storm())?;
                self.added = Some(node);
                (0, modelled)
            }
        };
        let whole = began.elapsed();
        self.times[kind].push([whole, modelled].map(|time| time.as_nanos() as f64));
        self.done += 1;
        Ok(())
    }

    fn due(&self) -> u64 {
        (self.began.elapsed().as_nanos() / self.every.as_nanos()) as u64
    }
}

impl Companion for Changing<'_> {
    fn step(&mut self) -> Result<()> {
        for _ in self.done..self.due().min(self.done + BURST) {
            self.change()?;
        }
        let next = self.began + self.every * (self.done as u32 + 1);
        std::thread::sleep(next.saturating_duration_since(Instant::now()).min(PAUSE));
        Ok(())
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.added.take() {
            self.arm.changed_tree().remove(&node);
        }
        self.arm.book().end(self.done, self.began.elapsed(), &mut self.times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_have_the_medians_of_rounds_after_the_first() {
        let book = ChangeBook::default();
        assert_eq!(book.remark(10, true), None);
        for round in 0..3 {
            book.begin(1);
            let warm = if round == 0 { 100.0 } else { 1.0 };
            let times = |factor: f64| (1..=100).map(|i| [f64::from(i) * factor * warm, 500.0]).collect();
            book.end(200, Duration::from_secs(10), &mut [times(1000.0), times(2000.0)]);
        }
        assert_eq!(
            book.remark(21, false).unwrap(),
            "beside 1 threads 20 changes a second of 21, an addition 51.0 [51.0 to 51.0] (99th percentile 100.0 \
             [100.0 to 100.0]) us, a removal 102.0 [102.0 to 102.0] (99th percentile 200.0 [200.0 to 200.0]) us"
        );
        assert!(book.remark(21, true).unwrap().contains("a removal's part in the model 0.5 [0.5 to 0.5]"));
    }
}
