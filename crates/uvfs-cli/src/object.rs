//! `uvfs mount object:URL`: object stores, in a command that was built with the feature `object`.
//!
//! Such a mount has its own front end, on fuse3, because its requests wait for a network and not on threads. Its `.uvfs` has
//! figures only. Options of the other front end that would have no effect are refused.

use anyhow::{Result, bail};

use crate::args;

/// The URL of a source of this kind.
pub fn url(what: &str) -> Option<&str> {
    what.strip_prefix("object:").filter(|url| !url.is_empty())
}

#[cfg(not(feature = "object"))]
mod here {
    use super::{Result, args, bail};

    pub fn check(_args: &args::Mount, _url: &str) -> Result<()> {
        bail!(
            "this uvfs was built without object stores; one with them comes from: \
             cargo build --release -p uvfs-cli --features object"
        )
    }

    pub fn serve(args: &args::Mount, url: &str) -> Result<()> {
        check(args, url)
    }
}

#[cfg(feature = "object")]
mod here {
    use std::sync::Arc;
    use std::time::Duration;

    use anyhow::Context;
    use uvfs_drivers::tmpfs::amount;
    use uvfs_fuse::{Atime, Options, TransportKind};
    use uvfs_object::{Flags, Location, MountedStore, ObjectOptions};

    use super::{Result, args, bail};
    use crate::options::{self, Ctl, Parsed};
    use crate::print::say;
    use crate::signals::{SignalRequest, Signals};
    use crate::{daemon, hidden_by_mount, log, sys};

    /// How long the users of the mount have to finish before it ends under them.
    const GRACE: Duration = Duration::from_secs(1);

    fn seconds(name: &str, text: &str) -> Result<Duration> {
        let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.with_context(|| format!("{name}={text}: expected seconds, such as 60 or 0.5"))
    }

    fn bytes(name: &str, text: &str) -> Result<u64> {
        amount(text).with_context(|| format!("{name}={text}: expected bytes, such as 8388608 or 8m"))
    }

    /// Options that the front end of other mounts has.
    fn refuse_what_has_no_effect(mount: &Options) -> Result<()> {
        // Not what the environment says for all mounts.
        let is_ring =
            mount.transport == TransportKind::Uring && Options::default().transport != mount.transport;
        let refused = [
            (mount.sync || mount.dirsync, "sync and dirsync: each fsync and close publishes the file"),
            (
                mount.default_permissions == Some(false),
                "nodefault_permissions: the kernel checks permissions",
            ),
            (is_ring, "transport=uring: requests come through /dev/fuse"),
            (mount.passthrough, "passthrough=auto: there is no file that the kernel could read by itself"),
            (!mount.prune, "noprune: the kernel is asked to prune if it can"),
        ];
        match refused.iter().find(|(is_given, _)| *is_given) {
            Some((_, option)) => bail!("not for object stores: {option}"),
            None => Ok(()),
        }
    }

    fn flags(mount: &Options) -> Flags {
        let atime = match mount.atime {
            Atime::Relative => None,
            Atime::Strict => Some("strictatime"),
            Atime::Never => Some("noatime"),
            Atime::NotDirectories => Some("nodiratime"),
        };
        Flags { suid: mount.suid, dev: mount.dev, noexec: !mount.exec, atime }
    }

    fn options_of(parsed: Parsed) -> Result<ObjectOptions> {
        let Parsed { mount, ctl, memory, driver, auto_unmount, lends: _ } = parsed;
        if auto_unmount {
            bail!("auto_unmount is not for object stores");
        }
        if ctl == Ctl::Show {
            bail!("ctl=show: no listing of an object store shows .uvfs; ls DIR/.uvfs works without it");
        }
        if mount.timeout.is_some() {
            bail!("timeout= is not for object stores: give ttl=");
        }
        refuse_what_has_no_effect(&mount)?;
        let mut options = ObjectOptions {
            memory,
            read_only: mount.read_only,
            allow_other: mount.allow_other,
            control: ctl != Ctl::Off,
            flags: flags(&mount),
            fsname: mount.fsname,
            ..ObjectOptions::default()
        };
        let is_sized = options::has(&driver, "cache-size");
        for (name, value) in driver {
            match name {
                "endpoint" => options.endpoint = Some(value),
                "region" => options.region = Some(value),
                "ttl" => options.ttl = seconds(name, &value)?,
                "part-size" => match bytes(name, &value)? {
                    0 => bail!("part-size=0: expected at least one byte"),
                    size => options.part_size = size,
                },
                "unconditional" => options.conditional = false,
                "cache-dir" if value.starts_with('/') => options.cache_dir = Some(value.into()),
                "cache-dir" => bail!("cache-dir={value}: expected a path that begins with a slash"),
                "cache-size" => options.cache_size = bytes(name, &value)?,
                "read-ahead" => options.read_ahead = bytes(name, &value)?,
                _ => bail!("option {name} is in the table but not understood"),
            }
        }
        if is_sized && options.cache_dir.is_none() {
            bail!("cache-size= is for a mount with cache-dir=");
        }
        Ok(options)
    }

    fn checked(args: &args::Mount, url: &str) -> Result<(Location, ObjectOptions)> {
        let location = Location::parse(url)?;
        if args.pid_file.is_some() {
            bail!("--pid-file is not for object stores");
        }
        if args.metrics.is_some() {
            bail!("--metrics is not for object stores: uvfs stat DIR prints their figures");
        }
        Ok((location, options_of(options::parse(&args.options, "object")?)?))
    }

    pub fn check(args: &args::Mount, url: &str) -> Result<()> {
        checked(args, url).map(drop)
    }

    pub fn serve(args: &args::Mount, url: &str) -> Result<()> {
        let (_, dir) = args.what()?;
        let (location, options) = checked(args, url)?;
        // Before the store is asked, and with the sentences of other mounts.
        let hidden = hidden_by_mount::warning(&uvfs_fuse::mount_point(dir)?);
        if args.daemon && !args.daemon_child {
            return daemon::start(args);
        }
        if args.daemon_child {
            daemon::leave_terminal()?;
        }
        let signals = Signals::block()?;
        // Pages of LISTs come and go in all threads.
        sys::one_heap();
        // A panic in a call to the store ends that request with EIO (`uvfs_object`'s `calls`). `abort_on_panic`
        // would end the mount, and with it what others are writing.
        drop(std::panic::take_hook());
        let mounted = Arc::new(uvfs_object::mount(&location, &options, dir)?);
        hidden.iter().for_each(say);
        if args.daemon_child {
            daemon::ready()?;
        } else {
            let dir = dir.display();
            say(format_args!(
                "{location} is mounted{} on {dir}; to end it press Ctrl-C, or: uvfs umount {dir}",
                if options.read_only { " read-only" } else { "" }
            ));
        }
        let asked = Arc::clone(&mounted);
        std::thread::Builder::new()
            .name("uvfs-signals".into())
            .spawn(move || end_at_signal(signals, &asked))
            .context("cannot start a thread")?;
        let outcome = mounted.wait().with_context(|| {
            format!("{location} on {} has ended: the connection to the kernel broke", dir.display())
        });
        // Files of programs that were killed a moment ago.
        mounted.end_writers();
        if let (Err(error), true) = (&outcome, args.daemon_child) {
            log::tell_system(&format!("{error:#}"));
        }
        outcome
    }

    /// Unmounts at a signal, and ends the process even if the mount is in use: its users get errors, never a hang.
    fn end_at_signal(mut signals: Signals, mounted: &MountedStore) {
        loop {
            match signals.wait() {
                Ok(SignalRequest::Reload) => {
                    tracing::warn!("SIGHUP is ignored: an object store has nothing to reload")
                }
                Ok(SignalRequest::End(signal)) => {
                    tracing::info!(%signal, "unmounting");
                    break;
                }
                Err(error) => {
                    tracing::error!("{error:#}");
                    break;
                }
            }
        }
        let status = match mounted.unmount() {
            Ok(()) => 0,
            Err(error) => {
                say(format_args!("not unmounted: {error}"));
                1
            }
        };
        if status == 0 && mounted.wait_for(GRACE) {
            // The main thread returns.
            return;
        }
        mounted.end_writers();
        std::process::exit(status)
    }
}

pub use here::{check, serve};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_store_has_a_url() {
        assert_eq!(url("object:s3://bucket/x"), Some("s3://bucket/x"));
        assert_eq!(url("object:"), None);
        assert_eq!(url("mirror:object:"), None);
    }

    #[cfg(not(feature = "object"))]
    #[test]
    fn without_the_feature_one_sentence_says_how_to_get_it() {
        let args = args::Mount::default();
        let said = serve(&args, "s3://bucket").expect_err("not built in").to_string();
        assert!(said.ends_with("cargo build --release -p uvfs-cli --features object"), "{said}");
    }

    #[cfg(feature = "object")]
    #[test]
    fn options_and_urls_are_checked() {
        let with =
            |options: &str| args::Mount { options: vec![options.to_owned()], ..args::Mount::default() };
        check(
            &with("ro,unconditional,endpoint=http://x:9000,ttl=0.5,part-size=1m,read-ahead=0,cache-dir=/c,cache-size=1g,memory=64m"),
            "s3://b/p",
        )
        .expect("good");
        let refused = |options: &str, url: &str| check(&with(options), url).expect_err("refused").to_string();
        assert!(refused("ttl=soon", "s3://b").contains("expected seconds"));
        assert!(refused("part-size=0", "s3://b").contains("at least one byte"));
        assert!(refused("cache-size=1g", "s3://b").contains("cache-dir="));
        assert!(refused("timeout=1", "s3://b").contains("give ttl="));
        for option in
            ["sync", "dirsync", "nodefault_permissions", "transport=uring", "passthrough=auto", "noprune"]
        {
            let said = refused(option, "s3://b");
            let name = option.split('=').next().expect("a name");
            assert!(said.starts_with("not for object stores: ") && said.contains(name), "{said}");
        }
        let secret = refused("", "s3://key:topsecret@b");
        assert!(secret.contains("may not carry credentials") && !secret.contains("topsecret"), "{secret}");
    }
}
