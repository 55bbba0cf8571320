//! The program `uvfs-bench`; all of it is in the library, which its tests use too.

use std::process::ExitCode;

fn main() -> ExitCode {
    uvfs_bench::cli::main(std::env::args_os())
}
