//! The program `uvfs-tests`. All of its code is in the library, beside what it drives.

use std::process::ExitCode;

fn main() -> ExitCode {
    uvfs_tests::cli::main()
}
