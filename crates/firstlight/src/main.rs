//! `firstlight`: diagnoses a GPU setup, verifies and times its kernels, and runs and serves models.

use std::process::ExitCode;

fn main() -> ExitCode {
    firstlight::main()
}
