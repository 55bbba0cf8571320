//! Files that are made from the definition of the command line: manual pages and completions.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::print;

/// Writes the completions of a shell to standard output.
pub fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "uvfs", &mut script);
    print::out(script)
}

/// Writes uvfs.1 and a page for each command into a directory, or uvfs.1 to standard output.
pub fn man(dir: Option<&Path>) -> Result<()> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Args::command()).render(&mut page)?;
        return print::out(page);
    };
    clap_mangen::generate_to(Args::command(), dir)
        .with_context(|| format!("cannot write manual pages into {}", dir.display()))
}
