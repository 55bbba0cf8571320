//! Many clients, large answers, and clients that read slowly or not at all.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Served;

/// Clients that wait at a time. Root may have more connections than other users.
const CLIENTS: usize = 40;
/// Memory of all answers together, and what the answers' threads take beside it, in MiB.
const KEPT: usize = 64 + 56;

/// Memory of this process that is resident, in bytes. The server is part of it.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("this process");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a figure");
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok());
    kib.expect("a number") << 10
}

fn asks(served: &Served, socket: &str, request: &Value) -> BufReader<UnixStream> {
    let mut stream = UnixStream::connect(served.dir.path().join(socket)).expect("a server");
    stream.set_read_timeout(Some(Duration::from_secs(600))).expect("a socket");
    stream.write_all(format!("{request}\n").as_bytes()).expect("a request");
    BufReader::new(stream)
}

fn line(answer: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    answer.read_line(&mut line).expect("a line");
    serde_json::from_str(&line).unwrap_or_else(|why| panic!("{why}: {line:.300}"))
}

/// Files whose changes an answer has. Their paths have 1,000 bytes.
const FILES: usize = 5000;

/// Makes the files.
fn make_files(served: &Served, round: usize) {
    let (root, name) = (served.root(), "long".repeat(55));
    let dir = root.join(format!("{round}{name}/{name}/{name}/{name}"));
    fs::create_dir_all(&dir).expect("directories");
    for nth in 0..FILES {
        fs::write(dir.join(format!("{name}-{nth}")), "").expect("a file");
        // A question empties the queue of events, which has room for 16,384.
        if nth % 1000 == 0 {
            let there = [root.to_str().expect("UTF-8"), "-maxdepth", "0"];
            assert!(served.find(&there).is_ok());
        }
    }
}

pub fn clients() {
    let served = Served::new();
    let root = served.root();
    let request =
        |since: &Value, wait: bool| json!({"do": "changed", "path": root, "since": since, "wait": wait});
    // Others change files of the same file system: if their events overflow the queue, the answer is "all".
    let changed = (0..10).map(|round| {
        let begin = line(&mut asks(&served, "sock", &request(&Value::Null, false)))["clock"].clone();
        make_files(&served, round);
        let first = line(&mut asks(&served, "sock", &request(&begin, false)));
        (begin, first)
    });
    let (begin, first) =
        { changed }.find(|(_, first)| first["fresh"] == false).expect("an answer with changes");
    assert!(first["changes"].as_u64().is_some_and(|count| count >= FILES as u64), "{first}");
    let before = resident();
    // Each answer has 5 MB, so all have more than is kept in memory. Nobody reads more of it than its first line.
    let clients = crate::form::usual_or_full(32, CLIENTS);
    let mut slow: Vec<_> = (0..clients).map(|_| asks(&served, "sock", &request(&begin, false))).collect();
    for answer in &mut slow {
        let moment = line(answer);
        assert_eq!(moment["changes"], first["changes"], "{moment}");
    }
    let grown = resident().saturating_sub(before) >> 20;
    assert!(grown < KEPT, "{clients} clients that do not read take {grown} MiB");
    // Others are served meanwhile, at both sockets.
    let found = served.find(&[root.to_str().expect("UTF-8"), "-name", "*-4999"]).expect("an answer");
    assert!((1..=10).contains(&found.lines().count()));
    assert!(served.ask("watchman", &json!(["watch", root])).get("error").is_none());
    // One that reads gets all.
    let mut reader = asks(&served, "sock", &request(&begin, false));
    let all = line(&mut reader)["changes"].as_u64().unwrap_or(0);
    assert!(all >= FILES as u64);
    (0..all).for_each(|_| drop(line(&mut reader)));
    drop(slow);
    waiting(&served, &request);
}

/// Each client that waits hears of a change, and of nothing before it.
fn waiting(served: &Served, request: &dyn Fn(&Value, bool) -> Value) {
    let now = line(&mut asks(served, "sock", &request(&Value::Null, false)))["clock"].clone();
    let mut waiting: Vec<_> = (0..CLIENTS).map(|_| asks(served, "sock", &request(&now, true))).collect();
    assert!(served.client().list().is_ok());
    fs::write(served.root().join("change"), "").expect("a file");
    for answer in &mut waiting {
        let moment = line(answer);
        assert_eq!(moment["fresh"], false, "{moment}");
        assert!(moment["changes"].as_u64().is_some_and(|count| count > 0), "{moment}");
    }
}

/// Under the table's lock, so others would wait as long.
pub fn queries() {
    let served = Served::new();
    let root = served.root();
    for nth in 0..300 {
        fs::create_dir(root.join(format!("d{nth}"))).expect("a directory");
        for file in 0..20 {
            fs::write(root.join(format!("d{nth}/f{file}")), "").expect("a file");
        }
    }
    assert!(served.ask("watchman", &json!(["watch", root])).get("error").is_none());
    let query = |query: Value| served.ask("watchman", &json!(["query", root, query]));
    // As many starting points as a request may have: each would be looked for among all before it.
    let globs: Vec<String> = (0..100_000).map(|nth| format!("d{nth}/*")).collect();
    let begin = Instant::now();
    let answer = query(json!({"glob": globs, "fields": ["name"]}));
    assert_eq!(answer["files"].as_array().map(Vec::len), Some(6000));
    // It took minutes in this build when it grew with the square of the globs.
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    // The whole tree again and again. Its client goes, and then others are served.
    let paths = vec![""; 100_000];
    let endless = asks(&served, "watchman", &json!(["query", root, {"path": paths, "expression": "false"}]));
    drop(endless);
    fs::write(root.join("change"), "").expect("a file");
    let found = served.find(&[root.to_str().expect("UTF-8"), "-name", "change"]).expect("an answer");
    assert_eq!(found.lines().count(), 1);
    // Names that the server keeps are short.
    let long = "n".repeat(1 << 20);
    let error = |request: Value| served.ask("watchman", &request)["error"].as_str().map(str::to_owned);
    for request in [
        json!(["state-enter", root, long]),
        json!(["query", root, {"since": format!("n:{long}"), "fields": ["name"]}]),
        json!(["subscribe", root, long, {}]),
        json!(["state-enter", root, {"name": "a", "metadata": long}]),
    ] {
        assert!(error(request).is_some_and(|why| why.contains("bytes") || why.contains("memory")));
    }
}
