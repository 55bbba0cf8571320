//! `showgids`: a program reads every GID of a network adapter from sysfs, again and again.
//!
//! The loop is that of the program in the patch "kernfs: Change kernfs_rwsem to a per-cpu rwsem" (Khan,
//! linux-kernel, June 2022). For each of 254 N it writes `/class/infiniband/mlx5_0/ports/1/gids/N` into a cleared
//! buffer, opens that file for reading, reads 40 bytes and closes it. One operation is one file. 200 of these programs
//! on 384 processors spent 37% of their time at one reader-writer semaphore.
//!
//! In-process arms go through uvfs's `Context` on its kernfs driver ([`inproc`]); target arms make system calls below
//! any directory ([`calls`]). `uvfs` is the product. The others walk with references and take a
//! kernel's tree lock at each step ([`arms::kernfs`](crate::arms::kernfs)). In `null` each thread has a tree and a VFS
//! of its own. With `--changes` a further thread adds and removes nodes of the same tree, half of
//! them in the directory that is read ([`changing`]). With `--loops` each thread or process makes so many passes over
//! the files, and the notes have the seconds until all are done.

pub mod calls;
pub mod changing;
pub mod inproc;

use std::io::{Cursor, Write};

use anyhow::{Context as _, Result, ensure};
use clap::{Arg, ArgMatches, value_parser};
use serde_json::json;

use crate::harness::Arm;
use crate::harness::schedule::{Case, Params, Series};
use crate::harness::spread::Spread;
use crate::workloads::target::RunTarget;
use crate::workloads::{Maker, Prepare, Workload, options};

/// Bytes that the program reads from a file.
pub const READ: usize = 40;
/// Buffer sizes of the program.
pub const TEXT: usize = 64;
/// See [`TEXT`].
pub const PATH: usize = 1024;

/// The workload.
pub struct Showgids;

impl Workload for Showgids {
    fn name(&self) -> &'static str {
        "showgids"
    }

    fn about(&self) -> &'static str {
        "open, read 40 bytes, close, over the files of a kernfs directory; arms are ways to lock its tree"
    }

    fn arms(&self) -> Vec<&'static str> {
        vec!["null", "stock", "hashed", "patched", "patched-membarrier", "uvfs"]
    }

    fn args(&self) -> Vec<Arg> {
        let changes = Arg::new("changes")
            .long("changes")
            .value_name("RATE,..")
            .value_delimiter(',')
            .value_parser(value_parser!(u64).range(0..=1_000_000))
            .default_value("0")
            .help("Nodes added and removed a second by a thread beside; each number is a case");
        let path = Arg::new("path")
            .long("path")
            .value_name("PATTERN")
            .value_parser(|text: &str| text.parse::<Pattern>().map_err(|error| error.to_string()))
            .default_value(Pattern::DEFAULT)
            .help("What is read below a target, with {n} for the number; existing files, or they are made");
        let links = Arg::new("links")
            .long("links")
            .value_name("NUMBER,..")
            .value_delimiter(',')
            .value_parser(value_parser!(u64).range(0..=1))
            .default_value("0")
            .help("1: mlx5_0 is a link to ../../devices/..., as in sysfs (not for targets); each number is a case");
        let storm = Arg::new("storm")
            .long("storm")
            .value_name("FILES,..")
            .value_delimiter(',')
            .value_parser(value_parser!(u64).range(0..=10_000))
            .default_value("0")
            .help("A change makes or removes a directory of so many files, as a cgroup's 30; 0: one file; each number is a case");
        let loops = Arg::new("loops")
            .long("loops")
            .value_name("N")
            .value_parser(value_parser!(u64).range(0..=1_000_000))
            .default_value("0")
            .help("Passes over the files in a turn, which then lasts until all are done; 0: as long as --seconds says");
        vec![options::files("254"), changes, path, links, storm, loops]
    }

    /// The same for all cases, so that the rows of one run are comparable.
    fn companions(&self, matches: &ArgMatches) -> usize {
        let changed = options::numbers(matches, "changes").is_ok_and(|all| all.iter().any(|rate| *rate != 0));
        usize::from(changed)
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let pattern = matches.get_one::<Pattern>("path").context("--path is needed")?;
        let loops = matches.get_one::<u64>("loops").copied().context("--loops is needed")?;
        let [files, changes, links, storms] =
            ["files", "changes", "links", "storm"].map(|name| options::numbers(matches, name));
        let (files, changes, links, storms) = (files?, changes?, links?, storms?);
        let mut cases = Vec::new();
        for files in files {
            for changes in &changes {
                for links in &links {
                    let (changes, linked) = (*changes, *links != 0);
                    let plan = |storm| GidsPlan { files, changes, linked, storm, loops };
                    cases.extend(storms.iter().map(|storm| case(plan(*storm), pattern)));
                }
            }
        }
        Ok(cases)
    }

    fn remarks(&self, case: &Case, series: &[Series]) -> Vec<String> {
        let param = |name: &str| case.params.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let (files, loops) = (param("files"), param("loops"));
        let seconds = |one: &Series| {
            let Spread { median, min, max } = Spread::of(one.took.iter().copied())?;
            let (workers, arm) = (one.width, case.arms[one.arm].name());
            Some(format!(
                "{arm}: {workers} with {loops} times {files} files each take {median:.2} s ({min:.2} to {max:.2})"
            ))
        };
        series.iter().filter(|_| loops != 0).filter_map(seconds).collect()
    }
}

fn case<'w>(plan: GidsPlan, pattern: &Pattern) -> Prepare<'w> {
    let GidsPlan { files, changes, linked, storm, loops } = plan;
    let params = [
        ("files", files),
        ("changes", changes),
        ("links", linked.into()),
        ("storm", storm),
        ("loops", loops),
    ];
    let params = Params::from_iter(params.map(|(name, value)| (name.to_owned(), json!(value))));
    Prepare {
        params,
        variants: vec![Params::new()],
        maker: Box::new(Gids { plan, pattern: pattern.clone() }),
    }
}

/// The files that are read, and the changes meanwhile.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct GidsPlan {
    /// Files.
    pub files: u64,
    /// Changes a second.
    pub changes: u64,
    /// Whether the path leads over a link.
    pub linked: bool,
    /// Files of the directory that a change makes or removes; 0: a change is of one file.
    pub storm: u64,
    /// Passes over the files in a turn; 0: a turn has a length.
    pub loops: u64,
}

impl GidsPlan {
    /// Passes in a turn, if their number is fixed.
    fn passes(self) -> Option<u64> {
        Some(self.loops).filter(|loops| *loops != 0)
    }

    /// Operations of a batch, if passes are counted: one pass.
    fn grain(self) -> Option<u64> {
        self.passes().map(|_| self.files)
    }
}

struct Gids {
    plan: GidsPlan,
    pattern: Pattern,
}

impl Maker for Gids {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let own = if name == "null" { threads } else { 0 };
        Ok(Box::new(inproc::ShowgidsInProcess::new(name, own, self.plan)?))
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        Ok(Box::new(calls::ShowgidsCalls::new(target, &self.pattern, self.plan)?))
    }
}

/// A path with a number in it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pattern {
    before: String,
    after: String,
}

impl Pattern {
    /// The path of the original program, below sysfs.
    pub const DEFAULT: &str = "class/infiniband/mlx5_0/ports/1/gids/{n}";

    /// Writes the path with `n` as the number, clears the rest of the buffer, and returns the length.
    ///
    /// # Errors
    /// If the path and a nul after it do not fit the buffer.
    #[inline]
    pub fn write(&self, n: u64, buffer: &mut [u8; PATH]) -> Result<usize> {
        buffer.fill(0);
        let mut to = Cursor::new(&mut buffer[..PATH - 1]);
        write!(to, "{}{n}{}", self.before, self.after).context("a path of more than 1022 bytes")?;
        Ok(to.position() as usize)
    }

    /// The path as text.
    pub fn at(&self, n: u64) -> String {
        format!("{}{n}{}", self.before, self.after)
    }
}

impl std::str::FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (before, after) = text.split_once("{n}").with_context(|| format!("{text:?} has no {{n}}"))?;
        ensure!(!text.starts_with('/'), "{text:?} begins with a slash: it is a path below the target");
        ensure!(text.len() < PATH / 2 && !text.contains('\0'), "{text:?} is too long, or has a nul in it");
        Ok(Self { before: before.to_owned(), after: after.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_one_place_for_the_number() {
        let pattern: Pattern = "tty/tty{n}/dev".parse().unwrap();
        assert_eq!(pattern.at(12), "tty/tty12/dev");
        let mut buffer = [b'x'; PATH];
        assert_eq!(pattern.write(7, &mut buffer).unwrap(), 12);
        assert_eq!((&buffer[..12], &buffer[12..]), (&b"tty/tty7/dev"[..], &[0; PATH - 12][..]));
        for wrong in ["", "no number", "/absolute/{n}"] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }
}
