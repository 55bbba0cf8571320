//! One directory with very many entries: made, listed, and emptied while it is being listed.
//!
//! Every name must be listed exactly once. A single pass that removes each name as it is listed must leave none
//! behind.

pub mod command;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, RawDir};

/// How long each phase took.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Making the entries.
    pub create: Duration,
    /// Listing them.
    pub list: Duration,
    /// Removing them while listing.
    pub remove: Duration,
}

fn open_dir(dir: &Path) -> Result<OwnedFd> {
    fs::openat(CWD, dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("cannot open {}", dir.display()))
}

/// Calls `each` with the number in every name, in one pass.
fn list(dir: &OwnedFd, mut each: impl FnMut(&str, usize) -> Result<()>) -> Result<()> {
    let mut buf = vec![MaybeUninit::uninit(); 32 << 10];
    let mut raw = RawDir::new(dir.as_fd(), &mut buf);
    while let Some(entry) = raw.next() {
        let entry = entry.context("reading the directory")?;
        let name = entry.file_name().to_str().context("a name that was never made")?;
        if name == "." || name == ".." {
            continue;
        }
        let number = name.strip_prefix("entry-").and_then(|n| n.parse().ok());
        each(name, number.with_context(|| format!("the name {name} was never made"))?)?;
    }
    Ok(())
}

/// Marks numbers; each may be marked only once.
struct Seen(Vec<bool>);

impl Seen {
    fn mark(&mut self, number: usize) -> Result<()> {
        match self.0.get_mut(number) {
            None => bail!("entry {number} was never made"),
            Some(true) => bail!("entry {number} was listed twice"),
            Some(seen) => *seen = true,
        }
        Ok(())
    }

    fn all(&self, phase: &str) -> Result<()> {
        match self.0.iter().filter(|s| !**s).count() {
            0 => Ok(()),
            missing => bail!("{phase}: {missing} entries were not listed"),
        }
    }
}

/// Runs all phases in `dir`, which must be empty and is empty afterwards.
pub fn run(dir: &Path, entries: usize) -> Result<Times> {
    let fd = open_dir(dir)?;
    let start = Instant::now();
    for i in 0..entries {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let name = format!("entry-{i}");
        fs::openat(&fd, &name[..], flags, Mode::from_raw_mode(0o644))
            .with_context(|| format!("cannot create {name}"))?;
    }
    let create = start.elapsed();

    let start = Instant::now();
    let mut seen = Seen(vec![false; entries]);
    list(&open_dir(dir)?, |_, number| seen.mark(number))?;
    seen.all("list")?;
    let listed = start.elapsed();

    let start = Instant::now();
    let mut seen = Seen(vec![false; entries]);
    list(&open_dir(dir)?, |name, number| {
        seen.mark(number)?;
        fs::unlinkat(&fd, name, AtFlags::empty()).with_context(|| format!("cannot remove {name}"))
    })?;
    seen.all("remove while listing")?;
    list(&open_dir(dir)?, |name, _| bail!("{name} is still there after everything was removed"))?;
    let remove = start.elapsed();
    Ok(Times { create, list: listed, remove })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seen_tells_each_mistake() {
        let mut seen = Seen(vec![false; 2]);
        assert!(seen.mark(0).is_ok());
        assert!(seen.mark(0).is_err());
        assert!(seen.mark(2).is_err());
        assert!(seen.all("test").is_err());
        assert!(seen.mark(1).is_ok());
        assert!(seen.all("test").is_ok());
    }

    #[test]
    fn a_host_directory_passes() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), 3000).unwrap();
    }
}
