//! `uvfs-tests shared-stores`: counts a hit's stores to memory that other threads can see: there must be none, by two methods.
//!
//! *Pages*: all memory is read-only except the thread's own stack, and the pages to which the call stores are counted
//! ([`WriteWatch`]). *Counted*, in a debug build: stores and read-modify-writes of the atomics of
//! [`uvfs_sync::primitives`]. The controls at the end do store,
//! and both methods must notice. `ci/shared-stores.sh` runs both builds.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use uvfs::{Access, Context, Cred, Driver, Errno, OpenFlags, Vfs, VfsConfig, mode};
use uvfs_drivers::generated::{Generated, Spec};
use uvfs_drivers::kernfs::{Kernfs, KernfsOptions, Meta, Node};
use uvfs_drivers::tmpfs::{Tmpfs, parse};
use uvfs_sync::primitives::shared_stores as counted;

use super::WriteWatch;
use crate::harness::Verdicts;

/// Count a hit's stores to memory that other threads can see.
///
/// There must be none, by two methods. The controls at the end of the table do store, and both methods must notice.
#[derive(clap::Args)]
pub struct SharedStoresArgs {}

/// A measured call; returns whether it gave the right answer.
type Call<'a> = Box<dyn Fn() -> bool + 'a>;

/// The expected result of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Nothing,
    /// A call that stores, to memory that its thread keeps for itself: at most so many stores, by either method. That no
    /// other thread uses that memory is not seen here.
    Own {
        most: u64,
    },
    /// A control: the watch must see it, and so must the count if it goes through `primitives`.
    Stores {
        counted: bool,
    },
}

struct Row<'a> {
    name: String,
    want: Want,
    call: Call<'a>,
}

#[derive(Default)]
struct Rows<'a>(Vec<Row<'a>>);

impl<'a> Rows<'a> {
    fn hit(&mut self, on: &str, name: &str, call: impl Fn() -> bool + 'a) {
        let name = format!("{on}: {name}");
        self.0.push(Row { name, want: Want::Nothing, call: Box::new(call) });
    }

    fn own(&mut self, name: &str, most: u64, call: impl Fn() -> bool + 'a) {
        self.0.push(Row { name: name.to_owned(), want: Want::Own { most }, call: Box::new(call) });
    }

    fn control(&mut self, name: &str, counted: bool, call: impl Fn() -> bool + 'a) {
        let name = format!("control: {name}");
        self.0.push(Row { name, want: Want::Stores { counted }, call: Box::new(call) });
    }
}

/// Bytes that are read of a GID.
const GID: usize = 40;

/// Stores of an open, a read and a close to memory of its thread: the open file, and references.
const OPEN_READ_CLOSE: u64 = 12;

/// Directories above the deepest file, which is the sixth component.
const DEPTH: usize = 5;

/// Runs the suite, which must be the only thread of its process.
///
/// # Errors
/// A call with a wrong answer, and errors of the watch.
pub fn run(verdicts: &mut Verdicts) -> Result<()> {
    let (tmpfs, mounted, wide) = (tmpfs_tree()?, tmpfs_tree()?, tmpfs_tree()?);
    let (kernfs, _nodes) = kernfs_tree()?;
    let forever = generated("")?;
    let expiring = generated(",ttl=60m,negative-ttl=60m")?;
    mounted.mount(&mounted.context(Cred::root()).resolve(b"/d0")?, Arc::clone(&forever.1))?;

    let mut rows = Rows::default();
    let deep = [(0..DEPTH).map(|i| format!("/d{i}")).collect::<String>(), "/file".into()].concat();
    hits(&mut rows, "tmpfs", &tmpfs, deep.into_bytes());
    denials_and_links(&mut rows, &tmpfs);
    for (name, vfs) in [("generated", &forever.0), ("generated, expiring", &expiring.0)] {
        let deep = deepest(&vfs.context(Cred::root()))?;
        hits(&mut rows, name, vfs, deep);
    }
    crossings(&mut rows, &mounted)?;
    many(&mut rows, &wide)?;
    attributes(&mut rows, &kernfs);
    controls(&mut rows, &tmpfs);
    measure(&rows.0, verdicts)
}

/// A tmpfs with five nested directories, a file in the last, and links.
fn tmpfs_tree() -> Result<Arc<Vfs>> {
    let options = parse("size=1M,nr_inodes=0").map_err(anyhow::Error::msg)?;
    let vfs = Vfs::new(VfsConfig::default(), Tmpfs::new(options)?)?;
    let root = vfs.context(Cred::root());
    let mut path = String::new();
    for i in 0..DEPTH {
        path += &format!("/d{i}");
        root.mkdir(path.as_bytes(), 0o755)?;
    }
    for file in ["/file", &format!("{path}/file"), "/secret"] {
        root.mknod(file.as_bytes(), mode::S_IFREG | 0o644, 0)?;
    }
    root.chmod(b"/secret", 0o600)?;
    root.mkdir(b"/private", 0o700)?;
    root.mknod(b"/private/file", mode::S_IFREG | 0o644, 0)?;
    root.symlink(b"d0/d1", b"/link")?;
    root.symlink(&[b'x'; 60], b"/longer")?;
    root.symlink(b"../d2/d3", b"/d0/d1/d2/hop")?;
    root.symlink(b"/link/d2/hop/d4/file", b"/last")?;
    drop(root);
    Ok(vfs)
}

type Made = (Arc<Vfs>, Arc<dyn Driver>);

/// A generated tree of the same depth, and its driver, to be mounted elsewhere.
fn generated(more: &str) -> Result<Made> {
    let spec = format!("depth={DEPTH},dirs=1,files=3,mode=644{more}");
    let driver = || -> Result<Arc<dyn Driver>> { Ok(Arc::new(Generated::new(spec.parse::<Spec>()?)?)) };
    Ok((Vfs::new(VfsConfig::default(), driver()?)?, driver()?))
}

/// The path of a file on the last level.
fn deepest(root: &Context<'_>) -> Result<Vec<u8>> {
    let mut path = Vec::new();
    loop {
        let at = if path.is_empty() { b"/".to_vec() } else { path.clone() };
        let entries = root.readdir(&at)?;
        let next = entries.iter().find(|e| e.fmt == mode::S_IFDIR).or(entries.first());
        let next = next.context("an empty directory in the generated tree")?;
        path.push(b'/');
        path.extend_from_slice(&next.name);
        if next.fmt != mode::S_IFDIR {
            return Ok(path);
        }
    }
}

fn is(want: Errno) -> impl Fn(uvfs::Result<()>) -> bool {
    move |result| result == Err(want)
}

/// Calls that are hits on any file system. `deep`: the path of a file of six components.
fn hits<'a>(rows: &mut Rows<'a>, on: &str, vfs: &'a Vfs, deep: Vec<u8>) {
    let parent = |path: &[u8]| path[..path.iter().rposition(|b| *b == b'/').unwrap_or(0)].to_vec();
    let top = [&deep[..1], deep[1..].split(|b| *b == b'/').next().unwrap_or_default()].concat();
    let absent = [&parent(&deep), &b"/ABSENT"[..]].concat();
    let up = [&parent(&deep), &b"/../."[..]].concat();
    let long = [&parent(&deep), &b"/"[..], &[b'L'; 200]].concat();
    for (who, uid) in [("root", 0), ("user", 1000)] {
        let context = || vfs.context(Cred::user(uid, uid));
        let (c, path) = (context(), top.clone());
        rows.hit(on, &format!("stat, depth 1, {who}"), move || c.stat(&path).is_ok());
        let (c, path) = (context(), deep.clone());
        rows.hit(on, &format!("stat, depth 6, {who}"), move || c.stat(&path).is_ok());
        let (c, path) = (context(), up.clone());
        rows.hit(on, &format!("stat, .. and ., {who}"), move || c.stat(&path).is_ok());
        let c = context();
        rows.hit(on, &format!("stat, absent, depth 1, {who}"), move || {
            is(Errno::NOENT)(c.stat(b"/ABSENT").map(drop))
        });
        let (c, path) = (context(), absent.clone());
        rows.hit(on, &format!("stat, absent, depth 6, {who}"), move || {
            is(Errno::NOENT)(c.stat(&path).map(drop))
        });
        let (c, path) = (context(), deep.clone());
        rows.hit(on, &format!("access, read, depth 6, {who}"), move || c.access(&path, Access::READ).is_ok());
    }
    let (c, path) = (vfs.context(Cred::user(1000, 1000)), deep.clone());
    rows.hit(on, "access, denied execution", move || is(Errno::ACCESS)(c.access(&path, Access::EXEC)));
    let (c, path) = (vfs.context(Cred::user(1000, 1000)), long);
    rows.hit(on, "stat, absent, 200 bytes", move || is(Errno::NOENT)(c.stat(&path).map(drop)));
}

fn denials_and_links<'a>(rows: &mut Rows<'a>, vfs: &'a Vfs) {
    let user = || vfs.context(Cred::user(1000, 1000));
    let c = user();
    rows.hit("tmpfs", "access, denied write", move || is(Errno::ACCESS)(c.access(b"/file", Access::WRITE)));
    let c = user();
    rows.hit("tmpfs", "access, denied read", move || is(Errno::ACCESS)(c.access(b"/secret", Access::READ)));
    let c = vfs.context(Cred::root());
    rows.hit("tmpfs", "access, write, root", move || c.access(b"/secret", Access::WRITE).is_ok());
    let c = user();
    rows.hit("tmpfs", "stat, denied search", move || is(Errno::ACCESS)(c.stat(b"/private/file").map(drop)));
    for (name, link, len) in [("5", &b"/link"[..], 5), ("60", b"/longer", 60)] {
        let c = user();
        rows.hit("tmpfs", &format!("readlink, {name} bytes"), move || {
            c.readlink_into(link, &mut [0; 100]) == Ok(len)
        });
    }
    // The second path is long enough for a prefix entry.
    for (name, path) in [
        ("two links", &b"/link/d2/hop/d4/file"[..]),
        ("an entry over two links", b"/link/d2/hop/././d4/file"),
        ("a link at the end", b"/last"),
    ] {
        let c = user();
        rows.hit("tmpfs", &format!("stat, {name}"), move || c.stat(path).is_ok_and(|a| a.is_reg()));
    }
    let c = user();
    rows.hit("tmpfs", "lstat of a link", move || c.lstat(b"/link").is_ok_and(|a| a.is_symlink()));
}

fn crossings<'a>(rows: &mut Rows<'a>, vfs: &'a Vfs) -> Result<()> {
    let inside = vfs.context(Cred::root()).readdir(b"/d0")?;
    let path = [b"/d0/", &inside.first().context("nothing is mounted")?.name[..]].concat();
    let c = vfs.context(Cred::user(1000, 1000));
    let context = c.clone();
    rows.hit("a mount", "stat of what is mounted", move || context.stat(b"/d0").is_ok());
    let context = c.clone();
    rows.hit("a mount", "stat inside", move || context.stat(&path).is_ok());
    rows.hit("a mount", "stat, .. out of it", move || c.stat(b"/d0/../file").is_ok());
    Ok(())
}

/// Many directories in turn: more than the prefix cache can hold.
fn many<'a>(rows: &mut Rows<'a>, vfs: &'a Vfs) -> Result<()> {
    const DIRS: usize = 10_000;
    thread_local! { static NEXT: Cell<usize> = const { Cell::new(0) }; }
    let root = vfs.context(Cred::root());
    let paths: Vec<_> = (0..DIRS).map(|i| format!("/d0/d1/d2/d3/{i}/file").into_bytes()).collect();
    for path in &paths {
        root.mkdir(&path[..path.len() - b"/file".len()], 0o755)?;
        root.mknod(path, mode::S_IFREG | 0o644, 0)?;
    }
    let c = vfs.context(Cred::user(1000, 1000));
    rows.hit("tmpfs", "stat, 10,000 directories in turn", move || {
        // A thousand at a time; the counter is this thread's.
        (0..1000).all(|_| c.stat(&paths[NEXT.replace((NEXT.get() + 1) % DIRS)]).is_ok())
    });
    Ok(())
}

/// The tree of the program that reads every GID of a network adapter (`uvfs-bench showgids`), with the link on its way.
fn kernfs_tree() -> Result<(Arc<Vfs>, Kernfs)> {
    let kernfs = Kernfs::new(KernfsOptions { may_block: false, ..KernfsOptions::default() })?;
    let below = |above: Node, names: &[&str]| {
        names.iter().try_fold(above, |above, name| above.add_dir(*name, Meta::new(0o755)))
    };
    let device = below(kernfs.root(), &["devices", "pci0000:00", "mlx5_0"])?;
    below(kernfs.root(), &["class", "infiniband"])?.add_symlink("mlx5_0", Meta::new(0o777), &device)?;
    let text = |out: &mut Vec<u8>| {
        out.extend_from_slice(&[b'0'; GID]);
        Ok(())
    };
    below(device, &["ports", "1", "gids"])?.add_attr("0", Meta::new(0o444), text)?;
    Ok((Vfs::new(VfsConfig::default(), kernfs.view(None))?, kernfs))
}

/// The path walk of that loop, and its whole: open, read, close.
fn attributes<'a>(rows: &mut Rows<'a>, vfs: &'a Vfs) {
    const PATH: &[u8] = b"/class/infiniband/mlx5_0/ports/1/gids/0";
    let c = vfs.context(Cred::user(1000, 1000));
    rows.hit("kernfs", "stat over a link", move || c.stat(PATH).is_ok_and(|a| a.is_reg()));
    let c = vfs.context(Cred::user(1000, 1000));
    rows.hit("kernfs", "access, read, over a link", move || c.access(PATH, Access::READ).is_ok());
    let c = vfs.context(Cred::user(1000, 1000));
    rows.own("kernfs: open, read, close over a link", OPEN_READ_CLOSE, move || {
        let file = c.open(PATH, OpenFlags::READ, 0);
        file.and_then(|file| file.read_at(&mut [0; GID], 0)) == Ok(GID)
    });
}

/// Calls whose stores must be seen.
fn controls<'a>(rows: &mut Rows<'a>, vfs: &'a Vfs) {
    static OF_PRIMITIVES: uvfs_sync::primitives::AtomicU64 = uvfs_sync::primitives::AtomicU64::new(0);
    static OF_STD: AtomicU64 = AtomicU64::new(0);
    let root = || vfs.context(Cred::root());
    let c = root();
    rows.control("a hit that takes a reference", true, move || c.resolve(b"/d0/d1").is_ok());
    let c = root();
    rows.control("a stat, and a shared counter", true, move || {
        OF_PRIMITIVES.fetch_add(1, Ordering::Relaxed);
        c.stat(b"/file").is_ok()
    });
    let c = root();
    rows.control("a stat, and a counter that nobody counts", false, move || {
        OF_STD.fetch_add(1, Ordering::Relaxed);
        c.stat(b"/file").is_ok()
    });
    let c = root();
    rows.control("a stat, and an allocation", false, move || {
        black_box(Box::new([black_box(1u8); 100_000]));
        c.stat(b"/file").is_ok()
    });
}

/// How often a row is called before the measurement, and during it.
const WARM_UP: usize = 40;
const MEASURED: u64 = 8;

/// Measures the rows. Each is a check.
fn measure(rows: &[Row<'_>], verdicts: &mut Verdicts) -> Result<()> {
    for row in rows {
        for _ in 0..WARM_UP {
            ensure!((row.call)(), "{}: the answer is wrong", row.name);
        }
    }
    let watch = WriteWatch::new()?;
    println!("{} MiB of address space watched", watch.watched_bytes() >> 20);
    println!("{:<52} {:>8} {:>8}", "stores to shared memory by a call of", "pages", "counted");
    let mut failed = 0;
    for row in rows {
        let mut pages = 0;
        let mut count = 0;
        for _ in 0..MEASURED {
            let before = counted();
            let (right, stored) = watch.stores_of(&row.call)?;
            ensure!(right, "{}: the answer is wrong", row.name);
            pages += stored as u64;
            count += counted().zip(before).map_or(0, |(now, before)| now - before);
        }
        let good = match row.want {
            Want::Nothing => pages == 0 && count == 0,
            Want::Own { most } => pages >= MEASURED && pages.max(count) <= most * MEASURED,
            Want::Stores { counted: by_count } => {
                pages >= MEASURED && (counted().is_none() || by_count == (count >= MEASURED))
            }
        };
        let shown = counted().map_or("-".to_owned(), |_| (count / MEASURED).to_string());
        println!("{:<52} {:>8} {shown:>8}{}", row.name, pages / MEASURED, if good { "" } else { "  WRONG" });
        if !good {
            failed += 1;
            if row.want == Want::Nothing {
                for store in watch.last() {
                    println!("    {:#x} in {} by {:#x}", store.address, store.mapping, store.instruction);
                }
            }
        }
    }
    verdicts.count(rows.len() - failed, failed);
    Ok(())
}
