//! `uvfs-tests ends`: mounts that end under load, by SIGKILL of the server or by unmounting.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};
use uvfs::{Vfs, VfsConfig};
use uvfs_drivers::tmpfs::{Tmpfs, TmpfsOptions};
use uvfs_fuse::{Options, TransportKind};

use crate::harness::{Mounter, Seed, Verdicts};
use crate::process::end_of;

/// End mounts under load, by SIGKILL of the server or by unmounting. Needs root.
///
/// Mounts a tmpfs in a server process, lets clients work in it, and ends it at a random moment: in turn by SIGKILL, by
/// a lazy unmount, and by a forced one. Every client must come back with an error, the server must end, and nothing may
/// be left behind.
#[derive(clap::Args)]
pub struct EndsArgs {
    /// Ends of each kind.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// auto, uring or dev.
    #[arg(long, default_value = "auto")]
    transport: Transport,
    /// Threads that work in the mount.
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Milliseconds within which every client must be back; 0: 20 seconds.
    #[arg(long, default_value_t = 0)]
    back: u64,
    /// Milliseconds within which the next mount must be there; 0: 20 seconds.
    #[arg(long, default_value_t = 0)]
    again: u64,
    #[command(flatten)]
    seed: Seed,
}

/// The server process of a mount.
#[derive(clap::Args)]
pub struct ServerArgs {
    /// auto, uring or dev.
    #[arg(long)]
    transport: Transport,
    /// Where to mount.
    dir: PathBuf,
}

/// The name of a transport, checked.
#[derive(Clone)]
struct Transport(String);

impl Transport {
    fn kind(&self) -> Result<TransportKind> {
        let wrong = |()| anyhow::anyhow!("{:?} is none of auto, uring and dev", self.0);
        self.0.parse().map_err(wrong)
    }
}

impl std::str::FromStr for Transport {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let transport = Self(name.to_owned());
        transport.kind().map(|_| transport)
    }
}

/// Longer than any end that still succeeds.
const LATE: Duration = Duration::from_secs(20);
/// A mount slower than this is reported with what its threads wait for.
const SLOW: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kill,
    Detach,
    Force,
}

/// Serves a tmpfs until it is unmounted. Prints the transport when it is mounted.
///
/// # Errors
/// If it cannot be mounted or served.
pub fn serve(args: &ServerArgs) -> Result<()> {
    let vfs = Vfs::new(VfsConfig::default(), Tmpfs::new(TmpfsOptions::default())?)?;
    let mut options = Options::default();
    options.transport = args.transport.kind()?;
    // Every call must reach the server.
    options.timeout = Some(Duration::ZERO);
    let mounted = uvfs_fuse::mount(vfs, &args.dir, &options)?;
    println!("{}", mounted.transport().name());
    mounted.wait()?;
    Ok(())
}

/// The longest times of one kind of end.
#[derive(Default)]
struct Worst {
    back: Duration,
    gone: Duration,
    again: Duration,
}

/// Runs the suite.
///
/// # Errors
/// A client or a server that does not end in time, or something that is left behind.
pub fn run(args: &EndsArgs, verdicts: &mut Verdicts) -> Result<()> {
    if verdicts.cannot_mount(Mounter::Root) {
        return Ok(());
    }
    let base = tempfile::Builder::new().prefix("uvfs-ends").tempdir()?;
    let dir = base.path().canonicalize()?;
    let before = (descriptors()?, tasks()?);
    let mut random = fastrand::Rng::with_seed(args.seed.announce());
    for end in [End::Kill, End::Detach, End::Force] {
        let mut worst = Worst::default();
        let mut through = String::new();
        for round in 0..args.rounds {
            through = once(args, &dir, end, random.u64(0..30_000), &mut worst)
                .with_context(|| format!("{end:?}, round {round}"))?;
        }
        println!(
            "{end:?} over {through}: {} rounds; longest: a client {:.0?}, the server's end {:.0?}, the mount {:.0?}",
            args.rounds, worst.back, worst.gone, worst.again
        );
    }
    // A joined thread may still be listed for a moment: the kernel wakes its joiner before it removes it from the list.
    let patience = Instant::now() + LATE;
    while tasks()? > before.1 && Instant::now() < patience {
        thread::yield_now();
    }
    let after = (descriptors()?, tasks()?);
    ensure!(before == after, "descriptors and threads were {before:?} and are {after:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(!mounts.contains(&*dir.to_string_lossy()), "a mount was left behind");
    verdicts.pass(format_args!("ends: {} times each", args.rounds));
    Ok(())
}

/// Runs one mount to its end. Returns the transport of its requests.
fn once(args: &EndsArgs, dir: &Path, end: End, micros: u64, worst: &mut Worst) -> Result<String> {
    let limit = |millis: u64| if millis == 0 { LATE } else { Duration::from_millis(millis) };
    let begun = Instant::now();
    let (mut server, through) = start(dir, &args.transport, limit(args.again).min(SLOW))?;
    let again = begun.elapsed();
    fs::create_dir(dir.join("d"))?;
    for name in ["a", "b"] {
        fs::write(dir.join("d").join(name), "some content")?;
    }
    let (threads, backs) = clients(dir, args.clients);
    thread::sleep(Duration::from_micros(micros));
    let ended = Instant::now();
    match end {
        End::Kill => server.kill()?,
        End::Detach => unmount(dir, UnmountFlags::DETACH)?,
        End::Force => unmount(dir, UnmountFlags::FORCE | UnmountFlags::DETACH)?,
    }
    let back = all_back(&backs, args.clients, ended, limit(args.back))?;
    threads.into_iter().for_each(|thread| drop(thread.join()));
    let status = wait(&mut server, ended)?;
    let gone = ended.elapsed();
    if end == End::Kill {
        unmount(dir, UnmountFlags::DETACH)?;
    } else {
        ensure!(status.success(), "the server has ended with {status}: {}", said(&mut server));
    }
    ensure!(again <= limit(args.again), "the mount took {again:.0?}");
    worst.back = worst.back.max(back);
    worst.gone = worst.gone.max(gone);
    worst.again = worst.again.max(again);
    Ok(through)
}

/// Starts a server and waits until it has mounted. If that takes longer than `limit`, prints what its threads did.
fn start(dir: &Path, transport: &Transport, limit: Duration) -> Result<(Child, String)> {
    let mut server = Command::new(std::env::current_exe()?)
        .args(["ends-server", "--transport", &transport.0])
        .arg(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = server.stdout.take().context("its output")?;
    let (say, hear) = channel();
    let reader = thread::spawn(move || {
        let mut line = String::new();
        let outcome = BufReader::new(output).read_line(&mut line).map(|_| line);
        let _ = say.send(outcome);
    });
    let heard = hear.recv_timeout(limit).or_else(|_| {
        println!("slow: no mount after {limit:.0?}; the server's threads: {}", threads(server.id()));
        hear.recv_timeout(LATE)
    });
    let line = match heard {
        Ok(line) => line.unwrap_or_else(|error| error.to_string()),
        Err(_) => format!("not within {LATE:.0?} more."),
    };
    match line.trim() {
        through @ ("dev" | "uring") => {
            let _ = reader.join();
            Ok((server, through.to_owned()))
        }
        problem => {
            server.kill()?;
            server.wait()?;
            let _ = reader.join();
            bail!("the server does not mount: {problem} {}", said(&mut server));
        }
    }
}

/// The error output of a server that has ended.
fn said(server: &mut Child) -> String {
    let mut said = String::new();
    if let Some(stderr) = &mut server.stderr {
        let _ = stderr.read_to_string(&mut said);
    }
    said.trim().to_owned()
}

/// Name, state and kernel position of each thread of a process.
fn threads(pid: u32) -> String {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return "none".into() };
    let of = |task: &Path, file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
    let states = tasks.flatten().map(|task| {
        let task = task.path();
        let stat = of(&task, "stat");
        let state = stat.rsplit(") ").next().unwrap_or_default().chars().next().unwrap_or('?');
        let stack = of(&task, "stack");
        let top: Vec<_> = stack.lines().filter_map(|line| line.split(' ').nth(1)).take(6).collect();
        format!("{} {state} {}", of(&task, "comm").trim(), top.join(" < "))
    });
    states.collect::<Vec<_>>().join("; ")
}

/// Starts threads that work below `dir` until a call fails. Each reports when that was.
fn clients(dir: &Path, count: usize) -> (Vec<thread::JoinHandle<()>>, Receiver<(usize, std::io::Error)>) {
    let (say, backs) = channel();
    let threads = (0..count).map(|number| {
        let (say, dir) = (say.clone(), dir.join("d"));
        thread::spawn(move || {
            let why = loop {
                if let Err(why) = work(&dir, number) {
                    break why;
                }
            };
            let _ = say.send((number, why));
        })
    });
    (threads.collect(), backs)
}

fn work(dir: &Path, number: usize) -> std::io::Result<()> {
    match number % 4 {
        0 => fs::metadata(dir.join("none")).map(drop).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => fs::metadata(dir.join("a")).map(drop),
            _ => Err(error),
        }),
        1 => {
            let path = dir.join(format!("new{number}"));
            fs::write(&path, "x")?;
            fs::remove_file(path)
        }
        2 => {
            let mut file = File::options().read(true).custom_flags(libc::O_DIRECT).open(dir.join("b"))?;
            file.read_exact(&mut [0; 12])
        }
        _ => {
            let mut file = File::create(dir.join(format!("big{number}")))?;
            file.write_all(&[7; 300_000])?;
            fs::read_dir(dir)?.try_for_each(|entry| entry.map(drop))
        }
    }
}

/// Waits until the last client is back.
fn all_back(
    backs: &Receiver<(usize, std::io::Error)>,
    count: usize,
    ended: Instant,
    limit: Duration,
) -> Result<Duration> {
    for n in 0..count {
        let Ok((number, why)) = backs.recv_timeout(LATE) else {
            let states = threads(std::process::id());
            println!("FAIL ends: {n} of {count} clients are back after {LATE:?}; threads: {states}");
            // Hanging threads cannot be joined.
            std::process::exit(1);
        };
        // ECANCELED: the request was on its way into a ring whose server ended.
        let gone = [
            libc::ENOTCONN,
            libc::ECONNABORTED,
            libc::ECANCELED,
            libc::ENOENT,
            libc::ENOTDIR,
            libc::EINTR,
            libc::EIO,
        ];
        ensure!(why.raw_os_error().is_some_and(|code| gone.contains(&code)), "client {number}: {why}");
    }
    let back = ended.elapsed();
    ensure!(back <= limit, "the last client was back after {back:.0?}");
    Ok(back)
}

fn wait(server: &mut Child, ended: Instant) -> Result<ExitStatus> {
    match end_of(server, LATE.saturating_sub(ended.elapsed()))? {
        Some(status) => Ok(status),
        None => {
            server.kill()?;
            bail!("the server is still there after {LATE:?}");
        }
    }
}

fn descriptors() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

fn tasks() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}
