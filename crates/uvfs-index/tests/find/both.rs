//! One command line, given to GNU find and to this crate.

use crate::host::Host;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use uvfs_index::find::{Expression, FileAttributes, FindContext, FindPrinter, search};

/// Output, or the reason why there is none.
pub type Answer = Result<Vec<u8>, String>;

/// Output of GNU find. A failure is one of the command line: it writes nothing then.
pub fn theirs(directory: &Path, args: &[&[u8]], zone: &str) -> Answer {
    let output = Command::new("find")
        .args(args.iter().map(|arg| OsStr::from_bytes(arg)))
        .current_dir(directory)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("LC_ALL", "C")
        .env("TZ", zone)
        .stdin(Stdio::null())
        .output()
        .expect("GNU find, of Debian's package findutils");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() && output.stdout.is_empty() { Err(said) } else { Ok(output.stdout) }
}

/// Output of this crate.
pub fn ours(directory: &Path, args: &[&[u8]], zone: &str) -> Answer {
    let mut context = FindContext::of_this_process();
    context.zone = jiff::tz::TimeZone::get(zone).expect("a zone");
    let lstat = |path: &[u8]| {
        let path = directory.join(OsStr::from_bytes(path));
        Ok(FileAttributes::from(&path.symlink_metadata()?))
    };
    context.lstat = &lstat;
    let expression = Expression::parse_in(args, &context).map_err(|error| error.to_string())?;
    let host = Host { directory: directory.to_owned() };
    let mut printer = FindPrinter::new(Vec::new(), false, &context);
    let starts = host.starts(expression.starting_points());
    search(&expression, &host, starts, &mut printer).expect("memory takes all");
    Ok(printer.into_inner())
}

/// Pieces between newlines or null bytes, sorted.
pub fn sorted(output: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = output.split_inclusive(|b| matches!(b, b'\n' | 0)).collect();
    lines.sort_unstable();
    lines
}

/// Both answers; a difference, if there is one, in words. Both may refuse.
///
/// Each search has its own beginning, from which ages count. An age that passes a border between the two would differ
/// once, and not again, so a difference counts only if it stays.
pub fn difference(directory: &Path, args: &[&[u8]], zone: &str) -> Option<String> {
    compared(directory, args, zone).and_then(|_| compared(directory, args, zone))
}

fn compared(directory: &Path, args: &[&[u8]], zone: &str) -> Option<String> {
    let shown: Vec<String> = args.iter().map(|arg| arg.escape_ascii().to_string()).collect();
    let (theirs, ours) = (theirs(directory, args, zone), ours(directory, args, zone));
    match (&theirs, &ours) {
        (Err(_), Err(_)) => None,
        (Ok(theirs), Ok(ours)) => {
            let (theirs, ours) = (sorted(theirs), sorted(ours));
            let only = |one: &[&[u8]], other: &[&[u8]]| {
                let missing = one.iter().filter(|line| other.binary_search(line).is_err()).take(4);
                missing.map(|line| line.escape_ascii().to_string()).collect::<Vec<_>>().join("\n    ")
            };
            let told = || {
                let counts = format!("{} lines of find, {} of ours", theirs.len(), ours.len());
                let (find, us) = (only(&theirs, &ours), only(&ours, &theirs));
                format!("{shown:?}: {counts}\n  find only:\n    {find}\n  ours only:\n    {us}")
            };
            (theirs != ours).then(told)
        }
        (Ok(theirs), Err(why)) => {
            Some(format!("{shown:?}: find writes {} bytes, ours refuses: {why}", theirs.len()))
        }
        (Err(why), Ok(ours)) => {
            Some(format!("{shown:?}: ours writes {} bytes, find refuses: {why}", ours.len()))
        }
    }
}
