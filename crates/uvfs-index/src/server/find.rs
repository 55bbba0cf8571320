//! The answer to `uvfs find`.
//!
//! A search holds the table's lock, and a client may read its answer slowly. So the answer is written to a temporary
//! file first (memory up to [`IN_MEMORY`]) and sent afterwards. The first byte comes when the search has ended.
//!
//! The server resolves the client's paths as find does: symbolic links on the way are followed, one at the end is not
//! unless a slash stands behind it.

use std::io::{BufWriter, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{ffi::OsStr, io};

use jiff::tz::TimeZone;
use tempfile::SpooledTempFile;

use super::{IndexServer, LOOK, has_gone};
use crate::find::{Expression, FileAttributes, FindContext, FindPrinter, FindSink, JsonPrinter, SearchEnd};
use crate::protocol::{FindAnswer, FindRequest};
use crate::tree::{FindStart, IndexPhase, IndexedTree};

/// Bytes of an answer that are kept in memory.
const IN_MEMORY: usize = 16 << 20;

/// The file that a path leads to, as an absolute path. The last component is followed only if something stands behind
/// it.
fn resolved(cwd: &Path, path: &[u8]) -> io::Result<PathBuf> {
    let whole = cwd.join(OsStr::from_bytes(path));
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if matches!(last, b"" | b"." | b"..") {
        return whole.canonicalize();
    }
    let above = whole.parent().unwrap_or(Path::new("/"));
    Ok(above.canonicalize()?.join(OsStr::from_bytes(last)))
}

type Answer = BufWriter<SpooledTempFile>;

/// Prints what was found.
enum Printer {
    Text(Box<FindPrinter<Answer>>),
    Json(JsonPrinter<Answer>),
}

impl Printer {
    fn sink(&mut self) -> &mut dyn FindSink {
        match self {
            Self::Text(printer) => printer.as_mut(),
            Self::Json(printer) => printer,
        }
    }

    /// The number of files that could not be read, and the output.
    fn end(self) -> (u64, Answer) {
        match self {
            Self::Text(printer) => (printer.unreadable_files(), printer.into_inner()),
            Self::Json(printer) => (printer.unreadable_files(), printer.into_inner()),
        }
    }
}

/// A starting point, and its tree.
type Start = (Arc<IndexedTree>, FindStart);

impl IndexServer {
    /// Searches; nothing if the client has gone.
    pub(super) fn find(
        &self,
        stream: &UnixStream,
        request: &FindRequest,
    ) -> Result<Option<(FindAnswer, SpooledTempFile)>, String> {
        let path = |path: &crate::protocol::WirePath| path.bytes().ok_or("a path is no path".to_owned());
        let cwd = PathBuf::from(std::ffi::OsString::from_vec(path(&request.cwd)?));
        let args = request.args.iter().map(path).collect::<Result<Vec<_>, _>>()?;
        let lstat = |path: &[u8]| {
            let path = cwd.join(OsStr::from_bytes(path));
            Ok(FileAttributes::from(&path.symlink_metadata()?))
        };
        let zone = request.zone.as_deref().filter(|zone| !zone.is_empty());
        let zone = zone.and_then(|zone| TimeZone::get(zone.trim_start_matches(':')).ok());
        let zone = zone.unwrap_or_else(TimeZone::system);
        let context = FindContext { zone, lstat: &lstat, ..FindContext::of_this_process() };
        let expression = Expression::parse_in(&args, &context).map_err(|error| error.to_string())?;
        if let Some(word) = expression.needs_atime() {
            return Err(format!("{word} needs the time of the last read, which an index does not know"));
        }
        let mut messages = expression.warnings().to_vec();
        let starts = self.starts(&cwd, expression.starting_points(), &mut messages)?;
        let mut failed = messages.len() > expression.warnings().len();
        let mut warning = None;
        let out = BufWriter::new(SpooledTempFile::new(IN_MEMORY));
        let mut printer = if request.json {
            Printer::Json(JsonPrinter::new(out, &expression)?)
        } else {
            Printer::Text(Box::new(FindPrinter::new(out, request.terminal, &context)))
        };
        for (tree, start) in starts {
            while tree.wait_scanned(LOOK) == IndexPhase::Scanning {
                if has_gone(stream) {
                    return Ok(None);
                }
            }
            let outcome = tree.find(&expression, &start, printer.sink())?;
            warning = outcome.unchecked.map(|written| unchecked(tree.path(), written)).or(warning);
            if !outcome.exists {
                messages.push(no_such(&start.written));
            }
            let at = |path: &Vec<u8>| tree.path().join(OsStr::from_bytes(path)).display().to_string();
            let mounted_on = outcome.mounted_on.iter().map(at);
            messages.extend(mounted_on.map(|dir| {
                format!("{dir}: another file system is mounted there, which this index does not have (-xdev leaves it out)")
            }));
            failed |= !outcome.exists || !outcome.mounted_on.is_empty();
            if outcome.end == SearchEnd::Quit {
                break;
            }
        }
        let said = |error: io::Error| format!("the answer cannot be kept: {error}");
        let (unreadable, out) = printer.end();
        failed |= unreadable > 0;
        let mut file = out.into_inner().map_err(|error| said(error.into_error()))?;
        let bytes = file.stream_position().map_err(said)?;
        file.rewind().map_err(said)?;
        Ok(Some((FindAnswer { bytes, failed, messages, warning }, file)))
    }

    /// The starting points in their trees. Those that do not exist have a message.
    fn starts(
        &self,
        cwd: &Path,
        written: &[Vec<u8>],
        messages: &mut Vec<String>,
    ) -> Result<Vec<Start>, String> {
        let mut starts = Vec::new();
        for written in written {
            let Ok(path) = resolved(cwd, written) else {
                messages.push(no_such(written));
                continue;
            };
            match self.tree_of(path.as_os_str().as_bytes()) {
                Ok((tree, below)) => starts.push((tree, FindStart { written: written.clone(), below })),
                // As find, which goes on with the others.
                Err(_) if path.symlink_metadata().is_err() => messages.push(no_such(written)),
                Err(why) => return Err(why),
            }
        }
        Ok(starts)
    }
}

fn unchecked(tree: &Path, written: std::time::SystemTime) -> String {
    let age = written.elapsed().unwrap_or_default().as_secs();
    format!(
        "{}: the names are those of {age} seconds ago, from a snapshot; the index still looks what has changed since",
        tree.display()
    )
}

fn no_such(path: &[u8]) -> String {
    format!("'{}': No such file or directory", String::from_utf8_lossy(path))
}

/// Sends the answer behind its first line.
pub(super) fn send(stream: &UnixStream, mut file: SpooledTempFile, bytes: u64) -> io::Result<()> {
    let sent = io::copy(&mut Read::by_ref(&mut file).take(bytes), &mut &*stream)?;
    (&mut &*stream).flush()?;
    if sent == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
