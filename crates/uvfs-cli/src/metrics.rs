//! `--metrics ADDRESS:PORT`: the figures of `.uvfs`, or of indices, for Prometheus, at `/metrics` by HTTP.
//!
//! The port is bound before anything is mounted. Each client has a thread of its own, [`PATIENCE`] for its request
//! and as much again for taking the answer; a request has [`HEAD_MAX`] bytes at most. At most [`CLIENTS_MAX`] clients
//! are served at a time. One more replaces the client that came first, whose connection ends: a client that asks is
//! never behind clients that wait. So slow and hostile clients cost some small threads and nothing of the file
//! system's, and none of its locks is held here. Only GET of one path is answered.
//!
//! The mutex of [`Clients`] is a leaf, and held for a few steps only.
//!
//! The text is Prometheus' exposition format, version 0.0.4. Each figure is a family. A directory of figures of one
//! kind is one family too, with the figures' names as labels.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use uvfs_control::{ControlDir, Figure, Snapshot, is_level};
use uvfs_fuse::{LATENCY_BOUNDS, Latency, RequestKind};

/// Most bytes of a request.
const HEAD_MAX: usize = 8 << 10;
/// How long a client is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Clients at a time.
const CLIENTS_MAX: usize = 32;
/// Bytes of a client's thread's stack: a request and the figures are on it or on the heap.
const STACK: usize = 256 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// Directories of `.uvfs` that are one family, and the label that tells their figures apart.
const LABELLED: [(&str, &str); 4] =
    [("requests", "request"), ("notices", "about"), ("calls", "call"), ("bails", "reason")];

/// A bound port at which nobody is answered yet.
pub struct MetricsPort {
    socket: TcpListener,
    address: SocketAddr,
}

impl MetricsPort {
    /// Binds the port. `for_all`: the address may be one that other machines reach.
    pub fn bind(address: SocketAddr, for_all: bool) -> Result<Self> {
        if !address.ip().is_loopback() && !for_all {
            bail!(
                "--metrics {address}: this address may be reached from other machines; give one of this machine's own \
                 (127.0.0.1:{0}, [::1]:{0}), or add --metrics-for-all",
                address.port()
            );
        }
        let taken = TcpListener::bind(address).and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (address, socket) = taken.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => {
                anyhow::anyhow!(
                    "--metrics {address}: the port is in use; give another one, or 0 for any that is free"
                )
            }
            _ => anyhow::anyhow!("--metrics {address}: cannot listen there: {error}"),
        })?;
        Ok(Self { socket, address })
    }

    /// The URL of the figures.
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Answers from now on, for as long as the process lives.
    pub fn serve_mount(self, control: Arc<ControlDir>) -> Result<()> {
        self.serve(move || {
            let snapshot = control.snapshot().ok()?;
            Some(text(control.figures(), &snapshot, &about(&control)))
        })
    }

    /// As [`MetricsPort::serve_mount`], with the text that `figures` makes; nothing if what it is about has ended.
    pub fn serve(self, figures: impl Fn() -> Option<String> + Send + Sync + 'static) -> Result<()> {
        let figures: Arc<Figures> = Arc::new(figures);
        let clients = Arc::new(Clients::default());
        let serve = move || {
            loop {
                let served =
                    self.socket.accept().and_then(|(client, _)| clients.serve(client, figures.clone()));
                if let Err(error) = served {
                    // For instance, no descriptor is free. The next attempt may succeed.
                    tracing::warn!(%error, "--metrics");
                    thread::sleep(PATIENCE);
                }
            }
        };
        thread::Builder::new().name("uvfs-metrics".into()).spawn(serve).context("cannot start a thread")?;
        Ok(())
    }
}

/// Makes the answer's text.
type Figures = dyn Fn() -> Option<String> + Send + Sync;

/// The clients that are being served, in the order in which they came.
#[derive(Default)]
struct Clients(Mutex<VecDeque<Arc<TcpStream>>>);

impl Clients {
    /// Lets a thread answer a client.
    fn serve(self: &Arc<Self>, client: TcpStream, figures: Arc<Figures>) -> io::Result<()> {
        let client = Arc::new(client);
        let first = {
            let mut here = self.0.lock();
            here.push_back(client.clone());
            if here.len() > CLIENTS_MAX { here.pop_front() } else { None }
        };
        if let Some(first) = first {
            // Its thread finds the end of the connection and goes. It may have gone already.
            let _ = first.shutdown(Shutdown::Both);
        }
        let clients = self.clone();
        let name = "uvfs-metrics".to_owned();
        let answered = client.clone();
        let thread = thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
            if let Err(error) = answer(&answered, &*figures) {
                tracing::debug!(%error, "a client of --metrics has not got its answer");
            }
            clients.forget(&answered);
        });
        thread.map(drop).inspect_err(|_| self.forget(&client))
    }

    fn forget(&self, client: &Arc<TcpStream>) {
        self.0.lock().retain(|here| !Arc::ptr_eq(here, client));
    }
}

/// Status line, further headers, body.
type Response = (&'static str, &'static str, String);

fn answer(client: &TcpStream, figures: &Figures) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let Some(asked) = read(client, deadline)? else { return Ok(()) };
    let refused = asked.is_err();
    let (status, headers, body) = match asked {
        Err(refused) => refused,
        Ok(()) => match figures() {
            Some(text) => ("200 OK", "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", text),
            None => plain("503 Service Unavailable", "the mount has ended\n"),
        },
    };
    let response = format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let deadline = deadline + PATIENCE;
    write(client, response.as_bytes(), deadline)?;
    // A client that was too slow sends nothing.
    if refused && !status.starts_with("408") { drain(client, deadline) } else { Ok(()) }
}

/// Reads the rest of the request. A client that sends to a closed socket is reset, and may lose the answer.
fn drain(mut client: &TcpStream, deadline: Instant) -> io::Result<()> {
    let mut dropped = [0; HEAD_MAX];
    loop {
        client.set_read_timeout(Some(left(deadline)?))?;
        match client.read(&mut dropped) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
}

fn plain(status: &'static str, body: &str) -> Response {
    (status, "Content-Type: text/plain; charset=utf-8\r\n", body.to_owned())
}

/// Reads a request as far as needed. Returns the answer if it is not for the figures. `None`: the client has gone.
fn read(mut client: &TcpStream, deadline: Instant) -> io::Result<Option<Result<(), Response>>> {
    let mut head = [0; HEAD_MAX];
    let mut len = 0;
    loop {
        let read = left(deadline).and_then(|time| {
            client.set_read_timeout(Some(time))?;
            client.read(&mut head[len..])
        });
        match read {
            Ok(0) => return Ok(None),
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(Some(Err(plain("408 Request Timeout", "no request has come in time\n"))));
            }
            Err(error) => return Err(error),
        }
        match asked(&head[..len]) {
            None if len < HEAD_MAX => {}
            None => {
                let refused = plain("431 Request Header Fields Too Large", "too long\n");
                return Ok(Some(Err(refused)));
            }
            Some(asked) => return Ok(Some(asked)),
        }
    }
}

/// The purpose of a request; `None` if it has not come as a whole.
fn asked(head: &[u8]) -> Option<Result<(), Response>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(error) => {
            return Some(Err(plain("400 Bad Request", &format!("this is no request: {error}\n"))));
        }
    }
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    Some(match request.method {
        _ if path != "/metrics" => Err(plain("404 Not Found", "what there is: /metrics\n")),
        Some("GET") => Ok(()),
        _ => Err(("405 Method Not Allowed", "Allow: GET\r\n", String::new())),
    })
}

fn write(mut client: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        client.set_write_timeout(Some(left(deadline)?))?;
        match client.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    client.shutdown(Shutdown::Write)
}

/// The time that is left until then; an error if none is.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The description of the mount besides figures: names and values of labels.
type Labels = [(&'static str, String); 3];

fn about(control: &ControlDir) -> Labels {
    [
        ("source", control.source().to_owned()),
        ("transport", control.transport().to_owned()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ]
}

/// The figures as Prometheus reads them.
fn text(figures: &[Figure], snapshot: &Snapshot, about: &Labels) -> String {
    let labels: Vec<_> = about.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    let mut out = String::new();
    family(&mut out, "uvfs_info", "gauge", "What is mounted, through what, by which uvfs");
    let _ = writeln!(out, "uvfs_info{{{}}} 1", labels.join(","));
    let mut last = String::new();
    // Shown as histograms below.
    for figure in figures.iter().filter(|figure| !figure.path.starts_with("latency/")) {
        let (kind, end) = if is_level(&figure.path) { ("gauge", "") } else { ("counter", "_total") };
        let (dir, name) = figure.path.split_once('/').unwrap_or(("", &figure.path));
        let label = LABELLED.iter().find(|(labelled, _)| *labelled == dir);
        let (called, label) = match label {
            Some((_, label)) => (format!("uvfs_{dir}{end}"), format!("{{{label}=\"{name}\"}}")),
            None => (format!("uvfs_{}{end}", figure.path.replace('/', "_")), String::new()),
        };
        if called != last {
            family(&mut out, &called, kind, figure.help);
        }
        let _ = writeln!(out, "{called}{label} {}", figure.of(snapshot));
        last = called;
    }
    histograms(&mut out, &snapshot.latencies);
    out
}

/// The times of requests, by kind. Kinds that never came are left out.
fn histograms(out: &mut String, latencies: &[Latency]) {
    const NAME: &str = "uvfs_request_seconds";
    family(out, NAME, "histogram", "Time from a request's arrival to its answer");
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    for (kind, latency) in RequestKind::ALL.iter().zip(latencies).filter(|(_, latency)| latency.count > 0) {
        let label = format!("request=\"{}\"", kind.name());
        for (bound, below) in LATENCY_BOUNDS.iter().zip(latency.below) {
            let _ = writeln!(out, "{NAME}_bucket{{{label},le=\"{}\"}} {below}", seconds(*bound));
        }
        let _ = writeln!(out, "{NAME}_bucket{{{label},le=\"+Inf\"}} {}", latency.count);
        let _ = writeln!(out, "{NAME}_sum{{{label}}} {}", seconds(latency.sum));
        let _ = writeln!(out, "{NAME}_count{{{label}}} {}", latency.count);
    }
}

pub fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}.\n# TYPE {name} {kind}");
}

/// The form of a text in a label's value.
pub fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> Option<&'static str> {
        asked(request.as_bytes()).map(|asked| asked.map_or_else(|(status, ..)| &status[..3], |()| "200"))
    }

    #[test]
    fn only_the_figures_are_to_be_had() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Some("200")),
            ("GET /metrics?name=x HTTP/1.0\r\n\r\n", Some("200")),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", None),
            ("", None),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Some("405")),
            ("POST /metrics HTTP/1.1\r\n\r\nx", Some("405")),
            ("GET / HTTP/1.1\r\n\r\n", Some("404")),
            ("GET /metrics/../etc HTTP/1.1\r\n\r\n", Some("404")),
            ("\x16\x03\x01\x02", Some("400")),
            ("GET\r\n\r\n", Some("400")),
        ] {
            assert_eq!(status(request), expected, "{request:?}");
        }
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(status(&many), Some("400"));
    }

    #[test]
    fn other_machines_are_let_in_only_where_that_is_asked_for() {
        let refused = MetricsPort::bind(([0, 0, 0, 0], 0).into(), false).map(|_| ()).expect_err("refused");
        assert!(refused.to_string().contains("--metrics-for-all"), "{refused}");
        assert!(MetricsPort::bind(([0, 0, 0, 0], 0).into(), true).is_ok());
        let first = MetricsPort::bind(([127, 0, 0, 1], 0).into(), false).expect("a free port");
        let second = MetricsPort::bind(first.address, false).map(|_| ()).expect_err("taken");
        assert!(second.to_string().contains("the port is in use"), "{second}");
    }

    #[test]
    fn values_of_labels_are_escaped() {
        assert_eq!(escaped("a\\b\"c\nd"), r#"a\\b\"c\nd"#);
    }
}
