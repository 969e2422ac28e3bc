//! `verify` and `bench` with an unusable Python environment: exit 2 and a one-line error with a hint.

mod support;

use support::refuses;
use tempfile::tempdir;

#[test]
fn unusable_environment_is_one_line_error() {
    let folder = tempdir().unwrap();
    let nothing = folder.path().join("empty");
    std::fs::create_dir(&nothing).unwrap();
    let nothing = nothing.to_str().unwrap();
    for command in ["verify", "bench"] {
        let check = |arguments: &[&str], words: &[&str]| {
            refuses(folder.path(), &[&[command, "attention"], arguments].concat(), words);
        };
        check(&["--venv", nothing], &["empty has no Python interpreter"]);
        check(&["--python", "no/such/python"], &["cannot start no/such/python"]);
        check(&["--python", "true"], &["the Python process ended with status 0"]);
        check(&["--only", "torch"], &["there is no Python environment to run peers in"]);
        check(&["--peer", "attention=a:b"], &["there is no Python environment"]);
        check(&["--python", "python3", "--only", "absent"], &["no peer is called `absent`"]);
        check(&["--python", "python3", "--peer", "a:b"], &["`a:b` names no function"]);
        check(&["--python", "python3", "--peer", "softmax=a:b"], &["there is no op `softmax`"]);
    }
}
