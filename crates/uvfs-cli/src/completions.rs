//! Completions for shells, made from the definition of the command line.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::print;

/// Writes the completions of a shell to standard output.
pub fn run(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "uvfs", &mut script);
    print::out(script)
}
