//! `--metrics`: the figures as Prometheus reads them, and clients that behave badly.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use super::{Dir, SOON, Server, Test, is_mounted, refused};

pub const PLAIN: &[Test] = &[("metrics_addresses_are_checked", metrics_addresses_are_checked)];

pub const MOUNTING: &[Test] = &[
    ("metrics_are_what_uvfs_stats_says", metrics_are_what_uvfs_stats_says),
    ("metrics_answer_after_bad_clients", metrics_answer_after_bad_clients),
    ("metrics_answer_beside_idle_clients", metrics_answer_beside_idle_clients),
    ("metrics_without_the_control_directory", metrics_without_the_control_directory),
];

fn metrics_addresses_are_checked() {
    let dir = Dir::new();
    for bad in ["9180", "localhost:9180", "127.0.0.1", "127.0.0.1:99999"] {
        let (status, said) = refused(&["mount", "--metrics", bad, "tmpfs", dir.text()]);
        assert!(status == 2 && said.contains("such as 127.0.0.1:9180"), "{said}");
    }
    let (status, said) = refused(&["mount", "--metrics", "0.0.0.0:0", "tmpfs", dir.text()]);
    assert!(status == 1 && said.contains("--metrics-for-all"), "{said}");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its number").to_string();
    for daemon in [&[][..], &["-d"]] {
        let (_, said) =
            refused(&[&["mount", "--metrics", &address], daemon, &["tmpfs", dir.text()]].concat());
        assert!(said.contains(&address) && said.contains("the port is in use"), "{said}");
        assert!(!is_mounted(dir.path()));
    }
}

/// A mount with metrics, and where they are.
fn mounted(options: &str) -> (Server, Dir, String) {
    let dir = Dir::new();
    let server = Server::start(&["--metrics", "127.0.0.1:0", "-o", options, "tmpfs", dir.text()]);
    let url = fs::read_to_string(dir.path().join(".uvfs/metrics")).expect("where they are");
    let address = url.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics"));
    (server, dir, address.expect("a URL").to_owned())
}

fn client(address: &str) -> TcpStream {
    let client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(SOON)).expect("a timeout");
    client
}

/// The answer to `request`: the status line, and the body.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut client = client(address);
    client.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer, and its end");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

/// A sample: its name, its labels, its value. Every character is where the format has it.
fn sample(line: &str) -> (String, String, f64) {
    let (called, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
    let (name, labels) = match called.split_once('{') {
        None => (called, ""),
        Some((name, labels)) => (name, labels.strip_suffix('}').unwrap_or_else(|| panic!("{line}"))),
    };
    let good = |c: char| c.is_ascii_lowercase() || c == '_';
    assert!(!name.is_empty() && name.chars().all(good), "{line}");
    let mut rest = labels;
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        assert!(!label.is_empty() && label.chars().all(good), "{line}");
        let end = after.replace("\\\\", "__").replace("\\\"", "__").find('"');
        rest = &after[end.unwrap_or_else(|| panic!("{line}")) + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    (name.to_owned(), labels.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
}

/// As promtool would: HELP and TYPE once for each family and before it, counters end with `_total`, no sample twice.
fn checked(text: &str) -> BTreeMap<String, f64> {
    let (mut helped, mut typed, mut samples) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut family = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
            }
            ["#", "TYPE", name, kind] => {
                assert!(helped.contains(name), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(typed.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
                family = name.to_owned();
            }
            _ => {
                let (name, labels, value) = sample(line);
                let of = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
                let of = of.filter(|of| typed.get(*of).is_some_and(|kind| kind == "histogram"));
                assert_eq!(of.unwrap_or(&name), family, "a family stands in one piece");
                assert!(samples.insert(format!("{name}{{{labels}}}"), value).is_none(), "{line}");
            }
        }
    }
    assert_eq!(helped.len(), typed.len());
    samples
}

fn metrics_are_what_uvfs_stats_says() {
    let (_server, dir, address) = mounted("rw");
    for n in 0..7 {
        fs::write(dir.path().join(n.to_string()), "x").expect("write");
    }
    let before = fs::read_to_string(dir.path().join(".uvfs/stats")).expect("stats");
    let (status, body) = ask(&address, GET);
    assert_eq!(status, "HTTP/1.1 200 OK");
    let samples = checked(&body);
    assert_eq!(samples["uvfs_calls_total{call=\"create\"}"], 7.0);
    assert!(body.contains("uvfs_info{source=\"tmpfs\",transport=\""), "{body}");
    // Each figure of the one is in the other, and has not become less.
    let mut seen = 1;
    for line in before.lines() {
        let (path, value) = line.split_once(' ').expect("a name and a value");
        let (dir, name) = path.split_once('/').unwrap_or(("", path));
        if dir == "latency" {
            continue;
        }
        let label = match dir {
            "calls" => "call",
            "bails" => "reason",
            "requests" => "request",
            "notices" => "about",
            _ => "",
        };
        let counter = match label {
            "" => format!("uvfs_{}_total{{}}", path.replace('/', "_")),
            label => format!("uvfs_{dir}_total{{{label}=\"{name}\"}}"),
        };
        let gauge = format!("uvfs_{}{{}}", path.replace('/', "_"));
        match samples.get(&counter) {
            Some(now) => assert!(*now >= value.parse().expect("a number"), "{line}: {now}"),
            None => assert!(samples.contains_key(&gauge), "{line}"),
        }
        seen += 1;
    }
    let is_time = |sample: &&String| sample.starts_with("uvfs_request_seconds_");
    let times: Vec<_> = samples.keys().filter(is_time).collect();
    assert_eq!(samples.len() - times.len(), seen);
    // The first request that a thread answers is timed, and so are some of these.
    assert!(times.iter().any(|sample| sample.contains("_bucket{request=\"")), "{body}");
    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/grafana-uvfs.json");
    let dashboard = fs::read_to_string(dashboard).expect("the dashboard");
    for name in dashboard.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let is_sample = |sample: &String| sample.split('{').next() == Some(name);
        assert!(!name.starts_with("uvfs_") || samples.keys().any(is_sample), "{name}");
    }
}

fn metrics_answer_after_bad_clients() {
    let (_server, _dir, address) = mounted("rw");
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
        ("hello\r\n\r\n", "HTTP/1.1 400 "),
    ] {
        let said = ask(&address, request).0;
        assert!(said.starts_with(status), "{request}: {said}");
    }
    let body = "x".repeat(8 << 20);
    assert!(ask(&address, &format!("POST /metrics HTTP/1.1\r\n\r\n{body}")).0.contains(" 405 "));
    // Several that say nothing, half of something, and nothing any more; one that sends without end.
    let _silent = [client(&address), client(&address)];
    let mut half = client(&address);
    half.write_all(b"GET /metr").expect("a part");
    drop(client(&address));
    let mut endless = client(&address);
    while endless.write_all(&[b'a'; 4096]).is_ok() {}
    let (status, body) = ask(&address, GET);
    assert!(status.contains(" 200 ") && !checked(&body).is_empty());
    let mut said = String::new();
    half.read_to_string(&mut said).expect("an answer");
    assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
}

/// More clients than have a place, none of which asks: those that came first go, and a client that asks is answered before any
/// of them has lost patience.
fn metrics_answer_beside_idle_clients() {
    let (server, _dir, address) = mounted("rw");
    let mut idle: Vec<_> = (0..200).map(|_| client(&address)).collect();
    for _ in 0..3 {
        let (status, body) = ask(&address, GET);
        assert!(status.contains(" 200 ") && !checked(&body).is_empty());
    }
    let mut said = String::new();
    idle[0].read_to_string(&mut said).expect("the end of the connection");
    assert_eq!(said, "", "it has lost its place");
    let tasks = || fs::read_dir(format!("/proc/{}/task", server.0.id())).expect("tasks").count();
    assert!(super::within(SOON, || tasks() < 100), "{} threads", tasks());
    // The last one has its place still, or was told that it has said nothing in time.
    let mut said = String::new();
    idle.pop().expect("a client").read_to_string(&mut said).expect("an answer");
    assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
}

fn metrics_without_the_control_directory() {
    let dir = Dir::new();
    // Which port is free is not known, and nobody tells without `.uvfs`.
    let free =
        TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number").to_string();
    let _server = Server::start(&["--metrics", &free, "-o", "ctl=off", "tmpfs", dir.text()]);
    assert!(!dir.path().join(".uvfs").exists());
    assert!(checked(&ask(&free, GET).1).contains_key("uvfs_inodes{}"));
}
