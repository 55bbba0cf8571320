//! `uvfs find`: asks an index, and copies its answer.

use std::io::{self, BufRead, IsTerminal, Write};

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
    let copied = copy(&mut bytes, &mut stdout);
    let copied = copied.map_or_else(|error| written(Err(error)).map(|()| 0), Ok)?;
    if copied != answer.bytes {
        bail!("the index ended before its answer did");
    }
    if answer.failed { Err(AlreadySaid.into()) } else { Ok(()) }
}

/// Copies in the pieces that are read: the buffers of standard output are smaller, and look for the ends of lines.
fn copy(from: &mut impl BufRead, to: &mut impl Write) -> io::Result<u64> {
    let mut copied = 0;
    loop {
        let piece = from.fill_buf()?;
        if piece.is_empty() {
            to.flush()?;
            return Ok(copied);
        }
        to.write_all(piece)?;
        let len = piece.len();
        copied += len as u64;
        from.consume(len);
    }
}
