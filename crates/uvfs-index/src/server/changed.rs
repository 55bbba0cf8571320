//! The answer to `uvfs changed`.
//!
//! The changes are encoded while the table is read, and kept as a search's answer is (see `answer_file`). If they are too many,
//! or take too long, the answer is that everything may have changed: that is always true.

use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream;

use super::answer_file::AnswerFile;
use super::patience::Patience;
use super::{IndexServer, LOOK, has_gone};
use crate::clock::ChangeClock;
use crate::protocol::{Moment, ShownChange, WirePath};
use crate::table::changes::ChangedName;

/// Steps of a change, besides those of its path's bytes.
const A_CHANGE: u64 = 32;

/// Bytes that are collected before they are kept.
const PIECE: usize = 64 << 10;

/// A moment, and the lines of its changes with their bytes.
type Answer<'a> = (Moment, Option<(AnswerFile<'a>, u64)>);

/// The lines of changes.
struct Lines<'a> {
    out: BufWriter<AnswerFile<'a>>,
    patience: Patience<'a>,
    changes: usize,
}

impl Lines<'_> {
    fn put(&mut self, change: ChangedName, below: &[u8]) -> io::Result<()> {
        let from = change.from.as_ref().map_or(0, Vec::len);
        self.patience.works(A_CHANGE + (change.path.len() + from) as u64)?;
        if change.is_near(below)
            && let Some(shown) = ShownChange::new(change, below)
        {
            serde_json::to_writer(&mut self.out, &shown)?;
            self.out.write_all(b"\n")?;
            self.changes += 1;
        }
        Ok(())
    }
}

impl IndexServer {
    /// The answer; nothing if the client has gone.
    pub(super) fn changed<'a>(
        &'a self,
        stream: &'a UnixStream,
        path: &WirePath,
        since: Option<&str>,
        wait: bool,
    ) -> Result<Option<Answer<'a>>, String> {
        let path = path.bytes().ok_or("the path is no path")?;
        // A clock that is none of ours is of no known moment.
        let mut since: Option<ChangeClock> = since.and_then(|since| since.parse().ok());
        loop {
            let (tree, below) = self.tree_of(&path)?;
            let Some(turn) = self.turn(&tree, stream) else { return Ok(None) };
            let out = BufWriter::with_capacity(PIECE, self.answer_file(stream));
            let mut lines = Lines { out, patience: Patience::new(stream), changes: 0 };
            let answer = tree.visit_changes(since, &below, |change| lines.put(change, &below));
            drop(turn);
            let changes = lines.changes;
            let kept = answer.changes.and_then(|()| {
                let mut file = lines.out.into_inner().map_err(|error| error.into_error())?;
                let bytes = file.finish()?;
                Ok((file, bytes))
            });
            let (clock, warning) = (answer.clock.to_string(), answer.warning);
            match kept {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
                Err(error) => {
                    let warning = Some(format!("the changes are not listed: {error}"));
                    return Ok(Some((Moment { clock, fresh: true, changes: 0, warning }, None)));
                }
                Ok(_) if answer.fresh => {
                    return Ok(Some((Moment { clock, fresh: true, changes: 0, warning }, None)));
                }
                Ok(kept) if !wait || changes > 0 => {
                    return Ok(Some((Moment { clock, fresh: false, changes, warning }, Some(kept))));
                }
                Ok(_) => {}
            }
            // Nothing until then concerns the client.
            since = Some(answer.clock);
            while !tree.wait_for_change(answer.clock, LOOK) && tree.is_there() {
                if has_gone(stream) {
                    return Ok(None);
                }
            }
        }
    }
}
