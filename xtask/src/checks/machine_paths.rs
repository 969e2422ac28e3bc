//! No file has a path of the machine on which it was written.

use super::{Check, Problem};
use crate::layout::Layout;

/// Folders of a developer's machine. They are split so that the check does not find this file.
const FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!(".lib", "rary/")];

/// Recorded data of machines, in which home folders are allowed.
const RECORDED: &[&str] = &["/fixtures/", "benchmarks/runs/"];

/// User names that examples use.
const ANYONE: &[&str] = &["a", "user", "ubuntu", "me", "you", "alice", "USER", "<user>", "$USER"];

pub(super) const CHECK: Check = Check {
    name: "machine_paths",
    promise: "no path of a developer's machine in a tracked file",
    hint: "use a path relative to the repository, a temporary folder, or /home/user in an example",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&[""]) {
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = folder(line).or_else(|| home(path, line)) {
                problems.push(Problem::line(path, index + 1, format!("names `{found}`")));
            }
        }
    }
    problems
}

fn folder(line: &str) -> Option<&str> {
    FOLDERS.iter().find(|path| line.contains(**path)).copied()
}

fn home<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    if RECORDED.iter().any(|recorded| path.contains(recorded)) {
        return None;
    }
    for marker in [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/.")] {
        for (start, _) in line.match_indices(marker) {
            let rest = &line[start + marker.len()..];
            let end = rest.find(|c: char| !(c.is_alphanumeric() || "<>$_-.".contains(c)));
            let user = &rest[..end.unwrap_or(rest.len())];
            if !user.is_empty() && !ANYONE.contains(&user) {
                return Some(&line[start..start + marker.len() + user.len()]);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn examples_pass() {
        let text = "/home/user/venv\n/home/$USER/x\n/Users/alice/models\nworkspace/work\n/var/tmp/x\nnetwork/io\n";
        let recorded = concat!("HOME=/ho", "me/nvidia");
        let files = [("README.md", text), ("crates/probe/fixtures/orin/env", recorded)];
        check(&CHECK, &Layout::of(&files), &[]);
    }

    #[test]
    fn paths_of_a_machine_fail() {
        let text = ["ok", concat!("cd /wo", "rk/main"), concat!("see /ho", "me/jdoe/notes")];
        let files = [
            ("README.md", &*text.join("\n")),
            ("benchmarks/runs/x/facts.json", concat!("/wo", "rk/venv")),
            ("src.rs", concat!("open(\"/ro", "ot/.cache\")")),
        ];
        check(
            &CHECK,
            &Layout::of(&files),
            &[
                concat!("README.md:2: names `/wo", "rk/`"),
                concat!("README.md:3: names `/ho", "me/jdoe`"),
                concat!("benchmarks/runs/x/facts.json:1: names `/wo", "rk/`"),
                concat!("src.rs:1: names `/ro", "ot/.cache`"),
            ],
        );
    }
}
