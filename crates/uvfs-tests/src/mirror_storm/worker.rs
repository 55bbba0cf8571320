//! A process that changes a tree: it does what it is told on its standard input, a line an order, and answers each.
//!
//! `work MS`: changes at random for so long; says how many changes of each kind succeeded. `burst N`: makes and removes N
//! files; says the same. `make NAME`, `write NAME TEXT`, `cut NAME SIZE`, `mode NAME BITS`, `remove NAME`, `move NAME NAME`,
//! `link NAME NAME`: says when it was done, in nanoseconds of CLOCK_MONOTONIC.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};

use super::changes::{Kind, MirrorChanges};

/// Names in a directory: few, so that the processes meet.
const NAMES: usize = 10;
/// Levels of directories.
const DEPTH: usize = 4;

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The options of such a process.
#[derive(clap::Args)]
pub struct WorkerArgs {
    /// Seed of its changes.
    #[arg(long)]
    seed: u64,
    /// The directory that it changes.
    dir: PathBuf,
}

/// Serves until there are no more orders.
///
/// # Errors
/// An order that is not understood, or a change of the last kind that fails.
pub fn serve(args: &WorkerArgs) -> Result<()> {
    let dir = &args.dir;
    let mut random = fastrand::Rng::with_seed(args.seed);
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        let answer = match words[..] {
            ["work", ms] => work(dir, Duration::from_millis(ms.parse()?), &mut random).to_string(),
            ["burst", count] => burst(dir, count.parse()?, &mut random).to_string(),
            _ => {
                single(dir, &words).with_context(|| line.clone())?;
                now().to_string()
            }
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

fn single(dir: &Path, words: &[&str]) -> Result<()> {
    match *words {
        ["make", name] => drop(OpenOptions::new().write(true).create_new(true).open(dir.join(name))?),
        ["write", name, text] => fs::write(dir.join(name), text)?,
        ["cut", name, size] => OpenOptions::new().write(true).open(dir.join(name))?.set_len(size.parse()?)?,
        ["mode", name, bits] => {
            let bits = u32::from_str_radix(bits, 8)?;
            fs::set_permissions(dir.join(name), PermissionsExt::from_mode(bits))?;
        }
        ["remove", name] => fs::remove_file(dir.join(name))?,
        ["move", from, to] => fs::rename(dir.join(from), dir.join(to))?,
        ["link", from, to] => fs::hard_link(dir.join(from), dir.join(to))?,
        _ => bail!("not understood"),
    }
    Ok(())
}

fn work(dir: &Path, time: Duration, random: &mut fastrand::Rng) -> MirrorChanges {
    let end = Instant::now() + time;
    let mut changes = MirrorChanges::default();
    while Instant::now() < end {
        // Many fail in one way or another: others have been here. That is part of it.
        if let Ok(kind) = change(dir, random) {
            changes.add(kind);
        }
    }
    changes
}

/// Every name that a directory may have in a storm, present or not.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(|i| format!("n{i}"))
}

fn path(dir: &Path, random: &mut fastrand::Rng) -> PathBuf {
    let mut path = dir.to_path_buf();
    for _ in 0..random.usize(1..=DEPTH) {
        path.push(format!("n{}", random.usize(..NAMES)));
    }
    path
}

/// One change at random, and which kind it was.
fn change(dir: &Path, random: &mut fastrand::Rng) -> io::Result<Kind> {
    let at = path(dir, random);
    Ok(match random.u32(..100) {
        0..20 => {
            let kind = if at.symlink_metadata().is_ok() { Kind::Rewritten } else { Kind::Made };
            fs::write(&at, vec![random.u8(..); random.usize(..20_000)])?;
            kind
        }
        20..35 => done(Kind::Directory, fs::create_dir(&at))?,
        35..47 => done(Kind::Removed, fs::remove_file(&at))?,
        47..51 => done(Kind::Removed, fs::remove_dir(&at))?,
        // Whole directories too.
        51..65 => done(Kind::Renamed, fs::rename(&at, path(dir, random)))?,
        65..71 => done(Kind::Linked, fs::hard_link(&at, path(dir, random)))?,
        71..76 => {
            let mode = PermissionsExt::from_mode(0o700 | random.u32(..0o100));
            done(Kind::Attributes, fs::set_permissions(&at, mode))?
        }
        76..79 => done(Kind::Attributes, std::os::unix::fs::chown(&at, Some(random.u32(..3)), None))?,
        79..84 => {
            let file = OpenOptions::new().write(true).open(&at)?;
            let (was, size) = (file.metadata()?.len(), random.u64(..30_000));
            done(if size < was { Kind::Truncated } else { Kind::Grown }, file.set_len(size))?
        }
        84..92 => done(Kind::Grown, OpenOptions::new().append(true).open(&at)?.write_all(b"and more"))?,
        92..96 => done(Kind::Symlink, symlink("where it leads", &at))?,
        96 => done(Kind::Removed, fs::remove_dir_all(&at))?,
        _ => {
            let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(random.u64(..1 << 30));
            done(Kind::Attributes, OpenOptions::new().write(true).open(&at)?.set_modified(time))?
        }
    })
}

fn done(kind: Kind, outcome: io::Result<()>) -> io::Result<Kind> {
    outcome.map(|()| kind)
}

/// More names than there is room for events: each is its own, so that none are merged.
fn burst(dir: &Path, count: u64, random: &mut fastrand::Rng) -> MirrorChanges {
    let own = dir.join(format!("burst{}", random.u32(..1 << 20)));
    let mut changes = MirrorChanges::default();
    let mut note = |kind, outcome: io::Result<()>| {
        if outcome.is_ok() {
            changes.add(kind);
        }
    };
    note(Kind::Directory, fs::create_dir(&own));
    for i in 0..count {
        note(Kind::Made, fs::write(own.join(format!("f{i}")), i.to_string()));
    }
    // Some stay, and are changed.
    for i in 0..count {
        let path = own.join(format!("f{i}"));
        match i % 8 {
            0 => note(Kind::Attributes, fs::set_permissions(path, PermissionsExt::from_mode(0o600))),
            1 => note(Kind::Rewritten, fs::write(path, "again")),
            _ => note(Kind::Removed, fs::remove_file(path)),
        }
    }
    changes
}
