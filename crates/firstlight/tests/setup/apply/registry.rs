//! Real packages of the Python registry: planned, locked by uv, installed and run.

use super::world::{World, published};
use crate::tools::done;
use std::process::Command;

/// Small common packages, some of them compiled.
const PACKAGES: [(&str, &str); 7] = [
    ("numpy", "2.2.6"),
    ("einops", "0.8.1"),
    ("safetensors", "0.6.2"),
    ("tokenizers", "0.22.1"),
    ("packaging", "25.0"),
    ("ninja", "1.13.0"),
    ("pybind11", "3.0.1"),
];

#[test]
fn r0_08_published_packages_install_and_run() {
    let world = World::new();
    let plan = published(&PACKAGES);
    assert!(plan.packages.len() > PACKAGES.len(), "tokenizers has dependencies");
    let report = world.applied(&plan, &[]);
    assert_eq!(report["outcome"], "made");
    assert_eq!(report["packages"].as_array().unwrap().len(), plan.packages.len());
    let errors =
        report["findings"].as_array().unwrap().iter().filter(|it| it["severity"] == "error");
    assert_eq!(errors.count(), 0, "{report:#}");

    let program = "import numpy, einops, safetensors, tokenizers, packaging, ninja, pybind11\n\
                   print(numpy.__version__, float(numpy.linalg.det(numpy.eye(3))), pybind11.get_include())";
    let venv = world.venv();
    let run = done(Command::new(venv.join("bin/python")).args(["-I", "-c", program]));
    let said = String::from_utf8(run.stdout).unwrap();
    assert!(said.starts_with("2.2.6 1.0 "), "{said}");
    assert!(said.contains(venv.canonicalize().unwrap().to_str().unwrap()), "{said}");
    // A program and an entry point run at the final path.
    done(Command::new(venv.join("bin/ninja")).arg("--version"));
    done(Command::new(venv.join("bin/pybind11-config")).arg("--version"));
}
