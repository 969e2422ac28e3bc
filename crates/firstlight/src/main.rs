//! `firstlight`: from a bare GPU machine to the first verified token.

use std::process::ExitCode;

fn main() -> ExitCode {
    firstlight::main()
}
