//! Requests of any bytes.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Served;

/// The answer to bytes, after which nothing more comes.
fn answer(served: &Served, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(served.dir.path().join("sock")).expect("a server");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    // The server may have ended it already.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an end");
    answer
}

fn first_line(answer: &[u8]) -> Value {
    let line = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(line).unwrap_or_else(|why| panic!("{why}: {}", answer.escape_ascii()))
}

pub fn requests() {
    let served = Served::new();
    let root = served.root();
    let root = root.to_str().expect("UTF-8");
    for name in ["a", "new\nline", "d"] {
        fs::write(served.root().join(name), "").expect("a file");
    }
    let deep = |levels: usize| [r#"{"do":"list","x":"#.to_owned(), "[".repeat(levels)].concat();
    let refused = [
        deep(100_000).into_bytes(),
        deep(10).into_bytes(),
        b"\xff\xfe\n".to_vec(),
        b"\0\x01\x03\x7f".to_vec(),
        b"{\"do\":\"list\"".to_vec(),
        b"{\"do\":\"nothing\"}\n".to_vec(),
        vec![b'x'; 2 << 20],
        json!({"do": "changed", "path": "relative"}).to_string().into_bytes(),
        json!({"do": "changed", "path": format!("{root}/../..")}).to_string().into_bytes(),
        json!({"do": "changed", "path": {"hex": "2"}}).to_string().into_bytes(),
        json!({"do": "find", "args": [root, "-size", "-99999999999999999999999c"], "starts": []})
            .to_string()
            .into_bytes(),
        json!({"do": "find", "args": [root, "-printf", "%99999999999999999999p"], "starts": [root]})
            .to_string()
            .into_bytes(),
        json!({"do": "find", "args": [root], "starts": [root], "zone": "../../etc/passwd"})
            .to_string()
            .into_bytes(),
    ];
    for bytes in refused {
        let answer = answer(&served, &bytes);
        assert!(first_line(&answer)["error"].is_string(), "{}", answer.escape_ascii());
    }
    assert_eq!(answer(&served, b""), first_line_of_nothing());
    clocks(&served, root);
    let good = [
        json!({"do": "changed", "path": root, "since": "1:2"}),
        json!({"do": "find", "args": [root, "-name", "*a*", "-printf", "%10p %T+\n"], "starts": [root], "zone": "UTC"}),
        json!({"do": "find", "args": [{"hex": "2f"}, "-newer", "x"], "starts": ["/"],
            "files": [{"path": "x", "dev": 1, "ino": 1, "mtime": [1, 2], "ctime": [-1, 999], "atime": [0, 0]}]}),
    ];
    let mut random = fastrand::Rng::with_seed(4);
    for round in 0..2000 {
        let mut bytes = good[round % good.len()].to_string().into_bytes();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[at] = random.u8(..),
                1 => drop(bytes.remove(at)),
                2 => bytes[at] = b"0123456789-eE.+\"{}[]%"[random.usize(..21)],
                _ => bytes.insert(at, b"9-\"\\\0%"[random.usize(..6)]),
            }
        }
        // A request that waits has no answer yet.
        if !bytes.windows(6).any(|word| word == b"\"wait\"") {
            first_line(&answer(&served, &bytes));
        }
    }
    assert!(served.client().list().is_ok());
}

/// An empty request is none.
fn first_line_of_nothing() -> Vec<u8> {
    b"{\"error\":\"this is no request: EOF while parsing a value at line 1 column 0\"}\n".to_vec()
}

/// Clocks that are of no moment of this server, and paths in other forms.
fn clocks(served: &Served, root: &str) {
    let changed = |path: &str, since: &str| {
        let request = json!({"do": "changed", "path": path, "since": since}).to_string();
        first_line(&answer(served, request.as_bytes()))
    };
    let now = changed(root, "");
    let clock = now["clock"].as_str().expect("a clock").to_owned();
    let (instance, tick) = clock.split_once(':').expect("two numbers");
    let late = format!("{instance}:{}", tick.parse::<u64>().expect("a tick") + 1);
    let most = format!("{instance}:{}", u64::MAX);
    let over = format!("{instance}:18446744073709551616");
    for unknown in [&late, &most, &over, "0:0", "-1:-1", "1:-2", ":", "é", "1:2:3", &format!(" {clock}")] {
        assert_eq!(changed(root, unknown)["fresh"], true, "{unknown}");
    }
    assert_eq!(changed(root, &clock)["changes"], 0);
    fs::create_dir(served.root().join("dir")).expect("a directory");
    fs::write(served.root().join("dir/f"), "").expect("a file");
    // As many changes, however the path is written.
    let usual = changed(&format!("{root}/dir"), &clock)["changes"].clone();
    assert!(usual.as_u64().is_some_and(|count| count > 0));
    for form in [format!("{root}/dir/"), format!("{root}//dir"), format!("/{root}/dir//")] {
        assert_eq!(changed(&form, &clock)["changes"], usual, "{form}");
    }
}

pub fn zones() {
    let served = Served::new();
    fs::write(served.root().join("f"), "").expect("a file");
    let root = served.root();
    let root = root.to_str().expect("UTF-8");
    let zone = match fs::read("/usr/share/zoneinfo/Europe/Berlin") {
        Ok(bytes) => bytes,
        Err(error) => return eprintln!("skipped: a zone's file: {error}"),
    };
    let format = "%t %T+ %Tc %TH:%TM %Tz %TZ\\n";
    let words = [root, "-daystart", "-mtime", "-5", "-newermt", "2020-03-29 02:30", "-printf", format];
    let mut random = fastrand::Rng::with_seed(6);
    let mut taken = 0;
    for _ in 0..1500 {
        let mut bytes = zone.clone();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            match random.u8(..3) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] ^= 0x80,
                _ => bytes.truncate(at.max(60)),
            }
        }
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let request = json!({"do": "find", "args": words, "starts": [root], "zone_file": hex}).to_string();
        taken += usize::from(first_line(&answer(&served, request.as_bytes())).get("error").is_none());
    }
    assert!(taken > 100, "{taken}");
}
