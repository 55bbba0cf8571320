//! A server and hostile clients, over its socket.
//!
//! They need CAP_SYS_ADMIN; without it they count as ignored. One that changes users needs root.

#[path = "../support/form.rs"]
mod form;
#[path = "../support/mod.rs"]
mod support;

mod hostile;
mod many;
mod unread;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use uvfs_index::{IndexClient, IndexServer, IndexSocket, TreeLimits, WatchmanServer};

fn main() -> ExitCode {
    let tests: [(&str, fn()); 10] = [
        ("an_endless_answer_ends_with_a_sentence", endless_answer),
        ("the_server_looks_at_no_path_of_a_client", no_path_of_a_client),
        ("others_may_neither_stop_nor_spy", others),
        ("unread_directories_are_said_as_find_says_them", unread::as_find),
        ("a_zone_is_the_clients", zones),
        ("any_request_has_an_answer_or_an_end", hostile::requests),
        ("a_zone_of_any_bytes_is_a_zone_or_refused", hostile::zones),
        ("slow_readers_and_waiting_clients_take_little_memory", many::clients),
        ("a_query_that_takes_too_much_ends", many::queries),
        ("a_server_without_files_goes_on_later", without_files),
    ];
    // They change the limits and the environment of the process.
    support::run(&tests, Served::start().err(), true)
}

/// With an empty directory for a tree.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    fs::create_dir(dir.path().join("tree")).expect("a directory");
    dir
}

/// A server of a tree. Its threads live as long as the process.
struct Served {
    dir: tempfile::TempDir,
    stopped: Arc<AtomicUsize>,
}

impl Served {
    fn start() -> Result<Self, String> {
        Self::serve(directory())
    }

    /// A server of another user, of a tree that root has made; nothing if there cannot be one.
    fn of_other(make: impl FnOnce(&Path)) -> Option<Self> {
        let dir = directory();
        make(&dir.path().join("tree"));
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(dir.path(), open).expect("permissions");
        let served = as_other(|| Self::serve(dir))?;
        served.inspect_err(|why| eprintln!("skipped: a server without capabilities: {why}")).ok()
    }

    fn serve(dir: tempfile::TempDir) -> Result<Self, String> {
        let root = dir.path().join("tree");
        let stopped = Arc::new(AtomicUsize::new(0));
        let stops = Arc::clone(&stopped);
        let stop = move || _ = stops.fetch_add(1, Relaxed);
        let limits = TreeLimits { names_below: true, ..TreeLimits::default() };
        let index = Arc::new(IndexServer::start(&[root], limits, None, stop)?);
        let socket = IndexSocket::bind(&dir.path().join("sock"), 0o666)?;
        let path = dir.path().join("watchman");
        let second = IndexSocket::bind(&path, 0o666)?;
        let watchman = Arc::new(WatchmanServer::new(Arc::clone(&index), &path));
        thread::spawn(move || index.serve(&socket));
        thread::spawn(move || watchman.serve(&second));
        Ok(Self { dir, stopped })
    }

    fn new() -> Self {
        Self::start().expect("a server")
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn client(&self) -> IndexClient {
        IndexClient::new(Some(&self.dir.path().join("sock")))
    }

    /// The first line of the answer to a request.
    fn ask(&self, socket: &str, request: &Value) -> Value {
        let mut stream = UnixStream::connect(self.dir.path().join(socket)).expect("a server");
        stream.write_all(format!("{request}\n").as_bytes()).expect("a request");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    }

    fn find(&self, words: &[&str]) -> Result<String, String> {
        let (_, mut bytes) = self.client().find(words, false, false)?;
        let mut text = String::new();
        bytes.read_to_string(&mut text).expect("UTF-8");
        Ok(text)
    }
}

/// Before there was a bound, an answer filled the file system of temporary files.
fn endless_answer() {
    let served = Served::new();
    for nth in 0..1300 {
        fs::write(served.root().join(format!("f{nth}")), "").expect("a file");
    }
    let root = served.root();
    // Much output for little work, and a little less than a request may have.
    let format = "x".repeat(900_000);
    let why = served.find(&[root.to_str().expect("UTF-8"), "-printf", &format]).expect_err("too much");
    let known = ["the answer has more than ", "the file system of temporary files has too little space"];
    assert!(known.iter().any(|known| why.contains(known)), "{why}");
    assert!(served.find(&[root.to_str().expect("UTF-8")]).expect("an answer").len() > 600);
}

/// Operands and starting points of a request name what the client has seen, not what the server would see.
fn no_path_of_a_client() {
    let served = Served::new();
    let root = served.root();
    let root = root.to_str().expect("UTF-8");
    fs::write(served.root().join("f"), "").expect("a file");
    let request = |words: &[&str], starts: Value| json!({"do": "find", "args": words, "cwd": "/", "starts": starts, "zone": "UTC"});
    let error = |words: &[&str], starts| {
        served.ask("sock", &request(words, starts))["error"].as_str().expect("a refusal").to_owned()
    };
    for word in ["-newer", "-samefile", "-newercm"] {
        let there = error(&[root, word, "/etc/passwd"], json!([root]));
        let missing = error(&[root, word, "/etc/no-such"], json!([root]));
        assert_eq!(there.replace("passwd", "no-such"), missing);
        assert!(there.contains("the request does not have its attributes"), "{there}");
    }
    let there = error(&["/etc/passwd"], json!(["/etc/passwd"]));
    assert_eq!(there.replace("passwd", "no-such"), error(&["/etc/no-such"], json!(["/etc/no-such"])));
    assert!(error(&[root], json!([])).contains("use a client of the server's version"));
    // The command's client sends the attributes of operands.
    let new = served.dir.path().join("new");
    fs::write(&new, "").expect("a file");
    fs::File::open(&new).and_then(|file| file.set_modified(std::time::UNIX_EPOCH)).expect("a time");
    let new = new.to_str().expect("UTF-8");
    let file = format!("{root}/f");
    assert_eq!(served.find(&[root, "-type", "f", "-newer", new]), Ok(format!("{file}\n")));
    assert_eq!(served.find(&[root, "-samefile", &file]), Ok(format!("{file}\n")));
    assert!(served.find(&[root, "-newer", "/no/such"]).is_err_and(|why| why.contains("/no/such")));
    std::os::unix::fs::symlink(&file, served.dir.path().join("link")).expect("a link");
    fs::create_dir(served.root().join("d")).expect("a directory");
    std::os::unix::fs::symlink(served.root(), served.dir.path().join("way")).expect("a link");
    let way = served.dir.path().join("way");
    let way = way.to_str().expect("UTF-8");
    assert_eq!(served.find(&[&format!("{way}/d")]), Ok(format!("{way}/d\n")));
    assert_eq!(served.find(&[&format!("{way}/"), "-name", "f"]), Ok(format!("{way}/f\n")));
    let (answer, _) =
        served.client().find(&[format!("{file}/"), format!("{root}/no")], false, false).expect("");
    assert_eq!((answer.bytes, answer.messages.len(), answer.failed), (0, 2, true));
}

const NOBODY: u32 = 65_534;

/// Runs in a thread of its own, which becomes another user for the kernel alone.
fn as_other<R: Send>(task: impl FnOnce() -> R + Send) -> Option<R> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: another user: only root can become one");
        return None;
    }
    let become_other = || {
        let user = rustix::process::Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(user, user, user).expect("another user");
    };
    Some(thread::scope(|scope| {
        let other = scope.spawn(|| {
            become_other();
            task()
        });
        other.join().expect("a thread")
    }))
}

fn others() {
    let served = Served::new();
    fs::create_dir(served.root().join("d")).expect("a directory");
    let secret = served.root().join("link");
    std::os::unix::fs::symlink("/root", &secret).expect("a link");
    // So that another user comes to the socket.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(served.dir.path(), open).expect("permissions");
    let asked = as_other(|| {
        let watch = |path: &str| served.ask("watchman", &json!(["watch", path])).to_string();
        let root = served.root();
        let at = |name: &str| root.join(name).to_str().expect("UTF-8").to_owned();
        (
            served.client().stop(),
            watch("/root"),
            watch("/no-such"),
            watch(&at("link")),
            watch(&at("link/no-such")),
            watch(&at("d")),
            served.find(&[&at("d")]),
        )
    });
    let Some((stop, there, missing, link, broken, own, found)) = asked else { return };
    assert_eq!(stop, Err("only root and the index's own user may end it".into()));
    assert_eq!(served.stopped.load(Relaxed), 0);
    assert_eq!(there.replace("/root", "/no-such"), missing);
    assert_eq!(link.replace("/link", "/link/no-such"), broken);
    assert!(own.contains("\"watcher\":\"uvfs\""), "{own}");
    assert!(found.is_ok(), "{found:?}");
    // Nobody ends this one, so the client would wait for ever.
    let mut stream = UnixStream::connect(served.dir.path().join("sock")).expect("a server");
    stream.write_all(b"{\"do\":\"stop\"}\n").expect("a request");
    while served.stopped.load(Relaxed) == 0 {
        thread::yield_now();
    }
}

fn zones() {
    let served = Served::new();
    fs::write(served.root().join("f"), "").expect("a file");
    let root = served.root();
    let file = fs::File::open(root.join("f")).expect("a file");
    file.set_modified(std::time::UNIX_EPOCH).expect("a time");
    drop(file);
    let find = |zone: Value, file: Value| {
        let args = [root.to_str().expect("UTF-8"), "-name", "f", "-printf", "%TH:%TM"];
        let request =
            json!({"do": "find", "args": args, "starts": [args[0]], "zone": zone, "zone_file": file});
        let mut stream = UnixStream::connect(served.dir.path().join("sock")).expect("a server");
        stream.write_all(format!("{request}\n").as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("UTF-8");
        answer
    };
    for (zone, time) in [("<+0330>-3:30", "03:30"), ("", "00:00"), ("UTC", "00:00"), ("XYZ5", "19:00")] {
        let answer = find(zone.into(), Value::Null);
        assert!(answer.ends_with(&format!("}}\n{time}")), "{zone}: {answer}");
    }
    let unknown = find("No/Such".into(), Value::Null);
    assert!(unknown.contains("the time zone \\\"No/Such\\\" (TZ) is not known"), "{unknown}");
    // The server opens no file of that name.
    let path = find("/usr/share/zoneinfo/Asia/Tokyo".into(), Value::Null);
    assert!(path.contains("is not known"), "{path}");
    assert!(find(Value::Null, "00".into()).contains("is not that of a time zone"));
    match fs::read("/usr/share/zoneinfo/Asia/Tokyo") {
        Ok(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(find(Value::Null, hex.into()).ends_with("\n09:00"));
        }
        Err(error) => eprintln!("skipped: a zone's file: {error}"),
    }
}

/// accept(2) fails while there are no files left. The server goes on when there are.
fn without_files() {
    let served = Served::new();
    let before = getrlimit(Resource::Nofile);
    let path = served.dir.path().join("sock");
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let address = SocketAddrUnix::new(&path).expect("a path");
    let client = || socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    // Both have their numbers before none is left.
    let (idle, late) = (client(), client());
    // Every number below the limit is taken.
    let fill: Vec<fs::File> = (0..64).map(|_| fs::File::open("/dev/null").expect("a file")).collect();
    let last = fill.iter().map(AsRawFd::as_raw_fd).max().expect("files") as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(last + 2), maximum: before.maximum })
        .expect("a limit");
    let mut more = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        more.push(file);
    }
    // A waiting accept(2) may have its number already, and an idle client keeps it. The next one finds
    // none.
    connect(&idle, &address).expect("a server");
    connect(&late, &address).expect("a server");
    let mut stream = UnixStream::from(late);
    stream.write_all(b"{\"do\":\"list\"}\n").expect("a request");
    stream.set_read_timeout(Some(std::time::Duration::from_millis(300))).expect("a socket");
    let waits = stream.read(&mut [0]).expect_err("no answer yet");
    setrlimit(Resource::Nofile, before).expect("a limit");
    assert!(matches!(waits.kind(), std::io::ErrorKind::WouldBlock), "{waits}");
    drop((fill, more, idle));
    stream.set_read_timeout(None).expect("a socket");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("\"trees\""), "{answer}");
}
