//! `uvfs remount DIR -o OPTIONS`, and `mount -o remount,OPTIONS DIR`: changes the options of an existing mount.
//!
//! Flags are the kernel's (`uvfs_fuse::remount`), and the memory limit is written to `.uvfs/bytes_limit`. All other
//! options stay as they were when the mount was made; `.uvfs/options` shows them. mount(8) repeats options of
//! fstab(5) that nobody wants to change, so an option is refused only if it would change something.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;
use uvfs_fuse::{MountedAt, Options};

use crate::options::{self, Parsed};
use crate::unanswered::explained;
use crate::{option_warnings, print, source};

/// The flags that can be changed, for a user that tried to change something else.
const FLAGS: &str = "ro, rw, suid, nosuid, dev, nodev, exec, noexec, sync, async, atime and its like";

/// Whether an option can be changed, for completions. One with a value ends in `=`.
pub fn can_change(name: &str) -> bool {
    const ATIMES: [&str; 4] = ["relatime", "noatime", "nodiratime", "strictatime"];
    name == "memory=" || ATIMES.contains(&name) || FLAGS.split(", ").any(|flag| flag == name)
}

/// For `uvfs remount`: makes the changes, and warns of options that have no effect.
pub fn run(dir: &Path, options: &[String]) -> Result<()> {
    change(dir, options)?.iter().for_each(print::say);
    Ok(())
}

/// Makes the changes that `options` ask for: all of them, or none if a failure can be known before. Returns warnings.
pub fn change(dir: &Path, options: &[String]) -> Result<Vec<String>> {
    let MountedAt { dir, flags, source, .. } = uvfs_fuse::mounted_at(dir)?;
    let made = Made::read(&dir, &source.to_string_lossy())?;
    let source = made.source.split(':').next().unwrap_or_default();
    let mut was =
        parsed(&made.options, &flags, &[], source).context("the options that it was mounted with")?;
    // Its files have been lent since then, or not, whatever the flags are now.
    was.mount.passthrough = options::parse(std::slice::from_ref(&made.options), source)?.mount.passthrough;
    let mut wanted = parsed(&made.options, &flags, options, source)?;
    let warnings = option_warnings::of_source(source, options, &wanted.mount);
    // As when it was mounted.
    wanted.mount.read_only |= source::is_read_only(source);
    let names_memory =
        options.iter().flat_map(|list| list.split(',')).any(|option| option.starts_with("memory="));
    let mut fixed = options::fixed_that_differ(&was, &wanted);
    fixed.extend((names_memory && made.unknown.is_some()).then_some("memory"));
    // Otherwise it stays as it was; mount(8) repeats it if the kernel shows it.
    let may_differ = was.mount.timeout == Some(Duration::ZERO) && source != "mirror";
    let kernel = |of: &Parsed| of.mount.default_permissions.unwrap_or(of.mount.allow_other);
    fixed.extend((may_differ && kernel(&was) != kernel(&wanted)).then_some("default_permissions"));
    if let (["memory"], Some(why)) = (&*fixed, made.unknown) {
        bail!("memory= cannot be changed: the mount on {} {why}", dir.display());
    }
    if !fixed.is_empty() {
        let unknown = made.unknown.map(|why| format!(" (it {why}, so its options are not known)"));
        let (unknown, memory) =
            (unknown.unwrap_or_default(), if made.unknown.is_none() { ", and memory=BYTES" } else { "" });
        bail!(
            "{} cannot be changed while {} is mounted{unknown}; what can: {FLAGS}{memory}; for the rest unmount it and mount it again",
            fixed.join(", "),
            dir.display(),
        );
    }
    let limit = if names_memory { Limit::to_set(&dir, wanted.memory)? } else { None };
    if limit.is_some() && flags.read_only && wanted.mount.read_only {
        bail!("memory= cannot be changed while {} is read-only: remount it with rw first", dir.display());
    }
    // The limit is set by writing a file of the mount; its owner may do that, while the flags are root's.
    let (before, after) = if flags.read_only { (None, limit) } else { (limit, None) };
    if let Some(limit) = &before {
        limit.write(limit.wanted)?;
    }
    if options::flags(&flags) != options::flags(&wanted.mount)
        && let Err(error) = uvfs_fuse::remount(&dir, &wanted.mount)
    {
        if let Some(limit) = &before {
            limit.write(limit.now).context("memory= has been changed all the same")?;
        }
        return Err(error.into());
    }
    after.map_or(Ok(()), |limit| limit.write(limit.wanted))?;
    Ok(warnings)
}

/// The options when the mount was made, then the present flags, then the wanted options.
fn parsed(made: &str, flags: &Options, wanted: &[String], source: &str) -> Result<Parsed> {
    let mut all = vec![made.to_owned(), options::shown_and_fixed(flags), options::flags(flags)];
    all.extend_from_slice(wanted);
    options::parse(&all, source)
}

/// How the mount was made.
struct Made {
    source: String,
    options: String,
    /// Why that is only a guess: the rest of a sentence about the mount.
    unknown: Option<&'static str>,
}

impl Made {
    /// `shown`: the source that mount(8) shows, which is the best guess if nothing else is known.
    fn read(dir: &Path, shown: &str) -> Result<Self> {
        let read = |name: &str| {
            let file = dir.join(".uvfs").join(name);
            match fs::read_to_string(&file) {
                Ok(text) => Ok(Some(text.trim_end_matches('\n').to_owned())),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(explained(dir, &file, error)),
            }
        };
        let guess = |why| Self { source: shown.to_owned(), options: "ctl=off".into(), unknown: Some(why) };
        // Root may change the flags of a mount that lets only its user in.
        if let Err(error) = dir.join(".uvfs").metadata()
            && error.kind() == ErrorKind::PermissionDenied
            && geteuid().is_root()
        {
            return Ok(guess("lets in only the user who mounted it"));
        }
        Ok(match (read("source")?, read("options")?) {
            (Some(source), Some(options)) => Self { source, options, unknown: None },
            _ if dir.join(".uvfs/stats").exists() => guess("has only figures in its .uvfs"),
            _ => guess("has no .uvfs (ctl=off)"),
        })
    }
}

/// The limit of the cache's memory.
struct Limit {
    file: PathBuf,
    now: u64,
    wanted: u64,
}

impl Limit {
    /// The change to make for a limit of `wanted` bytes, if any.
    fn to_set(dir: &Path, wanted: u64) -> Result<Option<Self>> {
        let file = dir.join(".uvfs/bytes_limit");
        let now = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let now = now.trim().parse().with_context(|| format!("{} is no number", file.display()))?;
        Ok((now != wanted).then_some(Self { file, now, wanted }))
    }

    fn write(&self, bytes: u64) -> Result<()> {
        fs::write(&self.file, bytes.to_string())
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}
