//! `pyproject.toml`, `requirements.txt` and `pylock.toml` as uv and pip read them, with an index in a folder.

use crate::index::TestIndex;
use crate::plans::{full, index, plan, target, wheel};
use crate::tools::{failure, folder_with, output, python_here, python_with, uv, uv_in};
use facts::{InstallPlan, PlannedFile};
use setup::emit::emit;
use std::path::Path;
use std::process::Command;

/// torch 2.7.1 as published: for Linux on its own index, for macOS on the default one.
fn published(folder: &Path) -> (TestIndex, TestIndex) {
    let pypi = TestIndex::at(&folder.join("pypi"));
    let cu128 = TestIndex::at(&folder.join("cu128"));
    pypi.wheel("torch-2.7.1-py3-none-macosx_11_0_arm64.whl", &["einops"]);
    // An aarch64 machine must never get this one.
    pypi.wheel("torch-2.7.1-py3-none-manylinux_2_28_aarch64.whl", &["einops"]);
    for arch in ["aarch64", "x86_64"] {
        cu128.wheel(&format!("torch-2.7.1+cu128-py3-none-manylinux_2_28_{arch}.whl"), &["einops"]);
    }
    pypi.wheel("einops-0.8.1-py3-none-any.whl", &[]);
    // An index of torch builds also mirrors other packages, none of which may be installed from it.
    cu128.wheel("einops-9.9.9-py3-none-any.whl", &[]);
    pypi.wheel("bitsandbytes-0.48.0-py3-none-manylinux_2_28_x86_64.whl", &[]);
    (pypi, cu128)
}

fn torch_plan(folder: &Path) -> InstallPlan {
    let (pypi, cu128) = published(folder);
    let indexes = [index("pypi", &pypi.url()), index("pytorch-cu128", &cu128.url())];
    let mut bitsandbytes = wheel("bitsandbytes==0.48.0", "pypi");
    bitsandbytes.marker =
        Some("sys_platform == 'linux' and platform_machine == 'x86_64'".to_owned());
    let packages = [wheel("torch==2.7.1+cu128", "pytorch-cu128"), bitsandbytes];
    let mut plan = plan(target("a10", "linux", "x86_64", &[(8, 6)]), &indexes, &packages);
    plan.python = python_here();
    plan
}

/// The names and versions that uv installs from this project on this platform, and their files.
fn resolved(project: &Path, platform: &str) -> String {
    output(
        uv_in(project).args(["pip", "compile", "pyproject.toml", "--quiet", "--no-header"]).args([
            "--format",
            "pylock.toml",
            "--python-platform",
            platform,
        ]),
    )
}

#[test]
fn r1_07_linux_takes_cu128_and_macos_takes_pypi() {
    let (_kept, folder) = folder_with(&[]);
    let text = emit(&torch_plan(&folder), "pyproject.toml").unwrap();
    std::fs::write(folder.join("pyproject.toml"), &text).unwrap();
    for arch in ["x86_64", "aarch64"] {
        let lock = resolved(&folder, &format!("{arch}-manylinux_2_28"));
        let file = format!("cu128/torch/torch-2.7.1%2Bcu128-py3-none-manylinux_2_28_{arch}.whl");
        assert!(lock.contains(&file), "{lock}");
        assert!(lock.contains("pypi/einops/einops-0.8.1"), "{lock}");
        assert!(!lock.contains("pypi/torch") && !lock.contains("9.9.9"), "{lock}");
    }
    let lock = resolved(&folder, "aarch64-apple-darwin");
    assert!(lock.contains("pypi/torch/torch-2.7.1-py3-none-macosx_11_0_arm64.whl"), "{lock}");
    assert!(!lock.contains("cu128"), "{lock}");
}

#[test]
fn r1_09_a_marker_keeps_a_package_off_other_platforms() {
    let (_kept, folder) = folder_with(&[]);
    let text = emit(&torch_plan(&folder), "pyproject.toml").unwrap();
    std::fs::write(folder.join("pyproject.toml"), &text).unwrap();
    let has = |platform| resolved(&folder, platform).contains("bitsandbytes");
    assert!(has("x86_64-manylinux_2_28"));
    assert!(!has("aarch64-manylinux_2_28") && !has("aarch64-apple-darwin"));
}

#[test]
fn uv_locks_the_project_for_all_its_platforms() {
    let (_kept, folder) = folder_with(&[]);
    let mut plan = torch_plan(&folder);
    let write = |plan: &InstallPlan| {
        std::fs::write(folder.join("pyproject.toml"), emit(plan, "pyproject.toml").unwrap())
            .unwrap();
    };
    write(&plan);
    output(uv_in(&folder).args(["lock"]));
    let lock = std::fs::read_to_string(folder.join("uv.lock")).unwrap().replace("%2B", "+");
    for file in ["2.7.1+cu128-py3-none-manylinux_2_28_aarch64", "macosx_11_0_arm64"] {
        assert!(lock.contains(file), "{file}: {lock}");
    }
    // A machine without files is an error now, and not at installation.
    plan.target = target("gh200", "linux", "riscv64", &[]);
    write(&plan);
    std::fs::remove_file(folder.join("uv.lock")).unwrap();
    let said = failure(uv_in(&folder).args(["lock", "--dry-run"]));
    assert!(said.contains("torch") && said.contains("riscv64"), "{said}");
}

#[test]
fn a_source_build_sees_the_environment_and_is_forced() {
    let text = emit(&full(), "pyproject.toml").unwrap();
    let value: toml::Table = text.parse().unwrap();
    let uv = &value["tool"]["uv"];
    assert_eq!(
        uv["no-build-isolation-package"].as_array().unwrap()[0].as_str(),
        Some("flash-attn")
    );
    let forced = &uv["extra-build-variables"]["flash-attn"]["FLASH_ATTENTION_FORCE_BUILD"];
    assert_eq!(forced.as_str(), Some("TRUE"));
    let known = &uv["dependency-metadata"][0];
    assert_eq!(known["requires-dist"].as_array().unwrap().len(), 2);
    assert!(!text.contains("unsafe"), "{text}");
}

#[test]
fn a_package_without_a_version_keeps_its_requirement() {
    let mut plan = full();
    plan.packages = vec![wheel("pybind11==", "pypi"), wheel("numpy==", "pypi")];
    plan.wants[0].package = "numpy".to_owned();
    plan.wants[0].specifiers = ">=2,<3".to_owned();
    let text = emit(&plan, "pyproject.toml").unwrap();
    assert!(
        text.contains("    \"pybind11\",\n") && text.contains("    \"numpy>=2,<3\",\n"),
        "{text}"
    );
}

#[test]
fn a_git_source_becomes_its_repository_and_revision() {
    let mut plan = full();
    let facts::PackageOrigin::Build(recipe) = &mut plan.packages[3].origin else { panic!() };
    recipe.requirement =
        "flash-attn @ git+https://github.com/Dao-AILab/flash-attention.git@v2.8.3".to_owned();
    let text = emit(&plan, "pyproject.toml").unwrap();
    let line = "flash-attn = [{ git = \"https://github.com/Dao-AILab/flash-attention.git\", \
                rev = \"v2.8.3\", marker = \"sys_platform == 'linux'\" }]";
    assert!(text.contains(line), "{text}");
}

/// Two small packages, one from a separate index, with their real files and hashes.
fn locked(folder: &Path) -> InstallPlan {
    let pypi = TestIndex::at(&folder.join("pypi"));
    let own = TestIndex::at(&folder.join("own"));
    let (small, other) = ("small-1.0-py3-none-any.whl", "other-2.0+cu128-py3-none-any.whl");
    let hashes = [pypi.wheel(small, &[]), own.wheel(other, &[])];
    // Installing `other` from the default index would be wrong, and it has a higher version there.
    pypi.wheel("other-3.0-py3-none-any.whl", &[]);
    let file = |index: &TestIndex, package: &str, name: &str, sha256: &String| PlannedFile {
        name: name.to_owned(),
        url: Some(format!("{}/{package}/{}", index.url(), name.replace('+', "%2B"))),
        sha256: Some(sha256.clone()),
        bytes: None,
    };
    let mut packages = [wheel("small==1.0", "pypi"), wheel("other==2.0+cu128", "own")];
    packages[0].files = vec![file(&pypi, "small", small, &hashes[0])];
    packages[1].files = vec![file(&own, "other", other, &hashes[1])];
    let indexes = [index("pypi", &pypi.url()), index("own", &own.url())];
    let mut plan = plan(target("cpu-x86_64", "linux", "x86_64", &[]), &indexes, &packages);
    plan.python = python_here();
    plan.locked = true;
    plan
}

/// Creates an environment with the tool, installs with the given arguments, and returns the output of `pip freeze`.
fn installed(folder: &Path, install: impl Fn(&Path) -> Command) -> Result<String, String> {
    let environment = folder.join("env");
    output(
        uv().command()
            .args(["venv", "--quiet", "--clear", "--python", "python3"])
            .arg(&environment),
    );
    let done = install(&environment.join("bin/python")).output().unwrap();
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    let mut freeze = uv().command();
    freeze.args(["pip", "freeze", "--python"]).arg(environment.join("bin/python"));
    Ok(output(&mut freeze))
}

/// The line in `pip freeze` of a package installed from this file, or of this version.
fn has(frozen: &str, package: &str, version: &str) -> bool {
    let begins = |line: &&str| line.starts_with(package);
    frozen.lines().find(begins).is_some_and(|line| line.replace("%2B", "+").contains(version))
}

fn pip(python: &Path, file: &Path) -> Command {
    // pip of the Python that runs the tests, for the environment.
    let mut command = Command::new("python3");
    command
        .args(["-m", "pip", "--python"])
        .arg(python)
        .args(["install", "--no-deps", "--quiet", "-r"])
        .arg(file);
    command.env_remove("PIP_FIND_LINKS").env_remove("PIP_EXTRA_INDEX_URL");
    command
}

fn uv_pip(python: &Path, file: &Path) -> Command {
    let mut command = uv().command();
    command.args(["pip", "install", "--no-deps", "--python"]).arg(python).arg("-r").arg(file);
    command
}

#[test]
fn requirements_install_the_plan_and_refuse_other_hashes() {
    let (_kept, folder) = folder_with(&[]);
    let plan = locked(&folder);
    let text = emit(&plan, "requirements.txt").unwrap();
    assert!(!text.contains("extra-index-url"), "{text}");
    let file = folder.join("requirements.txt");
    let tools: [fn(&Path, &Path) -> Command; 2] = [pip, uv_pip];
    for tool in tools {
        std::fs::write(&file, &text).unwrap();
        let frozen = installed(&folder, |python| tool(python, &file)).unwrap();
        assert!(
            has(&frozen, "small", "1.0") && has(&frozen, "other", "other-2.0+cu128"),
            "{frozen}"
        );
        for hash in plan.packages.iter().map(|package| package.files[0].sha256.as_ref().unwrap()) {
            std::fs::write(&file, text.replace(hash.as_str(), &"0".repeat(64))).unwrap();
            let said = installed(&folder, |python| tool(python, &file)).unwrap_err();
            assert!(said.to_lowercase().contains("hash"), "{said}");
        }
    }
}

#[test]
fn pylock_installs_the_plan_and_refuses_other_hashes() {
    let (_kept, folder) = folder_with(&[]);
    let plan = locked(&folder);
    let text = emit(&plan, "pylock.toml").unwrap();
    let file = folder.join("pylock.toml");
    std::fs::write(&file, &text).unwrap();
    let frozen = installed(&folder, |python| uv_pip(python, &file)).unwrap();
    assert!(has(&frozen, "small", "1.0") && has(&frozen, "other", "2.0+cu128"), "{frozen}");
    // The Python Packaging Authority's reference parser accepts it too, with the right target.
    let says = "import sys, tomllib; from packaging.pylock import Pylock; \
                lock = Pylock.from_dict(tomllib.load(open(sys.argv[1], 'rb'))); \
                print(*(f'{p.name}=={p.version}' for p in lock.packages), lock.requires_python)";
    let python = python_with("packaging", "packaging>=26");
    let said = output(Command::new(python).args(["-c", says]).arg(&file));
    assert_eq!(said.trim(), format!("small==1.0 other==2.0+cu128 =={}.*", plan.python));
    let hash = plan.packages[1].files[0].sha256.as_ref().unwrap();
    std::fs::write(&file, text.replace(hash.as_str(), &"0".repeat(64))).unwrap();
    let said = installed(&folder, |python| uv_pip(python, &file)).unwrap_err();
    assert!(said.to_lowercase().contains("hash"), "{said}");
}

#[test]
fn formats_with_hashes_refuse_a_plan_without() {
    let mut plan = full();
    plan.packages.truncate(2);
    for format in ["requirements.txt", "pylock.toml"] {
        let error = emit(&plan, format).unwrap_err();
        assert!(error.to_string().ends_with("none for `torch`"), "{error}");
        assert!(error.hint().starts_with("lock the plan"), "{}", error.hint());
    }
}
