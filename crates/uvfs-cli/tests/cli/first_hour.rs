//! The first hour of a user: wrong words, a bad environment, other users' mounts, and the reasons that the command gives then.

use std::os::unix::fs::PermissionsExt;

use super::*;

pub const PLAIN: &[Test] = &[
    ("help_fits_a_terminal_of_80_columns", help_fits_a_terminal_of_80_columns),
    ("a_watch_without_a_directory_says_what_is_missing", a_watch_without_a_directory),
    ("a_word_at_the_wrong_place_has_an_answer", a_word_at_the_wrong_place),
];

pub const MOUNTING: &[Test] = &[
    ("a_bad_environment_stops_no_command", a_bad_environment_stops_no_command),
    ("a_watch_takes_its_seconds_as_a_word", a_watch_takes_its_seconds_as_a_word),
    ("a_mount_says_what_it_hides", a_mount_says_what_it_hides),
    ("users_are_told_the_reason_about_mounts", users_are_told_the_reason_about_mounts),
    ("an_index_makes_no_directory_and_leaves_no_file", an_index_makes_no_directory_and_leaves_no_file),
    ("an_index_names_what_it_cannot_read", an_index_names_what_it_cannot_read),
    ("an_index_without_a_runtime_directory_says_the_remedy", an_index_without_a_runtime_directory),
];

fn help_fits_a_terminal_of_80_columns() {
    let commands = [
        "mount",
        "umount",
        "reload",
        "remount",
        "stat",
        "index",
        "changed",
        "find",
        "git-fsmonitor",
        "watchman",
        "completions",
        "man",
    ];
    let pages =
        commands.iter().map(|command| vec![*command, "--help"]).chain([vec!["--help"], vec!["mount", "-h"]]);
    for page in pages {
        let output = uvfs(&page).env("COLUMNS", "80").output().expect("it starts");
        let help = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(help.contains("Usage: uvfs"), "{page:?}: {help}");
        let long: Vec<_> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{page:?}: {long:#?}");
    }
}

fn a_watch_without_a_directory() {
    for words in [&["-w"][..], &["-w", "1"], &["--watch=2"]] {
        let (status, said) = refused(&[&["stat"], words].concat());
        assert_eq!(
            (status, said.as_str()),
            (2, "uvfs: the directory is missing: uvfs stat --watch=SECONDS DIR\n")
        );
    }
}

fn a_word_at_the_wrong_place() {
    let (status, said) = refused(&["mount", "--json"]);
    assert!(status == 2 && said.contains("--list") && !said.contains("<SOURCE>"), "{said}");
    let (_, said) = refused(&["find", ".", "--socket", "/none"]);
    assert!(
        said.ends_with("--socket is no word of find; options of uvfs find stand before all other words\n"),
        "{said}"
    );
}

/// The first two looks at a mount.
fn looks(words: &[&str], dir: &Dir) -> usize {
    let mut command = uvfs(&["stat", "--json"]);
    command.args(words.iter().map(|word| if *word == "DIR" { dir.text() } else { word }));
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let looks = lines.map_while(Result::ok).filter(|line| line.starts_with('{')).take(2).count();
    let _ = watch.kill();
    watch.wait().expect("wait");
    looks
}

fn a_watch_takes_its_seconds_as_a_word() {
    let dir = Dir::new();
    let _server = Server::start(&["tmpfs", dir.text()]);
    for words in [
        &["-w", "0.01", "DIR"][..],
        &["--watch", "0.01", "DIR"],
        &["DIR", "-w", "0.01"],
        &["DIR", "-w0.01"],
        &["--watch=0.01", "DIR"],
        &["-w", "DIR"],
    ] {
        assert_eq!(looks(words, &dir), 2, "{words:?}");
    }
}

fn a_bad_environment_stops_no_command() {
    let dir = Dir::new();
    let with = |args: &[&str]| {
        let output =
            uvfs(args).env("UVFS_LOG", "debugg").env("UVFS_TRANSPORT", "ring").output().expect("it starts");
        (output.status.success(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let (mounted, said) = with(&["mount", "-d", "tmpfs", dir.text()]);
    let lines: Vec<_> = said.lines().collect();
    assert!(mounted && lines.len() == 2, "{said}");
    assert!(lines[0].contains("\"debugg\" is no level; did you mean debug?; it is ignored"), "{said}");
    assert_eq!(lines[1], "uvfs: UVFS_TRANSPORT=\"ring\" is ignored: expected auto, uring or dev");
    let (unmounted, said) = with(&["umount", dir.text()]);
    assert!(unmounted && said.lines().count() == 1 && said.contains("it is ignored"), "{said}");
    assert!(!is_mounted(dir.path()));
    // A good one is the default of transport=.
    let output =
        uvfs(&["mount", "-d", "tmpfs", dir.text()]).env("UVFS_TRANSPORT", "dev").output().expect("it starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(fs::read_to_string(dir.path().join(".uvfs/transport")).expect("read").trim(), "dev");
    assert!(run(&["umount", dir.text()]).status.success());
}

fn a_mount_says_what_it_hides() {
    let dir = Dir::new();
    fs::write(dir.path().join("file"), "x").expect("write");
    let mount = || {
        let output = run(&["mount", "-d", "tmpfs", dir.text()]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let at = dir.path().display();
    assert_eq!(mount(), format!("uvfs: {at} is not empty: its files are hidden until the unmount\n"));
    assert_eq!(mount(), format!("uvfs: an earlier mount on {at} is hidden until this one is unmounted\n"));
    // Something else over it: whose turn it is to go.
    assert!(
        Command::new("mount").args(["-t", "tmpfs", "none", dir.text()]).status().expect("mount(8)").success()
    );
    let (_, said) = refused(&["umount", dir.text()]);
    assert!(Command::new("umount").arg(dir.text()).status().expect("umount(8)").success());
    assert!(said.contains("another file system has been mounted over"), "{said}");
    for _ in 0..2 {
        assert!(run(&["umount", dir.text()]).status.success());
    }
    assert!(dir.path().join("file").exists() && !is_mounted(dir.path()));
}

/// A user's own mount namespace, with a `/dev/fuse` that users may open. `$1`: the program. `$2`: a directory of the user's.
const AS_A_USER: &str = r#"
set -eu
uvfs=$1 dir=$2
# Copies of other tests' mounts would keep their servers alive.
umount --all --lazy --types fuse.uvfs
mknod -m 666 "$dir/fuse" c 10 229
mount --bind "$dir/fuse" /dev/fuse
user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
asks() { echo "== $*"; "$@" 2>&1 || :; }
user "$uvfs" mount -d tmpfs "$dir/own"
"$uvfs" mount -d tmpfs "$dir/roots"
"$uvfs" mount -d tmpfs "$dir/closed/below"
user mkdir "$dir/own/inside"
asks user "$uvfs" mount tmpfs "$dir/own"
asks user "$uvfs" mount tmpfs "$dir/own/inside"
asks user "$uvfs" mount tmpfs "$dir/roots"
asks "$uvfs" mount -d tmpfs "$dir/own"
asks "$uvfs" mount -d tmpfs "$dir/own/inside"
asks user "$uvfs" umount "$dir/roots"
asks user "$uvfs" umount -l "$dir/roots"
asks user "$uvfs" umount "$dir/closed/below"
asks user "$uvfs" remount -o ro "$dir/own"
asks user "$uvfs" reload "$dir/roots"
asks setpriv --reuid=65534 --regid=65533 --clear-groups "$uvfs" stat "$dir/own"
user chmod 000 "$dir/own"
asks user "$uvfs" stat "$dir/own"
"$uvfs" mount --list
"$uvfs" remount -o ro "$dir/own"
grep " $dir/own " /proc/self/mounts
asks "$uvfs" remount -o memory=64m "$dir/own"
user "$uvfs" umount "$dir/own"
"$uvfs" umount "$dir/roots"
"$uvfs" umount "$dir/closed/below"
"#;

fn users_are_told_the_reason_about_mounts() {
    if Command::new("fusermount3").arg("-V").output().is_err() {
        eprintln!("skipped: users_are_told_the_reason_about_mounts: no fusermount3");
        return;
    }
    let place = Dir::new();
    fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    for name in ["own", "roots", "closed", "closed/below"] {
        fs::create_dir(place.path().join(name)).expect("mkdir");
    }
    fs::set_permissions(place.path().join("closed"), PermissionsExt::from_mode(0o700)).expect("chmod");
    std::os::unix::fs::chown(place.path().join("own"), Some(65534), Some(65534)).expect("chown");
    // It is found by everyone, wherever this one was built.
    let program = place.path().join("uvfs");
    fs::copy(env!("CARGO_BIN_EXE_uvfs"), &program).expect("copy");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", AS_A_USER, "sh"])
        .arg(&program)
        .arg(place.path());
    let output = command.stdin(Stdio::null()).output().expect("unshare(1)");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let at = |name: &str| place.path().join(name).display().to_string();
    let (own, roots) = (at("own"), at("roots"));
    for expected in [
        format!(
            "a file system of yours is mounted on {own} already, and fusermount3 cannot mount over it; unmount it first: uvfs umount {own}\n"
        ),
        format!(
            "{own}/inside is inside your mount on {own}, and fusermount3 may not look into that; mount outside of it\n"
        ),
        format!(
            "no right to mount over {roots}: user root has mounted it, so only that user and root may; mount on another directory\n"
        ),
        format!(
            "mount -d tmpfs {own}\nuvfs: cannot look at {own}: only user nobody may look into the mount on {own} (it has no allow_other), not even root; mount elsewhere, or unmount that first: umount {own}\n"
        ),
        format!("cannot look at {own}/inside: only user nobody may look into the mount on {own} (it has"),
        format!(
            "umount {roots}\nuvfs: no right to unmount {roots}: user root has mounted it, so only that user and root may\n"
        ),
        format!("umount -l {roots}\nuvfs: no right to unmount {roots}: user root"),
        format!(
            "no right to enter a directory above {}; use an account that may, or root\n",
            at("closed/below")
        ),
        format!("only root may change the flags of the mount on {own}; as its owner, unmount it"),
        format!(
            "reload {roots}\nuvfs: no right to look into the mount on {roots}: only the user who mounted it may (it has no allow_other)\n"
        ),
        format!(
            "the mount on {own}: this user mounted it as a member of group 65534, and has group 65533 now"
        ),
        format!("the mount on {own}: the permissions of its root directory do not let this user in\n"),
        format!("tmpfs {own} fuse.uvfs ro,"),
        format!("memory= cannot be changed: the mount on {own} lets in only the user who mounted it\n"),
    ] {
        assert!(said.contains(&expected), "{expected}\nin:\n{said}");
    }
    // Root may not look into the user's mount, and finds its server all the same.
    let line = said
        .lines()
        .find(|line| line.starts_with("tmpfs ") && line.contains(&own))
        .expect("a line of the list");
    let pid = line.split_whitespace().nth(2).expect("a column");
    assert!(pid.parse::<u32>().is_ok() || !names_connections(), "{line}");
}

/// Whether this kernel's fdinfo names connections of FUSE.
fn names_connections() -> bool {
    let dir = Dir::new();
    let server = Server::start(&["tmpfs", dir.text()]);
    let files =
        fs::read_dir(format!("/proc/{}/fdinfo", server.0.id())).expect("files of the server").flatten();
    files.filter_map(|file| fs::read_to_string(file.path()).ok()).any(|text| text.contains("fuse_connection"))
}

fn an_index_makes_no_directory_and_leaves_no_file() {
    let place = Dir::new();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).expect("mkdir");
    let index = |socket: &str, words: &[&str]| {
        let mut command = uvfs(&["index", "--socket"]);
        command.arg(place.path().join(socket)).args(words).stdin(Stdio::null());
        let output = command.output().expect("it starts");
        (output.status.success(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let serve = ["-d", "--no-snapshot", tree.to_str().expect("UTF-8")];
    let (served, said) = index("missing/socket", &serve);
    let dir = place.path().join("missing");
    let remedy = format!("{0} does not exist; make it first: mkdir -p {0}\n", dir.display());
    assert!(!served && said.ends_with(&remedy) && !dir.exists(), "{said}");
    fs::write(place.path().join("file"), "").expect("write");
    let (served, said) = index("file", &serve);
    assert!(!served && said.contains("is no socket; give another path"), "{said}");
    for _ in 0..2 {
        let (served, said) = index("socket", &serve);
        assert!(served, "{said}");
        assert!(index("socket", &["--stop"]).0);
    }
    let mut left: Vec<_> = fs::read_dir(place.path())
        .expect("opendir")
        .map(|entry| entry.expect("readdir").file_name())
        .collect();
    left.sort_unstable();
    assert_eq!(left, ["file", "tree"]);
}

/// As a user, without the capabilities of root.
fn index_of_a_user(place: &Dir) -> Command {
    fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).expect("chmod");
    let program = place.path().join("uvfs");
    fs::copy(env!("CARGO_BIN_EXE_uvfs"), &program).expect("copy");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).arg("index");
    command
        .args(["--no-snapshot", "-d"])
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("UVFS_LOG")
        .stdin(Stdio::null());
    command
}

fn an_index_names_what_it_cannot_read() {
    let place = Dir::new();
    let tree = place.path().join("tree");
    for name in ["a", "b", "c/d", "e", "open"] {
        fs::create_dir_all(tree.join(name)).expect("mkdir");
    }
    let mut command = index_of_a_user(&place);
    for name in ["a", "b", "c/d", "e"] {
        fs::set_permissions(tree.join(name), PermissionsExt::from_mode(0o700)).expect("chmod");
    }
    let socket = place.path().join("socket");
    let output = command.arg("--socket").arg(&socket).arg(&tree).output().expect("setpriv");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    let socket = socket.to_str().expect("UTF-8");
    let listed = run(&["index", "--socket", socket, "--list"]);
    let stopped = run(&["index", "--socket", socket, "--stop"]).status.success();
    assert!(output.status.success() && stopped, "{said}");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    for text in [&said, &listed] {
        let (_, some) = text.split_once(" could not be read: ").expect("a warning");
        assert_eq!(some.matches(" (Permission denied)").count(), 3, "{text}");
        assert!(some.trim_end().ends_with(" and 1 more"), "{text}");
        assert!(
            ["a (", "b (", "c/d (", "e ("].iter().filter(|name| some.contains(**name)).count() == 3,
            "{text}"
        );
    }
    assert!(said.contains(&format!("4 names of {} could not", tree.display())), "{said}");
}

fn an_index_without_a_runtime_directory() {
    // Where root had a server, its directory is there.
    for (made, missing) in [("", "/run/uvfs"), ("mkdir /run/uvfs;", "/run/uvfs/index.sock")] {
        let place = Dir::new();
        let user = index_of_a_user(&place);
        let script = format!("mount -t tmpfs -o mode=755 none /run; {made} exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-euc", &script, "sh"]);
        command.arg(user.get_program()).args(user.get_args()).arg(place.path());
        command.env_remove("XDG_RUNTIME_DIR").env_remove("UVFS_LOG").stdin(Stdio::null());
        let output = command.output().expect("unshare(1)");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(!output.status.success() && said.lines().count() == 1, "{said}");
        let expected =
            format!("cannot make {missing}: Permission denied (os error 13); XDG_RUNTIME_DIR is not");
        assert!(said.contains(&expected) && said.ends_with("set it, or give --socket PATH\n"), "{said}");
    }
}
