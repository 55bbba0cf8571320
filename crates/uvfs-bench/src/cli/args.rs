//! The arguments of the command line.

use std::path::PathBuf;

use clap::builder::ArgPredicate;
use clap::{Arg, ArgAction, Command, value_parser};

use crate::harness::thp::Thp;
use crate::report::write::Format;
use crate::workloads::target::RunTarget;
use crate::workloads::{Workload, options};

/// Most threads at once.
const THREADS: u64 = 512;
/// Most processes at once.
const PROCS: u64 = 512;

/// The whole command.
pub fn command(workloads: &[Box<dyn Workload>]) -> Command {
    let list = Arg::new("list").long("list").action(ArgAction::SetTrue).help("Show workloads and their arms");
    Command::new("uvfs-bench")
        .version(env!("CARGO_PKG_VERSION"))
        .about(env!("CARGO_PKG_DESCRIPTION"))
        .arg(list.exclusive(true))
        .subcommand_value_name("WORKLOAD")
        .subcommand_help_heading("Workloads")
        .disable_help_subcommand(true)
        .subcommands(workloads.iter().map(|w| workload(&**w)))
        .subcommand(crate::figures::command())
        .subcommand(crate::scale::command())
        .subcommands(crate::images::commands())
        .subcommand(plot())
}

fn plot() -> Command {
    let path = || value_parser!(PathBuf);
    Command::new("plot")
        .about("Draw reports (written with --format json) into an SVG file")
        .arg(Arg::new("file").value_name("FILE").num_args(1..).required(true).value_parser(path()))
        .arg(Arg::new("out").long("out").value_name("X.svg").required(true).value_parser(path()))
}

fn workload(workload: &dyn Workload) -> Command {
    let command = Command::new(workload.name())
        .about(workload.about())
        .after_help(
            format!("Arms: {}. {}", workload.arms().join(", "), workload.notes()).trim_end().to_owned(),
        )
        .args(common())
        .args(workload.args());
    if command.get_arguments().any(|arg| arg.get_id() == options::QUICK) { hurried(command) } else { command }
}

/// Makes the defaults smaller if `--quick` is given.
fn hurried(command: Command) -> Command {
    // `IsPresent` would not do: an absent flag is present with its default value.
    let given = ArgPredicate::from("true");
    [("seconds", "0.005"), ("rounds", "1"), ("files", "50")].into_iter().fold(
        command,
        |command, (name, value)| {
            command.mut_arg(name, |arg| arg.default_value_if(options::QUICK, given.clone(), value))
        },
    )
}

fn numbers(name: &'static str, most: u64, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("N,..")
        .value_delimiter(',')
        .value_parser(value_parser!(u64).range(1..=most))
        .help(help)
}

fn common() -> Vec<Arg> {
    vec![
        numbers("threads", THREADS, "Threads at once; each number is measured").default_value("1,2"),
        numbers("procs", PROCS, "Processes at once, through a target"),
        Arg::new("seconds")
            .long("seconds")
            .value_name("S")
            .allow_negative_numbers(true)
            .value_parser(seconds)
            .default_value("0.1")
            .help("Length of one arm's turn in a round"),
        Arg::new("rounds")
            .long("rounds")
            .value_name("R")
            .value_parser(value_parser!(u64).range(1..=100_000))
            .default_value("9")
            .help("Rounds of turns, after one that warms up"),
        Arg::new("no-warm-up")
            .long("no-warm-up")
            .action(ArgAction::SetTrue)
            .help("Report the first round too, for turns that take minutes"),
        Arg::new("arms")
            .long("arms")
            .value_name("A,..")
            .value_delimiter(',')
            .help("Arms to compare [default: all]"),
        Arg::new("target")
            .long("target")
            .value_name("inproc|host|[NAME=]DIR,..")
            .value_delimiter(',')
            .value_parser(|text: &str| text.parse::<RunTarget>())
            .default_value("inproc")
            .help("In this process, or by system calls below a directory (host: the machine's own tmpfs)"),
        Arg::new("format")
            .long("format")
            .value_parser(clap::builder::EnumValueParser::<Format>::new())
            .default_value("table")
            .help("Form of the report"),
        Arg::new("out")
            .long("out")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Write the report to a file instead of standard output"),
        Arg::new("thp")
            .long("thp")
            .value_parser(clap::builder::EnumValueParser::<Thp>::new())
            .default_value("system")
            .help("Huge pages for the memory of every arm"),
        Arg::new("per-second")
            .long("per-second")
            .action(ArgAction::SetTrue)
            .help("Print what each turn did in every second, as will-it-scale does"),
    ]
}

fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is no number of seconds from 0.001 to 3600");
    text.parse().ok().filter(|s| (0.001..=3600.0).contains(s)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_changes_defaults_and_nothing_that_was_said() {
        let read = |args: &[&str]| {
            let command = command(&crate::workloads::all());
            let matches = command.try_get_matches_from([&["uvfs-bench", "fuse"], args].concat()).unwrap();
            let own = matches.subcommand_matches("fuse").unwrap();
            (*own.get_one::<u64>("files").unwrap(), *own.get_one::<u64>("rounds").unwrap())
        };
        assert_eq!(read(&[]), (10_000, 9));
        assert_eq!(read(&["--quick"]), (50, 1));
        assert_eq!(read(&["--quick", "--files", "7"]), (7, 1));
    }
}
