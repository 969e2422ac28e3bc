//! Published wheels as doctor reads them: GPU code compared with cuobjdump and with real GPUs, symbols compared with a
//! matching and a mismatching torch, and metadata compared with the installed packages.
//!
//! `cargo xtask test` fetches the wheels and names their folder in FIRSTLIGHT_WHEELS.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::fake_driver::with_driver;
use tempfile::{TempDir, tempdir};

fn wheels() -> PathBuf {
    let folder = std::env::var_os("FIRSTLIGHT_WHEELS");
    PathBuf::from(folder.expect("FIRSTLIGHT_WHEELS is not set: run `cargo xtask test`"))
}

/// An environment with some of the unpacked wheels.
struct World(TempDir);

impl World {
    fn with(packages: &[&str]) -> Self {
        let world = Self(tempdir().unwrap());
        support::environment(world.0.path(), &[]);
        for entry in std::fs::read_dir(wheels().join("site")).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if packages.iter().any(|package| name.starts_with(package)) {
                std::os::unix::fs::symlink(entry.path(), world.site(&name)).unwrap();
            }
        }
        // The dependencies of these wheels other than torch.
        world.dist("numpy", "2.1.3");
        world.dist("pillow", "11.0.0");
        world.dist("packaging", "24.2");
        world
    }

    fn site(&self, relative: &str) -> PathBuf {
        self.0.path().join("venv/lib/python3.12/site-packages").join(relative)
    }

    fn write(&self, relative: &str, text: &str) {
        let path = self.site(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A torch that has only metadata.
    fn torch(self, version: &str, cuda: &str, requires: &[String]) -> Self {
        let info = format!("torch-{version}.dist-info");
        let requires: String =
            requires.iter().map(|line| format!("Requires-Dist: {line}\n")).collect();
        let metadata =
            format!("Metadata-Version: 2.4\nName: torch\nVersion: {version}\n{requires}");
        self.write(&format!("{info}/METADATA"), &metadata);
        self.write(&format!("{info}/RECORD"), "torch/version.py,,\n");
        let label = cuda.replace('.', "");
        let text = format!(
            "__version__ = '{version}+cu{label}'\ncuda: Optional[str] = '{cuda}'\nhip: Optional[str] = None\n"
        );
        self.write("torch/version.py", &text);
        // torch's other modules are missing; a package that changes `__path__` may have any module.
        self.write("torch/__init__.py", "__path__.append(somewhere)\n");
        self
    }

    fn dist(&self, name: &str, version: &str) {
        let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        self.write(&format!("{name}-{version}.dist-info/METADATA"), &text);
    }

    /// Doctor's report with this GPU, given as compute capability and name.
    fn doctor(&self, gpu: &str) -> Value {
        let venv = self.0.path().join("venv");
        let arguments = ["doctor", "--json", "--venv", venv.to_str().unwrap()];
        let output =
            with_driver(self.0.path(), &arguments, &[("FAKE_NVML_GPU", gpu)]).output().unwrap();
        assert!(output.status.code().is_some_and(|code| code < 2), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// `rule severity` of the findings about the environment, without two expected ones.
    fn findings(&self, gpu: &str) -> Vec<String> {
        let report = self.doctor(gpu);
        let mut lines: Vec<String> = report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| {
                format!("{} {}", it["rule"].as_str().unwrap(), it["severity"].as_str().unwrap())
            })
            // The torch of this test has no libraries, so it cannot load libcudart first.
            .filter(|line| line != "cuda-versions info" && line != "missing-cuda-library info")
            .collect();
        lines.sort();
        lines.dedup();
        lines
    }
}

/// `sm_90a.cubin` of each image of one file.
fn images(report: &Value, file: &str) -> BTreeSet<String> {
    let native = report["envs"][0]["native_files"].as_array().unwrap();
    let found = native.iter().find(|it| it["path"].as_str().unwrap().ends_with(file));
    let code = found.unwrap_or_else(|| panic!("no {file}"))["elf"]["gpu_code"].as_array().unwrap();
    let images = code.iter().flat_map(|group| group["images"].as_array().unwrap());
    let name = |image: &Value| {
        let suffix = match image["reach"].as_str().unwrap() {
            "architecture" => "a",
            "family" => "f",
            _ => "",
        };
        let (major, minor) = (&image["sm"][0], &image["sm"][1]);
        format!("sm_{major}{minor}{suffix}.{}", image["kind"].as_str().unwrap())
    };
    images.map(name).collect()
}

/// The images that cuobjdump lists, relocatable code included, and whether it read the file without an error.
fn by_cuobjdump(file: &str) -> (BTreeSet<String>, bool) {
    let site = wheels().join("site");
    let output = Command::new(site.join("nvidia/cu13/bin/cuobjdump"))
        .args(["-all", "--list-elf", "--list-ptx"])
        .arg(site.join(file))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.split_whitespace().filter_map(|word| {
        let stem = word.strip_suffix(".cubin").or(word.strip_suffix(".ptx"))?;
        let kind = &word[stem.len()..];
        Some(format!("{}{kind}", &stem[stem.rfind("sm_")?..]))
    });
    (names.collect(), !String::from_utf8_lossy(&output.stderr).contains("fatal"))
}

#[test]
fn gpu_code_matches_cuobjdump() {
    let world =
        World::with(&["bitsandbytes", "torchvision", "xformers"]).torch("2.5.1", "12.1", &[]);
    let report = world.doctor("9.0 NVIDIA H200");
    let set = |words: &str| words.split(' ').map(str::to_string).collect::<BTreeSet<_>>();
    let cubins = |numbers: &str| {
        let names: Vec<String> = numbers.split(' ').map(|sm| format!("sm_{sm}.cubin")).collect();
        set(&names.join(" "))
    };
    for (file, expect) in [
        // Its PTX is in the relocatable code, which the driver links at run time.
        (
            "bitsandbytes/libbitsandbytes_cuda118.so",
            &cubins("60 70 75 80 86 89 90") | &set("sm_90.ptx"),
        ),
        (
            "bitsandbytes/libbitsandbytes_cuda128.so",
            &cubins("70 75 80 86 89 90 100 120") | &set("sm_120.ptx"),
        ),
        // Compressed images.
        (
            "bitsandbytes/libbitsandbytes_cuda130.so",
            &cubins("75 80 86 89 90 100 120") | &set("sm_120.ptx"),
        ),
        ("torchvision/_C.so", &cubins("50 60 70 75 80 86 90") | &set("sm_50.ptx")),
        (
            "torchvision.libs/libnvjpeg.02b6d700.so.12",
            &cubins("50 52 60 61 70 75 80 86 89 90") | &set("sm_90.ptx"),
        ),
    ] {
        assert_eq!(images(&report, file), expect, "{file}");
        assert_eq!(by_cuobjdump(file), (expect, true), "{file}");
    }
    // Its cpp_lib.json lists its targets: 6.0+PTX 7.0 7.5 8.0+PTX 9.0a by CUDA 12.1. cuobjdump fails inside the file, so its
    // images are a subset.
    let xformers = images(&report, "xformers/_C.so");
    assert_eq!(xformers, &cubins("60 70 75 80 90a") | &set("sm_60.ptx sm_80.ptx"));
    assert!(by_cuobjdump("xformers/_C.so").0.is_subset(&xformers));
    let files = report["envs"][0]["native_files"].as_array().unwrap();
    let groups = files.iter().flat_map(|file| file["elf"]["gpu_code"].as_array());
    let mut images = groups.flatten().flat_map(|group| group["images"].as_array().unwrap());
    let of_12_1 = |image: &Value| image["kind"] == "ptx" && image["ptx_isa"] == json!([8, 1]);
    assert!(images.any(of_12_1), "PTX of CUDA 12.1 is ISA 8.1");
}

#[test]
fn wheels_match_gpu_capabilities() {
    const PTX_ONLY: &str = "no-kernel-image info";
    let none: &[&str] = &[];
    for (cuda, gpu, expect) in [
        ("12.1", "9.0 NVIDIA H200", none),
        ("12.1", "8.6 NVIDIA A10", none),
        ("12.1", "8.9 NVIDIA GeForce RTX 4090", none),
        // torch itself stops at sm_90; the others have PTX that the driver compiles.
        ("12.1", "12.1 NVIDIA GB10", &["gpu-too-new error", PTX_ONLY]),
        // bitsandbytes has sm_120 here, which sm_121 runs.
        ("12.8", "12.1 NVIDIA GB10", &[PTX_ONLY]),
        // There is no libbitsandbytes_cuda127.so in this wheel.
        ("12.7", "8.6 NVIDIA A10", &["bitsandbytes-library error"]),
    ] {
        let world =
            World::with(&["bitsandbytes", "torchvision", "xformers"]).torch("2.5.1", cuda, &[]);
        assert_eq!(world.findings(gpu), expect, "{cuda} {gpu}");
    }
}

/// torch's extension: opening it is what `import torch` does.
const TORCH: &str = "torch/_C.cpython-312-x86_64-linux-gnu.so";

/// xformers 0.0.28.post3 was built against torch 2.5.1, with the C++ ABI of before 2011.
const OLD: &str = "_ZN3c105ErrorC2ENS_14SourceLocationESs";
const NEW: &str =
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

/// A torch whose libraries export these symbols, and torchvision's libcudart under its soname.
fn with_exports(exports: &[String]) -> World {
    let world = World::with(&["xformers", "torchvision.libs"]).torch("2.5.1", "12.1", &[]);
    let lib = world.site("torch/lib");
    std::fs::create_dir_all(&lib).unwrap();
    let cudart = wheels().join("site/torchvision.libs/libcudart.41118559.so.12");
    std::fs::copy(cudart, lib.join("libcudart.so.12")).unwrap();
    let source = lib.join("exports.s");
    let text: String = exports
        .iter()
        .map(|name| format!(".globl \"{name}\"\n.type \"{name}\",@function\n\"{name}\":\n"))
        .collect();
    std::fs::write(&source, format!(".text\n{text}ret\n")).unwrap();
    let empty = lib.join("empty.s");
    std::fs::write(&empty, "").unwrap();
    let names = ["c10", "torch", "torch_cpu", "torch_python", "c10_cuda", "torch_cuda"];
    let link = |source: &Path, out: &Path, arguments: &[String]| {
        let mut command = Command::new("cc");
        command.args(["-shared", "-nostdlib", "-Wl,--no-as-needed", "-o"]).arg(out).arg(source);
        let done = command.args(arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let mut needs = vec!["-Wl,-rpath,$ORIGIN/lib".to_string()];
    for name in names {
        let out = lib.join(format!("lib{name}.so"));
        let source = if name == "c10" { &source } else { &empty };
        link(source, &out, &[format!("-Wl,-soname,lib{name}.so")]);
        needs.push(out.display().to_string());
    }
    needs.push(lib.join("libcudart.so.12").display().to_string());
    link(&empty, &world.site(TORCH), &needs);
    // A file belongs to a distribution only if RECORD lists it.
    let files = names.map(|name| format!("torch/lib/lib{name}.so,,\n")).concat();
    let record = format!("torch/version.py,,\n{TORCH},,\n{files}torch/lib/libcudart.so.12,,\n");
    world.write("torch-2.5.1.dist-info/RECORD", &record);
    world
}

#[test]
fn symbols_match_only_the_torch_of_their_abi() {
    let file = wheels().join("site/xformers/_C.so");
    let listed = Command::new("nm").args(["-D", "--undefined-only"]).arg(file).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let wanted: Vec<String> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| !name.contains('@'))
        .map(str::to_string)
        .collect();
    assert!(wanted.len() > 150 && wanted.iter().any(|name| name == OLD), "{}", wanted.len());
    let gpu = "8.6 NVIDIA A10";
    let fits = with_exports(&wanted);
    assert_eq!(fits.findings(gpu), [""; 0], "{:#}", fits.doctor(gpu)["findings"]);
    let swapped: Vec<String> = wanted
        .iter()
        .map(|name| if name == OLD { NEW.to_string() } else { name.clone() })
        .collect();
    let world = with_exports(&swapped);
    // xformers/_cpp_lib.py catches the failure and warns that the extensions cannot be loaded: `import xformers` works.
    assert_eq!(world.findings(gpu), ["extension-old-abi warning"]);
    let report = world.doctor(gpu).to_string();
    assert!(report.contains(OLD) && report.contains("c10::Error::Error(c10::SourceLocation, "));
}

#[test]
fn metadata_is_read_without_the_wheel() {
    let report = std::fs::read_to_string(wheels().join("torch.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let torch = &report["install"][0]["metadata"];
    assert_eq!((&torch["name"], &torch["version"]), (&"torch".into(), &"2.11.0".into()));
    let requires: Vec<String> = torch["requires_dist"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap().to_string())
        .collect();
    // PyPI's torch 2.11.0 requires CUDA 13.0.2 and triton 3.6.0, on Linux only.
    assert!(requires.contains(&"triton==3.6.0; platform_system == \"Linux\"".to_string()));
    assert!(
        requires.iter().any(|line| line.starts_with("cuda-toolkit[") && line.contains("==13.0.2"))
    );
    let installed = |triton: &str, setuptools: &str| {
        let world = World::with(&[]).torch("2.11.0", "13.0", &requires);
        for (name, version) in [
            ("filelock", "3.20.0"),
            ("typing_extensions", "4.15.0"),
            ("sympy", "1.14.0"),
            ("networkx", "3.5"),
            ("jinja2", "3.1.6"),
            ("fsspec", "2025.10.0"),
            ("setuptools", setuptools),
            ("triton", triton),
        ] {
            world.dist(name, version);
        }
        let report = world.doctor("9.0 NVIDIA H200");
        let about =
            |it: &&Value| it["rule"] == "dependency-conflict" || it["rule"] == "torch-pairs";
        let findings = report["findings"].as_array().unwrap().iter().filter(about);
        findings.map(Value::to_string).collect::<Vec<_>>()
    };
    assert_eq!(installed("3.6.0", "80.9.0"), [""; 0]);
    let broken = installed("3.5.1", "80.9.0");
    assert!(
        broken.len() == 1 && broken[0].contains("triton") && broken[0].contains("3.6.0"),
        "{broken:?}"
    );
    let broken = installed("3.6.0", "82.0.1");
    assert!(broken.len() == 1 && broken[0].contains("setuptools<82"), "{broken:?}");
    // xformers and torchvision pin one torch version, in two notations.
    let world = World::with(&["xformers", "torchvision"]).torch("2.11.0", "13.0", &[]);
    let report = world.doctor("9.0 NVIDIA H200")["findings"].to_string();
    for words in [
        "torchvision 0.20.1 does not go with torch 2.11.0+cu130",
        "xformers 0.0.28.post3 requires torch==2.5.1, but 2.11.0 is installed",
        "Requires-Dist: torch (==2.5.1)",
    ] {
        assert!(report.contains(words), "no {words} in {report}");
    }
}
