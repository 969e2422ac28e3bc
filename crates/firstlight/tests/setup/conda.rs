//! conda environments: a plan warns about the active one and its mixed packages, and apply does not change it.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use crate::apply::world::{World, contents, marker};
use crate::support;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// conda's Python and torch, with a flash-attn installed by pip.
fn environment(folder: &Path) -> PathBuf {
    let conda = folder.join("miniconda3/envs/granite");
    let write = |path: &str, text: &str| {
        let path = conda.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("conda-meta/history", "");
    write("conda-meta/python-3.11.9-h955ad1f_0.json", "{}");
    write("bin/python3.11", "");
    write("lib/python3.11/os.py", "");
    std::os::unix::fs::symlink("python3.11", conda.join("bin/python")).unwrap();
    let dists = [("torch", "2.12.0", "conda", ""), ("flash_attn", "2.8.3", "pip", "torch>=2.2")];
    for (name, version, installer, requires) in dists {
        let info = format!("lib/python3.11/site-packages/{name}-{version}.dist-info");
        let requires = match requires {
            "" => String::new(),
            line => format!("Requires-Dist: {line}\n"),
        };
        let head = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}");
        write(&format!("{info}/METADATA"), &head);
        write(&format!("{info}/INSTALLER"), &format!("{installer}\n"));
        write(&format!("{info}/RECORD"), "");
    }
    conda
}

/// The warnings of a plan for this machine, with this environment activated.
fn warnings(folder: &Path, active: Option<&Path>) -> Vec<String> {
    let mut command = support::command(folder, &["plan", "numpy", "--json"]);
    command.envs(active.iter().map(|folder| ("CONDA_PREFIX", folder)));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let plan: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let warnings = plan["warnings"].as_array().unwrap().iter();
    warnings.map(|warning| warning["value"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn r2_07_plan_avoids_conda_and_names_its_mix() {
    let folder = tempfile::tempdir().unwrap();
    let conda = environment(folder.path());
    let found = warnings(folder.path(), Some(&conda));
    let about: Vec<&String> = found.iter().filter(|it| it.contains("conda environment")).collect();
    let [warning] = about.as_slice() else { panic!("{found:?}") };
    for words in [
        conda.to_str().unwrap(),
        "mixes its own torch 2.12.0 with pip's flash_attn 2.8.3",
        "does not change it and is for a separate virtual environment",
        "--venv .venv",
    ] {
        assert!(warning.contains(words), "no `{words}` in {warning}");
    }
    let without = warnings(folder.path(), None);
    assert!(!without.iter().any(|it| it.contains(conda.to_str().unwrap())), "{without:?}");
}

#[test]
fn r2_07_apply_does_not_replace_conda() {
    let world = World::new();
    let conda = environment(world.folder.path());
    std::fs::rename(conda, world.venv()).unwrap();
    let before = contents(&world.venv());
    let (_, err) = world.apply(&world.plan(&[marker("2.0").build()]), &[], 2);
    for words in ["is a conda environment", "name another folder, such as .venv"] {
        assert!(err.contains(words), "no `{words}` in {err}");
    }
    assert_eq!(contents(&world.venv()), before);
}
