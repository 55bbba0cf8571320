//! The program `uvfs-bench`. All of its code is in the library, so that the tests can use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    uvfs_bench::cli::main(std::env::args_os())
}
