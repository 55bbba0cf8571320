//! A mounted mirror of each kind of file system that can be made here, while another process changes the source.
//! The mirror must show the source's state, and must report `watched` only for kinds whose events come.
//!
//! Each kind is tested as the source itself, and as a file system mounted inside a source. A kind that this machine
//! cannot make is skipped by name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use uvfs::Counted;
use uvfs_drivers::mirror::{Mirror, Submounts};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, run, sh_as, within};

pub const TESTS: &[Test] = &[
    ("mirror_of_ext4_is_coherent", Needs::Root, || changed("ext4", Some(("mkfs.ext4 -qF", 64)), LOOP)),
    ("mirror_of_xfs_is_coherent", Needs::Root, || changed("xfs", Some(("mkfs.xfs -qf", 320)), "")),
    ("mirror_of_btrfs_is_coherent", Needs::Root, || {
        changed("btrfs", Some(("mkfs.btrfs -qf", 256)), SUBVOLUME)
    }),
    ("mirror_of_a_tmpfs_of_the_host_is_coherent", Needs::Root, || changed("tmpfs", None, "")),
    ("mirror_of_overlayfs_is_coherent", Needs::Root, || changed("overlay", None, "")),
    ("mirror_of_fuse_is_coherent", Needs::Root, || changed("fuse", None, "")),
    ("mirror_of_squashfs_is_coherent", Needs::Root, || read_only("squashfs", "mksquashfs TREE IMAGE -quiet")),
    ("mirror_of_erofs_is_coherent", Needs::Root, || read_only("erofs", "mkfs.erofs IMAGE TREE")),
    ("mirror_of_proc_is_coherent", Needs::Root, mirror_of_proc_is_coherent),
    ("mirror_of_sysfs_is_coherent", Needs::Root, mirror_of_sysfs_is_coherent),
];

/// How long a change may take to be seen before the test fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// The TTL of a source that is not watched.
const TTL: Duration = Duration::from_millis(100);
/// The kinds whose changes by others are reported.
const WATCHED: [&str; 6] = ["ext4", "xfs", "btrfs", "tmpfs", "squashfs", "erofs"];

/// The steps of another process in the source, one after the other. Each name is looked up before it exists.
const STEPS: [&str; 16] = [
    "echo one > name",
    "echo more >> name",
    "truncate -s 2 name",
    "printf XY > other; touch -r name other; cat other > name",
    "truncate -s 70000 name",
    "chmod 600 name",
    "mkdir -p d/e; echo deep > d/e/f",
    "mv name d/moved",
    "ln d/moved link; ln d/moved d/e/link",
    "echo through a link >> link; rm d/moved",
    "mv d/e e",
    "ln -s e/f soft; mkfifo fifo",
    "mv link e/f",
    "rm -r d; echo a file now > d",
    "rm d; mkdir d; echo again > d/moved",
    "rm -r e soft fifo; mv d e",
];
/// In btrfs each subvolume numbers its files from the start.
const SUBVOLUME: &str = "btrfs -q subvolume create sub || btrfs subvolume create sub; echo below > sub/f
    echo more >> sub/f; chmod 600 sub/f
    mkdir sub/d; mv sub/f sub/d/f
    rm -r sub/d; echo next > sub/f";

/// The kernel reports no write of a loop device, but that it has closed the file.
const LOOP: &str = "truncate -s 1M disk
    at=$(losetup -f --show disk); echo written | dd of=$at conv=notrunc 2>/dev/null; sync $at; losetup -d $at";

/// A file system of some kind on a directory of its own, unmounted when dropped.
struct Kind {
    /// The mirrored source, and the file system's place in it.
    source: PathBuf,
    at: PathBuf,
    /// The tmpfs that is bound there; it stays mounted as long.
    tmpfs: Option<Fixture>,
    _base: TempDir,
}

impl Kind {
    /// Runs `mount ARGS DIR`, after `make` in the base directory.
    fn mounted(inside: bool, make: &str, args: &str) -> Result<Self, String> {
        let base = tempfile::tempdir().map_err(|error| error.to_string())?;
        let source = base.path().join("source");
        let at = if inside { source.join("inside") } else { source.clone() };
        fs::create_dir_all(&at).map_err(|error| error.to_string())?;
        let it = Self { source, at, tmpfs: None, _base: base };
        sh_as(0, it.base(), make)?;
        sh_as(0, it.base(), &format!("mount {args} {}", it.at.display()))?;
        Ok(it)
    }

    fn base(&self) -> &Path {
        self.source.parent().expect("a directory above")
    }

    fn writable(kind: &str, image: Option<(&str, u32)>, inside: bool) -> Result<Self, String> {
        match (kind, image) {
            (_, Some((mkfs, size))) => {
                let make = format!("truncate -s {size}M image; {mkfs} image >/dev/null");
                Self::mounted(inside, &make, &format!("-t {kind} -o loop image"))
            }
            ("overlay", _) => {
                let make = "mkdir layers; mount -t tmpfs none layers; cd layers; mkdir low high work";
                let of = "lowerdir=layers/low,upperdir=layers/high,workdir=layers/work";
                Self::mounted(inside, make, &format!("-t overlay -o {of} none"))
            }
            ("fuse", _) => {
                let tmpfs = Fixture::tmpfs();
                let bind = format!("--bind {}", tmpfs.display());
                let mut it = Self::mounted(inside, ":", &bind)?;
                it.tmpfs = Some(tmpfs);
                Ok(it)
            }
            _ => Self::mounted(inside, ":", &format!("-t {kind} none")),
        }
    }
}

impl Drop for Kind {
    fn drop(&mut self) {
        for mounted in [self.at.clone(), self.base().join("layers")] {
            // Threads of the mirror that has just ended may hold it for a moment.
            let name = mounted.to_str().expect("a name");
            if !mounted.exists() || run("mountpoint", &["-q", name]).is_err() {
                continue;
            }
            if !within(Duration::from_secs(10), || run("umount", &[name]).is_ok()) {
                let _ = run("umount", &["--lazy", name]);
            }
        }
    }
}

/// A mirror of it, mounted as the command does.
struct Shown {
    /// The file system's place in the mount.
    at: PathBuf,
    coherence: String,
    _submounts: Option<Submounts>,
    _mnt: Fixture,
}

impl Shown {
    fn new(kind: &Kind) -> Self {
        let inside = kind.at != kind.source;
        let new = if inside { Mirror::across_mounts } else { Mirror::new };
        let mirror: Arc<Mirror> = new(&kind.source, TTL).expect("a mirror");
        let _ = mirror.watch();
        let mut options = Options::default();
        options.allow_other = true;
        let mnt = Fixture::new(Counted::new(mirror.clone()), &options);
        if !inside {
            return Self { at: mnt.to_owned(), coherence: mirror.coherence(), _submounts: None, _mnt: mnt };
        }
        let submounts = Submounts::follow(&mnt.vfs, &mirror, |_| ()).expect("submounts");
        let of_it = || {
            submounts.coherence().lines().find_map(|line| line.strip_prefix("inside: ")?.to_owned().into())
        };
        // A kind that may not answer comes a moment later.
        let here = || of_it().is_some_and(|said: String| !said.contains("not yet"));
        assert!(within(PATIENCE, here), "{}", submounts.coherence());
        let coherence = of_it().expect("a line");
        Self { at: mnt.path("inside"), coherence, _submounts: Some(submounts), _mnt: mnt }
    }

    /// Checks that the reported watch state is right for this kind of file system.
    fn says_the_truth(&self, kind: &str) {
        let expected =
            if WATCHED.contains(&kind) { "watched" } else { "not watched, answers are believed for 100ms: " };
        assert!(self.coherence.starts_with(expected), "{kind}: {}", self.coherence);
    }
}

/// Everything below a directory, and for absent names that they are absent.
fn tree(dir: &Path) -> BTreeMap<PathBuf, String> {
    const NAMES: [&str; 12] = [
        "name", "other", "d", "d/e", "d/e/f", "d/moved", "link", "d/e/link", "e/link", "soft", "sub", "sub/f",
    ];
    let mut found: BTreeMap<_, _> = NAMES.iter().map(|name| (name.into(), look(&dir.join(name)))).collect();
    let mut next = vec![PathBuf::new()];
    while let Some(below) = next.pop() {
        let Ok(entries) = fs::read_dir(dir.join(&below)) else { continue };
        for entry in entries.flatten() {
            let path = below.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                next.push(path.clone());
            }
            found.insert(path.clone(), look(&dir.join(&path)));
        }
    }
    found
}

fn look(path: &Path) -> String {
    let Ok(meta) = fs::symlink_metadata(path) else { return "none".into() };
    let content = match meta.is_file() {
        true => fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', "")).ok(),
        false => fs::read_link(path).map(|target| target.display().to_string()).ok(),
    };
    // A directory's size depends on the file system.
    let size = if meta.is_dir() { 0 } else { meta.len() };
    format!("{:o} {} {size} {content:?}", meta.mode(), meta.nlink())
}

/// Tests this kind, as a source and inside one. If it cannot be made, says so.
fn each(kind: &str, make: impl Fn(bool) -> Result<Kind, String>, test: impl Fn(&Kind)) {
    for inside in [false, true] {
        match make(inside) {
            Ok(made) => test(&made),
            Err(why) => eprintln!("skipped: mirror_of_{kind}: {}", why.replace('\n', " ")),
        }
    }
}

fn changed(kind: &str, image: Option<(&str, u32)>, more: &str) {
    let test = |made: &Kind| {
        let shown = Shown::new(made);
        // A uvfs mount inside is left out.
        if kind == "fuse" && made.at != made.source {
            return assert!(shown.coherence.starts_with("shown empty: it is of uvfs"), "{}", shown.coherence);
        }
        shown.says_the_truth(kind);
        for step in STEPS.into_iter().chain(more.lines()) {
            assert!(within(PATIENCE, || tree(&shown.at) == tree(&made.at)), "{kind}, before {step}");
            sh_as(0, &made.at, step).expect(step);
            let wrong = || (tree(&shown.at), tree(&made.at));
            assert!(within(PATIENCE, || tree(&shown.at) == tree(&made.at)), "{kind}, {step}: {:#?}", wrong());
        }
    };
    each(kind, |inside| Kind::writable(kind, image, inside), test);
}

/// Nothing can be changed in these, but the test still proves that a mirror watches them.
fn read_only(kind: &str, mkfs: &str) {
    let make = |inside| {
        let tree = "mkdir tree; cd tree; echo one > name; mkdir d; ln name d/moved; ln -s name soft; cd ..";
        let mkfs = mkfs.replace("TREE", "tree").replace("IMAGE", "image");
        Kind::mounted(
            inside,
            &format!("{tree}; {mkfs} >/dev/null 2>&1"),
            &format!("-t {kind} -o loop,ro image"),
        )
    };
    each(kind, make, |made| {
        let shown = Shown::new(made);
        shown.says_the_truth(kind);
        assert_eq!(tree(&shown.at), tree(&made.at));
        assert_eq!(fs::read_to_string(shown.at.join("d/moved")).expect("a file"), "one\n");
    });
}

/// Ended when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mirror_of_proc_is_coherent() {
    each(
        "proc",
        |inside| Kind::mounted(inside, ":", "-t proc none"),
        |made| {
            let shown = Shown::new(made);
            shown.says_the_truth("proc");
            let process = Process(Command::new("sleep").arg("1000").spawn().expect("sleep"));
            let of_it = shown.at.join(process.0.id().to_string());
            assert!(within(PATIENCE, || of_it.join("stat").exists()));
            let sleeps = || fs::read_to_string(of_it.join("comm")).is_ok_and(|name| name == "sleep\n");
            // Until it is executed it has this program's name.
            assert!(within(PATIENCE, sleeps));
            drop(process);
            assert!(within(PATIENCE, || !of_it.exists()));
        },
    );
}

/// Each FUSE mount has a directory there.
fn mirror_of_sysfs_is_coherent() {
    each(
        "sysfs",
        |inside| Kind::mounted(inside, ":", "-t sysfs none"),
        |made| {
            let shown = Shown::new(made);
            shown.says_the_truth("sysfs");
            let all = |at: &Path| -> Vec<_> {
                let mut names: Vec<_> =
                    fs::read_dir(at.join("class/bdi")).expect("a listing").flatten().collect();
                names.sort_by_key(|entry| entry.file_name());
                names.into_iter().map(|entry| entry.file_name()).collect()
            };
            assert!(within(PATIENCE, || all(&shown.at) == all(&made.at)));
            let new = Fixture::tmpfs();
            let dev = File::open(&*new).and_then(|dir| dir.metadata()).expect("a mount").dev();
            let name = format!("class/bdi/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
            let (here, there) = (made.at.join(&name), shown.at.join(&name));
            assert!(here.exists() && within(PATIENCE, || there.exists() && all(&shown.at) == all(&made.at)));
            drop(new);
            assert!(within(PATIENCE, || !here.exists() && !there.exists()), "{}", here.display());
        },
    );
}
