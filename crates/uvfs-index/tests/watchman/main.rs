//! Watchman's protocol over its socket, in each encoding, against trees on the host.
//!
//! They need CAP_SYS_ADMIN; without it they count as ignored.

mod client;
mod states;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};
use uvfs_index::{IndexServer, IndexSocket, TreeLimits, WatchmanServer};

use client::{Client, ENCODINGS, Encoding};

fn main() -> ExitCode {
    let tests: [(&str, fn()); 9] = [
        ("queries_in_every_encoding", queries),
        ("a_client_that_applies_answers_has_the_tree", mirrored),
        ("roots_must_be_watched_and_projects_are_found", roots),
        ("ignored_directories_are_left_out", ignored),
        ("mounts_inside_a_root_are_said", mounts),
        ("cursors_and_clocks_of_others", cursors),
        ("hostile_requests_end_their_own_connection_at_most", hostile),
        ("subscriptions_and_states", states::subscriptions),
        ("states_of_a_client_that_goes_are_abandoned", states::abandoned),
    ];
    support::run(&tests, Served::start().err(), false)
}

/// A server of a tree. Its threads live as long as the process.
struct Served {
    dir: tempfile::TempDir,
    root: PathBuf,
}

impl Served {
    fn start() -> Result<Self, String> {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let root = dir.path().join("tree").canonicalize().unwrap_or_else(|_| dir.path().join("tree"));
        fs::create_dir(&root).expect("a directory");
        let limits = TreeLimits { names_below: true, ..TreeLimits::default() };
        let index = Arc::new(IndexServer::start(std::slice::from_ref(&root), limits, None, || {})?);
        let path = dir.path().join("sock");
        let socket = IndexSocket::bind(&path, 0o600)?;
        let server = Arc::new(WatchmanServer::new(index, &path));
        thread::spawn(move || server.serve(&socket));
        Ok(Self { dir, root })
    }

    fn new() -> Self {
        Self::start().expect("a server")
    }

    fn client(&self, encoding: Encoding) -> Client {
        Client::new(&self.dir.path().join("sock"), encoding)
    }

    fn write(&self, path: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(path, "text").expect("a file");
    }
}

fn names(answer: &Value) -> Vec<String> {
    let files = answer["files"].as_array().unwrap_or_else(|| panic!("no files: {answer}"));
    let name = |file: &Value| file.as_str().expect("a name").to_owned();
    let mut names: Vec<_> = files.iter().map(name).collect();
    names.sort();
    names
}

fn queries() {
    let served = Served::new();
    let root = &served.root;
    for file in ["a.c", "b.h", "src/x.c", "src/deep/y.c", "src/.hidden.c"] {
        served.write(file);
    }
    std::os::unix::fs::symlink("a.c", root.join("link")).expect("a link");
    for encoding in ENCODINGS {
        let mut client = served.client(encoding);
        client.done(&json!(["watch", root]));
        let mut found = |spec: Value| {
            let mut spec = spec;
            spec["fields"] = json!(["name"]);
            names(&client.done(&json!(["query", root, spec])))
        };
        assert_eq!(
            found(json!({})),
            ["a.c", "b.h", "link", "src", "src/.hidden.c", "src/deep", "src/deep/y.c", "src/x.c"]
        );
        assert_eq!(
            found(json!({"suffix": "c", "path": ["src", {"path": "src", "depth": 0}]})),
            ["src/.hidden.c", "src/deep/y.c", "src/x.c"]
        );
        assert_eq!(
            found(json!({"path": [{"path": "", "depth": 0}], "expression": ["type", "f"]})),
            ["a.c", "b.h"]
        );
        assert_eq!(
            found(json!({"path": [{"path": "src", "depth": 1}]})),
            ["src/.hidden.c", "src/deep", "src/deep/y.c", "src/x.c"]
        );
        assert_eq!(found(json!({"glob": ["src/*.c", "**/*.c"]})), ["a.c", "src/deep/y.c", "src/x.c"]);
        assert_eq!(
            found(json!({"glob": ["src/**/*.c"], "glob_includedotfiles": true})),
            ["src/.hidden.c", "src/deep/y.c", "src/x.c"]
        );
        assert_eq!(found(json!({"relative_root": "src", "expression": ["dirname", "deep"]})), ["deep/y.c"]);
        assert_eq!(found(json!({"expression": ["name", "A.C"], "case_sensitive": false})), ["a.c"]);
        let spec = json!({"expression": ["name", ["a.c", "link"]],
            "fields": ["name", "exists", "size", "type", "mtime_ns", "ino", "symlink_target", "mode"]});
        let answer = client.done(&json!(["query", root, spec]));
        for file in answer["files"].as_array().expect("files") {
            use std::os::unix::fs::MetadataExt;
            let stat = root.join(file["name"].as_str().expect("a name")).symlink_metadata().expect("a file");
            assert_eq!((file["ino"].as_u64(), file["size"].as_u64()), (Some(stat.ino()), Some(stat.len())));
            assert_eq!(file["mtime_ns"], json!(stat.mtime() * 1_000_000_000 + stat.mtime_nsec()));
            assert_eq!((&file["mode"], &file["exists"]), (&json!(stat.mode()), &json!(true)));
            let link = file["name"] == "link";
            assert_eq!(file["symlink_target"], if link { json!("a.c") } else { Value::Null });
            assert_eq!(file["type"], if link { "l" } else { "f" });
        }
        let old = client.done(&json!(["find", root, "*.c", "-X", "b*"]));
        assert_eq!(old["files"].as_array().map(Vec::len), Some(1), "{old}");
    }
}

/// Random changes; a client applies "since" and must have the names that the host has.
fn mirrored() {
    use std::collections::BTreeSet;
    fn of_host(root: &Path, dir: &Path, all: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            all.insert(path.strip_prefix(root).expect("below it").to_str().expect("UTF-8").to_owned());
            if path.is_dir() {
                of_host(root, &path, all);
            }
        }
    }
    let served = Served::new();
    let root = &served.root;
    let mut clients: Vec<_> =
        ENCODINGS.map(|encoding| (served.client(encoding), BTreeSet::new(), json!(""))).into();
    clients[0].0.done(&json!(["watch", root]));
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..150 {
        for _ in 0..random.usize(1..12) {
            let mut path = |depth: usize| {
                (0..random.usize(1..=depth))
                    .fold(root.clone(), |dir, _| dir.join(["p", "q", "r"][random.usize(..3)]))
            };
            let (from, to) = (path(4), path(4));
            // Those that cannot be fail, and change nothing.
            let _ = match random.u8(..5) {
                0 => fs::create_dir_all(&from),
                1 | 2 => fs::write(&from, "text"),
                3 => fs::rename(&from, &to),
                _ => fs::remove_dir_all(&from).or_else(|_| fs::remove_file(&from)),
            };
        }
        let nth = round % clients.len();
        let (client, known, clock) = &mut clients[nth];
        let query = json!(["query", root, {"since": *clock, "fields": ["name", "exists", "new"]}]);
        let answer = client.done(&query);
        if answer["is_fresh_instance"] == true {
            assert!(round < 3, "only the first answer has everything");
            known.clear();
        }
        for file in answer["files"].as_array().expect("files") {
            let name = file["name"].as_str().expect("a name").to_owned();
            if file["exists"] == true {
                let new = known.insert(name);
                assert!(!new || file["new"] == true, "round {round}: {file}");
            } else {
                known.remove(&name);
            }
        }
        *clock = answer["clock"].clone();
        let mut host = BTreeSet::new();
        of_host(root, root, &mut host);
        assert_eq!(*known, host, "round {round}");
    }
}

fn roots() {
    let served = Served::new();
    let root = &served.root;
    served.write("project/.git/index");
    served.write("project/sub/file");
    let mut client = served.client(Encoding::Json);
    let error = client.ask(&json!(["query", root, {}]))["error"].as_str().expect("refused").to_owned();
    // git's sample hook looks for these words.
    assert!(error.contains("unable to resolve root") && error.contains("is not watched"), "{error}");
    let answer = client.done(&json!(["watch-project", root.join("project/sub")]));
    assert_eq!((&answer["watch"], &answer["relative_path"]), (&json!(root.join("project")), &json!("sub")));
    assert_eq!(client.done(&json!(["watch-list"]))["roots"], json!([root.join("project")]));
    let found = client.done(&json!(["query", root.join("project"), {"fields": ["name"]}]));
    assert_eq!(names(&found), [".git", ".git/index", "sub", "sub/file"]);
    let outside = client.ask(&json!(["watch", "/"]))["error"].as_str().expect("refused").to_owned();
    assert!(outside.contains("is in no tree of this index"), "{outside}");
    fs::rename(root.join("project"), root.join("moved")).expect("a rename");
    assert!(client.ask(&json!(["clock", root.join("project")]))["error"].is_string());
    assert_eq!(client.done(&json!(["watch-list"]))["roots"], json!([]));
    for refused in ["trigger", "trigger-list", "shutdown-server", "what"] {
        assert!(client.ask(&json!([refused, root]))["error"].is_string(), "{refused}");
    }
    let version =
        client.done(&json!(["version", {"required": ["cmd-query"], "optional": ["field-content.sha1hex"]}]));
    assert_eq!(version["capabilities"], json!({"cmd-query": true, "field-content.sha1hex": false}));
    assert!(client.ask(&json!(["version", {"required": ["cmd-trigger"]}]))["error"].is_string());
    let list = client.done(&json!(["list-capabilities"]));
    assert!(list["capabilities"].as_array().is_some_and(|all| all.contains(&json!("term-suffix"))));
}

fn ignored() {
    let served = Served::new();
    let root = &served.root;
    for file in [".git/index", ".git/objects/aa/bb", "build/x", "builder/x", "sub/.git/objects/aa"] {
        served.write(file);
    }
    fs::write(root.join(".watchmanconfig"), r#"{"ignore_dirs":["build"]}"#).expect("a file");
    let mut client = served.client(Encoding::Bser2);
    client.done(&json!(["watch", root]));
    assert_eq!(client.done(&json!(["get-config", root]))["config"], json!({"ignore_dirs": ["build"]}));
    let all = [
        ".git",
        ".git/index",
        ".git/objects",
        ".watchmanconfig",
        "builder",
        "builder/x",
        "sub",
        "sub/.git",
        "sub/.git/objects",
        "sub/.git/objects/aa",
    ];
    let first = client.done(&json!(["query", root, {"fields": ["name"]}]));
    assert_eq!(names(&first), all);
    served.write("build/y");
    served.write(".git/objects/cc");
    served.write("z");
    let spec = json!({"fields": ["name"], "since": first["clock"], "expression": ["type", "f"]});
    assert_eq!(names(&client.done(&json!(["query", root, spec]))), ["z"]);
    fs::create_dir(root.join("other")).expect("a directory");
    fs::write(root.join("other/.watchmanconfig"), r#"{"ignore_vcs":3}"#).expect("a file");
    assert!(client.ask(&json!(["watch", root.join("other")]))["error"].is_string());
}

/// The index has the names that a mount covers, and a client sees others.
fn mounts() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let served = Served::new();
    served.write("above/m/covered");
    let mut client = served.client(Encoding::Json);
    client.done(&json!(["watch", served.root]));
    let query = |below: &str| json!(["query", served.root, {"relative_root": below, "fields": ["name"]}]);
    let at = served.root.join("above/m");
    assert!(client.done(&query("")).get("warning").is_none());
    if let Err(errno) = mount("none", &at, "tmpfs", MountFlags::empty(), None) {
        return eprintln!("skipped: a mount: {errno}");
    }
    let answers = ["", "above"].map(|below| client.ask(&query(below)));
    let inside = ["above/m", "above/m/covered"].map(|below| client.ask(&query(below)));
    unmount(&at, UnmountFlags::DETACH).expect("unmount");
    let says = |text: &Value| {
        text.as_str().is_some_and(|text| text.contains("above/m: another file system is mounted there"))
    };
    assert!(answers.iter().all(|answer| says(&answer["warning"])), "{answers:?}");
    assert!(inside.iter().all(|answer| says(&answer["error"])), "{inside:?}");
    assert!(client.done(&query("above/m")).get("warning").is_none());
}

fn cursors() {
    let served = Served::new();
    let root = &served.root;
    served.write("a");
    let mut client = served.client(Encoding::Bser1);
    client.done(&json!(["watch", root]));
    let spec = json!({"since": "n:own", "fields": ["name"], "expression": ["type", "f"]});
    let mut ask = |spec: &Value| client.done(&json!(["query", root, spec]));
    let first = ask(&spec);
    assert_eq!((names(&first), &first["is_fresh_instance"]), (vec!["a".to_owned()], &json!(true)));
    served.write("b");
    assert_eq!(names(&ask(&spec)), ["b"]);
    assert_eq!(names(&ask(&spec)), [""; 0]);
    let clock = first["clock"].as_str().expect("a clock");
    let other = |nth: usize, text: &str| {
        let mut fields: Vec<_> = clock.split(':').collect();
        fields[nth] = text;
        fields.join(":")
    };
    // Another instance, process, root; a tick that is yet to come; seconds; no clock at all.
    let foreign =
        [json!(other(1, "7")), json!(other(2, "1")), json!(other(3, "2")), json!(other(4, "999999"))];
    for since in foreign.into_iter().chain([json!("c:1:2"), json!(1_700_000_000), json!("")]) {
        let mut spec = json!({"since": since, "fields": ["name"], "expression": ["type", "f"]});
        let answer = ask(&spec);
        assert_eq!((names(&answer).len(), &answer["is_fresh_instance"]), (2, &json!(true)), "{since}");
        spec["empty_on_fresh_instance"] = json!(true);
        assert_eq!(names(&ask(&spec)), [""; 0]);
    }
    let term = json!({"fields": ["name"], "expression": ["allof", ["since", clock], ["type", "f"]]});
    assert_eq!(names(&ask(&term)), ["b"]);
}

fn hostile() {
    let served = Served::new();
    let mut random = fastrand::Rng::with_seed(3);
    let deep = format!("{}\n", "[".repeat(100_000));
    let lines = [
        deep.as_bytes(),
        b"[1\n",
        b"{}\n",
        b"[\"query\"]\n",
        b"[[]]\n",
        b"[\"query\",\"/\",{\"expression\":[[]]}]\n",
    ];
    for line in lines {
        let mut client = served.client(Encoding::Json);
        client.write(line);
        assert!(client.receive()["error"].is_string());
        // The connection is still good.
        client.done(&json!(["version"]));
    }
    for bytes in [
        &b"\0\x01\x06\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
        b"\0\x09\x03\x01",
        b"\0\x01\x03\xf0",
        b"\0\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0",
    ] {
        let mut client = served.client(Encoding::Bser1);
        client.write(bytes);
        assert!(client.is_cut_off(), "{bytes:?}");
    }
    let good = serde_bser::ser::serialize(
        Vec::new(),
        json!(["query", served.root, {"expression": ["suffix", ["a", "b"]]}]),
    );
    let good = good.expect("BSER");
    for _ in 0..300 {
        let mut bytes = good.clone();
        for _ in 0..random.usize(1..5) {
            let at = random.usize(7..bytes.len());
            bytes[at] = random.u8(..);
        }
        let mut client = served.client(Encoding::Bser2);
        client.write(&bytes[..random.usize(1..=bytes.len())]);
    }
    served.client(Encoding::Bser2).done(&json!(["version"]));
}
