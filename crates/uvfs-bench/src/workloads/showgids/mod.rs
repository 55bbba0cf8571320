//! `showgids`: a program reads every GID of a network adapter from sysfs, again and again.
//!
//! The loop is that of the program in the patch "kernfs: Change kernfs_rwsem to a per-cpu rwsem" (Khan,
//! linux-kernel, June 2022). For each of 254 N it writes `/class/infiniband/mlx5_0/ports/1/gids/N` into a cleared
//! buffer, opens that file for reading, reads 40 bytes and closes it. One operation is one file. 200 of these programs
//! on 384 processors spent 37% of their time at one reader-writer semaphore.
//!
//! In-process arms go through uvfs's `Context` on its kernfs driver ([`inproc`]); target arms make system calls below
//! any directory ([`calls`]). `uvfs` is the product. `stock`, `hashed` and `patched` walk with references and take a
//! kernel's tree lock at each step ([`arms::kernfs`](crate::arms::kernfs)). In `null` each thread has a tree and a VFS
//! of its own. With `--changes` a further thread adds and removes nodes of the same tree, half of
//! them in the directory that is read.

pub mod calls;
pub mod inproc;

use std::io::{Cursor, Write};

use anyhow::{Context as _, Result, ensure};
use clap::{Arg, ArgMatches, value_parser};
use serde_json::json;

use crate::harness::Arm;
use crate::harness::schedule::Params;
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
        vec!["null", "stock", "hashed", "patched", "uvfs"]
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
        vec![options::files("254"), changes, path, links]
    }

    /// The same for all cases, so that the rows of one run are comparable.
    fn companions(&self, matches: &ArgMatches) -> usize {
        let changed = options::numbers(matches, "changes").is_ok_and(|all| all.iter().any(|rate| *rate != 0));
        usize::from(changed)
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let (files, changes) = (options::numbers(matches, "files")?, options::numbers(matches, "changes")?);
        let links = options::numbers(matches, "links")?;
        let pattern = matches.get_one::<Pattern>("path").context("--path is needed")?;
        let mut cases = Vec::new();
        for files in files {
            for changes in &changes {
                cases.extend(links.iter().map(|links| case(files, *changes, *links, pattern)));
            }
        }
        Ok(cases)
    }
}

fn case<'w>(files: u64, changes: u64, links: u64, pattern: &Pattern) -> Prepare<'w> {
    let params = [("files", files), ("changes", changes), ("links", links)];
    let params = Params::from_iter(params.map(|(name, value)| (name.to_owned(), json!(value))));
    let maker = Gids { files, changes, linked: links != 0, pattern: pattern.clone() };
    Prepare { params, variants: vec![Params::new()], maker: Box::new(maker) }
}

struct Gids {
    files: u64,
    changes: u64,
    linked: bool,
    pattern: Pattern,
}

impl Maker for Gids {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let own = if name == "null" { threads } else { 0 };
        Ok(Box::new(inproc::ShowgidsInProcess::new(name, own, self.files, self.changes, self.linked)?))
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        Ok(Box::new(calls::ShowgidsCalls::new(target, &self.pattern, self.files, self.changes)?))
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
