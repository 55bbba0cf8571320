//! The machine on which the figures were measured, read from the system at the run's beginning and end.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::harness::pin;

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors that the run may use.
    pub cpus: usize,
    /// The processor's name, family and model.
    pub model: String,
    /// Version of the kernel.
    pub kernel: String,
    /// Load averages over 1, 5 and 15 minutes when the run began.
    pub load: [f64; 3],
    /// `/proc/sys/fs/dentry-state` when the run began. Two million dentries of other programs slow every system call
    /// on paths.
    #[serde(rename = "dentry-state")]
    pub dentry_state: Vec<i64>,
    /// Huge page setting from `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub transparent_hugepage: String,
    /// Share of the run's processor time that the host gave to other guests.
    pub steal: f64,
}

/// Ticks of all processors together: total and stolen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    all: u64,
    steal: u64,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut load = read("/proc/loadavg").split(' ').map_while(|n| n.parse().ok()).collect::<Vec<f64>>();
        load.resize(3, 0.0);
        let numbers = |text: String| text.split_whitespace().map_while(|n| n.parse().ok()).collect();
        Self {
            cpus: pin::cpus().map_or(1, |cpus| cpus.len()),
            model: model(&read("/proc/cpuinfo")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: [load[0], load[1], load[2]],
            dentry_state: numbers(read("/proc/sys/fs/dentry-state")),
            transparent_hugepage: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            steal: 0.0,
        }
    }
}

impl Ticks {
    /// The ticks up to now.
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Parses `cpu  user nice system idle iowait irq softirq steal guest guest_nice`; user already includes guest.
    fn parse(stat: &str) -> Self {
        let fields: Vec<u64> = stat
            .lines()
            .next()
            .map(|line| line.split_whitespace().skip(1).map_while(|n| n.parse().ok()).take(8).collect())
            .unwrap_or_default();
        Self { all: fields.iter().sum(), steal: fields.get(7).copied().unwrap_or(0) }
    }

    /// Share stolen since `before`.
    pub fn stolen_since(self, before: Self) -> f64 {
        match self.all.saturating_sub(before.all) {
            0 => 0.0,
            all => self.steal.saturating_sub(before.steal) as f64 / all as f64,
        }
    }
}

/// The name, with family and model where the system gives them: virtual machines often have no more than "Xeon".
fn model(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields
            .map(|(key, value)| (key.trim(), value.trim()))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    };
    let name = field("model name").unwrap_or(std::env::consts::ARCH);
    match (field("cpu family"), field("model")) {
        (Some(family), Some(model)) => format!("{name}, family {family} model {model}"),
        _ => name.to_owned(),
    }
}

/// The chosen word: `madvise` in `always [madvise] never`.
fn chosen(text: &str) -> String {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(word, _)| word).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_systems_files() {
        assert_eq!(model("processor : 0\nmodel name\t: Abc 7\n"), "Abc 7");
        let whole = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Abc 7\n\nprocessor\t: 1\nmodel\t\t: 1\n";
        assert_eq!(model(whole), "Abc 7, family 6 model 207");
        assert_eq!(model(""), std::env::consts::ARCH);
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        let before = Ticks::parse("cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 1");
        assert_eq!(before, Ticks { all: 100, steal: 10 });
        assert_eq!(Ticks::parse("cpu 10 0 10 150 0 0 0 30").stolen_since(before), 0.2);
        assert_eq!(before.stolen_since(before), 0.0);
    }

    #[test]
    fn this_machine_says_something() {
        let here = Machine::here();
        assert!(here.cpus > 0 && !here.kernel.is_empty() && here.dentry_state.len() == 6, "{here:?}");
    }
}
