//! `uvfs stat --watch` on a terminal: rates, hit ratio, memory and the slowest kinds of requests, redrawn in place.
//!
//! Each line is at most 78 columns wide and ends by clearing the rest of its line, so that nothing flickers. There are
//! no colours.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use super::Figures;

/// Columns of a curve, and of a bar.
const CURVE: usize = 40;
const BAR: usize = 30;
/// Kinds of requests that are listed.
const SLOWEST: usize = 10;

/// Rates of requests, the latest last.
#[derive(Default)]
pub struct History(VecDeque<f64>);

/// A moment's figures, and those of the moment before.
struct Moment<'f> {
    now: BTreeMap<&'f str, u64>,
    before: BTreeMap<&'f str, u64>,
    seconds: f64,
}

impl Moment<'_> {
    fn level(&self, name: &str) -> u64 {
        self.now.get(name).copied().unwrap_or(0)
    }

    fn more(&self, name: &str) -> u64 {
        self.level(name).saturating_sub(self.before.get(name).copied().unwrap_or(0))
    }

    fn rate(&self, name: &str) -> f64 {
        if self.before.is_empty() { 0.0 } else { self.more(name) as f64 / self.seconds }
    }
}

/// The picture of one moment, with the control characters that put it in the last one's place.
pub fn draw(
    dir: &str,
    figures: &Figures,
    since: Option<(Duration, &Figures)>,
    history: &mut History,
) -> String {
    let by_name =
        |figures: &'_ Figures| figures.iter().map(|(name, value)| (name.clone(), *value)).collect::<Vec<_>>();
    let before = since.map(|(_, before)| by_name(before)).unwrap_or_default();
    let moment = Moment {
        now: figures.iter().map(|(name, value)| (name.as_str(), *value)).collect(),
        before: before.iter().map(|(name, value)| (name.as_str(), *value)).collect(),
        seconds: since.map_or(1.0, |(time, _)| time.as_secs_f64().max(1e-9)),
    };
    let mut text = if since.is_some() { "\x1b[H".to_owned() } else { "\x1b[H\x1b[2J".to_owned() };
    for line in lines(dir, &moment, since.is_some(), history) {
        let _ = write!(text, "{line}\x1b[K\r\n");
    }
    text + "\x1b[J"
}

fn lines(dir: &str, moment: &Moment<'_>, has_rates: bool, history: &mut History) -> Vec<String> {
    let requests = |name: &&&str| name.starts_with("latency/") && name.ends_with("_count");
    let rate: f64 = moment.now.keys().filter(requests).map(|name| moment.rate(name)).sum();
    if has_rates {
        history.0.push_back(rate);
        history.0.drain(..history.0.len().saturating_sub(CURVE));
    }
    let (hits, misses) = (moment.rate("hits"), moment.rate("misses"));
    let (bytes, limit) = (moment.level("bytes"), moment.level("memory/watermark"));
    let mut lines = vec![
        format!("uvfs stat {dir}    (Ctrl-C ends)"),
        String::new(),
        format!("requests   {:>12}/s  {}", count(rate), curve(&history.0)),
        format!("hit ratio  {:>12}    {}", percent(hits, hits + misses), bar(hits, hits + misses)),
    ];
    lines.push(match limit {
        0 => format!("memory     {:>12}    no limit", size(bytes)),
        _ => format!(
            "memory     {:>12}    {} of {}",
            size(bytes),
            bar(bytes as f64, limit as f64),
            size(limit)
        ),
    });
    let level = |name: &str| count(moment.level(name) as f64);
    lines.push(format!(
        "cached     {:>12} inodes, {} names, {} of them absent; the kernel holds {}",
        level("inodes"),
        level("dentries"),
        level("dentries_negative"),
        level("lookups_held")
    ));
    lines.push(format!(
        "driver     {:>12} calls now, {} asked/s; waits/s: {} locks, {} names, {} memory",
        level("calls_now"),
        count(misses),
        count(moment.rate("lock_waits")),
        count(moment.rate("name_waits")),
        count(moment.rate("memory/waited"))
    ));
    lines.push(String::new());
    lines.push("slowest requests     a second      half in    99% in   longest".to_owned());
    lines.extend(slowest(moment));
    lines
}

/// The kinds of requests that came since the last moment, or else since the mount, by the time of 99 of 100.
fn slowest(moment: &Moment<'_>) -> Vec<String> {
    let kinds = moment.now.keys().filter_map(|name| name.strip_prefix("latency/")?.strip_suffix("_count"));
    let figure = |kind: &str, what: &str| format!("latency/{kind}_{what}");
    let mut kinds: Vec<_> = kinds.filter(|kind| moment.level(&figure(kind, "count")) > 0).collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(moment.level(&figure(kind, "p99"))));
    let line = |kind: &&str| {
        let time = |what: &str| time(moment.level(&figure(kind, what)));
        let rate = count(moment.rate(&figure(kind, "count")));
        format!("  {kind:<14} {rate:>12} {:>12} {:>9} {:>9}", time("p50"), time("p99"), time("max"))
    };
    kinds.iter().take(SLOWEST).map(line).collect()
}

/// A number with three digits or so.
fn count(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.1}G", v / 1e9),
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1024.0 * 1024.0 * 1024.0 => format!("{:.1} GiB", b / (1024.0 * 1024.0 * 1024.0)),
        b if b >= 1024.0 * 1024.0 => format!("{:.1} MiB", b / (1024.0 * 1024.0)),
        b => format!("{:.0} KiB", b / 1024.0),
    }
}

fn time(nanoseconds: u64) -> String {
    match nanoseconds as f64 {
        n if n >= 1e9 => format!("{:.1} s", n / 1e9),
        n if n >= 1e6 => format!("{:.1} ms", n / 1e6),
        n => format!("{:.1} µs", n / 1e3),
    }
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1}%", part * 100.0 / whole) } else { "-".to_owned() }
}

fn bar(part: f64, whole: f64) -> String {
    let full = if whole > 0.0 { ((part / whole).clamp(0.0, 1.0) * BAR as f64).round() as usize } else { 0 };
    format!("[{}{}]", "#".repeat(full), " ".repeat(BAR - full))
}

/// A column for each rate, in eighths of the highest.
fn curve(rates: &VecDeque<f64>) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = rates.iter().copied().fold(1.0, f64::max);
    rates.iter().map(|rate| STEPS[((rate / most * 7.0).round() as usize).min(7)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(of: &[(&str, u64)]) -> Figures {
        of.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_picture_has_rates_ratio_memory_and_the_slowest_first() {
        let before =
            figures(&[("hits", 0), ("misses", 0), ("latency/read_count", 0), ("latency/open_count", 10)]);
        let now = figures(&[
            ("hits", 300),
            ("misses", 100),
            ("bytes", 32 << 20),
            ("memory/watermark", 64 << 20),
            ("latency/open_count", 30),
            ("latency/open_p99", 1_500),
            ("latency/read_count", 20_000),
            ("latency/read_p99", 2_000_000),
            ("latency/write_count", 0),
        ]);
        let mut history = History::default();
        let first = draw("/mnt", &before, None, &mut history);
        assert!(first.starts_with("\x1b[H\x1b[2J") && history.0.is_empty(), "{first:?}");
        let text = draw("/mnt", &now, Some((Duration::from_secs(2), &before)), &mut history);
        let lines: Vec<_> = text.split("\x1b[K\r\n").collect();
        assert!(text.starts_with("\x1b[H") && !text.contains("[2J"), "{text:?}");
        assert!(lines[2].contains("10.0k/s") && lines[2].contains('█'), "{text}");
        assert!(lines[3].contains("75.0%"), "{text}");
        assert!(lines[4].contains("32.0 MiB") && lines[4].contains("of 64.0 MiB"), "{text}");
        let place = |what: &str| lines.iter().position(|line| line.trim_start().starts_with(what));
        assert!(
            place("read").expect("a line") < place("open").expect("a line") && place("write").is_none(),
            "{text}"
        );
        assert!(lines[place("read").expect("a line")].contains("2.0 ms"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 84), "{text}");
    }

    #[test]
    fn a_curve_keeps_the_latest() {
        let mut history = History::default();
        for second in 1..=100_u64 {
            let (one, two) =
                (figures(&[("latency/read_count", 0)]), figures(&[("latency/read_count", second)]));
            draw("/mnt", &two, Some((Duration::from_secs(1), &one)), &mut history);
        }
        assert_eq!((history.0.len(), history.0.front().copied()), (CURVE, Some(61.0)));
    }
}
