//! The main function of these tests: each is run, or all are ignored where the index cannot be.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Runs the tests, one at a time if `alone`. With a reason why they cannot run here, they count as skipped.
pub fn run(tests: &[(&'static str, fn())], why_not: Option<String>, alone: bool) -> ExitCode {
    if let Some(why) = &why_not {
        eprintln!("skipped: {why}");
    }
    let trials = tests.iter().map(|&(name, test)| {
        let trial = Trial::test(name, move || {
            test();
            Ok(())
        });
        trial.with_ignored_flag(why_not.is_some())
    });
    let mut arguments = Arguments::from_args();
    if alone {
        arguments.test_threads = Some(1);
    }
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
