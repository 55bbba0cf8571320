//! The log on standard error, and its filter: `UVFS_LOG` at first, later the text that is written to `.uvfs/log`.
//!
//! There is one filter for the process. Setting it takes a lock that logging reads.

use std::io::{self, IsTerminal};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// The level that is logged without UVFS_LOG.
const DEFAULT: &str = "warn";

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts it.
///
/// # Errors
/// UVFS_LOG is no filter.
pub fn start() -> Result<()> {
    let text = std::env::var("UVFS_LOG").unwrap_or_else(|_| DEFAULT.to_owned());
    let filter = EnvFilter::try_new(&text).map_err(|error| {
        anyhow!("UVFS_LOG={text:?} is no log filter: {error}; use for instance UVFS_LOG=debug")
    })?;
    let (filter, handle) = reload::Layer::new(filter);
    let _ = FILTER.set(handle);
    tracing_subscriber::registry()
        .with(filter)
        .with(fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal()))
        .init();
    Ok(())
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
    Ok(handle.reload(EnvFilter::try_new(text)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

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
