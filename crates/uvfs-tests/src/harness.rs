//! Shared parts of the subcommands: verdicts and the closing line, seeds, scratch directories, and what a machine may lack.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The verdicts of a run. Each is printed when it is given.
#[derive(Default)]
pub struct Verdicts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Verdicts {
    /// A check passed.
    pub fn pass(&mut self, what: impl Display) {
        println!("PASS {what}");
        self.passed += 1;
    }

    /// A check failed.
    pub fn fail(&mut self, what: impl Display) {
        println!("FAIL {what}");
        self.failed += 1;
    }

    /// A check cannot run on this machine.
    pub fn skip(&mut self, why: impl Display) {
        println!("skipped: {why}");
        self.skipped += 1;
    }

    /// Adds checks whose verdicts are printed already, for example in a table.
    pub fn count(&mut self, passed: usize, failed: usize) {
        self.passed += passed;
        self.failed += failed;
    }

    /// Skips if nothing can be mounted here; returns whether it did.
    pub fn cannot_mount(&mut self, who: Mounter) -> bool {
        let why = who.missing();
        why.iter().for_each(|why| self.skip(why));
        why.is_some()
    }
}

/// The user that mounts with FUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounter {
    /// Root only.
    Root,
    /// Any user, by way of the helper program.
    Anybody,
}

impl Mounter {
    /// Why nothing can be mounted here, if so.
    fn missing(self) -> Option<String> {
        if self == Self::Root && !rustix::process::geteuid().is_root() {
            return Some("not root".into());
        }
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        device.err().map(|error| format!("/dev/fuse: {error}"))
    }
}

/// Runs a suite. An error counts as a failed check.
fn judge(name: &str, suite: impl FnOnce(&mut Verdicts) -> Result<()>) -> Verdicts {
    let mut verdicts = Verdicts::default();
    if let Err(why) = suite(&mut verdicts) {
        verdicts.fail(format_args!("{name}: {why:#}"));
    }
    verdicts
}

/// Runs a suite, prints the closing line, and returns the exit code.
pub fn report(name: &str, suite: impl FnOnce(&mut Verdicts) -> Result<()>) -> u8 {
    let verdicts = judge(name, suite);
    println!("{} passed, {} failed, {} skipped", verdicts.passed, verdicts.failed, verdicts.skipped);
    u8::from(verdicts.failed != 0)
}

/// Runs this program's part in a process that a suite started, and returns the exit code. Its standard output belongs
/// to the suite, which may have closed it.
pub fn child(name: &str, part: impl FnOnce() -> Result<()>) -> u8 {
    match part() {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("FAIL {name}: {why:#}");
            1
        }
    }
}

/// The seed of a run; printed, so that a failure can be repeated.
#[derive(clap::Args)]
pub struct Seed {
    /// Seed of everything that is random; if a run has several parts, the first one's.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Seed {
    /// Prints the seed and returns it.
    pub fn announce(&self) -> u64 {
        println!("seed {}", self.seed);
        self.seed
    }
}

/// Runs `work` in a new directory below `parent`, and removes that directory afterwards.
///
/// # Errors
/// If the directory cannot be made or removed, and the error of `work`.
pub fn in_subdirectory<T>(parent: &Path, name: &str, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let dir = parent.join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let done = work(&dir).with_context(|| format!("in {}", dir.display()));
    let removed = std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()));
    let done = done?;
    removed.map(|()| done)
}

/// The uvfs command: the given one, or the one beside this program.
///
/// # Errors
/// If this program's own path is unknown.
pub fn uvfs_command(given: Option<&PathBuf>) -> Result<PathBuf> {
    match given {
        Some(path) => Ok(path.clone()),
        None => Ok(std::env::current_exe().context("this program's path")?.with_file_name("uvfs")),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn an_error_is_a_failed_check() {
        let verdicts = judge("test", |verdicts| {
            verdicts.count(2, 0);
            bail!("an error")
        });
        assert_eq!((verdicts.passed, verdicts.failed, verdicts.skipped), (2, 1, 0));
    }

    #[test]
    fn the_subdirectory_is_removed_after_errors_too() {
        let parent = tempfile::tempdir().unwrap();
        let failed: Result<()> = in_subdirectory(parent.path(), "test", |dir| {
            std::fs::write(dir.join("file"), "x")?;
            bail!("an error")
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
