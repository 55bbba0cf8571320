//! The client: asks a server over its socket. Each call is a connection, and waits for the answer.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use crate::find::{Expression, FindContext};
use crate::protocol::{
    Failure, FindAnswer, FindRequest, IndexRequest, Moment, NamedFile, ShownChange, TreeList, WirePath,
    hex_of,
};

/// Where a server is asked.
#[derive(Clone, Debug)]
pub struct IndexClient {
    socket: PathBuf,
}

/// Bytes of an answer that are read at a time.
const PIECE: usize = 128 << 10;

/// The name of the socket in its directory.
const NAME: &str = "index.sock";

/// The usual sockets: of this user, if the session has a runtime directory, and of the system.
fn usual() -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    own.map(|dir| Path::new(&dir).join("uvfs").join(NAME)).into_iter().chain([system()])
}

fn system() -> PathBuf {
    Path::new("/run/uvfs").join(NAME)
}

/// The socket of a server that this process starts: `/run/uvfs/index.sock` for root, else `uvfs/index.sock` in
/// `$XDG_RUNTIME_DIR`.
pub fn usual_socket() -> PathBuf {
    if rustix::process::geteuid().is_root() { system() } else { usual().next().unwrap_or_else(system) }
}

/// The directory of [`usual_socket`], made if it is missing. One that was made for root's server is no place for this user's.
///
/// # Errors
/// A sentence.
pub fn make_usual_directory() -> Result<(), String> {
    let socket = usual_socket();
    let dir = socket.parent().unwrap_or(&socket);
    let refusal = match std::fs::create_dir_all(dir) {
        Ok(()) => not_writable(dir).map(|error| (socket.as_path(), error)),
        Err(error) => Some((dir, error)),
    };
    refusal.map_or(Ok(()), |(path, error)| {
        let remedy = match socket == system() {
            true if !rustix::process::geteuid().is_root() => {
                "; XDG_RUNTIME_DIR is not set, so there is no usual place for this user's socket: set it, or give --socket PATH"
            }
            _ => "; give --socket PATH",
        };
        Err(format!("cannot make {}: {error}{remedy}", path.display()))
    })
}

/// The error of a directory that this process may not make files in.
fn not_writable(dir: &Path) -> Option<std::io::Error> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    // Another error, as of a kernel without faccessat2, is for the attempt itself to meet.
    match accessat(CWD, dir, wanted, AtFlags::EACCESS) {
        Err(error @ Errno::ACCESS) => Some(error.into()),
        _ => None,
    }
}

impl IndexClient {
    /// A client of the server at a socket; without one, at the first of the usual ones that exists.
    pub fn new(socket: Option<&Path>) -> Self {
        let first = || usual().find(|path| path.exists()).unwrap_or_else(usual_socket);
        Self { socket: socket.map_or_else(first, Path::to_owned) }
    }

    /// The socket that is asked.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks for the changes at or below a path. Symbolic links in the path are followed. While the tree is being read,
    /// everything may have changed.
    ///
    /// # Errors
    /// A sentence.
    pub fn changed(
        &self,
        path: &Path,
        since: Option<&str>,
        wait: bool,
    ) -> Result<(Moment, Vec<ShownChange>), String> {
        let path = resolved(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let path = WirePath::new(path.as_os_str().as_bytes());
        let since = since.map(str::to_owned);
        let mut answer = self.ask(&IndexRequest::Changed { path, since, wait })?;
        let moment: Moment = read(&mut answer)?;
        let changes = (0..moment.changes).map(|_| read(&mut answer)).collect::<Result<_, _>>()?;
        Ok((moment, changes))
    }

    /// Asks for the output of find(1) for these words, in this process's working directory and time zone, or for a
    /// JSON object for each file that it would print. The second value reads it. Files that the words name are looked at
    /// here, with this process's permissions.
    ///
    /// # Errors
    /// A sentence.
    pub fn find<A: AsRef<OsStr>>(
        &self,
        args: &[A],
        terminal: bool,
        json: bool,
    ) -> Result<(FindAnswer, impl BufRead + use<A>), String> {
        let request = search(args, terminal, json)?;
        let mut answer = self.ask(&IndexRequest::Find(request))?;
        let found: FindAnswer = read(&mut answer)?;
        let bytes = found.bytes;
        Ok((found, answer.take(bytes)))
    }

    /// The trees of the server.
    ///
    /// # Errors
    /// A sentence.
    pub fn list(&self) -> Result<TreeList, String> {
        read(&mut self.ask(&IndexRequest::List)?)
    }

    /// Ends the server, and waits until it has ended.
    ///
    /// # Errors
    /// A sentence.
    pub fn stop(&self) -> Result<(), String> {
        let mut rest = Vec::new();
        // A connection that is cut off is the sign of a process that ended.
        let _ = self.ask(&IndexRequest::Stop)?.read_to_end(&mut rest);
        match serde_json::from_slice(&rest) {
            Ok(Failure { error }) => Err(error),
            Err(_) => Ok(()),
        }
    }

    fn ask(&self, request: &IndexRequest) -> Result<BufReader<UnixStream>, String> {
        let at = self.socket.display();
        let said = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                let usual = self.socket == usual_socket();
                let socket = if usual { String::new() } else { format!("--socket {at} ") };
                format!("no index is served at {at}; start one with: uvfs index {socket}DIR")
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("the index at {at} does not let this user ask (see uvfs index --mode)")
            }
            _ => format!("cannot ask the index at {at}: {error}"),
        };
        let mut stream = UnixStream::connect(&self.socket).map_err(said)?;
        let mut line = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        line.push(b'\n');
        match stream.write_all(&line) {
            // The server has refused the connection, and its sentence can be read.
            Err(error) if is_closed(&error) => {}
            written => written.map_err(said)?,
        }
        Ok(BufReader::with_capacity(PIECE, stream))
    }
}

fn is_closed(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset)
}

/// The path without symbolic links. Its last parts need not exist: they may have existed.
fn resolved(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for above in path.ancestors() {
        if let Ok(found) = above.canonicalize() {
            // `join` with an empty path would add a slash.
            let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
            return Ok(if rest.as_os_str().is_empty() { found } else { found.join(rest) });
        }
    }
    Ok(path)
}

/// The request for a search. The server looks at no file that a client names, so that is done here.
fn search<A: AsRef<OsStr>>(args: &[A], terminal: bool, json: bool) -> Result<FindRequest, String> {
    let words: Vec<&[u8]> = args.iter().map(|word| word.as_ref().as_bytes()).collect();
    let (zone, zone_file) = zone()?;
    let here = FindContext::of_this_process();
    let files = RefCell::new(Vec::new());
    let lstat = |path: &[u8]| {
        let seen = (here.lstat)(path)?;
        files.borrow_mut().push(NamedFile::new(path, &seen));
        Ok(seen)
    };
    // The server knows the zone, which changes only the meaning of dates.
    let context = FindContext { lstat: &lstat, zone: TimeZone::UTC, ..here };
    let expression = Expression::parse_in(&words, &context).map_err(|error| error.to_string())?;
    let starts = expression.starting_points().iter().map(|start| {
        let found = starting_point(start).map_err(|error| format!("{}: {error}", shown(start)))?;
        Ok(found.map(|found| WirePath::new(found.as_os_str().as_bytes())))
    });
    Ok(FindRequest {
        args: words.iter().map(|word| WirePath::new(word)).collect(),
        starts: starts.collect::<Result<_, String>>()?,
        files: files.take(),
        zone,
        zone_file,
        terminal,
        json,
    })
}

/// The place of a starting point, as find has it: symbolic links on the way are followed, one at the end is not unless
/// a slash stands behind it. Nothing if it does not exist. The index may know names that this user may not look at.
fn starting_point(written: &[u8]) -> std::io::Result<Option<PathBuf>> {
    let whole = std::env::current_dir()?.join(OsStr::from_bytes(written));
    let last = written.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let found = if matches!(last, b"" | b"." | b"..") {
        whole.canonicalize()
    } else {
        let above = whole.parent().unwrap_or(Path::new("/"));
        above.canonicalize().map(|above| above.join(OsStr::from_bytes(last))).and_then(|found| {
            found.symlink_metadata()?;
            Ok(found)
        })
    };
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => resolved(&whole).map(Some),
        Err(_) => Ok(None),
    }
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Longest file of a time zone.
const ZONE: u64 = 128 << 10;

/// `TZ`, or the content of the file that it names by its path.
fn zone() -> Result<(Option<String>, Option<String>), String> {
    let Some(zone) = std::env::var_os("TZ") else { return Ok((None, None)) };
    let text = zone.to_str().ok_or("the time zone (TZ) is not UTF-8")?;
    let text = text.strip_prefix(':').unwrap_or(text);
    if !text.starts_with('/') {
        return Ok((Some(text.to_owned()), None));
    }
    let mut bytes = Vec::new();
    let read = File::open(text).and_then(|file| file.take(ZONE + 1).read_to_end(&mut bytes));
    let failed = |why: &str| format!("the file of the time zone (TZ), {text}, cannot be read: {why}");
    read.map_err(|error| failed(&error.to_string()))?;
    if bytes.len() as u64 > ZONE {
        return Err(failed("it is too long for one"));
    }
    Ok((None, Some(hex_of(&bytes))))
}

/// Reads a line of the answer.
fn read<T: DeserializeOwned>(answer: &mut impl BufRead) -> Result<T, String> {
    let mut line = Vec::new();
    answer.read_until(b'\n', &mut line).map_err(|error| format!("the index does not answer: {error}"))?;
    if !line.ends_with(b"\n") {
        return Err("the index ended before its answer did".into());
    }
    if let Ok(Failure { error }) = serde_json::from_slice(&line) {
        return Err(error);
    }
    serde_json::from_slice(&line).map_err(|error| format!("the index's answer is not understood: {error}"))
}
