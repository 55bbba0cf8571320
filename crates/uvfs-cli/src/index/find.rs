//! `uvfs find`: asks an index, and copies its answer.

use std::io::{self, IsTerminal, Write};

use anyhow::{Result, anyhow, bail};
use uvfs_index::IndexClient;

use crate::args::Find;
use crate::print::{AlreadySaid, say, written};

/// Asks and prints.
pub fn run(args: &Find) -> Result<()> {
    let client = IndexClient::new(args.socket.as_deref());
    let asked = client.find(&args.words, io::stdout().is_terminal(), args.json);
    let (answer, mut bytes) = asked.map_err(|why| anyhow!(why))?;
    answer.warning.iter().for_each(say);
    answer.messages.iter().for_each(say);
    let mut stdout = io::stdout().lock();
    let copied = io::copy(&mut bytes, &mut stdout).and_then(|copied| {
        stdout.flush()?;
        Ok(copied)
    });
    let copied = copied.map_or_else(|error| written(Err(error)).map(|()| 0), Ok)?;
    if copied != answer.bytes {
        bail!("the index ended before its answer did");
    }
    if answer.failed { Err(AlreadySaid.into()) } else { Ok(()) }
}
