//! `uvfs mount kernfs:SPEC`, by the programs that people use.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::{Dir, SOON, Server, Test, refused, within};

pub const PLAIN: &[Test] = &[("spec_errors_have_line_and_column", spec_errors_have_line_and_column)];

pub const MOUNTING: &[Test] = &[
    ("programs_read_and_write_a_tree", programs_read_and_write_a_tree),
    ("the_example_is_a_tree", the_example_is_a_tree),
    ("poll_wakes_when_a_value_changes", poll_wakes_when_a_value_changes),
    ("sighup_reloads_a_tree", sighup_reloads_a_tree),
    ("a_spec_that_is_wrong_changes_nothing", a_spec_that_is_wrong_changes_nothing),
    ("a_command_that_hangs_is_killed", a_command_that_hangs_is_killed),
    ("a_command_that_fails_is_logged_with_what_it_said", a_command_that_fails_is_logged_with_what_it_said),
    ("a_command_that_cannot_start_holds_up_nothing", a_command_that_cannot_start_holds_up_nothing),
    ("a_text_is_whole_though_it_changes", a_text_is_whole_though_it_changes),
    ("a_c_program_reads_many_attributes", a_c_program_reads_many_attributes),
];

const TREE: &str = r#"
[[value]]
path = "class/net/eth0/mtu"
value = 1500
mode = 0o644
[[value]]
path = "class/net/eth0/name"
value = "eth0"
[[counter]]
path = "events"
[[link]]
path = "default"
target = "class/net/eth0"
[[command]]
path = "words"
run = ["printf", "%s;", "a b", "$HOME"]
"#;

/// A SPEC, a directory to mount on, and the server.
struct Tree {
    spec: PathBuf,
    server: Server,
    dir: Dir,
    _files: tempfile::TempDir,
}

impl Tree {
    fn new(spec: &str) -> Self {
        let files = tempfile::tempdir().expect("a temporary directory");
        let file = files.path().join("tree.toml");
        fs::write(&file, spec).expect("write");
        let dir = Dir::new();
        let server = Server::start(&[&format!("kernfs:{}", file.display()), dir.text()]);
        Self { spec: file, server, dir, _files: files }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> std::io::Result<String> {
        fs::read_to_string(self.path(name))
    }

    /// Puts another SPEC in the place of this one and has it read; how that went.
    fn reload(&self, spec: &str) -> String {
        fs::write(&self.spec, spec).expect("write");
        let before = file_stamp(&self.path(".uvfs/reload"));
        self.server.signal(Signal::HUP);
        before()
    }
}

/// Waits, when called, until what polls say that the file was read before has changed, and reads it.
fn file_stamp(path: &Path) -> impl FnOnce() -> String + use<> {
    let file = File::open(path).expect("open");
    let _ = text(&file);
    move || {
        assert!(woken(&file, SOON), "nobody says how the reload went");
        text(&file)
    }
}

fn text(file: &File) -> String {
    let mut bytes = vec![0; 65536];
    let len = file.read_at(&mut bytes, 0).expect("read");
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// Whether poll(2) says within `time` that an attribute has changed since it was read.
fn woken(file: &File, time: Duration) -> bool {
    let time = Timespec::try_from(time).expect("a time");
    let mut fds = [PollFd::new(file, PollFlags::PRI)];
    let ready = poll(&mut fds, Some(&time)).expect("poll");
    assert!(
        ready == 0 || fds[0].revents().contains(PollFlags::PRI | PollFlags::ERR),
        "{:?}",
        fds[0].revents()
    );
    ready == 1
}

/// The output of a shell script that is run in `dir`.
fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).current_dir(dir).output().expect("sh");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn spec_errors_have_line_and_column() {
    let files = tempfile::tempdir().expect("a temporary directory");
    let file = files.path().join("bad.toml");
    let source = format!("kernfs:{}", file.display());
    let value = "[[value]]\npath = \"a\"\nvalue = 1\n";
    for (spec, at, what) in [
        ("[[value]\n".to_owned(), "1:", ""),
        (format!("{value}[[dir]]\npath = \"a\"\n"), "5:8: ", "declared twice: the first time in line 2"),
        (format!("{value}mode = 0o999"), "4:", ""),
        (format!("{value}mode = 644"), "4:8: ", "0o644"),
        (format!("{value}colour = \"red\""), "4:1: ", "\"colour\"; what it may have: path, mode"),
    ] {
        fs::write(&file, &spec).expect("write");
        for daemon in [&[][..], &["-d"]] {
            let (status, said) = refused(&[&["mount"], daemon, &[source.as_str(), "/"]].concat());
            assert_eq!(status, 1);
            let start = format!("uvfs: {}:{at}", file.display());
            assert!(said.starts_with(&start) && said.contains(what) && said.lines().count() == 1, "{said}");
        }
    }
    let (_, said) = refused(&["mount", "kernfs:/nowhere/tree.toml", "/"]);
    assert!(said.contains("/nowhere/tree.toml: No such file"), "{said}");
    let (_, said) = refused(&["mount", "kernfs:", "/"]);
    assert_eq!(said, "uvfs: kernfs needs a TOML file: kernfs:/path\n");
}

fn programs_read_and_write_a_tree() {
    let tree = Tree::new(TREE);
    let dir = tree.dir.path();
    let sh = |script: &str| sh(dir, script);
    assert_eq!(sh("cat default/mtu"), "1500\n");
    assert_eq!(sh("echo 9000 > default/mtu; cat class/net/eth0/mtu"), "9000\n");
    assert_eq!(sh("echo 5 > events; echo -2 >> events; cat events"), "3\n");
    assert_eq!(sh("cat words"), "a b;$HOME;");
    assert_eq!(sh("find . | sort").lines().count(), 9);
    assert_eq!(sh("find . -type f | wc -l").trim(), "4");
    assert_eq!(sh("grep -r eth0 ."), "./class/net/eth0/name:eth0\n");
    assert_eq!(sh("grep -rl 9000 class"), "class/net/eth0/mtu\n");
    let listing = sh("ls -lR");
    assert!(listing.contains("-rw-r--r--") && listing.contains("default -> class/net/eth0"), "{listing}");
    assert_eq!(sh("wc -c < words").trim(), "10", "the size is not what stat says");
    assert_eq!(sh("dd if=class/net/eth0/name bs=2 skip=1 2>/dev/null"), "h0\n");
    let failed = |script: &str| sh(&format!("({script}) 2>&1 || true"));
    assert!(failed("/bin/echo many > events").contains("Invalid argument"));
    for script in ["touch new", "mkdir new", "rm events", "mv events e", "ln -s x y"] {
        assert!(failed(script).contains("Operation not permitted"), "{script}");
    }
    // The owner may change what a file is like, as on sysfs.
    sh("chmod 600 events; chown 12:34 events");
    let meta = fs::metadata(dir.join("events")).expect("stat");
    assert_eq!((meta.permissions().mode() & 0o777, meta.uid(), meta.gid()), (0o600, 12, 34));
}

fn the_example_is_a_tree() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/kernfs.toml");
    let tree = Tree::new(&fs::read_to_string(example).expect("the example"));
    assert_eq!(tree.read("class/net/default/mtu").expect("read"), "1500\n");
    assert_eq!(tree.read("class/net/eth0/events").expect("read"), "0\n");
    assert!(tree.path("private").is_dir());
}

fn poll_wakes_when_a_value_changes() {
    let tree = Tree::new(TREE);
    let file = File::open(tree.path("default/mtu")).expect("open");
    assert_eq!(text(&file), "1500\n");
    assert!(!woken(&file, Duration::ZERO), "nothing has changed");
    // Again and again: the kernel is told each time, by the waker that it gave last.
    for mtu in ["1", "22", "333"] {
        thread::scope(|s| {
            let waiting = s.spawn(|| woken(&file, SOON));
            fs::write(tree.path("default/mtu"), mtu).expect("write");
            assert!(waiting.join().expect("no panic"), "poll(2) does not return");
        });
        assert!(woken(&file, Duration::ZERO), "it stays so until it is read");
        assert_eq!(text(&file), mtu);
        assert!(!woken(&file, Duration::ZERO));
    }
    // What is always ready says so at once.
    let mut fds = [PollFd::new(&file, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(1));
}

fn sighup_reloads_a_tree() {
    let tree = Tree::new(TREE);
    fs::write(tree.path("events"), "7").expect("write");
    let more = TREE.replace("\"eth0\"", "\"eth1\"") + "[[value]]\npath = \"new/deep\"\nvalue = true\n";
    assert_eq!(tree.reload(&more), "2 added, 1 changed, 0 removed\n");
    assert_eq!(tree.read("class/net/eth0/name").expect("read"), "eth1\n");
    assert_eq!(tree.read("new/deep").expect("read"), "true\n");
    assert_eq!(tree.read("events").expect("read"), "7\n", "what is declared as before stays");
    assert_eq!(tree.reload(TREE), "0 added, 1 changed, 2 removed\n");
    assert!(!tree.path("new").exists());
}

fn a_spec_that_is_wrong_changes_nothing() {
    let tree = Tree::new(TREE);
    fs::write(tree.path("events"), "7").expect("write");
    for (spec, at) in [("[[value", ":1:"), ("[[counter]]\npath = \"events\"\nmode = 8\n", ":3:8: ")] {
        let said = tree.reload(spec);
        assert!(said.starts_with("failed: ") && said.contains(&format!("tree.toml{at}")), "{said}");
        assert_eq!(tree.read("default/mtu").expect("read"), "1500\n");
        assert_eq!(tree.read("events").expect("read"), "7\n");
    }
    assert_eq!(tree.reload(""), "0 added, 0 changed, 8 removed\n");
    assert_eq!(fs::read_dir(tree.dir.path()).expect("list").count(), 0);
}

fn a_command_that_hangs_is_killed() {
    let tree = Tree::new(
        "[[command]]\npath = \"hang\"\nrun = [\"sh\", \"-c\", \"sleep 987654 & echo begun; wait\"]\ntimeout = 0.5\n\
         [[command]]\npath = \"endless\"\nrun = [\"cat\", \"/dev/zero\"]\n\
         [[command]]\npath = \"none\"\nrun = [\"/nonexistent\"]\n",
    );
    let start = Instant::now();
    assert_eq!(tree.read("hang").expect_err("it hangs").raw_os_error(), Some(110), "ETIMEDOUT");
    assert!(start.elapsed() < SOON);
    let left = || sh(Path::new("/"), "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' || true");
    assert!(within(SOON, || !left().contains("sleep 987654")), "the command's child is left behind");
    assert_eq!(tree.read("endless").expect_err("too much").raw_os_error(), Some(27), "EFBIG");
    assert_eq!(tree.read("none").expect_err("no program").raw_os_error(), Some(5), "EIO");
}

fn a_command_that_fails_is_logged_with_what_it_said() {
    let run = r#"printf 'no \033[31mred\nWARN forged line' >&2; yes | head -c 100000 >&2; exit 3"#;
    let mut tree = Tree::new(
        &format!("[[command]]\npath = \"d/bad\"\nrun = [\"sh\", \"-c\", {run:?}]\n").replace(r"\'", "'"),
    );
    assert_eq!(tree.read("d/bad").expect_err("it fails").raw_os_error(), Some(5), "EIO");
    tree.server.signal(Signal::TERM);
    assert!(tree.server.ended().success());
    let mut said = String::new();
    tree.server.0.stderr.as_mut().expect("a pipe").read_to_string(&mut said).expect("read");
    assert!(said.lines().count() == 1 && said.len() < 2000, "{said}");
    assert!(!said.trim_end().contains(|c: char| c.is_control()), "{said:?}");
    for word in ["/d/bad", "exit status 3", r"no \u{1b}[31mred\nWARN forged line"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// A program in the mount itself, which takes long to read. Its process has started and waits for the program.
fn a_command_that_cannot_start_holds_up_nothing() {
    let (files, dir) = (tempfile::tempdir().expect("a temporary directory"), Dir::new());
    let at = |name: &str| files.path().join(name).display().to_string();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo").success());
    let spec = format!(
        "[[command]]\npath = \"program\"\nrun = [\"sh\", \"-c\", \": > {}; read x < {}\"]\nmode = 0o555\ntimeout = 600\n\
         [[command]]\npath = \"waits\"\nrun = [\"{}/program\"]\n\
         [[command]]\npath = \"other\"\nrun = [\"echo\", \"answer\"]\ntimeout = 600\n",
        at("begun"),
        at("pipe"),
        dir.text()
    );
    fs::write(at("tree.toml"), spec).expect("write");
    let mut server = Server::start(&[&format!("kernfs:{}", at("tree.toml")), dir.text()]);
    let mut reader =
        Command::new("cat").arg(dir.path().join("waits")).stderr(Stdio::null()).spawn().expect("cat");
    let asked = within(SOON, || Path::new(&at("begun")).exists());
    let (said, answer) = channel();
    let other = dir.path().join("other");
    thread::spawn(move || said.send(fs::read_to_string(other)));
    let answered = answer.recv_timeout(SOON);
    server.signal(Signal::TERM);
    let ended = within(SOON, || server.0.try_wait().expect("wait").is_some());
    if !ended {
        server.signal(Signal::KILL);
    }
    reader.wait().expect("wait");
    assert!(asked, "the program's own command is held up");
    assert_eq!(answered.expect("another command is held up").expect("read"), "answer\n");
    assert!(ended, "SIGTERM does not end the server");
}

fn a_text_is_whole_though_it_changes() {
    let tree = Tree::new(
        "[[file]]\npath = \"f\"\nhost = \"data\"\n[[value]]\npath = \"v\"\nvalue = \"\"\nmode = 0o644",
    );
    let host = tree.spec.with_file_name("data");
    let texts: Vec<String> = (1..=3).map(|i| i.to_string().repeat(1000 * i)).collect();
    fs::write(&host, &texts[0]).expect("write");
    let file = File::open(tree.path("f")).expect("open");
    let mut bytes = [0; 10_000];
    assert_eq!(file.read_at(&mut bytes[..500], 0).expect("read"), 500);
    fs::write(&host, &texts[2]).expect("write");
    assert_eq!(file.read_at(&mut bytes[500..], 500).expect("read"), 500, "the text that was begun");
    assert_eq!(&bytes[..1000], texts[0].as_bytes());
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), 3000, "from the start it is read anew");
    // Read while another writes: always one of the texts, whole.
    thread::scope(|s| {
        let writer = s.spawn(|| {
            for text in texts.iter().cycle().take(300) {
                fs::write(tree.path("v"), text).expect("write");
            }
        });
        while !writer.is_finished() {
            let seen = tree.read("v").expect("read");
            assert!(seen.is_empty() || seen == "\n" || texts.contains(&seen), "torn: {} bytes", seen.len());
        }
    });
}

/// Why a C program cannot be compiled here, if so.
fn no_compiler() -> Option<String> {
    let found = Command::new("cc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.err().map(|error| format!("cc: {error}"))
}

fn a_c_program_reads_many_attributes() {
    if let Some(reason) = no_compiler() {
        eprintln!("skipped: a_c_program_reads_many_attributes: {reason}");
        return;
    }
    const GIDS: usize = 254;
    let gid = |i| {
        format!(
            "[[value]]\npath = \"class/infiniband/mlx5_0/ports/1/gids/{i}\"\n\
             value = \"fe80:0000:0000:0000:0000:0000:0000:{i:04x}\"\n"
        )
    };
    let tree = Tree::new(&(0..GIDS).map(gid).collect::<String>());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/gids.c");
    let program = tree.spec.with_file_name("gids");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).arg(source);
    assert!(cc.status().expect("cc").success());
    let gids = tree.path("class/infiniband/mlx5_0/ports/1/gids");
    // Two at once, beside a reload, which leaves them alone.
    let start = || {
        let mut command = Command::new(&program);
        command.arg(&gids).arg(GIDS.to_string()).arg("20").stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let readers = [start(), start()];
    let more = (0..=GIDS).map(gid).collect::<String>();
    assert_eq!(tree.reload(&more), "1 added, 0 changed, 0 removed\n");
    for reader in readers {
        let output = reader.wait_with_output().expect("it ends");
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), (20 * GIDS).to_string());
    }
}
