//! Turns the rounds' rates into rows, ratios and scaling.

use crate::harness::schedule::{Case, Params, Series, Width};
use crate::harness::spread::Spread;
use crate::report::{Ratio, Row, Scaling};

/// The part that one case adds to a report.
#[derive(Debug, Default)]
pub struct ReportPart {
    /// Rows.
    pub rows: Vec<Row>,
    /// Ratios.
    pub ratios: Vec<Ratio>,
    /// Scaling.
    pub scaling: Vec<Scaling>,
}

/// The part of a case.
pub fn part(case: &Case, series: &[Series]) -> ReportPart {
    let arms: Vec<(&str, u64)> = case.arms.iter().map(|a| a.name()).zip(case.huge.iter().copied()).collect();
    let variants: Vec<Params> = case.variants.iter().map(|variant| merged(&case.params, variant)).collect();
    let view = View { arms: &arms, variants: &variants, series };
    ReportPart {
        rows: series.iter().filter_map(|s| view.row(s)).collect(),
        ratios: view.ratios(),
        scaling: series.iter().filter_map(|s| view.scaling(s)).collect(),
    }
}

fn merged(a: &Params, b: &Params) -> Params {
    a.iter().chain(b).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Models of the kernel that differ in one thing, or that change the stock one.
const MODELS: [(&str, &str); 14] = [
    ("patched", "stock"),
    ("patched-membarrier", "stock"),
    ("hashed", "stock"),
    ("hash-bl", "stock"),
    ("lists", "stock"),
    ("both", "stock"),
    ("rcu", "stock"),
    ("spin", "stock"),
    ("patched-spin", "patched"),
    ("patched-spin", "spin"),
    ("ticket", "stock"),
    ("ticket-spin", "ticket"),
    ("stock", "slow"),
    ("stock-8", "slow"),
];

/// Whether `arm` is compared with `vs`. uvfs is compared with every arm, every arm with `null`, and some models with
/// each other.
pub fn is_compared(arm: &str, vs: &str) -> bool {
    arm != vs && (arm.starts_with("uvfs") || vs == "null" || MODELS.contains(&(arm, vs)))
}

/// Nanoseconds per operation below which the server received no requests and only did housekeeping.
const IDLE: f64 = 1.0;

/// Server time of `a` over that of `b`. A round in which `b`'s server did nothing has no ratio.
fn server_cpu(a: &Series, b: &Series) -> Option<Spread> {
    let some: Vec<_> = b.server_cpu.iter().map(|cpu| cpu.filter(|ns| *ns >= IDLE)).collect();
    Spread::of_ratios(&a.server_cpu, &some)
}

struct View<'a> {
    arms: &'a [(&'a str, u64)],
    variants: &'a [Params],
    series: &'a [Series],
}

impl View<'_> {
    fn name(&self, series: &Series) -> &str {
        self.arms.get(series.arm).map_or("", |arm| arm.0)
    }

    fn params(&self, series: &Series) -> Params {
        self.variants.get(series.variant).cloned().unwrap_or_default()
    }

    /// Threads and processes of a width.
    fn width(width: Width) -> (usize, Option<usize>) {
        match width {
            Width::Threads(n) => (n, None),
            Width::Procs(n) => (1, Some(n)),
        }
    }

    /// `None` if no round could be measured.
    fn row(&self, series: &Series) -> Option<Row> {
        let workers = series.width.workers() as f64;
        let ns = |rates: &[Option<f64>]| Spread::of(rates.iter().flatten().map(|rate| workers * 1e9 / rate));
        let (threads, procs) = Self::width(series.width);
        let kept = series.kept.iter().sum::<f64>() / series.kept.len().max(1) as f64;
        Some(Row {
            arm: self.name(series).to_owned(),
            threads,
            procs,
            ops_per_s: Spread::of(series.rates.iter().flatten().copied())?,
            ns_per_op: ns(&series.rates)?,
            dropped: 1.0 - kept,
            undropped_ns_per_op: ns(&series.undropped)?.median,
            server_cpu_ns_per_op: Spread::of(series.server_cpu.iter().flatten().copied()),
            huge_page_bytes: self.arms.get(series.arm).map_or(0, |arm| arm.1),
            params: self.params(series),
        })
    }

    fn ratios(&self) -> Vec<Ratio> {
        let mut out = Vec::new();
        for a in self.series {
            let beside = |b: &&Series| (b.variant, b.width) == (a.variant, a.width);
            for b in self.series.iter().filter(beside).filter(|b| is_compared(self.name(a), self.name(b))) {
                // Times are the inverse of rates, since both sides have the same number of workers.
                let Some(ratio) = Spread::of_ratios(&b.rates, &a.rates) else { continue };
                let (threads, procs) = Self::width(a.width);
                let (arm, vs) = (self.name(a).to_owned(), self.name(b).to_owned());
                let server_cpu = server_cpu(a, b);
                out.push(Ratio { arm, vs, threads, procs, ratio, server_cpu, params: self.params(a) });
            }
        }
        out
    }

    /// Each round's throughput over that of one worker of the same kind.
    fn over_one(&self, series: &Series) -> Option<Vec<Option<f64>>> {
        let one = match series.width {
            Width::Threads(_) => Width::Threads(1),
            Width::Procs(_) => Width::Procs(1),
        };
        let single = self.find(series.variant, one, series.arm).filter(|s| s.width != series.width)?;
        Some(series.rates.iter().zip(&single.rates).map(|(many, one)| Some((*many)? / (*one)?)).collect())
    }

    fn find(&self, variant: usize, width: Width, arm: usize) -> Option<&Series> {
        self.series.iter().find(|s| (s.variant, s.width, s.arm) == (variant, width, arm))
    }

    fn scaling(&self, series: &Series) -> Option<Scaling> {
        let own = self.over_one(series)?;
        let null = self.arms.iter().position(|arm| arm.0 == "null");
        let null = null.and_then(|arm| self.over_one(self.find(series.variant, series.width, arm)?));
        let (threads, procs) = Self::width(series.width);
        Some(Scaling {
            arm: self.name(series).to_owned(),
            threads,
            procs,
            scaling: Spread::of(own.iter().flatten().copied())?,
            of_null: null.and_then(|null| Spread::of_ratios(&own, &null)),
            params: self.params(series),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn series(arm: usize, threads: usize, rates: [f64; 3]) -> Series {
        let rates = rates.map(Some).to_vec();
        let undropped = rates.clone();
        Series {
            variant: 0,
            width: Width::Threads(threads),
            arm,
            rates,
            undropped,
            kept: vec![1.0, 0.5, 0.6],
            server_cpu: if arm == 0 { Vec::new() } else { vec![Some(arm as f64), Some(0.0), None] },
            took: vec![1.0; 3],
        }
    }

    #[test]
    fn rows_ratios_and_scaling_agree() {
        let arms = [("null", 0), ("stock", 0), ("uvfs", 7)];
        let variants = [Params::from_iter([("depth".to_owned(), json!(6))])];
        let all = [
            series(0, 1, [10e6, 20e6, 10e6]),
            series(1, 1, [5e6, 5e6, 5e6]),
            series(2, 1, [10e6, 10e6, 10e6]),
            series(0, 2, [20e6, 40e6, 20e6]),
            series(2, 2, [15e6, 15e6, 15e6]),
        ];
        let view = View { arms: &arms, variants: &variants, series: &all };
        let row = view.row(&all[4]).unwrap();
        assert!((row.ns_per_op.median - 2e9 / 15e6).abs() < 1e-9 && (row.dropped - 0.3).abs() < 1e-9);
        assert_eq!((row.huge_page_bytes, &row.params["depth"]), (7, &json!(6)));
        let ratios = view.ratios();
        let pairs: Vec<_> = ratios.iter().map(|r| (&r.arm[..], &r.vs[..], r.threads)).collect();
        assert_eq!(
            pairs,
            [("stock", "null", 1), ("uvfs", "null", 1), ("uvfs", "stock", 1), ("uvfs", "null", 2)]
        );
        assert_eq!(ratios[2].ratio, Spread { median: 0.5, min: 0.5, max: 0.5 });
        assert_eq!(ratios[1].ratio, Spread { median: 1.0, min: 1.0, max: 2.0 });
        assert_eq!((ratios[1].server_cpu, row.server_cpu_ns_per_op.unwrap().max), (None, 2.0));
        assert_eq!(ratios[2].server_cpu, Some(Spread { median: 2.0, min: 2.0, max: 2.0 }));
        let scaling = view.scaling(&all[4]).unwrap();
        assert_eq!((scaling.scaling.median, scaling.of_null.unwrap().median), (1.5, 0.75));
        assert_eq!(view.scaling(&all[2]), None);
    }
}
