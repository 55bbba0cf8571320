//! Reloading: at SIGHUP or at a write to `.uvfs/reload`, and by `uvfs reload`, which asks for it.
//!
//! One thread reloads at a time. Any number of requests that come meanwhile lead to one more reload after it. `asked`
//! and `done` count requests: a reload is done for all requests that came before it began to read the file. One
//! mutex, a leaf: it is held for a copy.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use uvfs::Errno;
use uvfs_drivers::kernfs::{Meta, Node, WeakNode, read_write};
use uvfs_fuse::Mounted;

use crate::kernfs::Published;
use crate::print;
use crate::unanswered::explained;

/// How long the notifications of the kernel may take before a reload counts as done without them.
const SETTLE: Duration = Duration::from_secs(1);

/// The first word of a failed reload's message.
const FAILED: &str = "failed: ";

/// The state of a tree's reloads, and their outcome.
pub struct Reloader {
    published: Arc<Published>,
    mounted: OnceLock<Weak<Mounted>>,
    state: Mutex<State>,
    /// The files `reload` and `reloads`.
    nodes: OnceLock<[WeakNode; 2]>,
}

struct State {
    asked: u64,
    done: u64,
    running: bool,
    /// The outcome of the last reload.
    said: String,
}

impl Reloader {
    pub fn new(published: Arc<Published>) -> Arc<Self> {
        let state = State { asked: 0, done: 0, running: false, said: "not reloaded yet".to_owned() };
        let (mounted, nodes) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { published, mounted, state: Mutex::new(state), nodes })
    }

    /// From now on a reload is done only when the kernel has been notified of it.
    pub fn set_mounted(&self, mounted: &Arc<Mounted>) {
        let _ = self.mounted.set(Arc::downgrade(mounted));
    }

    /// Adds the files that ask for a reload and show its outcome.
    pub fn install(self: &Arc<Self>, dir: &Node, own: impl Fn(u32) -> Meta) -> uvfs::Result<()> {
        let (shown, asked, counted) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let reload = read_write(
            move |out: &mut Vec<u8>| writeln!(out, "{}", shown.state.lock().said).map_err(|_| Errno::NOMEM),
            move |_, _| {
                asked.ask();
                Ok(())
            },
        );
        let reload = dir.add_attr("reload", own(0o644), reload)?;
        let reloads = dir.add_attr("reloads", own(0o444), move |out: &mut Vec<u8>| {
            let State { asked, done, .. } = *counted.state.lock();
            writeln!(out, "{asked} {done}").map_err(|_| Errno::NOMEM)
        })?;
        let _ = self.nodes.set([reload.downgrade(), reloads.downgrade()]);
        Ok(())
    }

    /// Asks for a reload, and does not wait for it.
    pub fn ask(self: &Arc<Self>) {
        let asked = {
            let mut state = self.state.lock();
            state.asked += 1;
            // The thread that runs sees it: it looks under this lock before it ends.
            if std::mem::replace(&mut state.running, true) {
                return;
            }
            state.asked
        };
        let this = Arc::clone(self);
        let started = thread::Builder::new().name("uvfs-reload".into()).spawn(move || this.work());
        if let Err(error) = started {
            tracing::warn!(%error, "no thread to reload with");
            self.state.lock().running = false;
            self.done(asked, format!("{FAILED}no thread to reload with: {error}"));
        }
    }

    fn work(&self) {
        loop {
            let asked = self.state.lock().asked;
            let said = self.reload();
            self.done(asked, said);
            let mut state = self.state.lock();
            state.running = state.asked != asked;
            if !state.running {
                return;
            }
        }
    }

    fn reload(&self) -> String {
        let said = match self.published.reload() {
            Ok(changes) => changes.to_string(),
            Err(error) => {
                print::say(format_args!("not reloaded: {error:#}"));
                // One line, as a reader of the file expects.
                format!("{FAILED}{error:#}").replace('\n', " ")
            }
        };
        // A reader that is notified of the reload sees its effects.
        if self.mounted.get().and_then(Weak::upgrade).is_some_and(|mounted| !mounted.settle(SETTLE)) {
            tracing::debug!("the kernel has not been told of all of the reload yet");
        }
        said
    }

    fn done(&self, asked: u64, said: String) {
        let mut state = self.state.lock();
        (state.done, state.said) = (asked, said);
        drop(state);
        self.nodes.get().into_iter().flatten().filter_map(WeakNode::upgrade).for_each(|node| node.notify());
    }
}

/// `uvfs reload DIR`: asks the mount there to reload, waits until it has, and prints the changes.
pub fn run(dir: &Path) -> Result<()> {
    let mount = uvfs_fuse::mounted_at(dir)?;
    let (at, source) = (mount.dir.display(), mount.source.display());
    // Asked first, because the kernel may still answer for a dead server from its cache.
    let listed = uvfs_fuse::listed().context("cannot read /proc/self/mountinfo")?;
    if listed.iter().any(|other| other.dir == mount.dir && other.is_dead()) {
        bail!("the server of {at} has died; clear it with: uvfs umount {at}");
    }
    let control = mount.dir.join(".uvfs");
    let counts = match File::open(control.join("reloads")) {
        Err(error) if error.kind() == ErrorKind::NotFound && control.exists() => {
            bail!(
                "there is nothing to reload on {at}: it is {source}, and only kernfs:FILE has a file to read again"
            )
        }
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "{at} has no .uvfs, because it was mounted with -o ctl=off; to reload it send SIGHUP to its server"
        ),
        opened => opened.map_err(|error| explained(&mount.dir, &control.join("reloads"), error))?,
    };
    let asked = OpenOptions::new().write(true).open(control.join("reload"));
    match asked.and_then(|mut file| file.write_all(b"reload\n")) {
        Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => {
            bail!("{at} is mounted read-only, so it cannot be asked; to reload it send SIGHUP to its server")
        }
        asked => asked.with_context(|| format!("cannot ask the mount on {at}"))?,
    }
    // This request, or a later one: its reload has read the file later still.
    let (asked, mut done) = numbers(&counts)?;
    while done < asked {
        // The server's end wakes this too.
        match poll(&mut [PollFd::new(&counts, PollFlags::PRI)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the reload"),
        }
        done = numbers(&counts)?.1;
    }
    let said = std::fs::read_to_string(control.join("reload")).context("cannot read how the reload went")?;
    match said.strip_prefix(FAILED) {
        Some(why) => bail!("not reloaded: {}", why.trim_end()),
        None => print::out(said),
    }
}

/// How many reloads were asked for, and how many of them are done. Read from the start, so that poll(2) waits for
/// later changes.
fn numbers(file: &File) -> Result<(u64, u64)> {
    let mut bytes = [0; 64];
    let len = file.read_at(&mut bytes, 0).context("cannot read how far the reload is")?;
    let text = String::from_utf8_lossy(&bytes[..len]);
    let numbers = text.trim().split_once(' ').and_then(|(a, d)| Some((a.parse().ok()?, d.parse().ok()?)));
    numbers.context(".uvfs/reloads does not look like that of uvfs")
}
