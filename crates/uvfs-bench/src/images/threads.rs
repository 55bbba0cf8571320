//! `uvfs-bench ext4-threads`: the cost of looking up an image's inodes and names in this process, with one thread and several.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use uvfs::{Cred, Driver as _, Found, Inode, Vfs, VfsConfig, driver};
use uvfs_drivers::ext4::Ext4;
use uvfs_tests::ext4::tools::scratch;

/// Look up and read the files of an ext4 image from one thread and from several, without a mount
///
/// Prints how that scales. Every call goes to the driver: the cache of names answers nothing. Each thread has its own files.
///
/// `null` is work that shares nothing: it shows the machine's scaling. `lookup` finds a name in a directory, and its
/// inode. `read` reads up to 4 KiB of a file by its inode's number. `apart` is the same with an image opened separately
/// for each thread, with its own cache. The scaling of `apart` is that of the machine and the kernel. If `lookup` or
/// `read` scales less, the driver's shared data is the cause.
#[derive(Parser)]
#[command(name = "ext4-threads")]
pub struct ThreadsArgs {
    /// The image; without one, a new image is made from a directory.
    #[arg(long)]
    image: Option<PathBuf>,
    /// The directory from which a new image is made.
    #[arg(long, default_value = "/usr/include")]
    tree: PathBuf,
    /// Number of threads to compare with one.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Rounds, each of which measures everything.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 300)]
    millis: u64,
}

/// A file of the image.
struct File<'v> {
    dir: Inode<'v>,
    name: Vec<u8>,
    node: Inode<'v>,
    is_reg: bool,
}

/// All files of the image.
fn files(vfs: &Vfs) -> Result<Vec<File<'_>>> {
    let op = vfs.op(&Cred::root());
    let (mut found, mut waiting) = (Vec::new(), vec![vfs.root()]);
    while let Some(dir) = waiting.pop() {
        let mut names = Vec::new();
        vfs.readdir(&op, &dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        for name in names {
            let Found::Node(node, attr) = vfs.lookup(&op, &dir, &name)? else { continue };
            if attr.is_dir() {
                waiting.push(node.clone());
            }
            found.push(File { dir: dir.clone(), name, node, is_reg: attr.is_reg() });
        }
    }
    Ok(found)
}

/// A thread's work on one of its files.
type Work<'w> = &'w (dyn Fn(usize, u64) + Sync);

/// Operations per second of all threads together.
fn measure(threads: usize, time: Duration, work: Work<'_>) -> Result<f64> {
    let (all, begin) = (AtomicU64::new(0), Barrier::new(threads));
    let start = Instant::now();
    thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|thread| {
                let (all, begin) = (&all, &begin);
                scope.spawn(move || {
                    begin.wait();
                    let (start, mut done) = (Instant::now(), 0);
                    while start.elapsed() < time {
                        (0..64).for_each(|step| work(thread, done + step));
                        done += 64;
                    }
                    all.fetch_add(done, Ordering::Relaxed);
                })
            })
            .collect();
        spawned.into_iter().for_each(|thread| drop(thread.join()));
    });
    Ok(all.into_inner() as f64 / start.elapsed().as_secs_f64())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Runs the command.
///
/// # Errors
/// If the image cannot be made or opened, or has too few files.
pub fn run(args: &ThreadsArgs) -> Result<()> {
    let dir = scratch()?;
    let image = super::image(args.image.as_ref(), &args.tree, "1G", dir.path())?;
    // One for all threads, then one for each thread.
    let opened = (0..=args.threads).map(|_| Ext4::open(&image).with_context(|| image.display().to_string()));
    let opened = opened.collect::<Result<Vec<_>>>()?;
    let vfs = opened.iter().map(|opened| Ok(Vfs::new(VfsConfig::default(), opened.clone())?));
    let vfs = vfs.collect::<Result<Vec<_>>>()?;
    let op = vfs[0].op(&Cred::root());
    let files = vfs.iter().map(|vfs| files(vfs)).collect::<Result<Vec<_>>>()?;
    let len = files[0].len();
    ensure!(len >= 64 * args.threads, "only {len} files are in the image");
    // Adjacent files belong to one thread, as if each walked a part of the tree.
    let part = len / args.threads.max(1);
    let of = |image: usize, thread: usize, step: u64| {
        &files[image][(thread % args.threads) * part + step as usize % part]
    };
    let null = |thread: usize, step: u64| {
        let mut x = step ^ thread as u64;
        (0..100).for_each(|_| x = black_box(x).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ x >> 29);
    };
    let look_up = |image: usize, thread: usize, step: u64| {
        let file = of(image, thread, step);
        assert!(black_box(opened[image].lookup(&op, &file.dir, &file.name)).is_ok());
    };
    let read = |image: usize, thread: usize, step: u64| {
        let (file, mut buffer) = (of(image, thread, step), [0; 4096]);
        if file.is_reg {
            let open = driver::File { inode: &file.node, handle: 0 };
            assert!(black_box(opened[image].read(&op, open, 0, &mut buffer)).is_ok());
        }
    };
    let phases: [(&str, Work<'_>); 5] = [
        ("null", &null),
        ("lookup", &|thread, step| look_up(0, thread, step)),
        ("lookup, apart", &|thread, step| look_up(1 + thread, thread, step)),
        ("read", &|thread, step| read(0, thread, step)),
        ("read, apart", &|thread, step| read(1 + thread, thread, step)),
    ];
    let time = Duration::from_millis(args.millis);
    for (name, work) in phases {
        measure(1, time / 4, work)?;
        let (mut one, mut many) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            one.push(measure(1, time, work)?);
            many.push(measure(args.threads, time, work)?);
        }
        let (one, many) = (median(one), median(many));
        println!("{name}: {:.0} ns, {} threads {:.2} times as many", 1e9 / one, args.threads, many / one);
    }
    Ok(())
}
