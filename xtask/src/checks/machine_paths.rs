//! No file speaks of the machine it was written on.

use super::{Check, Problem};
use crate::layout::Layout;

/// Paths that exist on one machine only. Written in halves, so that this file does not find itself.
const PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!(".lib", "rary/"), concat!("/ro", "ot/.")];

/// Home folders that stand for anyone's, as examples and recorded fixtures use them.
const ANYONE: &[&str] = &["a", "user", "ubuntu", "me", "you", "alice", "USER", "<user>", "$USER"];

pub(super) const CHECK: Check = Check {
    name: "machine_paths",
    promise: "no path of somebody's machine in a tracked file",
    hint: "use a path relative to the repository, a temporary folder, or /home/user in an example",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&[""]) {
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = machine_path(line) {
                problems.push(Problem::line(path, index + 1, format!("names `{found}`")));
            }
        }
    }
    problems
}

fn machine_path(line: &str) -> Option<&str> {
    if let Some(found) = PATHS.iter().find(|path| line.contains(**path)) {
        return Some(found);
    }
    for marker in [concat!("/ho", "me/"), concat!("/Us", "ers/")] {
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
        check(&CHECK, &Layout::of(&[("README.md", text)]), &[]);
    }

    #[test]
    fn a_machine_fails() {
        let text = ["ok", concat!("cd /wo", "rk/main"), concat!("see /ho", "me/jdoe/notes")];
        check(
            &CHECK,
            &Layout::of(&[("README.md", &text.join("\n"))]),
            &[
                concat!("README.md:2: names `/wo", "rk/`"),
                concat!("README.md:3: names `/ho", "me/jdoe`"),
            ],
        );
    }
}
