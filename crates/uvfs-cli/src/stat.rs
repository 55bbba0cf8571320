//! `uvfs stat`: the figures of a mount, from the file `.uvfs/stats` in its root.
//!
//! It reads only that file, which is answered even if the file system hangs. With `--watch` on a terminal the figures
//! become a [`picture`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use uvfs_control::is_level;

use crate::args;
use crate::print;
use crate::unanswered::explained;

mod picture;

use picture::History;

/// Figures by name, in the order of the file.
type Figures = Vec<(String, u64)>;

/// Prints the figures, once or again and again.
pub fn run(args: &args::Stat) -> Result<()> {
    let (dir, watch) = args.what()?;
    let mut last: Option<(Instant, Figures)> = None;
    let draws = watch.is_some() && !args.json && !args.all && io::stdout().is_terminal();
    let mut history = History::default();
    loop {
        let (now, figures) = (Instant::now(), read(dir)?);
        let since = last.as_ref().map(|(then, before)| (now - *then, before));
        let text = if args.json {
            json(&figures)
        } else if draws {
            picture::draw(&dir.display().to_string(), &figures, since, &mut history)
        } else {
            table(&figures, since, args.all)
        };
        print::out(text)?;
        let Some(seconds) = watch else { return Ok(()) };
        last = Some((now, figures));
        thread::sleep(Duration::try_from_secs_f64(seconds).context("--watch takes a number of seconds")?);
    }
}

fn read(dir: &Path) -> Result<Figures> {
    let file = dir.join(".uvfs/stats");
    let text = fs::read_to_string(&file).map_err(|error| explained(dir, &file, error))?;
    let figure = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    let figures: Option<_> = text.lines().map(figure).collect();
    figures.with_context(|| format!("{} does not look like figures of uvfs", file.display()))
}

fn json(figures: &Figures) -> String {
    // Names are letters, underscores and slashes: nothing to escape.
    let fields: Vec<_> = figures.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}\n", fields.join(", "))
}

/// One figure a line; with `since` also the rate per second. A figure that has never been counted is left out, unless
/// `all`.
fn table(figures: &Figures, since: Option<(Duration, &Figures)>, all: bool) -> String {
    let before: BTreeMap<_, _> = since.iter().flat_map(|(_, before)| before.iter().cloned()).collect();
    let mut text = String::new();
    for (name, value) in figures {
        if *value == 0 && name.contains('/') && !all {
            continue;
        }
        let _ = write!(text, "{name:<24} {value:>16}");
        if let Some((time, _)) = since
            && !is_level(name)
        {
            let more = value.saturating_sub(before.get(name).copied().unwrap_or(0));
            let _ = write!(text, " {:>12.0}/s", more as f64 / time.as_secs_f64().max(1e-9));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_shown() {
        let figures: Figures = [("hits", 30), ("inodes", 5), ("calls/read", 0), ("calls/open", 2)]
            .map(|(n, v)| (n.to_owned(), v))
            .into();
        let before: Figures = vec![("hits".into(), 10), ("inodes".into(), 1)];
        let plain = table(&figures, None, false);
        assert!(!plain.contains("calls/read") && plain.contains("calls/open"), "{plain}");
        assert!(table(&figures, None, true).contains("calls/read"));
        let watched = table(&figures, Some((Duration::from_secs(2), &before)), false);
        assert!(watched.lines().any(|line| line.starts_with("hits") && line.ends_with(" 10/s")), "{watched}");
        assert!(watched.lines().any(|line| line.starts_with("inodes") && line.ends_with(" 5")), "{watched}");
        assert_eq!(json(&figures[..2].to_vec()), "{\"hits\": 30, \"inodes\": 5}\n");
    }

    #[test]
    fn what_is_no_mount_is_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let error = read(dir.path()).expect_err("no mount").to_string();
        assert!(error.contains("nothing is mounted"), "{error}");
        let error = read(&dir.path().join("none")).expect_err("nothing there");
        assert!(format!("{error:#}").contains("does not exist"), "{error:#}");
        fs::create_dir(dir.path().join(".uvfs")).expect("mkdir");
        fs::write(dir.path().join(".uvfs/stats"), "what is this").expect("write");
        assert!(read(dir.path()).is_err());
    }
}
