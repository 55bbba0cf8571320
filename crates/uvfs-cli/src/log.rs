//! The log on standard error, and what of it is wanted: `UVFS_LOG` at first, later what is written to
//! `.uvfs/log`.
//!
//! One filter for the process; who sets it takes a lock that logging reads.

use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// What is logged where UVFS_LOG says nothing.
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
    tracing_subscriber::registry().with(filter).with(fmt::layer().with_writer(std::io::stderr)).init();
    Ok(())
}

/// The filter that holds.
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
