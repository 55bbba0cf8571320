//! `uvfs mount`: from the command line to a mounted file system, and its end.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use uvfs_fuse::{Mounted, Unmounted};

use crate::args;
use crate::signals::Ending;
use crate::source::Source;
use crate::{daemon, options};

/// How long the users of a detached mount have to finish before it ends under them.
const GRACE: Duration = Duration::from_secs(1);

/// Mounts and serves until it is unmounted.
pub fn run(args: &args::Mount) -> Result<()> {
    let source = Source::parse(&args.source)?;
    let (mut mount, driver) = options::parse(&args.options, source.name())?;
    mount.fsname.get_or_insert_with(|| args.source.clone());
    source.check(&driver)?;
    if args.daemon && !args.daemon_child {
        return daemon::start(args);
    }
    if args.daemon_child {
        daemon::leave_terminal()?;
    }
    let ending = Ending::block()?;
    let mounted = Arc::new(uvfs_fuse::mount(source.open(&driver)?, &args.dir, &mount)?);
    if args.daemon_child {
        daemon::ready()?;
    } else {
        let dir = mounted.dir().display();
        eprintln!("uvfs: {} is mounted on {dir}; to end it press Ctrl-C, or: uvfs umount {dir}", args.source);
    }
    let theirs = Arc::clone(&mounted);
    thread::Builder::new()
        .name("uvfs-signals".into())
        .spawn(move || end_on_signal(&ending, &theirs))
        .context("cannot start a thread")?;
    mounted.wait().context("the connection to the kernel broke")
}

/// Unmounts at the first signal. Where that cannot be, the process ends all the same, and with it
/// the file system: who still uses it gets errors, never a hang.
fn end_on_signal(ending: &Ending, mounted: &Mounted) {
    let outcome = ending.wait().and_then(|signal| {
        tracing::info!(%signal, "unmounting");
        Ok(mounted.unmount()?)
    });
    match outcome {
        // `run` returns when the kernel has let go.
        Ok(Unmounted::Clean) if mounted.wait_for(GRACE) => return,
        Ok(Unmounted::Clean) => {}
        Ok(Unmounted::Detached) => {
            let dir = mounted.dir().display();
            eprintln!("uvfs: {dir} was in use and has been detached; what is open there ends now");
            if mounted.wait_for(GRACE) {
                return;
            }
        }
        Err(error) => {
            eprintln!("uvfs: not unmounted: {error:#}");
            std::process::exit(1);
        }
    }
    std::process::exit(0);
}
