//! Commands for a Python that the system's package manager owns (PEP 668): its pip refuses to install, so they make a virtual environment first.

use facts::{EnvKind, PyEnv, quote};
use std::path::Path;

/// The file that marks such a Python, next to its standard library.
const MARKER: &str = "EXTERNALLY-MANAGED";

/// The environment that the commands create.
const VENV: &str = ".venv";

/// The interpreters among these environments whose pip refuses to install, quoted for a shell.
pub(super) fn interpreters(envs: &[PyEnv]) -> Vec<String> {
    envs.iter().filter(|env| env.kind == EnvKind::System).filter_map(managed).collect()
}

fn managed(env: &PyEnv) -> Option<String> {
    let version = &env.interpreter.version.as_ref()?.value;
    let mut numbers = version.split('.');
    let library = format!("lib/python{}.{}", numbers.next()?, numbers.next()?);
    let marker = Path::new(&env.root).join(library).join(MARKER);
    let executable = env.interpreter.executable.as_deref()?;
    marker.is_file().then(|| quote(executable))
}

/// Changes commands that install with one of the interpreters.
pub(super) fn into_venv(commands: &mut Vec<String>, interpreters: &[String]) {
    for python in interpreters {
        let own = |command: &String| {
            command.strip_prefix(python.as_str())?.strip_prefix(' ').map(str::to_owned)
        };
        let installs =
            |command: &String| own(command).is_some_and(|rest| rest.starts_with("-m pip install"));
        let Some(first) = commands.iter().position(installs) else { continue };
        for command in &mut commands[first..] {
            if let Some(rest) = own(command) {
                *command = format!("{VENV}/bin/python {rest}");
            }
        }
        let make = format!("{python} -m venv {VENV}  # the system's Python refuses pip (PEP 668)");
        commands.insert(first, make);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installs_into_a_managed_python_make_an_environment_first() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().display().to_string();
        let executable = format!("{root}/bin/python3");
        let env = |kind: &str| -> PyEnv {
            serde_json::from_value(serde_json::json!({
                "root": root, "kind": kind, "found_by": "python on PATH", "manager": null,
                "interpreter": {
                    "executable": executable, "resolved": null, "abi_tag": null, "base": null,
                    "version": {"value": "3.11.2", "source": "patchlevel.h"},
                },
                "site_packages": [], "dists": [], "torch": null, "native_files": [], "problems": [],
            }))
            .unwrap()
        };
        let library = folder.path().join("lib/python3.11");
        std::fs::create_dir_all(&library).unwrap();
        assert_eq!(interpreters(&[env("system")]), [""; 0]);
        std::fs::write(library.join(MARKER), "[externally-managed]\n").unwrap();
        assert_eq!(interpreters(&[env("venv")]), [""; 0]);
        let managed = interpreters(&[env("system")]);
        assert_eq!(managed, std::slice::from_ref(&executable));
        let mut commands = vec![
            format!("{executable} -m pip check"),
            format!("{executable} -m pip install pybind11"),
            "# then build".to_owned(),
            format!("{executable} -c 'import torch'"),
        ];
        into_venv(&mut commands, &managed);
        let expect = [
            format!("{executable} -m pip check"),
            format!("{executable} -m venv .venv  # the system's Python refuses pip (PEP 668)"),
            ".venv/bin/python -m pip install pybind11".to_owned(),
            "# then build".to_owned(),
            ".venv/bin/python -c 'import torch'".to_owned(),
        ];
        assert_eq!(commands, expect);
        // Commands for another interpreter, or a longer name, stay.
        let mut others =
            vec![format!("{executable}.11 -m pip install x"), "pip install x".to_owned()];
        into_venv(&mut others, &managed);
        assert_eq!(others.len(), 2);
    }
}
