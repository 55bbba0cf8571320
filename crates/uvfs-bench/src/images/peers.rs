//! `uvfs-bench ext4-peers`: uvfs's mount of an image beside another server's: the servers' processor time, and elapsed time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use uvfs_tests::ext4::tools::{run as run_program, scratch, text};
use uvfs_tests::process::{end_of, until_mounted};

/// Ticks of /proc/PID/stat per second, as the kernel reports them whatever its own tick rate is.
const USER_HZ: u64 = 100;

/// Compare servers of an ext4 image, by the programs that run over it
///
/// Mounts an image with uvfs and with other servers in turn, runs programs over it, and prints each server's processor
/// time and each program's elapsed time. Needs root and /dev/fuse. Prints medians over the rounds; a round runs each
/// server once. `cold` is the first run after mounting, `warm` the second one.
#[derive(Parser)]
#[command(name = "ext4-peers")]
pub struct PeersArgs {
    /// The image; without one, a new image is made from a directory.
    #[arg(long)]
    image: Option<PathBuf>,
    /// The directory from which a new image is made.
    #[arg(long, default_value = "/usr/share")]
    tree: PathBuf,
    /// The command uvfs.
    #[arg(long, default_value = "target/release/uvfs")]
    uvfs: PathBuf,
    /// Options after uvfs' -o, such as timeout=1.
    #[arg(long, default_value = "timeout=1")]
    options: String,
    /// Another server, run in the foreground; {image} and {dir} are replaced. May be given several times.
    #[arg(long = "peer", default_values_t = ["fuse2fs -f -o ro,attr_timeout=1,entry_timeout=1 {image} {dir}".to_owned()])]
    peers: Vec<String>,
    /// Programs to run in the mount; "a & b" runs both at once.
    #[arg(long = "run", default_values_t = [
        "find . -ls >/dev/null".to_owned(),
        "ls -lR . >/dev/null".to_owned(),
        "tar c . | cat >/dev/null".to_owned(),
        "find . -ls >/dev/null & find . -ls >/dev/null; wait".to_owned(),
    ])]
    runs: Vec<String>,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// A server with a mount; dropping it unmounts it and ends the server.
struct Server {
    child: Child,
    dir: PathBuf,
}

/// The device number of a directory.
fn device(dir: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(dir).ok().map(|meta| meta.dev())
}

impl Server {
    fn start(command: &str, dir: &Path) -> Result<Self> {
        let before = device(dir);
        let child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut server = Self { child, dir: dir.to_owned() };
        until_mounted(&mut server.child, Duration::from_secs(60), || device(dir) != before)
            .with_context(|| command.to_owned())?;
        Ok(server)
    }

    /// Its processor time so far: of all its threads, ended ones included.
    fn cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = stat.rsplit_once(')').context("no stat")?.1;
        let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap_or(0));
        Ok(Duration::from_millis(ticks.sum::<u64>() * 1000 / USER_HZ))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = run_program("umount", &[text(&self.dir)]) {
            eprintln!("{error:#}");
            let _ = run_program("umount", &["-l", text(&self.dir)]);
        }
        let _ = end_of(&mut self.child, Duration::from_secs(10));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One run: the server's processor time and the elapsed time, in milliseconds.
type Figure = (f64, f64);

fn one(server: &Server, program: &str) -> Result<Figure> {
    let (before, start) = (server.cpu()?, Instant::now());
    let status = Command::new("sh").args(["-c", program]).current_dir(&server.dir).status()?;
    ensure!(status.success(), "{program}: {status}");
    let took = start.elapsed().as_secs_f64() * 1e3;
    Ok(((server.cpu()? - before).as_secs_f64() * 1e3, took))
}

fn median(all: &[Figure], which: impl Fn(&Figure) -> f64) -> f64 {
    let mut all: Vec<f64> = all.iter().map(which).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Runs the command.
///
/// # Errors
/// If a server does not mount, or a program fails.
pub fn run(args: &PeersArgs) -> Result<()> {
    let dir = scratch()?;
    let image = super::image(args.image.as_ref(), &args.tree, "3G", dir.path())?;
    let mounted = dir.path().join("mnt");
    std::fs::create_dir(&mounted)?;
    let (uvfs, options) = (text(&args.uvfs), &args.options);
    let mut servers = vec![format!("{uvfs} mount -o {options} ext4:{{image}} {{dir}}")];
    servers.extend(args.peers.iter().cloned());
    let commands: Vec<String> =
        servers.iter().map(|s| s.replace("{image}", text(&image)).replace("{dir}", text(&mounted))).collect();
    for program in &args.runs {
        let mut figures = vec![[Vec::new(), Vec::new()]; commands.len()];
        for _ in 0..args.rounds {
            for (command, figures) in commands.iter().zip(&mut figures) {
                let server = Server::start(command, &mounted)?;
                figures[0].push(one(&server, program)?);
                figures[1].push(one(&server, program)?);
            }
        }
        println!("{program}");
        for (at, state) in ["cold", "warm"].into_iter().enumerate() {
            let [cpu, took] =
                [|f: &Figure| f.0, |f: &Figure| f.1].map(|which| median(&figures[0][at], which));
            println!("  {state}: uvfs: server {cpu:.0} ms, took {took:.0} ms");
            for (peer, figures) in args.peers.iter().zip(&figures[1..]) {
                let [other, longer] =
                    [|f: &Figure| f.0, |f: &Figure| f.1].map(|which| median(&figures[at], which));
                let name = peer.split_whitespace().next().unwrap_or(peer);
                println!(
                    "  {state}: {name}: server {other:.0} ms, took {longer:.0} ms; ours is {:.3} of its processor time, {:.2} of its time",
                    cpu / other.max(1.0),
                    took / longer.max(1.0)
                );
            }
        }
    }
    Ok(())
}
