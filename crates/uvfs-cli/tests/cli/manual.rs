//! The manual pages as users meet them: written, checked by mandoc, their examples run, and their names of figures
//! compared with a mount's.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dir, Server, Test, is_mounted, refused, run};

pub const PLAIN: &[Test] = &[
    ("pages_are_written_and_printed", pages_are_written_and_printed),
    ("mandoc_has_no_complaint", mandoc_has_no_complaint),
    ("mistyped_words_get_the_nearest", mistyped_words_get_the_nearest),
    ("installed_with_the_command", installed_with_the_command),
];

pub const MOUNTING: &[Test] = &[
    ("examples_of_the_pages_work", examples_of_the_pages_work),
    ("files_of_the_control_directory_are_in_its_page", files_of_the_control_directory_are_in_its_page),
    ("options_without_effect_are_reported", options_without_effect_are_reported),
];

/// The pages with a text of their own.
const PAGES: [&str; 6] = [
    "man1/uvfs.1",
    "man1/uvfs-stat.1",
    "man5/uvfs-kernfs.5",
    "man8/uvfs-mount.8",
    "man8/uvfs-remount.8",
    "man8/uvfs-umount.8",
];

/// All pages, in a directory.
fn written() -> Dir {
    let dir = Dir::new();
    let output = run(&["man", dir.text()]);
    assert!(output.status.success(), "{output:?}");
    dir
}

fn pages_are_written_and_printed() {
    let dir = written();
    for page in PAGES {
        let text = fs::read_to_string(dir.path().join(page)).expect(page);
        assert!(text.contains("\n.Dt UVFS"), "{page}");
        let name = Path::new(page).file_name().and_then(|name| name.to_str()).expect("a name");
        assert_eq!(String::from_utf8(run(&["man", "--page", name]).stdout).expect("UTF-8"), text);
    }
    for (alias, page) in [("mount.uvfs", "mount"), ("uvfs-reload", "remount")] {
        let text = fs::read_to_string(dir.path().join(format!("man8/{alias}.8"))).expect(alias);
        assert_eq!(text, format!(".so man8/uvfs-{page}.8\n"));
    }
    // Written again over the first.
    assert!(run(&["man", dir.text()]).status.success());
    assert!(String::from_utf8(run(&["man"]).stdout).expect("UTF-8").contains("\n.Dt UVFS 1\n"));
    let (status, said) = refused(&["man", "/nowhere/at/all"]);
    assert!(status == 1 && said.contains("/nowhere/at/all/man1"), "{said}");
    assert!(refused(&["man", "umount"]).1.contains("did you mean --page umount?"));
    let (status, said) = refused(&["man", "--page", "mont"]);
    assert!(status == 1 && said.contains("did you mean mount?"), "{said}");
}

fn mandoc_has_no_complaint() {
    let dir = written();
    let pages = PAGES.map(|page| dir.path().join(page));
    let lint = Command::new("mandoc").arg("-Tlint").args(&pages).output();
    let Ok(output) = lint else {
        eprintln!("skipped: mandoc_has_no_complaint: no mandoc");
        return;
    };
    // The pages of other programs need not be installed here.
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints: Vec<_> =
        said.lines().filter(|line| !line.contains("referenced manual not found")).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    // It does complain of a page with a fault.
    let bad = dir.path().join("bad.1");
    fs::write(&bad, ".Dd November 26, 2026\n.Dt BAD 1\n.Os\n.Sh NAME\n.Nm bad\n.Nd bad\n.Xx\n")
        .expect("write");
    let output = Command::new("mandoc").arg("-Tlint").arg(&bad).output().expect("mandoc");
    assert!(String::from_utf8_lossy(&output.stdout).contains("unknown macro"), "{output:?}");
}

fn mistyped_words_get_the_nearest() {
    for (args, meant) in [
        (&["mount", "tmpf", "/"][..], "did you mean tmpfs?"),
        (&["mount", "miror:/usr", "/"], "did you mean mirror:/usr?"),
        (&["mount", "/usr", "/"], "did you mean mirror:/usr?"),
        (&["mount", "-o", "sise=1m", "tmpfs", "/"], "did you mean size=BYTES?"),
        (&["mount", "-o", "allow_others", "tmpfs", "/"], "did you mean allow_other?"),
        (&["mount", "mirror", "/"], "uvfs: mirror needs a directory: mirror:/path\n"),
        (&["unmont", "/"], "'umount'"),
        (&["mount", "--demon", "tmpfs", "/"], "'--daemon'"),
    ] {
        let (_, said) = refused(args);
        assert!(said.contains(meant), "{args:?}: {said}");
    }
}

/// `contrib/install.sh` with this program, in a directory of its own.
fn installed_with_the_command() {
    let (root, target) = (Dir::new(), Dir::new());
    let release = target.path().join("release");
    fs::create_dir(&release).expect("mkdir");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_uvfs"), release.join("uvfs")).expect("a link");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/install.sh");
    let output = Command::new(script)
        .args(["--root", root.text()])
        .env("CARGO_TARGET_DIR", target.text())
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let man = root.path().join("usr/local/share/man");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for page in PAGES.iter().chain(&["man8/mount.uvfs.8", "man8/uvfs-reload.8"]) {
        let file = man.join(page);
        assert!(file.exists() && said.contains(file.to_str().expect("UTF-8")), "{page}: {said}");
    }
    for file in ["usr/local/bin/uvfs", "sbin/mount.uvfs", "usr/local/share/zsh/site-functions/_uvfs"] {
        assert!(root.path().join(file).symlink_metadata().is_ok(), "{file}");
    }
}

/// The blocks of shell below EXAMPLES.
fn blocks(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let (_, examples) = text.split_once("\n.Sh EXAMPLES\n").expect("examples");
    let examples = examples.split("\n.Sh ").next().expect("a first part");
    let blocks = examples.split(".Bd -literal -offset indent\n").skip(1);
    blocks.map(|rest| rest.split("\n.Ed").next().expect("a first part").replace("\\e", "\\")).collect()
}

/// Runs the examples of the page of `uvfs mount`, each with a mount point of its own, and those of the first page.
fn examples_of_the_pages_work() {
    let pages = written();
    let dir = Dir::new();
    let (mnt, tmp, home) = (dir.path().join("mnt"), dir.path().join("tmp"), dir.path().join("home"));
    for dir in [&mnt, &tmp, &home] {
        fs::create_dir(dir).expect("mkdir");
    }
    let has_mke2fs = Path::new("/sbin/mke2fs").exists();
    let mut ran = 0;
    for (page, block) in ["man8/uvfs-mount.8", "man1/uvfs.1"]
        .iter()
        .flat_map(|page| blocks(&pages.path().join(page)).into_iter().map(move |block| (page, block)))
    {
        // These need the helper or a reader; mke2fs may be missing.
        let is_other = ["mount -t", "  0  0", "man -l"].iter().any(|other| block.contains(other));
        if is_other || block.contains("mke2fs") && !has_mke2fs {
            continue;
        }
        // In this order: the mount point's path may hold "/tmp/" too.
        let script = block
            .replace("/tmp/", &format!("{}/", tmp.display()))
            .replace("/mnt", mnt.to_str().expect("UTF-8"));
        let bin = PathBuf::from(env!("CARGO_BIN_EXE_uvfs"));
        let path =
            format!("{}:{}", bin.parent().expect("a parent").display(), std::env::var("PATH").expect("PATH"));
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &script])
            .env("PATH", path)
            .env("HOME", &home)
            .output()
            .expect("bash");
        let mounted = is_mounted(&mnt);
        if mounted {
            assert!(run(&["umount", mnt.to_str().expect("UTF-8")]).status.success());
        }
        assert!(output.status.success(), "{page}:\n{script}\n{output:?}");
        assert_eq!(mounted, block.contains("uvfs mount -d") && block.contains("/mnt"), "{script}");
        ran += 1;
    }
    assert!(ran >= 6, "{ran} examples");
}

/// The ends of the files about the times of requests; the page says that each kind has all.
const TIMES: [&str; 4] = ["_count", "_p50", "_p99", "_max"];

/// The files that the page names below two of its headings.
fn named(page: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let part = page.split("\n.Ss Figures\n").nth(1).and_then(|rest| rest.split("\n.Sh ").next());
    let mut group = None;
    for line in part.expect("its heading").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [".It", "Pa", group_name, "Ns", "Ar", _] => group = Some(*group_name),
            [".It", "Pa", files @ ..] => {
                group = None;
                names.extend(files.iter().filter(|word| **word != ",").map(|word| (*word).to_owned()));
            }
            [".Cm", members @ ..] => {
                let members =
                    members.iter().filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
                let ends = if group == Some("latency/") { &TIMES[..] } else { &[""] };
                let members: Vec<_> =
                    members.flat_map(|m| ends.iter().map(move |end| format!("{m}{end}"))).collect();
                names.extend(
                    group.iter().flat_map(|group| members.iter().map(move |m| format!("{group}{m}"))),
                );
            }
            _ => {}
        }
    }
    names
}

/// The files below `dir`, by their paths in it.
fn files(dir: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(dir).expect("opendir").map(|entry| entry.expect("readdir")) {
        let name = entry.file_name().into_string().expect("UTF-8");
        match entry.file_type().expect("a type").is_dir() {
            true => all.extend(files(&entry.path()).iter().map(|below| format!("{name}/{below}"))),
            false => drop(all.insert(name)),
        }
    }
    all
}

fn files_of_the_control_directory_are_in_its_page() {
    let (pages, source, tree, mirror) = (written(), Dir::new(), Dir::new(), Dir::new());
    let page = fs::read_to_string(pages.path().join("man1/uvfs-stat.1")).expect("a page");
    let spec = source.path().join("tree.toml");
    fs::write(&spec, "").expect("write");
    let _servers = [
        Server::start(&[&format!("kernfs:{}", spec.display()), tree.text()]),
        Server::start(&["-o", "preload,timeout=1", &format!("mirror:{}", source.text()), mirror.text()]),
    ];
    let mut there = files(&tree.path().join(".uvfs"));
    there.extend(files(&mirror.path().join(".uvfs")));
    let named = named(&page);
    let (missing, extra): (Vec<_>, Vec<_>) =
        (there.difference(&named).collect(), named.difference(&there).collect());
    assert!(missing.is_empty() && extra.is_empty(), "not in the page: {missing:?}; not in .uvfs: {extra:?}");
}

fn options_without_effect_are_reported() {
    let dir = Dir::new();
    let warnings = |args: &[&str]| {
        let output = run(&[&["mount", "-d"], args, &[dir.text()]].concat());
        assert!(output.status.success(), "{output:?}");
        assert!(run(&["umount", dir.text()]).status.success());
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    assert_eq!(
        warnings(&["-o", "rw", "generated:depth=0,files=1"]),
        "uvfs: rw has no effect: generated is read-only\n"
    );
    let said = warnings(&["-o", "nodefault_permissions,passthrough=auto", "generated:depth=0,files=1"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains("passthrough=auto has no effect on generated"), "{said}");
    assert!(said.contains("nodefault_permissions is not in force"), "{said}");
    let said = warnings(&["-o", "map=1/2,map=3/4", "mirror:/etc"]);
    assert!(said.contains("only the last map= has an effect"), "{said}");
    assert_eq!(warnings(&["-o", "rw,suid,dev,sync,dirsync,noatime", "tmpfs"]), "");
}
