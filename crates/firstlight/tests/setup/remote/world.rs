//! A folder as the other machine: a stand-in for ssh runs the commands in a local shell whose home is that folder.

use crate::apply::said;
use crate::support;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;

/// The address of the machine.
pub(super) const ADDRESS: &str = "203.0.113.7";
pub(super) const HOST: &str = "root@203.0.113.7:22014";

/// The stand-in for ssh. As with `ssh`, the machine and one command `$1` follow the options and `--`. The script `fault` runs
/// first and may replace the command.
const SSH: &str = r#"#!/bin/sh
world=WORLD
for word; do
    if [ "$word" = -G ]; then printf 'user root\nhostname 203.0.113.7\nport 22014\n'; exit 0; fi
done
printf '%s ' "$@" | tr '\n' ' ' >> "$world/calls"
echo >> "$world/calls"
while [ "$1" != -- ]; do shift; done
shift 2
export HOME="$world/home" PATH="$world/there:/usr/local/bin:/usr/bin:/bin"
cd "$HOME" || exit 255
. "$world/fault"
exec sh -c "$1"
"#;

/// A program that reports firstlight's version and runs the script `act` of the home folder.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "--version")) { puts("firstlight 0.0.0"); return 0; }
    char script[4096];
    snprintf(script, sizeof script, "%s/act", getenv("HOME"));
    words[0] = script;
    execl("/bin/sh", "sh", script, count > 1 ? words[1] : NULL, NULL);
    return 2;
}
"#;

static BUILT: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let source = folder.path().join("program.c");
    std::fs::write(&source, PROGRAM).unwrap();
    let mut cc = Command::new("cc");
    assert!(
        cc.arg("-o").arg(folder.path().join("program")).arg(source).status().unwrap().success()
    );
    folder
});

pub(super) struct World {
    folder: TempDir,
}

impl World {
    pub(super) fn new() -> Self {
        let world = Self { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        for folder in ["home", "there", "bin", "here"] {
            std::fs::create_dir(world.path(folder)).unwrap();
        }
        world.fault("");
        let ssh = SSH.replace("WORLD", world.folder.path().to_str().unwrap());
        world.program("bin/ssh", &ssh);
        // The tests do not depend on the real mounts of this system.
        world.program("there/df", "#!/bin/sh\necho head\necho '/dev/vda1 1000000 1 900000 1% /'\n");
        world
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder in which firstlight works on the other machine.
    pub(super) fn there(&self, name: &str) -> PathBuf {
        self.path("home/firstlight-remote").join(name)
    }

    /// Sets the script that the next ssh calls run first.
    pub(super) fn fault(&self, script: &str) {
        std::fs::write(self.path("fault"), script).unwrap();
    }

    /// Sets the script of the stand-in for firstlight.
    pub(super) fn act(&self, script: &str) {
        std::fs::write(self.path("home/act"), script).unwrap();
    }

    pub(super) fn program(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// `firstlight remote root@203.0.113.7:22014`, in the folder `here`.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command =
            support::command(&self.path("here"), &[&["remote", HOST], arguments].concat());
        let folders = std::env::split_paths(&std::env::var_os("PATH").unwrap()).collect::<Vec<_>>();
        let path = [vec![self.path("bin")], folders].concat();
        command.env("PATH", std::env::join_paths(path).unwrap());
        command
    }

    /// Runs it, asserts the exit status, and returns standard output and standard error.
    pub(super) fn remote(&self, arguments: &[&str], status: i32) -> (String, String) {
        said(&self.command(arguments).output().unwrap(), status)
    }

    /// The same with `--json`.
    pub(super) fn json(&self, arguments: &[&str], status: i32) -> Value {
        let (out, _) = self.remote(&[&["--json"], arguments].concat(), status);
        serde_json::from_str(&out).unwrap()
    }

    /// Runs a command of the stand-in for firstlight, with `--yes`.
    pub(super) fn stand_in(&self, options: &[&str], status: i32) -> (String, String) {
        let program = BUILT.path().join("program");
        let program = ["--binary", program.to_str().unwrap(), "--yes"];
        self.remote(&[&program, options, &["--", "check"]].concat(), status)
    }

    /// The number of ssh calls.
    pub(super) fn calls(&self) -> usize {
        std::fs::read_to_string(self.path("calls")).unwrap_or_default().lines().count()
    }

    /// Writes a complete run folder on the machine, like a check.
    pub(super) fn run(&self, name: &str) -> PathBuf {
        let run = self.there("firstlight-runs").join(name);
        let table = "op,case\n";
        for (file, content) in [
            ("parity.csv", table),
            ("logs/run.log", "done\n"),
            ("report.md", "# Run\n"),
            ("core.1", "large\n"),
        ] {
            let path = run.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let artefact = |path: &str, content: &str| {
            let sha256: String =
                Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
            serde_json::json!({ "path": path, "what": "", "bytes": content.len(), "sha256": sha256 })
        };
        let manifest = serde_json::json!({
            "schema": facts::SCHEMA, "state": "complete", "command": ["firstlight", "check"], "version": "0.0.0",
            "built_from": null, "run_in": null, "host": name, "started": "2026-11-21T20:00:00Z", "finished": null,
            "stages": [], "not_run": [],
            "artefacts": [artefact("parity.csv", table), artefact("logs/run.log", "done\n")],
        });
        std::fs::write(run.join("run.json"), manifest.to_string()).unwrap();
        run
    }
}

/// The relative paths of the files below a folder.
pub(super) fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in next.read_dir().into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => pending.push(path),
                false => found.push(path.strip_prefix(folder).unwrap().display().to_string()),
            }
        }
    }
    found.sort();
    found
}
