//! The log on standard error, and its filter: `UVFS_LOG` at first, later the text that is written to `.uvfs/log`.
//!
//! There is one filter for the process. Setting it takes a lock that logging reads. `--log-file` takes the log's place on
//! standard error; a server in the background writes its other messages there too.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

use crate::complaints::Complaints;
use crate::did_you_mean::nearest;
use crate::print::say;

/// The level that is logged without UVFS_LOG.
const DEFAULT: LevelFilter = LevelFilter::WARN;

/// The levels, as users write them.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// The file that `--log-file` named.
static FILE: OnceLock<Arc<File>> = OnceLock::new();

/// The wishes of the command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes<'a> {
    /// How often `-v` was given.
    pub verbose: u8,
    /// The file for the log.
    pub file: Option<&'a Path>,
    /// The process that started this one has told of a bad UVFS_LOG.
    pub told: bool,
}

/// Starts it. `-v` outweighs UVFS_LOG. If that is no filter, a line says so, and the default holds: no command fails for its
/// log, least of all an unmount.
///
/// # Errors
/// The file cannot be opened.
pub fn start(wishes: Wishes<'_>) -> Result<()> {
    let text = match wishes.verbose {
        0 => std::env::var("UVFS_LOG").unwrap_or_else(|_| DEFAULT.to_string()),
        1 => "info".to_owned(),
        2 => "debug".to_owned(),
        _ => "trace".to_owned(),
    };
    let filter = filter_of(&text).unwrap_or_else(|error| {
        if !wishes.told {
            say(format_args!(
                "UVFS_LOG={text:?} is no log filter: {error}; it is ignored (use for instance UVFS_LOG=debug)"
            ));
        }
        Targets::new().with_default(DEFAULT)
    });
    let (filter, handle) = reload::Layer::new(filter);
    let _ = FILTER.set(handle);
    let (writer, coloured) = match wishes.file {
        None => (BoxMakeWriter::new(|| Complaints), io::stderr().is_terminal() && !colours_unwanted()),
        Some(path) => {
            let file = File::options().create(true).append(true).open(path);
            let file = file.with_context(|| format!("--log-file {}: cannot be opened", path.display()))?;
            (BoxMakeWriter::new(Arc::clone(FILE.get_or_init(|| Arc::new(file)))), false)
        }
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(fmt::layer().with_writer(writer).with_ansi(coloured))
        .init();
    Ok(())
}

/// The file that the log goes to, if it is one.
pub fn file() -> Option<&'static File> {
    FILE.get().map(Arc::as_ref)
}

/// Whether the environment asks every program for text without colours.
fn colours_unwanted() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Writes an error to the system's log (syslog(3)), if there is one: for a process without standard error. It never
/// waits.
pub fn tell_system(text: &str) {
    let _ = send(Path::new("/dev/log"), text);
}

fn send(log: &Path, text: &str) -> io::Result<()> {
    /// The facility of daemons, the severity of errors.
    const PRIORITY: u32 = 3 << 3 | 3;
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(format!("<{PRIORITY}>uvfs[{}]: {text}", std::process::id()).as_bytes(), log)?;
    Ok(())
}

/// The present filter.
pub fn filter() -> String {
    let filter = FILTER.get().and_then(|handle| handle.with_current(ToString::to_string).ok());
    filter.unwrap_or_default()
}

/// Sets another filter.
///
/// # Errors
/// It is none.
pub fn set(text: &str) -> Result<()> {
    let handle = FILTER.get().context("nothing is logged")?;
    Ok(handle.reload(filter_of(text)?)?)
}

/// Parses a filter. A word alone must be a level or a crate of this project: any other would be taken for the name of a
/// crate, and turn off all that others log.
fn filter_of(text: &str) -> Result<Targets> {
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains('=')) {
        if word.parse::<LevelFilter>().is_ok() || word.starts_with("uvfs") {
            continue;
        }
        let lower = word.to_lowercase();
        let begun = || LEVELS.into_iter().find(|level| lower.starts_with(level));
        match nearest(&lower, LEVELS).or_else(begun) {
            Some(meant) => bail!("{word:?} is no level; did you mean {meant}?"),
            None => bail!("{word:?} is no level; levels are: {}", LEVELS.join(", ")),
        }
    }
    Ok(text.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_alone_is_a_level_or_a_crate() {
        for good in ["warn", "DEBUG", "off", "uvfs_fuse", "info,uvfs_fuse=debug", "other=trace"] {
            assert!(filter_of(good).is_ok(), "{good}");
        }
        for (bad, said) in [
            ("debugg", "\"debugg\" is no level; did you mean debug?"),
            ("Warning", "\"Warning\" is no level; did you mean warn?"),
            (
                "uvfs_fuse=debug,loud",
                "\"loud\" is no level; levels are: error, warn, info, debug, trace, off",
            ),
        ] {
            assert_eq!(filter_of(bad).expect_err(bad).to_string(), said);
        }
    }

    #[test]
    fn the_system_is_told_in_one_datagram() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        assert!(send(&path, "nobody listens").is_err());
        let log = UnixDatagram::bind(&path).expect("a socket");
        send(&path, "it has ended").expect("sent");
        let mut said = [0; 100];
        let len = log.recv(&mut said).expect("received");
        let expected = format!("<27>uvfs[{}]: it has ended", std::process::id());
        assert_eq!(&said[..len], expected.as_bytes());
    }
}
