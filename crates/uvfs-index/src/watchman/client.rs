//! A client for the command line: sends a command, and hands on the server's lines.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The name of the socket in its directory.
const NAME: &str = "watchman.sock";

/// The socket of a client that is told none: `$WATCHMAN_SOCK`, else `watchman.sock` beside the usual socket of an
/// index.
pub fn watchman_socket() -> PathBuf {
    match std::env::var_os("WATCHMAN_SOCK").filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => crate::usual_socket().with_file_name(NAME),
    }
}

/// Sends a command, as JSON, and passes each line of the server to `each` until that returns false.
///
/// # Errors
/// A sentence.
pub fn watchman_command(
    socket: &Path,
    command: &serde_json::Value,
    mut each: impl FnMut(&str) -> bool,
) -> Result<(), String> {
    let at = socket.display();
    let said = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            format!(
                "nothing speaks watchman's protocol at {at}; start it with: uvfs index --watchman {at} DIR"
            )
        }
        _ => format!("cannot ask the index at {at}: {error}"),
    };
    let mut stream = UnixStream::connect(socket).map_err(said)?;
    stream.write_all(format!("{command}\n").as_bytes()).map_err(said)?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).map_err(said)? == 0 {
            return Err("the index ended before its answer did".into());
        }
        if !each(line.trim_end()) {
            return Ok(());
        }
    }
}
