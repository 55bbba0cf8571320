//! The server: several trees behind a Unix socket. Each connection has a thread of its own, and carries one request.
//!
//! Users who may write to the socket learn all names of the trees, whatever their permissions in them. So the
//! socket has mode 0600 unless its owner wants another. A lock beside the socket (`flock` of `SOCKET.lock`) tells a
//! living server from the socket of one that was killed.
//!
//! A tree whose path leads elsewhere by now (renamed, unmounted, mounted over) is begun anew when it is asked about;
//! if that fails, the answer is an error, never an empty list. The list of trees does not change; each tree's lock
//! is held while it is begun anew, and not while it is asked, nor while its path is looked at.
//!
//! If a directory for snapshots is given, each tree has one there, unless it cannot be kept. A tree that is begun anew
//! uses the same snapshot.

mod answer_file;
mod changed;
mod connections;
mod find;
mod patience;
mod regex_memory;
mod turns;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, Timespec, flock};

pub(crate) use self::answer_file::{AnswerFile, KeptAnswers};
use self::connections::request;
pub(crate) use self::connections::{Connections, accept, is_of_master};
pub(crate) use self::patience::Patience;
use self::regex_memory::RegexMemory;
pub(crate) use self::regex_memory::RegexShare;
pub(crate) use self::turns::Turn;
use self::turns::Turns;
use crate::protocol::{Failure, IndexRequest, ShownTree, TreeList, WirePath};
use crate::snapshot::{SnapshotDir, SnapshotFile};
use crate::tree::{IndexPhase, IndexedTree, TreeLimits};

/// How long a client may take for its request, and for each part of the answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a waiting connection is looked at: its client may have gone.
const LOOK: Duration = Duration::from_secs(1);
/// How often the server looks whether a snapshot is to be written.
const SNAPSHOTS: Duration = Duration::from_secs(10);

/// Kinds of questions.
const KINDS: [&str; 3] = ["find", "changed", "list"];
const FIND: usize = 0;
const CHANGED: usize = 1;
const LIST: usize = 2;

/// The trees of a server, and its limits.
pub struct IndexServer {
    trees: Vec<ServedTree>,
    limits: TreeLimits,
    connections: Arc<Connections>,
    /// Questions so far, in the order of [`KINDS`].
    queries: [AtomicU64; KINDS.len()],
    /// Counts of the answers that are kept.
    kept: KeptAnswers,
    regexes: Arc<RegexMemory>,
    stop: Box<dyn Fn() + Send + Sync>,
}

struct ServedTree {
    path: PathBuf,
    snapshot: Option<Arc<SnapshotFile>>,
    tree: Mutex<Arc<IndexedTree>>,
    turns: Turns,
}

/// A bound socket that no other server has. Dropping it closes it.
pub struct IndexSocket {
    listener: UnixListener,
    path: PathBuf,
    lock: File,
    closed: AtomicBool,
}

impl Drop for IndexSocket {
    fn drop(&mut self) {
        self.close();
    }
}

impl IndexSocket {
    /// Removes the socket, and lets another server have its path. To be called before the process ends: when the end of
    /// a connection tells a client that the server has ended, the system may still hold the lock.
    pub fn close(&self) {
        if !self.closed.swap(true, Relaxed) {
            // Before the lock is given up.
            let _ = std::fs::remove_file(&self.path);
            let _ = flock(&self.lock, FlockOperation::Unlock);
        }
    }

    /// Binds the socket, with these permissions. Its directory is made if it is missing.
    ///
    /// # Errors
    /// A sentence: another server listens there, or the reason why it cannot be bound.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, String> {
        let shown = path.display();
        let said = |error: std::io::Error| format!("cannot listen at {shown}: {error}");
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir).map_err(said)?;
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock =
            File::options().create(true).write(true).truncate(false).mode(0o600).open(&name).map_err(said)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("a server listens at {shown} already"))?;
        match path.symlink_metadata() {
            Ok(there) if there.file_type().is_socket() => std::fs::remove_file(path).map_err(said)?,
            Ok(_) => {
                return Err(format!(
                    "cannot listen at {shown}: it exists, and is no socket; give another path"
                ));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(said(error)),
        }
        // Nobody can connect before the socket has its mode.
        let before = rustix::process::umask(Mode::from_raw_mode(0o777));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = listener.map_err(said)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(said)?;
        Ok(Self { listener, path: path.to_owned(), lock, closed: AtomicBool::new(false) })
    }
}

impl IndexServer {
    /// Begins to follow the trees, each with its snapshot. `stop` is called when a client asks for the server's end. A
    /// snapshot that cannot be kept is logged, and the tree goes without.
    ///
    /// # Errors
    /// A sentence that names the tree and the reason.
    pub fn start(
        paths: &[PathBuf],
        limits: TreeLimits,
        snapshots: Option<&SnapshotDir>,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let mut trees: Vec<ServedTree> = Vec::new();
        for path in paths {
            let shown = path.display();
            let path = path.canonicalize().map_err(|error| format!("cannot index {shown}: {error}"))?;
            if trees.iter().any(|tree| tree.path == path) {
                continue;
            }
            let snapshot = snapshots.and_then(|dir| {
                let opened = dir.of(&path).inspect_err(|why| tracing::warn!("{why}"));
                Some(Arc::new(opened.ok()?))
            });
            let tree = IndexedTree::start_with(&path, limits, snapshot.clone())
                .map_err(|why| format!("cannot index {shown}: {why}"))?;
            let (tree, turns) = (Mutex::new(Arc::new(tree)), Turns::default());
            trees.push(ServedTree { path, snapshot, tree, turns });
        }
        let queries = Default::default();
        let (connections, kept, regexes) = Default::default();
        Ok(Self { trees, limits, connections, queries, kept, regexes, stop: Box::new(stop) })
    }

    /// The trees as they are now, in the order of the command line.
    pub fn trees(&self) -> Vec<Arc<IndexedTree>> {
        self.trees.iter().map(|served| Arc::clone(&served.tree.lock())).collect()
    }

    /// Questions so far, by kind.
    pub fn queries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.into_iter().zip(self.queries.iter().map(|count| count.load(Relaxed)))
    }

    fn counts(&self, kind: usize) {
        self.queries[kind].fetch_add(1, Relaxed);
    }

    /// Writes snapshots for ever, each when it is time.
    pub fn keep_snapshots(&self) {
        loop {
            thread::sleep(SNAPSHOTS);
            self.save(false);
        }
    }

    /// Writes the snapshots of the trees that have changed, at the end of the server. None is written afterwards:
    /// another server may use them.
    pub fn save_all(&self) {
        self.save(true);
        self.trees.iter().filter_map(|served| served.snapshot.as_ref()).for_each(|snapshot| snapshot.close());
    }

    fn save(&self, at_end: bool) {
        for tree in self.trees() {
            if let Err(why) = tree.save(at_end) {
                tracing::warn!("{why}");
            }
        }
    }

    /// Serves connections for ever.
    ///
    /// # Errors
    /// The reason why no connection can be accepted any more.
    pub fn serve(self: &Arc<Self>, socket: &IndexSocket) -> std::io::Error {
        let server = Arc::clone(self);
        // A client that has gone needs no answer.
        accept(socket, &self.connections, move |stream| drop(server.answer(stream)))
    }

    fn answer(&self, stream: &UnixStream) -> std::io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        match serde_json::from_slice(&request(stream, PATIENCE)?) {
            Err(error) => say(stream, &failure(format!("this is no request: {error}"))),
            Ok(IndexRequest::List) => {
                self.counts(LIST);
                say(stream, &self.list())
            }
            Ok(IndexRequest::Stop) if !is_of_master(stream) => {
                say(stream, &failure("only root and the index's own user may end it".into()))
            }
            Ok(IndexRequest::Stop) => {
                (self.stop)();
                // The end of the process is the answer.
                stream.set_read_timeout(None)?;
                (&mut &*stream).read_exact(&mut [0])
            }
            Ok(IndexRequest::Find(request)) => {
                self.counts(FIND);
                match self.find(stream, &request) {
                    Ok(Some((answer, file))) => {
                        say(stream, &answer)?;
                        find::send(stream, file, answer.bytes)
                    }
                    Ok(None) => Ok(()),
                    Err(error) => say(stream, &failure(error)),
                }
            }
            Ok(IndexRequest::Changed { path, since, wait }) => {
                self.counts(CHANGED);
                match self.changed(stream, &path, since.as_deref(), wait) {
                    Ok(Some((moment, file))) => {
                        say(stream, &moment)?;
                        file.map_or(Ok(()), |(file, bytes)| find::send(stream, file, bytes))
                    }
                    Ok(None) => Ok(()),
                    Err(error) => say(stream, &failure(error)),
                }
            }
        }
    }

    /// The tree that a path is in, and the path in it. If its path leads elsewhere by now, it is begun anew.
    pub(crate) fn tree_of(&self, path: &[u8]) -> Result<(Arc<IndexedTree>, Vec<u8>), String> {
        let path = &plain(path)[..];
        let inside = |served: &ServedTree| -> Option<Vec<u8>> {
            let root = served.path.as_os_str().as_bytes();
            let rest = path.strip_prefix(root)?;
            match (root, rest) {
                (b"/", rest) => Some(rest.to_vec()),
                (_, b"") => Some(Vec::new()),
                (_, rest) => Some(rest.strip_prefix(b"/")?.to_vec()),
            }
        };
        let found = self.trees.iter().filter_map(|served| Some((served, inside(served)?)));
        let (served, below) = found
            .min_by_key(|(_, below)| below.len())
            .filter(|(_, below)| !below.split(|byte| *byte == b'/').any(|name| matches!(name, b"." | b"..")))
            .ok_or_else(|| format!("{} is in no tree of this index", String::from_utf8_lossy(path)))?;
        let known = Arc::clone(&served.tree.lock());
        if known.is_there() {
            return Ok((known, below));
        }
        let mut tree = served.tree.lock();
        // Else another question has begun it anew since.
        if Arc::ptr_eq(&known, &tree) {
            let begun = IndexedTree::start_with(&served.path, self.limits, served.snapshot.clone());
            *tree = Arc::new(begun.map_err(|why| {
                format!(
                    "{} is not the directory any more that was indexed, nor can it be: {why}",
                    served.path.display()
                )
            })?);
        }
        Ok((Arc::clone(&tree), below))
    }

    /// Waits until an answer may be made from one of its trees; nothing if the client has gone.
    pub(crate) fn turn(&self, tree: &IndexedTree, stream: &UnixStream) -> Option<Turn<'_>> {
        self.trees.iter().find(|served| served.path == tree.path())?.turns.wait(stream)
    }

    /// The memory of a question's regular expressions.
    pub(crate) fn regex_share(&self, stream: &UnixStream) -> RegexShare {
        RegexShare::new(&self.regexes, stream)
    }

    /// Keeps an answer.
    pub(crate) fn answer_file<'a>(&'a self, stream: &'a UnixStream) -> AnswerFile<'a> {
        AnswerFile::usual(stream, &self.kept)
    }

    fn list(&self) -> TreeList {
        let trees = self.trees.iter().map(|served| {
            let tree = Arc::clone(&served.tree.lock());
            let figures = tree.figures();
            let (state, lost) = match figures.phase {
                IndexPhase::Scanning => ("scanning", None),
                IndexPhase::Checking => ("checking", None),
                IndexPhase::Following => ("following", None),
                IndexPhase::Lost(why) => ("lost", Some(why)),
            };
            let unread = |last| format!("{} names could not be read, lastly {last}", figures.unread.0);
            let moved = || (!tree.is_there()).then(|| "the path leads elsewhere by now".to_owned());
            ShownTree {
                path: WirePath::new(served.path.as_os_str().as_bytes()),
                state: state.into(),
                names: figures.names,
                bytes: figures.bytes as u64,
                scans: figures.scans,
                by_directory: figures.by_directory,
                warning: lost
                    .or_else(moved)
                    .or_else(|| figures.unread.1.map(unread))
                    .or(figures.snapshot_failure),
                snapshot: figures.snapshot.map(seconds),
            }
        });
        TreeList { trees: trees.collect() }
    }
}

/// A path with one slash between its names, and none at its end. A relative one stays as it is, and is in no tree.
fn plain(path: &[u8]) -> Vec<u8> {
    if path.first() != Some(&b'/') {
        return path.to_vec();
    }
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    [b"/", &names.join(&b'/')[..]].concat()
}

/// Since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn failure(error: String) -> Failure {
    Failure { error }
}

fn say(stream: &UnixStream, what: &impl serde::Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    (&mut &*stream).write_all(&line)
}

/// Whether the other side has closed the connection. One that only sends nothing more still reads.
fn has_gone(stream: &UnixStream) -> bool {
    // HUP comes unasked.
    let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_socket_is_another_servers_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sock");
        let old = IndexSocket::bind(&path, 0o600).expect("a socket");
        let why = IndexSocket::bind(&path, 0o600).err().expect("a refusal");
        assert!(why.starts_with("a server listens at "), "{why}");
        old.close();
        assert!(!path.exists());
        let new = IndexSocket::bind(&path, 0o600).expect("a socket");
        drop(old);
        assert!(path.exists());
        drop(new);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_socket_gives_way_to_a_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sock");
        std::fs::write(&path, "text").expect("a file");
        let why = IndexSocket::bind(&path, 0o600).err().expect("a refusal");
        assert!(why.ends_with("it exists, and is no socket; give another path"), "{why}");
        assert_eq!(std::fs::read(&path).expect("the file"), b"text");
        std::fs::remove_file(&path).expect("the file");
        // A server that was killed leaves its own.
        drop(UnixListener::bind(&path).expect("a socket"));
        assert!(path.exists() && IndexSocket::bind(&path, 0o600).is_ok());
    }
}
