//! The answer to `uvfs find`.
//!
//! The answer is kept first (see `answer_file`) and sent afterwards. The first byte comes when the search has ended.
//!
//! The server looks at no path that a client names: it has other permissions than its client. The client sends the
//! places of starting points, the attributes of the files that operands name, and the file of its time zone.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use std::{ffi::OsStr, io};

use super::answer_file::AnswerFile;
use super::patience::{Patience, PatientSink};
use super::{IndexServer, LOOK, has_gone};
use crate::find::{
    Complaints, Expression, FindContext, FindPrinter, FindSink, JsonPrinter, SearchEnd, quoted,
};
use crate::protocol::{FindAnswer, FindRequest, WirePath, of_hex};
use crate::tree::{FindStart, IndexPhase, IndexedTree};
use jiff::tz::TimeZone;

/// Bytes of an answer that are copied at a time.
const PIECE: usize = 128 << 10;

type Answer<'a> = BufWriter<AnswerFile<'a>>;

/// Prints what was found.
enum Printer<'a> {
    Text(Box<FindPrinter<Answer<'a>>>),
    Json(Box<JsonPrinter<Answer<'a>>>),
}

impl<'a> Printer<'a> {
    fn sink(&mut self) -> &mut dyn FindSink {
        match self {
            Self::Text(printer) => &mut **printer,
            Self::Json(printer) => &mut **printer,
        }
    }

    /// Sentences about what could not be read, and the output.
    fn end(self) -> (Vec<String>, Answer<'a>) {
        match self {
            Self::Text(printer) => (printer.complaints(), printer.into_inner()),
            Self::Json(printer) => (printer.complaints(), printer.into_inner()),
        }
    }
}

/// A starting point, and its tree.
type Start = (Arc<IndexedTree>, FindStart);

impl IndexServer {
    /// Searches; nothing if the client has gone.
    pub(super) fn find<'a>(
        &'a self,
        stream: &'a UnixStream,
        request: &FindRequest,
    ) -> Result<Option<(FindAnswer, AnswerFile<'a>)>, String> {
        let path = |path: &WirePath| path.bytes().ok_or("a path is no path".to_owned());
        let places = request.starts.iter().map(|start| start.as_ref().map(path).transpose());
        let places = places.collect::<Result<Vec<_>, _>>()?;
        if !self.wait_scanned(stream, &places)? {
            return Ok(None);
        }
        let args = request.args.iter().map(path).collect::<Result<Vec<_>, _>>()?;
        let files = request.files.iter().map(|file| Ok((path(&file.path)?, file.attributes())));
        let files = files.collect::<Result<HashMap<_, _>, String>>()?;
        let lstat = |path: &[u8]| {
            let unknown = || io::Error::other("the request does not have its attributes");
            files.get(path).copied().ok_or_else(unknown)
        };
        let zone = zone_of(request)?;
        // Dropped after the expression.
        let share = self.regex_share(stream);
        let regex_memory = |more| share.take(more);
        let here = FindContext::of_this_process();
        let context = FindContext { zone, lstat: &lstat, regex_memory: &regex_memory, ..here };
        let expression = Expression::parse_in(&args, &context).map_err(|error| error.to_string())?;
        if let Some(word) = expression.needs_atime() {
            return Err(format!("{word} needs the time of the last read, which an index does not know"));
        }
        let mut complaints = Complaints::default();
        let starts = self.starts(expression.starting_points(), &places, &mut complaints)?;
        let out = BufWriter::with_capacity(PIECE, self.answer_file(stream));
        let mut printer = if request.json {
            Printer::Json(Box::new(JsonPrinter::new(out, &expression)?))
        } else {
            Printer::Text(Box::new(FindPrinter::new(out, request.terminal, &context)))
        };
        let mut warning = None;
        let mut sink = PatientSink::new(printer.sink(), Patience::new(stream));
        for (tree, start) in starts {
            let waits = Instant::now();
            let Some(_turn) = self.turn(&tree, stream) else { return Ok(None) };
            sink.patience.has_waited(waits.elapsed());
            sink.patience.look().map_err(|error| error.to_string())?;
            let outcome = tree.find(&expression, &start, &mut sink)?;
            warning = outcome.unchecked.map(|written| unchecked(tree.path(), written)).or(warning);
            if !outcome.exists {
                complaints.say(no_such(&start.written));
            }
            for dir in &outcome.mounted_on {
                let at = tree.path().join(OsStr::from_bytes(dir));
                complaints.say(mounted_on(at.as_os_str().as_bytes()));
            }
            if outcome.end == SearchEnd::Quit {
                break;
            }
        }
        let said = |error: io::Error| format!("the answer cannot be kept: {error}");
        let (unreadable, out) = printer.end();
        let failed = complaints.count() > 0 || !unreadable.is_empty();
        let messages = expression.warnings().iter().cloned();
        let messages = messages.chain(complaints.sentences()).chain(unreadable).collect();
        let mut file = out.into_inner().map_err(|error| said(error.into_error()))?;
        let bytes = file.finish().map_err(said)?;
        Ok(Some((FindAnswer { bytes, failed, messages, warning }, file)))
    }

    /// Waits until the trees of these paths have been read. False if the client has gone.
    fn wait_scanned(&self, stream: &UnixStream, places: &[Option<Vec<u8>>]) -> Result<bool, String> {
        for place in places.iter().flatten() {
            let (tree, _) = self.tree_of(place)?;
            while tree.wait_scanned(LOOK) == IndexPhase::Scanning {
                if has_gone(stream) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The starting points in their trees. Those that do not exist have a sentence.
    fn starts(
        &self,
        written: &[Vec<u8>],
        places: &[Option<Vec<u8>>],
        complaints: &mut Complaints,
    ) -> Result<Vec<Start>, String> {
        if written.len() != places.len() {
            return Err("the request does not have the places of its starting points: use a client of the \
                        server's version"
                .into());
        }
        let mut starts = Vec::new();
        for (written, place) in written.iter().zip(places) {
            match place {
                Some(path) => {
                    let (tree, below) = self.tree_of(path)?;
                    starts.push((tree, FindStart { written: written.clone(), below }));
                }
                // As find, which goes on with the others.
                None => complaints.say(no_such(written)),
            }
        }
        Ok(starts)
    }
}

/// The client's time zone: as tzset(3) has it, but an unknown one is refused.
fn zone_of(request: &FindRequest) -> Result<TimeZone, String> {
    if let Some(file) = &request.zone_file {
        let zone = of_hex(file).and_then(|bytes| TimeZone::tzif("", &bytes).ok());
        return zone.ok_or_else(|| "the file that TZ names is not that of a time zone".into());
    }
    match request.zone.as_deref() {
        None => Ok(TimeZone::system()),
        Some("") => Ok(TimeZone::UTC),
        Some(zone) => TimeZone::get(zone).or_else(|_| TimeZone::posix(zone)).map_err(|_| {
            format!("the time zone {zone:?} (TZ) is not known: give one such as Europe/Paris or CET-1CEST,M3.5.0,M10.5.0/3")
        }),
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
    format!("{}: No such file or directory", quoted(path))
}

fn mounted_on(path: &[u8]) -> String {
    format!(
        "{}: another file system is mounted there, which this index does not have (-xdev leaves it out)",
        quoted(path)
    )
}

/// Sends the answer behind its first line.
pub(super) fn send(stream: &UnixStream, mut file: AnswerFile<'_>, bytes: u64) -> io::Result<()> {
    let mut answer = BufReader::with_capacity(PIECE, Read::by_ref(&mut file).take(bytes));
    let mut sent = 0;
    loop {
        let piece = answer.fill_buf()?;
        if piece.is_empty() {
            break;
        }
        (&mut &*stream).write_all(piece)?;
        let len = piece.len();
        sent += len as u64;
        answer.consume(len);
    }
    if sent == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::super::regex_memory::ALL;
    use super::*;
    use crate::tree::TreeLimits;

    #[test]
    fn a_regular_expression_without_memory_is_refused() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let server = match IndexServer::start(&[dir.path().to_owned()], TreeLimits::default(), None, || {}) {
            Ok(server) => server,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let (stream, _client) = UnixStream::pair().expect("sockets");
        let path = serde_json::to_string(dir.path()).expect("JSON");
        let text = format!(r#"{{"args":[{path},"-regex",".*"],"starts":[{path}],"zone":"UTC"}}"#);
        let request: FindRequest = serde_json::from_str(&text).expect("a request");
        let found = || server.find(&stream, &request).map(|found| found.map(|(answer, _)| answer.bytes));
        let bytes = dir.path().as_os_str().len() as u64 + 1;
        assert_eq!(found(), Ok(Some(bytes)));
        let others = server.regex_share(&stream);
        assert!(others.take(ALL - 1000), "the first question gave its memory back");
        assert!(found().is_err_and(|why| why.contains("of all questions take too much memory")));
        drop(others);
        assert_eq!(found(), Ok(Some(bytes)));
    }
}
