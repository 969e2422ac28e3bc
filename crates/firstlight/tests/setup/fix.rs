//! `doctor --fix` never makes an environment worse. Small wheels in a folder replace the registry, and real uv resolves and
//! installs them.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use crate::apply::world::{ANY, contents};
use crate::stack::{OLD_ABI, flash_attn, kernels};
use crate::support::library::Library;
use crate::support::{self, unbroken};
use crate::tools::{done, uv, uv_cache, uv_command};
use crate::wheel::{File, Wheel};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// An environment, and the folder of wheels that a fix installs from.
struct TestEnvironment {
    folder: TempDir,
}

impl TestEnvironment {
    /// An environment into which the groups of requirements are installed one after the other.
    fn new(wheels: &[File], installs: &[&[&str]]) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let environment = Self { folder };
        for wheel in wheels {
            wheel.save(&environment.path("index"));
        }
        let index = environment.path("index").display().to_string();
        let settings = format!("no-index = true\nfind-links = [{index:?}]\n");
        let both = format!("{settings}[pip]\n{settings}");
        std::fs::write(environment.path("uv.toml"), both).unwrap();
        done(uv_command(&["venv", "--quiet", "--python", "python3"]).arg(environment.venv()));
        for install in installs {
            let mut command = uv_command(&["pip", "install", "--quiet", "--no-index"]);
            command.arg("--find-links").arg(environment.path("index"));
            done(command.arg("--python").arg(environment.python()).args(*install));
        }
        environment
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn venv(&self) -> PathBuf {
        self.path("venv")
    }

    fn python(&self) -> PathBuf {
        self.venv().join("bin/python")
    }

    /// `firstlight doctor --venv venv` with a uv that only uses the folder of wheels.
    fn doctor(&self, tools: &Path, arguments: &[&str]) -> Output {
        let doctor = ["doctor", "--venv", "venv"];
        let mut command = support::command(self.folder.path(), &[&doctor, arguments].concat());
        command.env("PATH", tools).env("UV_CACHE_DIR", uv_cache());
        command.env("UV_CONFIG_FILE", self.path("uv.toml"));
        command.env_remove("UV_OFFLINE").env_remove("LD_LIBRARY_PATH").output().unwrap()
    }

    /// The report of `doctor --fix --yes --json`.
    fn fix(&self) -> Value {
        self.fix_by(uv().program.parent().unwrap())
    }

    fn fix_by(&self, tools: &Path) -> Value {
        let output = self.doctor(tools, &["--fix", "--yes", "--json"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {said}"));
        report
    }

    /// A uv that runs the shell command `does` instead of an install.
    fn uv_that(&self, does: &str) -> PathBuf {
        let tools = self.path("tools");
        std::fs::create_dir_all(&tools).unwrap();
        let real = uv().program.display().to_string();
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *--dry-run*) ;; 'pip install'*) {does};; esac\nexec {real} \"$@\"\n"
        );
        std::fs::write(tools.join("uv"), script).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(tools.join("uv"), mode).unwrap();
        tools
    }

    fn imports(&self, module: &str) -> bool {
        let import = format!("import {module}");
        Command::new(self.python())
            .args(["-I", "-B", "-c", &import])
            .output()
            .unwrap()
            .status
            .success()
    }

    fn has(&self, name: &str) -> bool {
        let mut list = uv_command(&["pip", "list", "--quiet", "--format", "freeze", "--python"]);
        let said = done(list.arg(self.python())).stdout;
        String::from_utf8(said).unwrap().lines().any(|line| line.starts_with(&format!("{name}==")))
    }
}

/// torch, which opens cuDNN and NCCL from the folders of NVIDIA's wheels and requires its own versions of them.
fn torch(version: &str, cuda: &str, needs: &[&str]) -> File {
    let opens = "import os\nfor name in ('cudnn/lib/libcudnn.so.9', 'nccl/lib/libnccl.so.2'):\n    path = os.path.join(os.path.dirname(__file__), '../nvidia', name)\n    if not os.path.exists(path):\n        raise ImportError(name + ': cannot open shared object file')\n";
    let words = format!("__version__ = '{version}+cu{}'\ncuda = '{cuda}'\n", cuda.replace('.', ""));
    let wheel = Wheel::new("torch", version, ANY)
        .file("torch/__init__.py", opens)
        .file("torch/version.py", words);
    needs.iter().fold(wheel, |wheel, need| wheel.requires(need)).build()
}

/// A wheel of NVIDIA's. The wheels for two CUDA majors install files of the same path.
fn nvidia(name: &str, version: &str, file: &str) -> File {
    let content = format!("{name} {version}");
    Wheel::new(name, version, ANY).file(&format!("nvidia/{file}"), content).build()
}

/// torch for CUDA 12 and for CUDA 13, with cuDNN and NCCL of each.
fn two_majors() -> Vec<File> {
    let (cudnn, nccl) = ("cudnn/lib/libcudnn.so.9", "nccl/lib/libnccl.so.2");
    vec![
        torch("2.8.0", "12.8", &["nvidia-cudnn-cu12==9.10.2", "nvidia-nccl-cu12==2.27.3"]),
        torch("2.11.0", "13.0", &["nvidia-cudnn-cu13==9.19.0", "nvidia-nccl-cu13==2.28.9"]),
        nvidia("nvidia_cudnn_cu12", "9.10.2", cudnn),
        nvidia("nvidia_cudnn_cu13", "9.19.0", cudnn),
        nvidia("nvidia_nccl_cu12", "2.27.3", nccl),
        nvidia("nvidia_nccl_cu13", "2.28.9", nccl),
    ]
}

fn upgraded() -> TestEnvironment {
    TestEnvironment::new(&two_majors(), &[&["torch==2.8.0"], &["torch==2.11.0"]])
}

fn one(report: &Value) -> &Value {
    let environments = report["environments"].as_array().unwrap();
    assert_eq!(environments.len(), 1, "{report:#}");
    &environments[0]
}

#[test]
fn uninstall_keeps_files_of_other_packages() {
    let environment = upgraded();
    assert!(environment.imports("torch"));
    let report = environment.fix();
    let mended = one(&report);
    assert_eq!(mended["outcome"], "mended", "{report:#}");
    assert!(environment.imports("torch"), "{report:#}");
    assert!(environment.has("nvidia-cudnn-cu13") && !environment.has("nvidia-cudnn-cu12"));
    let lib = environment.venv().join("lib");
    let site =
        std::fs::read_dir(lib).unwrap().next().unwrap().unwrap().path().join("site-packages");
    let cudnn = std::fs::read_to_string(site.join("nvidia/cudnn/lib/libcudnn.so.9")).unwrap();
    assert_eq!(cudnn, "nvidia_cudnn_cu13 9.19.0");
    // One command uninstalls, the next reinstalls the shared files, and every version is pinned.
    let commands: Vec<&str> =
        mended["commands"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    let [remove, again] = commands.as_slice() else { panic!("{commands:?}") };
    assert!(remove.contains("uninstall") && remove.contains("nvidia-cudnn-cu12"), "{remove}");
    for word in ["--no-deps", "nvidia-cudnn-cu13==9.19.0", "nvidia-nccl-cu13==2.28.9"] {
        assert!(again.contains(word), "{again}");
    }
    // A second fix has nothing to do.
    assert_eq!(environment.fix()["environments"].as_array().unwrap().len(), 0);
}

#[test]
fn restored_package_keeps_shared_files() {
    let shared = |name: &str, version: &str, content: &str| {
        Wheel::new(name, version, ANY)
            .file("shared/part.py", content)
            .file("shared/libpart.so.1", name)
    };
    let wheels = [
        shared("old_api", "1.0", "NAME = 'old'\n").build(),
        shared("new_api", "2.0", "VALUE = 'new'\n")
            .file("new_api.py", "from shared.part import VALUE\n")
            .build(),
        Wheel::new("app", "1.0", ANY)
            .requires("old-api")
            .requires("new-api")
            .file("app.py", "import new_api\n")
            .build(),
    ];
    // The package installed last owns the shared file; a file of the application is missing.
    let environment = TestEnvironment::new(&wheels, &[&["old-api"], &["new-api"], &["app"]]);
    assert!(environment.imports("app"));
    let lib = environment.venv().join("lib");
    let site =
        std::fs::read_dir(lib).unwrap().next().unwrap().unwrap().path().join("site-packages");
    std::fs::remove_file(site.join("app.py")).unwrap();
    let report = environment.fix();
    assert_eq!(one(&report)["outcome"], "mended", "{report:#}");
    assert!(environment.imports("app") && environment.has("old-api"), "{report:#}");
}

#[test]
fn failed_command_is_rolled_back() {
    let environment = upgraded();
    let before = contents(&environment.venv());
    let report = environment.fix_by(&environment.uv_that("echo no space >&2; exit 2"));
    let mended = one(&report);
    assert_eq!(mended["outcome"], "put back", "{report:#}");
    let why = mended["why"].as_str().unwrap();
    assert!(why.contains("ended with exit status: 2") && why.contains("what it was"), "{why}");
    assert_eq!(
        report["plan"].as_array().unwrap().iter().filter(|it| it["result"] == "done").count(),
        0
    );
    assert_eq!(contents(&environment.venv()), before);
    assert!(environment.imports("torch"));
}

#[test]
fn next_run_rolls_back_a_killed_one() {
    let environment = upgraded();
    let before = contents(&environment.venv());
    // The fix is killed after the uninstall of the CUDA 12 wheels, which also removed files of the CUDA 13 ones.
    let killed =
        environment.doctor(&environment.uv_that("kill -9 $PPID; exit 1"), &["--fix", "--yes"]);
    assert!(killed.status.code().is_none(), "{killed:?}");
    assert!(!environment.imports("torch"));
    let real = uv().program.parent().unwrap().to_owned();
    let asked = environment.doctor(&real, &["--fix"]);
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(said.contains("was interrupted") && said.contains("confirmation needed"), "{said}");
    let plain = environment.doctor(&real, &[]);
    let said = String::from_utf8_lossy(&plain.stdout);
    assert_eq!(plain.status.code(), Some(1), "{said}");
    let said = unbroken(&said);
    assert!(said.contains("was interrupted") && said.contains("doctor --fix"), "{said}");
    // The killed fix is rolled back, and then applied.
    let report = environment.fix();
    assert_eq!(one(&report)["outcome"], "mended", "{report:#}");
    assert!(environment.imports("torch"));
    assert_ne!(contents(&environment.venv()), before);
}

/// Damage that only hashes show: the next fix looks as deep as the interrupted one.
#[test]
fn fix_after_an_interrupted_one_verifies_files_again() {
    let wheel = Wheel::new("library", "1.0", ANY)
        .file("library/__init__.py", "")
        .file("library/values.bin", "right");
    let environment = TestEnvironment::new(&[wheel.build()], &[&["library"]]);
    let lib = environment.venv().join("lib");
    let site =
        std::fs::read_dir(lib).unwrap().next().unwrap().unwrap().path().join("site-packages");
    let values = site.join("library/values.bin");
    std::fs::remove_file(&values).unwrap();
    std::fs::write(&values, "wrong").unwrap();
    let deep = ["--verify-files", "--fix", "--yes", "--json"];
    let killed = environment.doctor(&environment.uv_that("kill -9 $PPID; exit 1"), &deep);
    assert!(killed.status.code().is_none(), "{killed:?}");
    // Without hashes there is no finding, and still no all-clear.
    let real = uv().program.parent().unwrap().to_owned();
    let plain = environment.doctor(&real, &[]);
    let said = String::from_utf8_lossy(&plain.stdout);
    assert_eq!(plain.status.code(), Some(1), "{said}");
    assert!(said.contains("problem: a fix of ") && !said.contains("No rule found"), "{said}");
    let again = environment.doctor(&real, &deep);
    let report: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(one(&report)["outcome"], "mended", "{report:#}");
    assert_eq!(std::fs::read_to_string(&values).unwrap(), "right");
    assert_eq!(environment.doctor(&real, &["--verify-files"]).status.code(), Some(0));
}

/// A problem without a finding and without a remedy.
#[test]
fn environment_that_cannot_be_read_in_full_is_not_cleared() {
    let wheel = Wheel::new("library", "1.0", ANY).file("library.py", "").build();
    let environment = TestEnvironment::new(&[wheel], &[&["library"]]);
    let real = uv().program.parent().unwrap().to_owned();
    assert_eq!(environment.doctor(&real, &[]).status.code(), Some(0));
    std::fs::write(environment.venv().join("pyvenv.cfg"), "").unwrap();
    for arguments in [&[][..], &["--fix", "--yes"]] {
        let output = environment.doctor(&real, arguments);
        let said = unbroken(&String::from_utf8_lossy(&output.stdout));
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("pyvenv.cfg has no `home` line"), "{said}");
        assert!(!said.contains("No rule found") && !said.contains("nothing to fix"), "{said}");
    }
}

#[test]
fn broken_import_is_rolled_back() {
    let library = |version: &str, init: &str| {
        Wheel::new("library", version, ANY).file("library.py", init).build()
    };
    let user = Wheel::new("user", "1.0", ANY)
        .requires("library>=2")
        .file("user.py", "import library\n")
        .build();
    let wheels = [library("1.0", ""), library("2.0", "raise RuntimeError('no GPU')\n"), user];
    let environment =
        TestEnvironment::new(&wheels, &[&["user", "library>=2"], &["--no-deps", "library==1.0"]]);
    let before = contents(&environment.venv());
    let report = environment.fix();
    let mended = one(&report);
    assert_eq!(mended["outcome"], "put back", "{report:#}");
    assert!(mended["why"].as_str().unwrap().contains("RuntimeError: no GPU"), "{mended:#}");
    assert_eq!(contents(&environment.venv()), before);
}

#[test]
fn fix_that_adds_errors_is_rolled_back() {
    let library = |version: &str| Wheel::new("library", version, ANY).file("library.py", "");
    // The required release can be imported, but its extension needs a CUDA that is not installed.
    let runtime = Library::named("libcudart.so.13");
    let needs = Library::new().linked_with(&runtime).exports(&["PyInit__C"]);
    let newer = library("2.0").library("library_ext/_C.so", &needs, std::env::consts::ARCH);
    let user =
        Wheel::new("user", "1.0", ANY).requires("library>=2").file("user.py", "import library\n");
    let wheels = [library("1.0").build(), newer.build(), user.build()];
    let environment = TestEnvironment::new(&wheels, &[&["--no-deps", "user", "library==1.0"]]);
    let before = contents(&environment.venv());
    let report = environment.fix();
    let mended = one(&report);
    assert_eq!(mended["outcome"], "put back", "{report:#}");
    assert!(mended["why"].as_str().unwrap().contains("the doctor has new findings"), "{mended:#}");
    assert_eq!(contents(&environment.venv()), before);
}

#[test]
fn two_findings_of_one_fault_share_a_remedy() {
    let symbol =
        "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    let torch = crate::stack::torch("2.8.0").file("torch/lib/__init__.py", "").build();
    let vision = |version: &str, torch: &str, init: &str, wants: &str| {
        Wheel::new("torchvision", version, &crate::stack::tag())
            .requires(&format!("torch=={torch}"))
            .file("torchvision/__init__.py", init)
            .library("torchvision/_C.so", &kernels(wants, &["sm_90"]), std::env::consts::ARCH)
            .build()
    };
    let broken = "raise RuntimeError('operator torchvision::nms does not exist')\n";
    let wheels =
        [torch, vision("0.20.1", "2.5.1", broken, OLD_ABI), vision("0.23.0", "2.8.0", "", symbol)];
    let environment =
        TestEnvironment::new(&wheels, &[&["torch==2.8.0"], &["--no-deps", "torchvision==0.20.1"]]);
    let report = environment.fix();
    let about: Vec<&str> = report["plan"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|step| step["title"].as_str().unwrap().contains("torchvision"))
        .map(|step| step["rule"].as_str().unwrap())
        .collect();
    assert!(about.len() > 1, "the fault shows in more than one rule: {report:#}");
    assert_eq!(one(&report)["outcome"], "mended", "{report:#}");
    assert!(environment.imports("torch") && environment.imports("torchvision"));
    assert_eq!(one(&report)["mended"], serde_json::json!(["torchvision"]));
    assert_eq!(one(&report)["commands"].as_array().unwrap().len(), 1, "{report:#}");
}

#[test]
fn package_without_sdist_is_not_built() {
    let torch = crate::stack::torch("2.8.0").build();
    let mislabeled = flash_attn(&kernels(OLD_ABI, &["sm_90"])).build();
    let environment = TestEnvironment::new(&[torch, mislabeled], &[&["torch", "flash-attn"]]);
    let before = contents(&environment.venv());
    let report = environment.fix();
    let step =
        report["plan"].as_array().unwrap().iter().find(|it| it["rule"] == "extension-old-abi");
    let why = step.unwrap_or_else(|| panic!("{report:#}"))["refused"].as_str().unwrap();
    assert!(why.starts_with("it cannot be resolved: "), "{why}");
    assert_eq!(contents(&environment.venv()), before);
}

#[test]
fn jax_and_torch_keep_separate_cuda_majors() {
    let mut wheels = two_majors();
    wheels.extend([
        Wheel::new("jax", "0.9.0", ANY).file("jax.py", "import jax_plugin\n").build(),
        Wheel::new("jax_cuda13_plugin", "0.9.0", ANY)
            .requires("jax-cuda13-pjrt==0.9.0")
            .requires("nvidia-cublas>=13; extra == 'with-cuda'")
            .requires("nvidia-cuda-runtime>=13; extra == 'with-cuda'")
            .file("jax_plugin.py", "")
            .build(),
        Wheel::new("jax_cuda13_pjrt", "0.9.0", ANY).file("jax_pjrt.py", "").build(),
        nvidia("nvidia_cublas", "13.1.0", "cu13/lib/libcublas.so.13"),
        nvidia("nvidia_cuda_runtime", "13.0.96", "cu13/lib/libcudart.so.13"),
    ]);
    let jax: &[&str] = &["jax", "jax-cuda13-plugin", "nvidia-cublas", "nvidia-cuda-runtime"];
    let environment = TestEnvironment::new(&wheels, &[&["torch==2.8.0"], jax]);
    let before = contents(&environment.venv());
    let report = environment.fix();
    assert_eq!(contents(&environment.venv()), before, "{report:#}");
    let shown = report["plan"].to_string();
    assert!(!shown.contains("uninstall"), "{shown}");
}
