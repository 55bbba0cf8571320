//! `uvfs index`, `uvfs changed` and `uvfs git-fsmonitor`. They need CAP_SYS_ADMIN, as mounting does.

use super::*;

use std::path::PathBuf;

pub const PLAIN: &[Test] =
    &[("asking_without_a_server_is_a_sentence", asking_without_a_server_is_a_sentence)];

pub const MOUNTING: &[Test] = &[
    ("an_index_says_what_changed", an_index_says_what_changed),
    ("an_index_that_is_killed_knows_no_old_clock", an_index_that_is_killed_knows_no_old_clock),
    ("an_index_that_lost_events_says_all", an_index_that_lost_events_says_all),
    ("an_index_follows_its_path_to_another_directory", an_index_follows_its_path_to_another_directory),
    ("an_index_without_capabilities_watches_each_directory", without_capabilities),
    ("an_index_at_the_limit_of_marks_names_it", an_index_at_the_limit_of_marks_names_it),
    ("a_waiting_question_is_answered_by_a_change", a_waiting_question_is_answered_by_a_change),
    ("find_prints_the_same_from_the_index", find_prints_the_same_from_the_index),
    ("git_sees_the_same_with_the_index", git_sees_the_same_with_the_index),
    ("watchmans_words_are_answered", watchmans_words_are_answered),
    ("find_prints_json_that_keeps_every_name", find_prints_json_that_keeps_every_name),
    ("an_index_starts_with_its_snapshot", an_index_starts_with_its_snapshot),
    ("an_index_does_without_a_snapshot_of_others", an_index_does_without_a_snapshot_of_others),
    ("an_index_that_was_stopped_starts_again_at_once", an_index_that_was_stopped_starts_again_at_once),
    ("an_index_ends_if_its_caller_went_away", an_index_ends_if_its_caller_went_away),
    ("figures_of_an_index_are_to_be_had", figures_of_an_index_are_to_be_had),
];

/// Ctrl-C while the directories are read leaves no server behind.
fn an_index_ends_if_its_caller_went_away() {
    let served = Served::prepared();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uvfs"));
    command
        .args(["index", "--daemon-child", "--no-snapshot", "--socket"])
        .arg(served.socket())
        .arg(served.tree());
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a server");
    drop(server.stdout.take());
    let until = Instant::now() + SOON;
    while server.try_wait().expect("a child").is_none() {
        assert!(Instant::now() < until, "the server goes on");
        std::thread::yield_now();
    }
}

/// A directory `tree` that a server follows, in the background.
struct Served {
    dir: TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.uvfs(&["index", "--stop"]);
    }
}

impl Served {
    fn start() -> Self {
        let served = Self::prepared();
        served.serve();
        served
    }

    /// Without a server yet.
    fn prepared() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        fs::create_dir(dir.path().join("tree")).expect("a directory");
        Self { dir }
    }

    /// Starts the server by another program, which gets the command as its last words. Returns what it said.
    fn serve_by(&self, program: &str, args: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(args).arg(env!("CARGO_BIN_EXE_uvfs")).arg("index").arg("--socket").arg(self.socket());
        let output = command.args(["--no-snapshot", "--daemon"]).arg(self.tree()).output().expect(program);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {args:?}: {said}");
        said
    }

    fn serve(&self) {
        let tree = self.tree();
        let state = self.state();
        let state = state.to_str().expect("UTF-8");
        let output = self.uvfs(&["index", "--daemon", "--snapshots", state, tree.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{output:?}");
    }

    /// The directory of the snapshot.
    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Waits until the list has this text.
    fn lists(&self, wanted: &str) -> String {
        let until = Instant::now() + SOON;
        loop {
            let list = String::from_utf8(self.uvfs(&["index", "--list"]).stdout).expect("UTF-8");
            if list.contains(wanted) {
                return list;
            }
            assert!(Instant::now() < until, "{list}");
        }
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uvfs"));
        command.arg(args[0]).arg("--socket").arg(self.socket()).args(&args[1..]).current_dir(self.tree());
        command
    }

    fn uvfs(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("uvfs")
    }

    /// The new clock, and the lines of changes.
    fn changed(&self, args: &[&str]) -> (String, Vec<String>) {
        let output = self.uvfs(&[&["changed"], args].concat());
        assert!(output.status.success(), "{output:?}");
        lines(&output.stdout)
    }

    fn server(&self) -> Pid {
        let socket = format!("--socket\0{}\0", self.socket().display());
        let pids = fs::read_dir("/proc")
            .expect("/proc")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let is_server = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&socket)
        };
        pids.filter(is_server).find_map(Pid::from_raw).expect("a server")
    }
}

fn lines(stdout: &[u8]) -> (String, Vec<String>) {
    let text = String::from_utf8_lossy(stdout);
    let mut lines = text.lines().map(str::to_owned);
    let clock = lines.next().expect("a clock");
    (clock.strip_prefix("clock\t").expect("a clock").to_owned(), lines.collect())
}

fn asking_without_a_server_is_a_sentence() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("none");
    for command in ["changed", "index"] {
        let mut asked = Command::new(env!("CARGO_BIN_EXE_uvfs"));
        asked.arg(command).arg("--socket").arg(&socket);
        if command == "index" {
            asked.arg("--list");
        }
        let output = asked.output().expect("uvfs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.starts_with("uvfs: no index is served at "), "{said}");
        let start = format!("start one with: uvfs index --socket {} DIR", socket.display());
        assert!(said.contains(&start), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

fn an_index_says_what_changed() {
    let served = Served::start();
    let tree = served.tree();
    let (clock, first) = served.changed(&[]);
    assert_eq!(first, ["all\t./"]);
    assert_eq!(served.changed(&["--since", &clock]), (clock.clone(), vec![]));
    fs::create_dir(tree.join("d")).expect("mkdir");
    fs::write(tree.join("d/f"), "text").expect("write");
    fs::write(tree.join("tab\there"), "text").expect("write");
    let (now, changes) = served.changed(&["--since", &clock]);
    for wanted in ["created\td/", "created\td/f", "created\ttab\\011here"] {
        assert!(changes.iter().any(|change| change == wanted), "{changes:?}");
    }
    fs::rename(tree.join("d"), tree.join("e")).expect("rename");
    fs::remove_file(tree.join("tab\there")).expect("unlink");
    let (_, changes) = served.changed(&["--since", &now]);
    assert!(changes.contains(&"renamed\td/\te/".into()), "{changes:?}");
    assert!(changes.contains(&"removed\ttab\\011here".into()), "{changes:?}");
    let (_, below) = served.changed(&["--since", &now, "e"]);
    assert_eq!(below, ["created\t./"]);
    let nul = served.uvfs(&["changed", "-0", "--since", &now]).stdout;
    assert!(nul.ends_with(b"\0") && nul.split(|byte| *byte == 0).any(|path| path == b"tab\there"), "{nul:?}");
    let json = String::from_utf8(served.uvfs(&["changed", "--json", "--since", &now]).stdout).expect("UTF-8");
    let renamed = r#"{"kind":"renamed","path":"e","from":"d","type":"d","whole":true}"#;
    assert!(json.lines().any(|line| line == renamed), "{json}");
    let list = String::from_utf8(served.uvfs(&["index", "--list"]).stdout).expect("UTF-8");
    assert!(list.contains("tree: following, 3 names in "), "{list}");
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(served.socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = served.uvfs(&["index", tree.to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && said.contains("a server listens at"), "{said}");
    let stop = format!("end it with: uvfs index --socket {} --stop", served.socket().display());
    assert!(said.contains(&stop), "{said}");
    assert!(served.uvfs(&["index", "--stop"]).status.success());
    assert!(!served.socket().exists() && !served.uvfs(&["index", "--list"]).status.success());
}

/// The lock of the socket is free when the command returns, and nothing of the old server is removed from the new one.
fn an_index_that_was_stopped_starts_again_at_once() {
    let served = Served::start();
    for _ in 0..20 {
        assert!(served.uvfs(&["index", "--stop"]).status.success());
        served.serve();
        assert!(served.socket().exists());
    }
}

/// Output, sorted, and status of find(1) and of `uvfs find`, both run in the tree.
fn find_both(served: &Served, words: &[&str]) -> [(Vec<Vec<u8>>, Option<i32>); 2] {
    let mut find = Command::new("find");
    find.args(words).current_dir(served.tree());
    let of = |mut command: Command| {
        let output = command.env("LC_ALL", "C").env("TZ", "Asia/Kathmandu").output().expect("find");
        let mut lines: Vec<_> =
            output.stdout.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort_unstable();
        (lines, output.status.code())
    };
    [of(find), of(served.command(&[&["find"], words].concat()))]
}

fn find_prints_the_same_from_the_index() {
    let served = Served::start();
    let tree = served.tree();
    fs::create_dir_all(tree.join("a/b/empty")).expect("mkdir");
    fs::write(tree.join("a/long"), vec![1; 5000]).expect("write");
    fs::write(tree.join("a/b/new\nline.rs"), "text").expect("write");
    fs::hard_link(tree.join("a/long"), tree.join("a/b/again")).expect("link");
    std::os::unix::fs::symlink("a/long", tree.join("link")).expect("symlink");
    std::os::unix::fs::symlink("a", tree.join("to_dir")).expect("symlink");
    let words: [&[&str]; 12] = [
        &[],
        &["a", "-ls"],
        &[".", "-name", "*.rs", "-o", "-type", "l", "-printf", "%p %l\\n"],
        &["a", "-printf", "%y %m %n %s %b %i %D %T+ %C@ %p\\n"],
        &["link", "to_dir", "to_dir/"],
        &["./a/../a", "-maxdepth", "1"],
        &[".", "-empty", "-o", "-size", "+4k", "-print0"],
        &[".", "-newer", "a/long", "-o", "-samefile", "a/b/again"],
        &["missing", "a", "-links", "2"],
        &[".", "-depth", "-path", "*b*", "-prune"],
        &["a", "-type", "d", "-quit"],
        &[".", "-no-such-word"],
    ];
    for words in words {
        let [find, ours] = find_both(&served, words);
        assert_eq!(ours, find, "{words:?}");
    }
    // Every change that has ended is in the answer.
    for nth in 0..100 {
        let (from, to) = (tree.join(format!("a{nth}")), tree.join(format!("a{}", nth + 1)));
        let from = if nth == 0 { tree.join("a") } else { from };
        fs::rename(from, to).expect("rename");
        let [find, ours] = find_both(&served, &[".", "-name", "*.rs"]);
        assert_eq!(ours, find, "{nth}");
    }
    let refused = served.uvfs(&["find", ".", "-exec", "rm", "{}", ";"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("-exec"), "{said}");
    let outside = served.uvfs(&["find", "/"]);
    let said = String::from_utf8_lossy(&outside.stderr).into_owned();
    assert!(!outside.status.success() && said.contains("is in no tree of this index"), "{said}");
}

fn objects(output: &Output, end: u8) -> Vec<serde_json::Value> {
    let parts = output.stdout.split(|byte| *byte == end).filter(|part| !part.is_empty());
    parts.map(|part| serde_json::from_slice(part).expect("JSON")).collect()
}

fn find_prints_json_that_keeps_every_name() {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, symlink};
    let served = Served::start();
    let tree = served.tree();
    let odd = tree.join(std::ffi::OsStr::from_bytes(b"odd\xff\n\"name"));
    fs::write(&odd, "four").expect("write");
    fs::File::open(&odd)
        .expect("open")
        .set_modified(std::time::UNIX_EPOCH - Duration::from_millis(500))
        .expect("a time");
    symlink("t\u{fc}r", tree.join("link")).expect("symlink");
    let output = served.uvfs(&["find", "--json", ".", "!", "-name", "."]);
    assert!(output.status.success(), "{output:?}");
    let found = objects(&output, b'\n');
    assert_eq!(found.len(), 2, "{output:?}");
    let of = |letter: &str| found.iter().find(|file| file["type"] == letter).expect("a file");
    let (file, link) = (of("f"), of("l"));
    let hex: String = b"./odd\xff\n\"name".iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(file["path"]["hex"], hex);
    let meta = fs::metadata(&odd).expect("a file");
    let wanted = serde_json::json!({"size": 4, "blocks": meta.blocks(), "mode": format!("{:o}", meta.mode() & 0o7777),
        "uid": meta.uid(), "gid": meta.gid(), "nlink": 1, "inode": meta.ino(), "dev": meta.dev(), "mtime": -1,
        "mtime_nsec": 500_000_000, "ctime": meta.ctime(), "ctime_nsec": meta.ctime_nsec()});
    for (field, value) in wanted.as_object().expect("an object") {
        assert_eq!(&file[field], value, "{field}");
    }
    assert_eq!((&link["path"], &link["target"]), (&"./link".into(), &"t\u{fc}r".into()));
    let nul = served.uvfs(&["find", "--json", ".", "-print0", "-type", "l", "-print"]);
    assert_eq!(nul.stdout.iter().filter(|byte| **byte == 0).count(), 3, "{nul:?}");
    let refused = served.uvfs(&["find", "--json", ".", "-printf", "%p"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.stdout.is_empty() && said.contains("-printf prints a text of its own"), "{said}");
    let changed = served.uvfs(&["changed", "--json", "-0"]);
    assert_eq!(objects(&changed, 0)[0]["fresh"], true);
}

fn an_index_starts_with_its_snapshot() {
    let served = Served::start();
    let tree = served.tree();
    fs::create_dir_all(tree.join("a/b")).expect("mkdir");
    fs::write(tree.join("a/b/old.rs"), "text").expect("write");
    let (clock, _) = served.changed(&[]);
    assert!(served.uvfs(&["index", "--stop"]).status.success());
    let snapshots = || {
        let list =
            fs::read_dir(served.state()).expect("a directory").map(|name| name.expect("a name").path());
        list.filter(|path| path.extension().is_some_and(|is| is == "snapshot")).collect::<Vec<_>>()
    };
    let [snapshot] = &snapshots()[..] else { panic!("one snapshot") };
    // Changes that nobody followed are found.
    fs::rename(tree.join("a/b"), tree.join("c")).expect("rename");
    fs::write(tree.join("c/new.rs"), "text").expect("write");
    served.serve();
    assert_eq!(served.changed(&["--since", &clock]).1, ["all\t./"]);
    let list = served.lists("following, 5 names");
    assert!(list.contains("snapshot ") && list.contains(" seconds old"), "{list}");
    let [find, ours] = find_both(&served, &[".", "-ls"]);
    assert_eq!(ours, find);
    // A damaged one is told of, and costs a scan only.
    assert!(served.uvfs(&["index", "--stop"]).status.success());
    let mut bytes = fs::read(snapshot).expect("a snapshot");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(snapshot, bytes).expect("write");
    let (state, path) = (served.state(), tree.to_str().expect("UTF-8").to_owned());
    let output = served.uvfs(&["index", "-d", "--snapshots", state.to_str().expect("UTF-8"), &path]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.lines().count() == 1, "{said}");
    assert!(
        said.contains("is not used: it is damaged: a checksum is wrong; the tree is read anew"),
        "{said}"
    );
    let [find, ours] = find_both(&served, &["."]);
    assert_eq!(ours, find);
    // It has another one when it ends, whether a client or a signal ends it.
    let server = served.server();
    kill_process(server, Signal::TERM).expect("kill");
    let gone = Instant::now() + SOON;
    while Path::new(&format!("/proc/{}", server.as_raw_nonzero())).exists() && Instant::now() < gone {
        std::thread::yield_now();
    }
    served.serve();
    assert!(served.lists("following").contains("seconds old"));
}

fn an_index_does_without_a_snapshot_of_others() {
    use std::os::unix::fs::PermissionsExt;
    let served = Served::start();
    let path = served.tree().to_str().expect("UTF-8").to_owned();
    let refused = |state: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uvfs"));
        command.args(["index", "-d", "--socket"]).arg(served.dir.path().join("other"));
        let output = command.arg("--snapshots").arg(state).arg(&path).output().expect("uvfs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let open = served.dir.path().join("open");
    fs::create_dir(&open).expect("mkdir");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("chmod");
    assert!(refused(&open).contains("other users may write there"));
    std::os::unix::fs::symlink(served.state(), served.dir.path().join("link")).expect("symlink");
    assert!(refused(&served.dir.path().join("link")).contains("it is a symbolic link"));
    // Two servers with one snapshot: the second does without.
    let mut second = Command::new(env!("CARGO_BIN_EXE_uvfs"));
    second.args(["index", "-d", "--socket"]).arg(served.dir.path().join("other"));
    let output = second.arg("--snapshots").arg(served.state()).arg(&path).output().expect("uvfs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("another server keeps the snapshot"), "{said}");
    let mut stop = Command::new(env!("CARGO_BIN_EXE_uvfs"));
    stop.args(["index", "--stop", "--socket"]).arg(served.dir.path().join("other"));
    assert!(stop.status().expect("uvfs").success());
}

fn figures_of_an_index_are_to_be_had() {
    use std::io::Read;
    let served = Served::start();
    fs::write(served.tree().join("f"), "text").expect("write");
    served.uvfs(&["find"]);
    assert!(served.uvfs(&["index", "--stop"]).status.success());
    let state = served.state();
    let (state, path) =
        (state.to_str().expect("UTF-8").to_owned(), served.tree().to_str().expect("UTF-8").to_owned());
    let output = served.uvfs(&["index", "-d", "--metrics", "127.0.0.1:0", "--snapshots", &state, &path]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let address = said.trim().split_once("the figures are at http://").expect("where they are").1;
    let address = address.strip_suffix("/metrics").expect("a URL").to_owned();
    served.lists("following");
    served.uvfs(&["find"]);
    let figures = || {
        let mut client = std::net::TcpStream::connect(&address).expect("it listens");
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("a request");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let answer = figures();
    for line in [
        format!("uvfs_index_names{{tree=\"{path}\"}} 2"),
        format!("uvfs_index_following{{tree=\"{path}\"}} 1"),
        "uvfs_index_queries_total{kind=\"find\"} 1".to_owned(),
    ] {
        assert!(answer.lines().any(|shown| shown == line), "{line} in {answer}");
    }
    for figure in
        ["bytes", "unread", "snapshot_age_seconds", "events_total", "overflows_total", "scans_total"]
    {
        assert!(
            answer.contains(&format!("\nuvfs_index_{figure}{{tree=\"{path}\"}} ")),
            "{figure} in {answer}"
        );
    }
    let (status, said) = super::refused(&["index", "--metrics", "0.0.0.0:0", &path]);
    assert!(status == 1 && said.contains("--metrics-for-all"), "{said}");
}

fn an_index_that_is_killed_knows_no_old_clock() {
    let served = Served::start();
    let (clock, _) = served.changed(&[]);
    let server = served.server();
    kill_process(server, Signal::KILL).expect("kill");
    // Its lock goes with its last thread.
    let gone = Instant::now() + SOON;
    while Path::new(&format!("/proc/{}", server.as_raw_nonzero())).exists() && Instant::now() < gone {
        std::thread::yield_now();
    }
    fs::write(served.tree().join("f"), "text").expect("write");
    assert!(!served.uvfs(&["changed", "--since", &clock]).status.success());
    served.serve();
    let (now, changes) = served.changed(&["--since", &clock]);
    assert!(now != clock && changes == ["all\t./"], "{now} {changes:?}");
}

/// The kernel keeps 16,384 events for a group unless it is told otherwise.
fn an_index_that_lost_events_says_all() {
    let served = Served::start();
    let (clock, _) = served.changed(&[]);
    let most = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").expect("a limit");
    let most: usize = most.trim().parse().expect("a number");
    if most > 100_000 {
        eprintln!("not forced: the kernel keeps {most} events");
        return;
    }
    let server = served.server();
    kill_process(server, Signal::STOP).expect("stop");
    // A thread that has not stopped yet would read events away.
    let task = |entry: std::io::Result<fs::DirEntry>| entry.expect("a thread").path().join("stat");
    let tasks = fs::read_dir(format!("/proc/{}/task", server.as_raw_nonzero())).expect("threads");
    for stat in tasks.map(task) {
        let until = Instant::now() + SOON;
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") T ")) && Instant::now() < until {
            std::thread::yield_now();
        }
    }
    for nth in 0..most + 10 {
        fs::write(served.tree().join(format!("f{nth}")), "").expect("write");
    }
    kill_process(server, Signal::CONT).expect("continue");
    let (now, changes) = served.changed(&["--since", &clock]);
    let other = now.split(':').next() != clock.split(':').next();
    assert!(other && changes == ["all\t./"], "{now}, {} changes, first {:?}", changes.len(), changes.first());
    let until = Instant::now() + SOON;
    let list = loop {
        let list = String::from_utf8(served.uvfs(&["index", "--list"]).stdout).expect("UTF-8");
        if !list.contains("scanning") || Instant::now() > until {
            break list;
        }
    };
    assert!(list.contains(&format!("following, {} names", most + 11)), "{list}");
    assert!(list.contains("read 2 times"), "{list}");
}

fn an_index_follows_its_path_to_another_directory() {
    let served = Served::start();
    fs::write(served.tree().join("old"), "text").expect("write");
    let (clock, _) = served.changed(&[]);
    fs::rename(served.tree(), served.dir.path().join("elsewhere")).expect("rename");
    let path = served.tree();
    let path = path.to_str().expect("UTF-8");
    let elsewhere = served.dir.path().join("elsewhere");
    let asked = || {
        let mut command = served.command(&["changed", "--since", &clock, path]);
        command.current_dir(&elsewhere).output().expect("uvfs")
    };
    let output = asked();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("is not the directory any more"), "{said}");
    fs::create_dir(served.tree()).expect("mkdir");
    assert_eq!(lines(&asked().stdout).1, ["all\t./"]);
}

fn without_capabilities() {
    for dropped in ["-sys_admin", "-dac_read_search"] {
        let served = Served::prepared();
        fs::create_dir_all(served.tree().join("d/e")).expect("mkdir");
        let drop = ["--bounding-set", dropped, "--inh-caps", dropped, "--"];
        let said = served.serve_by("setpriv", &drop);
        assert!(said.contains("is watched by itself, because CAP_SYS_ADMIN"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(served.lists("following, 3 names in ").contains(", each directory watched by itself"));
        let (clock, _) = served.changed(&[]);
        fs::create_dir(served.tree().join("d/new")).expect("mkdir");
        fs::write(served.tree().join("d/new/f"), "text").expect("write");
        fs::rename(served.tree().join("d/e"), served.tree().join("d/new/e")).expect("rename");
        let (_, mut changes) = served.changed(&["--since", &clock]);
        changes.retain(|change| !change.starts_with("changed"));
        changes.sort();
        assert_eq!(changes, ["created\td/new/", "created\td/new/f", "renamed\td/e/\td/new/e/"]);
        let [(theirs, _), (ours, _)] = find_both(&served, &["-printf", "%p %i %T@\\n"]);
        assert_eq!(theirs, ours);
    }
}

fn an_index_at_the_limit_of_marks_names_it() {
    let served = Served::prepared();
    for nth in 0..20 {
        fs::create_dir(served.tree().join(format!("d{nth}"))).expect("mkdir");
    }
    // A user namespace has a limit of its own.
    let limit = "echo 8 >/proc/sys/user/max_fanotify_marks && exec \"$@\"";
    let said = served.serve_by("unshare", &["--user", "--map-root-user", "sh", "-ec", limit, "sh"]);
    assert!(said.contains("fs.fanotify.max_user_marks is ") && said.lines().count() == 1, "{said}");
    let list = served.lists("tree: lost, ");
    assert!(list.contains("raise that with sysctl fs.fanotify.max_user_marks=NUMBER"), "{list}");
    assert_eq!(served.changed(&[]).1, ["all\t./"]);
    assert!(!served.uvfs(&["find"]).status.success());
}

fn a_waiting_question_is_answered_by_a_change() {
    let served = Served::start();
    let (clock, _) = served.changed(&[]);
    let mut waiting = served.command(&["changed", "--wait", "--since", &clock]);
    let waiting = waiting.stdout(Stdio::piped()).spawn().expect("uvfs");
    // Another question is answered meanwhile, and does not take the change away.
    assert_eq!(served.changed(&["--since", &clock]).1, Vec::<String>::new());
    fs::write(served.tree().join("f"), "text").expect("write");
    let output = waiting.wait_with_output().expect("an answer");
    assert!(lines(&output.stdout).1.contains(&"created\tf".into()), "{output:?}");
}

fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@example.org"]).args(args).current_dir(dir);
    let output = command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", dir).output().expect("git");
    assert!(output.status.success(), "{args:?} {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A random edit of a work tree; one that fails changes nothing.
fn edit(rng: &mut fastrand::Rng, tree: &Path) -> std::io::Result<()> {
    let mut place = || tree.join(format!("d{}", rng.u8(..6))).join(format!("f{}", rng.u8(..12)));
    let (at, other) = (place(), place());
    match rng.u8(..8) {
        0..=2 => fs::write(at, format!("text {}", rng.u8(..3))),
        3 => fs::remove_file(at),
        4 => fs::rename(at, other),
        5 => fs::rename(at.parent().unwrap_or(tree), other.parent().unwrap_or(tree)),
        6 => fs::create_dir(at.parent().unwrap_or(tree)),
        _ => fs::remove_dir_all(at.parent().unwrap_or(tree)),
    }
}

fn git_sees_the_same_with_the_index() {
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("not tried: git is missing");
        return;
    }
    let served = Served::start();
    let tree = served.tree();
    for nth in 0..60 {
        let dir = tree.join(format!("d{}", nth % 6));
        fs::create_dir_all(&dir).expect("mkdir");
        fs::write(dir.join(format!("f{}", nth % 12)), "text").expect("write");
    }
    git(&tree, &["init", "-q"]);
    git(&tree, &["add", "."]);
    git(&tree, &["commit", "-qm", "first"]);
    let hook = format!("{} git-fsmonitor --socket {}", env!("CARGO_BIN_EXE_uvfs"), served.socket().display());
    git(&tree, &["config", "core.fsmonitor", &hook]);
    git(&tree, &["config", "core.untrackedCache", "true"]);
    let status = ["status", "--porcelain", "-uall"];
    let alone = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false"];
    let mut rng = fastrand::Rng::with_seed(7);
    let mut dirty = 0;
    for round in 0..60 {
        for _ in 0..rng.usize(..20) {
            let _ = edit(&mut rng, &tree);
        }
        // With the index first: the other may refresh what git knows.
        let with = git(&tree, &status);
        let without = git(&tree, &[&alone[..], &status].concat());
        assert_eq!(with, without, "round {round}");
        dirty += usize::from(!with.is_empty());
    }
    assert!(dirty > 30);
    // The hook was asked, and its answers were understood.
    let trace = Command::new("git").arg("status").current_dir(&tree).env("GIT_TRACE_FSMONITOR", "1").output();
    let trace = String::from_utf8_lossy(&trace.expect("git").stderr).into_owned();
    assert!(trace.contains("query returned success") || trace.contains("success"), "{trace}");
}

fn watchmans_words_are_answered() {
    let served = Served {
        dir: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory"),
    };
    fs::create_dir(served.tree()).expect("a directory");
    let socket = served.dir.path().join("watchman");
    let words = ["index", "--daemon", "--watchman", socket.to_str().expect("UTF-8"), "."];
    let output = served.uvfs(&words);
    assert!(output.status.success(), "{output:?}");
    let ask = |words: &[&str], input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uvfs"));
        command.arg("watchman").args(words).env("WATCHMAN_SOCK", &socket).current_dir(served.tree());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("uvfs");
        // A command that reads no input may have ended.
        let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("uvfs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(ask(&["--version"], ""), (Some(0), "4.9.0\n".into()));
    let (status, said) = ask(&["get-sockname"], "");
    assert!(status == Some(0) && said.contains(&format!("\"sockname\": \"{}\"", socket.display())), "{said}");
    let query = format!(r#"["query", "{}", {{"fields": ["name"]}}]"#, served.tree().display());
    let (status, said) = ask(&["-j", "--no-pretty"], &query);
    assert!(status == Some(1) && said.contains("is not watched"), "{said}");
    assert_eq!(ask(&["watch", "."], "").0, Some(0));
    fs::write(served.tree().join("file"), "text").expect("a file");
    let (status, said) = ask(&["-j", "--no-pretty"], &query);
    assert!(status == Some(0) && said.ends_with("\"files\":[\"file\"]}\n"), "{said}");
    assert!(served.uvfs(&["index", "--stop"]).status.success());
    assert!(!socket.exists(), "the server has removed its second socket");
}
