//! The command `uvfs`: mounts the file systems of `uvfs-drivers` through FUSE, and unmounts them.
//!
//! `args` defines the command line, and `options` the text after `-o`. `source` makes the file system (`kernfs` the
//! one that a file declares), and `control` adds its own files to the directory `.uvfs` in it. `mount` and `daemon` run it, `signals`
//! ends it, `reload` reloads it. `mount_helper` is the command that mount(8) calls. `stat` reads the `.uvfs` of
//! another server. `index` serves and asks indices of directories. Errors are sentences on standard error; the exit status is 0, 1 for a failure, 2 for a command
//! that was not understood.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic where nobody listens: see `print`")]

mod args;
mod auto_unmount;
mod complaints;
mod completions;
mod daemon;
mod did_you_mean;
mod hidden_by_mount;
mod index;
mod kernfs;
mod list_mounts;
mod log;
mod manual;
mod memory_keeper;
mod metrics;
mod mount;
mod mount_helper;
mod object;
mod option_warnings;
mod options;
mod own_control_files;
mod pid_file;
mod preload;
mod print;
mod reload_requests;
mod remount;
mod servers;
mod signals;
mod source;
mod stat;
mod sys;
mod umount;
mod unanswered;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    if completions::answered() {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let outcome = match mount_helper::asked(&arguments) {
        Some(asked) => asked.and_then(|asked| mount::help(&asked)),
        None => {
            abort_on_panic();
            match Args::try_parse() {
                Ok(args) => log::start(args.command.log()).and_then(|()| run(args.command)),
                // Help and version go to standard output.
                Err(said) if said.use_stderr() => said.exit(),
                Err(said) => print::written(said.print().and_then(|()| io::stdout().flush())),
            }
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<print::Closed>() => ExitCode::SUCCESS,
        Err(error) if error.is::<print::AlreadySaid>() => ExitCode::FAILURE,
        Err(error) => {
            print::say(format_args!("{error:#}"));
            if error.is::<print::NotUnderstood>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Mount(args) if args.list => list_mounts::run(args.json),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Reload(args) => reload_requests::run(&args.dir),
        Command::Remount(args) => remount::run(&args.dir, &args.options),
        Command::Stat(args) => stat::run(&args),
        Command::Index(args) => index::run(&args),
        Command::Changed(args) => index::changed::run(&args),
        Command::Find(args) => index::find::run(&args),
        Command::GitFsmonitor(args) => index::git::run(&args),
        Command::Watchman(args) => index::watchman::run(&args),
        Command::Completions { shell } => completions::run(shell),
        Command::Man { dir: Some(dir), .. } => manual::write(&dir),
        Command::Man { page, .. } => manual::print(page.as_deref()),
    }
}

/// Ends the process at a panic. A server that has lost a thread to a bug would leave its clients waiting for ever;
/// after its end they get ENOTCONN. A mount of an object store goes on: see `object`.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}
