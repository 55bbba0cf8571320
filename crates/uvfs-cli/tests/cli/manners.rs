//! Being a good citizen of the system: mount(8)'s helper, systemd's notification, the list and completions.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{Dir, SOON, Server, Test, is_mounted, refused, run, uvfs};

pub const PLAIN: &[Test] = &[
    ("completions_for_each_shell", completions_for_each_shell),
    ("nobody_need_listen", nobody_need_listen),
    ("samples_of_the_readme_are_whole", samples_of_the_readme_are_whole),
];

pub const MOUNTING: &[Test] = &[
    ("the_list_says_whose_server_has_died", the_list_says_whose_server_has_died),
    ("a_server_in_the_background_has_a_number_and_a_log", a_server_in_the_background_has_a_number_and_a_log),
    ("the_number_of_a_running_server_stays_in_its_file", the_number_of_a_running_server_stays_in_its_file),
    ("an_unmount_waits_for_the_server", an_unmount_waits_for_the_server),
    (
        "a_server_in_the_background_holds_no_file_of_its_caller",
        a_server_in_the_background_holds_no_file_of_its_caller,
    ),
    (
        "a_killed_server_is_unmounted_if_that_was_asked_for",
        a_killed_server_is_unmounted_if_that_was_asked_for,
    ),
    ("nobody_need_listen_to_a_mount", nobody_need_listen_to_a_mount),
    ("the_helper_mounts_and_the_list_shows_it", the_helper_mounts_and_the_list_shows_it),
    ("a_service_manager_is_told", a_service_manager_is_told),
    ("the_first_five_minutes_of_the_readme", the_first_five_minutes_of_the_readme),
];

fn completions_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        let script = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.success() && script.contains("UVFS_COMPLETE"), "{shell}");
    }
    let script = String::from_utf8(run(&["completions", "bash"]).stdout).expect("UTF-8");
    let asks = |line: &[&str]| {
        let words: Vec<_> = line.iter().map(|word| format!("'{word}'")).collect();
        let program = Path::new(env!("CARGO_BIN_EXE_uvfs")).parent().expect("a directory");
        let ask = format!(
            "{script}\ncompopt() {{ :; }}; PATH={}:$PATH; COMP_WORDS=({}); COMP_CWORD={}; _uvfs; echo \"${{COMPREPLY[@]}}\"",
            program.display(),
            words.join(" "),
            line.len() - 1
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().expect("bash");
        String::from_utf8(output.stdout).expect("UTF-8").trim_end().to_owned()
    };
    assert_eq!(asks(&["uvfs", "m"]), "mount man");
    assert_eq!(asks(&["uvfs", "mount", "tm"]), "tmpfs");
    // bash cuts words at colons and equal signs, and wants the last piece.
    assert_eq!(asks(&["uvfs", "mount", "mirror", ":", "/et"]), "/etc/");
    assert_eq!(asks(&["uvfs", "mount", "-o", "ro,transport", "=", "u"]), "uring");
    assert_eq!(asks(&["uvfs", "mount", "-o", "ro,noex"]), "ro,noexec");
    assert_eq!(asks(&["uvfs", "remount", "-o", "ro,m"]), "ro,memory=");
    assert_eq!(asks(&["uvfs", "man", "--page", "remo"]), "remount");
    // find's words behind the first; before it also the command's own. Paths anywhere.
    assert_eq!(asks(&["uvfs", "find", ".", "-na"]), "-name");
    assert_eq!(asks(&["uvfs", "find", "-na"]), "-name");
    assert_eq!(asks(&["uvfs", "find", "--json", "/et"]), "/etc/");
    assert_eq!(asks(&["uvfs", "find", "--so"]), "--socket");
    assert_eq!(asks(&["uvfs", "find", ".", "-name", "/et"]), "/etc/");
    let behind = asks(&["uvfs", "find", ".", "-"]);
    assert!(behind.contains("-newer") && !behind.contains("--socket") && !behind.contains("-h "), "{behind}");
    // Drivers that this program lacks are not offered.
    assert_eq!(asks(&["uvfs", "mount", "ob"]), if cfg!(feature = "object") { "object:" } else { "" });
    assert_eq!(run(&["completions", "cmd.exe"]).status.code(), Some(2));
}

/// They are compiled as documentation tests, where a line that begins with `# ` is hidden. Readers who paste it see such a line.
fn samples_of_the_readme_are_whole() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(tree.join("README.md")).expect("the README");
    let samples: Vec<_> =
        readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!samples.is_empty());
    for sample in samples {
        assert!(sample.contains("fn main()"), "{sample}");
        assert!(!sample.lines().any(|line| line == "#" || line.starts_with("# ")), "{sample}");
    }
}

/// Runs it with a standard output that is closed, and one that is full: no panic, no word in the first case and one line in the other.
fn unheard(args: &[&str]) {
    let (theirs, ours) = std::io::pipe().expect("a pipe");
    drop(theirs);
    let output = uvfs(args).stdout(ours).output().expect("it starts");
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]), "{args:?}, closed: {output:?}");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let output = uvfs(args).stdout(full).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}, full: {said}");
    assert!(
        said.starts_with("uvfs: cannot write") && said.contains("No space left"),
        "{args:?}, full: {said}"
    );
    assert_eq!(said.lines().count(), 1, "{args:?}, full: {said}");
}

fn nobody_need_listen() {
    for args in [&["--help"][..], &["--version"], &["mount", "--help"], &["man"], &["completions", "bash"]] {
        unheard(args);
    }
}

fn nobody_need_listen_to_a_mount() {
    let (files, dir) = (Dir::new(), Dir::new());
    let spec = files.path().join("tree.toml");
    fs::write(&spec, "").expect("write");
    let _server = Server::start(&[&format!("kernfs:{}", spec.display()), dir.text()]);
    for args in [
        &["mount", "--list"][..],
        &["stat", dir.text()],
        &["stat", "--json", dir.text()],
        &["reload", dir.text()],
    ] {
        unheard(args);
    }
    // It ends where nobody reads on.
    let (theirs, ours) = std::io::pipe().expect("a pipe");
    drop(theirs);
    assert!(uvfs(&["stat", "--watch=0.01", dir.text()]).stdout(ours).status().expect("it starts").success());
}

fn the_list_says_whose_server_has_died() {
    let (alive, dead) = (Dir::new(), Dir::new());
    let server = Server::start(&["tmpfs", alive.text()]);
    drop(Server::start(&["tmpfs", dead.text()]));
    let listed = String::from_utf8(run(&["mount", "--list"]).stdout).expect("UTF-8");
    let line = |dir: &Dir| listed.lines().find(|line| line.contains(dir.text())).expect("a line").to_owned();
    let words = |dir: &Dir| line(dir).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&alive), ["tmpfs", alive.text(), &server.0.id().to_string(), "serving"]);
    assert!(line(&dead).ends_with(&format!("dead (clear it with: uvfs umount {})", dead.text())), "{listed}");
    for args in [&["stat"][..], &["remount", "-o", "ro"], &["reload"]] {
        let (_, said) = refused(&[args, &[dead.text()]].concat());
        let remedy = format!("has died; clear it with: uvfs umount {}\n", dead.text());
        assert!(said.ends_with(&remedy), "{args:?}: {said}");
    }
    for args in [&["stat"][..], &["remount", "-o", "ro"]] {
        let mut other = Command::new("setpriv");
        other
            .args(["--reuid=65534", "--clear-groups", env!("CARGO_BIN_EXE_uvfs")])
            .args(args)
            .arg(alive.text());
        let said = String::from_utf8(other.output().expect("setpriv").stderr).expect("UTF-8");
        assert!(
            said.contains("only the user who mounted it may (it has no allow_other)"),
            "{args:?}: {said}"
        );
    }
    assert!(
        listed.starts_with("SOURCE ") && listed.lines().next().is_some_and(|line| line.ends_with("  STATE"))
    );
    let json = String::from_utf8(run(&["mount", "--list", "--json"]).stdout).expect("UTF-8");
    let of = |dir: &Dir| json.lines().find(|line| line.contains(dir.text())).expect("an object").to_owned();
    assert!(of(&dead).contains("\"pid\":null") && of(&dead).contains("\"state\":\"dead\""), "{json}");
    // Each of several, also after an error.
    let (_, said) = refused(&["umount", "/nowhere", dead.text(), alive.text()]);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!is_mounted(dead.path()) && !is_mounted(alive.path()), "{said}");
    assert_eq!(run(&["mount", "--list", "tmpfs", "/mnt"]).status.code(), Some(2));
    assert_eq!(run(&["mount", "--json", "tmpfs", "/nowhere"]).status.code(), Some(2));
}

/// A server in the background: its number in a file, its log in another, and both as long as they should be there.
fn a_server_in_the_background_has_a_number_and_a_log() {
    let (dir, place) = (Dir::new(), Dir::new());
    let (pid, log) = (place.path().join("pid"), place.path().join("log"));
    let status = uvfs(&["mount", "-d", "-vv"])
        .args(["--pid-file".as_ref(), pid.as_os_str(), "--log-file".as_ref(), log.as_os_str()])
        .args(["tmpfs", dir.text()])
        .status();
    assert!(status.expect("it starts").success());
    let number = fs::read_to_string(&pid).expect("the number");
    assert_eq!(number, fs::read_to_string(dir.path().join(".uvfs/pid")).expect("the number"));
    assert!(run(&["umount", dir.text()]).status.success());
    wait_for_end(&number);
    assert!(!pid.exists(), "the file outlives the mount");
    let log = fs::read_to_string(&log).expect("the log");
    assert!(log.contains("DEBUG") && !log.contains('\x1b'), "{log}");
    let (_, said) = refused(&["mount", "--pid-file", "/nowhere/pid", "tmpfs", dir.text()]);
    assert!(said.contains("--pid-file /nowhere/pid: cannot be written"), "{said}");
}

fn wait_for_end(number: &str) {
    let process = Path::new("/proc").join(number.trim());
    let until = Instant::now() + SOON;
    while process.exists() && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// Neither a second server nor a mount that fails takes the file of one that runs, or another file.
fn the_number_of_a_running_server_stays_in_its_file() {
    let (dir, second, place) = (Dir::new(), Dir::new(), Dir::new());
    let pid = place.path().join("pid");
    let mount = |on: &str| run(&["mount", "-d", "--pid-file", pid.to_str().expect("UTF-8"), "tmpfs", on]);
    fs::write(&pid, "precious").expect("a file");
    assert!(!mount("/nowhere").status.success());
    assert_eq!(fs::read_to_string(&pid).expect("the file"), "precious");
    assert!(mount(dir.text()).status.success());
    let number = fs::read_to_string(&pid).expect("the number");
    for on in ["/nowhere", second.text()] {
        let output = mount(on);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && (on == "/nowhere" || said.contains("another server has it")),
            "{said}"
        );
        assert_eq!(fs::read_to_string(&pid).expect("the number"), number, "{on}");
    }
    assert!(!is_mounted(second.path()));
    assert!(run(&["umount", dir.text()]).status.success());
    wait_for_end(&number);
    assert!(!pid.exists());
}

/// A script that unmounts the source next does not find it busy.
fn an_unmount_waits_for_the_server() {
    for _ in 0..3 {
        let dir = Dir::new();
        assert!(run(&["mount", "-d", "tmpfs", dir.text()]).status.success());
        let number = fs::read_to_string(dir.path().join(".uvfs/pid")).expect("the number");
        let process = Path::new("/proc").join(number.trim());
        let files = fs::read_dir(process.join("fdinfo")).expect("files of the server").flatten();
        let told = files
            .filter_map(|file| fs::read_to_string(file.path()).ok())
            .any(|text| text.contains("fuse_connection"));
        assert!(run(&["umount", dir.text()]).status.success());
        if !told {
            eprintln!("skipped: an_unmount_waits_for_the_server: this kernel's fdinfo names no connections");
            return wait_for_end(&number);
        }
        // Nobody may have waited for it yet: then it is a zombie.
        let state = fs::read_to_string(process.join("stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }
}

/// The lock of a cron job, or a file in a file system that is to be unmounted.
fn a_server_in_the_background_holds_no_file_of_its_caller() {
    let (dir, place) = (Dir::new(), Dir::new());
    let held = place.path().join("held");
    let script = format!(
        "exec 9>{}; {} mount -d -o auto_unmount tmpfs {}",
        held.display(),
        env!("CARGO_BIN_EXE_uvfs"),
        dir.text()
    );
    assert!(Command::new("bash").args(["-c", &script]).status().expect("bash").success());
    let number = fs::read_to_string(dir.path().join(".uvfs/pid")).expect("the number");
    let files = fs::read_dir(format!("/proc/{}/fd", number.trim())).expect("files of the server");
    let files: Vec<_> = files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).collect();
    assert!(!files.is_empty() && !files.contains(&held), "{files:?}");
    assert!(run(&["umount", dir.text()]).status.success());
}

fn a_killed_server_is_unmounted_if_that_was_asked_for() {
    let dir = Dir::new();
    drop(Server::start(&["-o", "auto_unmount", "tmpfs", dir.text()]));
    let until = Instant::now() + SOON;
    while is_mounted(dir.path()) {
        assert!(Instant::now() < until, "it is still mounted");
        std::thread::yield_now();
    }
}

/// The program under the name by which mount(8) calls it.
pub fn helper(dir: &Dir) -> Command {
    let name = dir.path().join("mount.uvfs");
    symlink(env!("CARGO_BIN_EXE_uvfs"), &name).expect("a link");
    Command::new(name)
}

fn the_helper_mounts_and_the_list_shows_it() {
    let (place, dir) = (Dir::new(), Dir::new());
    let line =
        ["tmpfs", dir.text(), "-n", "-o", "rw,noauto,nofail,x-systemd.requires=a.mount,size=1m,fsname=a b"];
    let status = helper(&place).args(line).stdin(Stdio::null()).status().expect("it starts");
    assert!(status.success() && is_mounted(dir.path()));
    let listed = String::from_utf8(run(&["mount", "--list"]).stdout).expect("UTF-8");
    assert!(listed.lines().any(|line| line.starts_with("a b ") && line.contains(dir.text())), "{listed}");
    assert!(run(&["umount", dir.text()]).status.success());
    assert!(!String::from_utf8(run(&["mount", "--list"]).stdout).expect("UTF-8").contains(dir.text()));
}

fn a_service_manager_is_told() {
    let (place, dir) = (Dir::new(), Dir::new());
    let socket = place.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(SOON)).expect("a timeout");
    let mut command = uvfs(&["mount", "tmpfs", dir.text()]);
    command.env("NOTIFY_SOCKET", &socket).stderr(Stdio::null());
    let _server = Server(command.spawn().expect("it starts"));
    let mut said = [0; 64];
    let n = manager.recv(&mut said).expect("it says that it is ready");
    assert_eq!(said[..n].trim_ascii_end(), b"READY=1");
    assert!(is_mounted(dir.path()));
}

/// Each line of it, but for the build, with this program and a directory of its own.
fn the_first_five_minutes_of_the_readme() {
    let (dir, tree) = (Dir::new(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let readme = fs::read_to_string(tree.join("README.md")).expect("the README");
    let (_, after) = readme.split_once("## The first five minutes").expect("its heading");
    let script =
        after.split("```").nth(1).and_then(|block| block.strip_prefix("sh\n")).expect("a block of lines");
    let script: String = script
        .lines()
        .skip_while(|line| line.starts_with("cargo "))
        .fold("".into(), |all, line| all + line + "\n");
    let script =
        script.replace("target/release/uvfs", env!("CARGO_BIN_EXE_uvfs")).replace("/tmp/uvfs", dir.text());
    let (script, image) = match Path::new("/sbin/mke2fs").exists() {
        true => (script.as_str(), true),
        false => (script.split("truncate").next().unwrap_or_default(), false),
    };
    let output = Command::new("sh").args(["-exc", script]).current_dir(&tree).output().expect("sh");
    let said = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let _ = fs::remove_file(format!("{}.img", dir.text()));
    assert!(output.status.success(), "{said:?}");
    for word in ["uvfs-cli", "1500", "hits"].iter().chain(image.then_some(&"architecture.md")) {
        assert!(said.0.contains(word), "{word}: {said:?}");
    }
    assert!(!is_mounted(dir.path()));
}
