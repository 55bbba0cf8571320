//! Accepting connections, within bounds for each user, and reading a request.
//!
//! Each connection has a thread. So that one user cannot keep the others out, a user has at most [`OF_USER`] of the
//! [`ALL`], and the last [`RESERVE`] are for root and the server's own user, who have no bound of their own.
//!
//! The mutex of the counts is a leaf.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use super::{IndexSocket, failure, say};
use crate::protocol::LONGEST;

/// Connections at a time; further ones are refused with a sentence.
const ALL: usize = 256;
/// Those that only root and the server's own user get.
const RESERVE: usize = 16;
/// Connections of another user.
const OF_USER: usize = 64;
/// How long to wait when the system has no file or memory left for a connection. Nothing tells when it has again: the
/// socket stays readable meanwhile.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of each user.
#[derive(Default)]
pub(crate) struct Connections {
    of: Mutex<HashMap<u32, usize>>,
}

/// A connection that is counted.
struct Counted {
    connections: Arc<Connections>,
    user: u32,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut of = self.connections.of.lock();
        if let Some(count) = of.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                of.remove(&self.user);
            }
        }
    }
}

impl Connections {
    /// Counts a connection, unless there are too many.
    fn count(self: &Arc<Self>, user: u32) -> Result<Counted, String> {
        let mut of = self.of.lock();
        let all: usize = of.values().sum();
        let own = of.get(&user).copied().unwrap_or(0);
        if all >= if is_master(user) { ALL } else { ALL - RESERVE } {
            return Err("the server has too many connections; ask again later".into());
        }
        if !is_master(user) && own >= OF_USER {
            return Err(format!("this user has {own} connections to the server already; end some of them"));
        }
        of.insert(user, own + 1);
        Ok(Counted { connections: Arc::clone(self), user })
    }
}

/// Whether a user is root or the server's own.
pub(super) fn is_master(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// The user at the other side, at the moment of its connect(2).
pub(super) fn user_of(stream: &UnixStream) -> io::Result<u32> {
    Ok(socket_peercred(stream)?.uid.as_raw())
}

/// Whether root or the server's own user is at the other side.
pub(crate) fn is_of_master(stream: &UnixStream) -> bool {
    user_of(stream).is_ok_and(is_master)
}

/// Whether accept(2) may succeed later.
fn passes(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS))
}

/// Accepts connections for ever, and serves each in a thread.
pub(crate) fn accept(
    socket: &IndexSocket,
    connections: &Arc<Connections>,
    answer: impl Fn(&UnixStream) + Clone + Send + 'static,
) -> io::Error {
    let mut said = false;
    loop {
        let stream = match socket.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                continue;
            }
            Err(error) if passes(&error) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(%error, "connections wait until the system can accept them");
                }
                thread::sleep(PAUSE);
                continue;
            }
            Err(error) => return error,
        };
        said = false;
        let counted = user_of(&stream).map_err(|error| error.to_string());
        let counted = match counted.and_then(|user| connections.count(user)) {
            Ok(counted) => counted,
            Err(why) => {
                let _ = say(&stream, &failure(why));
                continue;
            }
        };
        let answer = answer.clone();
        let thread = thread::Builder::new().name("uvfs-client".into());
        let spawned = thread.spawn(move || {
            answer(&stream);
            drop(counted);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "a connection is cut off: there is no thread for it");
        }
    }
}

/// Reads a request, which must be there after `patience`.
pub(super) fn request(stream: &UnixStream, patience: Duration) -> io::Result<Vec<u8>> {
    let until = Instant::now() + patience;
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    while (line.len() as u64) < LONGEST {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match (&mut &*stream).read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => {
                // Each byte is looked at once, however slowly they come.
                let end = chunk[..read].iter().position(|byte| *byte == b'\n');
                line.extend_from_slice(&chunk[..end.unwrap_or(read)]);
                if end.is_some() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn one_user_keeps_neither_others_nor_root_out() {
        let connections = Arc::new(Connections::default());
        let of = |user, most| (0..most).map_while(|_| connections.count(user).ok()).collect::<Vec<_>>();
        let first = of(1001, ALL);
        assert_eq!(first.len(), OF_USER);
        let others: Vec<_> = (2001..2010).flat_map(|user| of(user, ALL)).collect();
        assert_eq!(first.len() + others.len(), ALL - RESERVE);
        let why = connections.count(3001).err().expect("too many");
        assert!(why.starts_with("the server has too many connections"), "{why}");
        let roots = of(0, ALL);
        assert_eq!(roots.len(), RESERVE);
        drop((first, others, roots));
        assert!(connections.of.lock().is_empty());
        assert!(connections.count(3001).is_ok());
    }

    /// Each byte comes in time, but the whole does not.
    #[test]
    fn a_request_has_one_deadline() {
        let (server, mut client) = UnixStream::pair().expect("sockets");
        // It has passed, though there is something to read. This needs no sender that is in time.
        client.write_all(b"x").expect("a socket");
        let error = request(&server, Duration::ZERO).expect_err("too late");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let slow = thread::spawn(move || {
            while client.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let error = request(&server, Duration::from_millis(200)).expect_err("too slow");
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        drop(server);
        slow.join().expect("a thread");
    }

    #[test]
    fn a_request_is_a_line() {
        let (server, mut client) = UnixStream::pair().expect("sockets");
        client.write_all(b"{}\nrest").expect("a socket");
        assert_eq!(request(&server, Duration::from_secs(9)).expect("a line"), b"{}");
        drop(client);
    }
}
