//! `conftest.py`, with the real pytest.

use crate::plans::full;
use crate::tools::{folder_with, output, python_with};
use setup::emit::emit;
use std::process::Command;

const TESTS: &str = "\
import pytest
@pytest.mark.arm64_cuda
def test_arm64_cuda(): pass
@pytest.mark.arm64_mps
def test_arm64_mps(): pass
@pytest.mark.x86_64
def test_x86_64(): pass
@pytest.mark.requires_gpu
def test_gpu(): pass
@pytest.mark.requires_cuda
def test_cuda(): pass
@pytest.mark.requires_mps
def test_mps(): pass
def test_plain(): pass
";

/// A torch that reports the accelerators of an environment variable, and a platform of another name.
const TORCH: &str = "\
import os, platform
class _Backend:
    def __init__(self, name): self.name = name
    def is_available(self): return self.name in os.environ['REACHES']
cuda = _Backend('cuda')
class backends: mps = _Backend('mps')
";

#[test]
fn r1_16_unit_tests_pass_where_there_is_no_gpu_and_no_torch() {
    let conftest = emit(&full(), "conftest.py").unwrap();
    let (_kept, folder) = folder_with(&[("conftest.py", &conftest), ("test_all.py", TESTS)]);
    let mut command = Command::new(python_with("pytest", "pytest>=8"));
    let options = ["-m", "pytest", "-rs", "-v", "--strict-markers", "-p", "no:cacheprovider"];
    let said = output(command.current_dir(&folder).args(options));
    assert!(said.contains("test_plain PASSED"), "{said}");
    for test in ["test_gpu", "test_cuda", "test_mps"] {
        assert!(said.contains(&format!("::{test} SKIPPED")), "{said}");
    }
    assert!(said.contains("needs cuda, torch finds none here"), "{said}");
}

#[test]
fn r1_15_markers_select_and_skip_on_each_machine() {
    let conftest = emit(&full(), "conftest.py").unwrap();
    // The machine's name also comes from a variable, before conftest.py reads it.
    let machine = "import os, platform\nplatform.machine = lambda: os.environ['MACHINE']\n";
    let files = [
        ("conftest.py", conftest.as_str()),
        ("test_all.py", TESTS),
        ("torch.py", TORCH),
        ("sitecustomize.py", machine),
    ];
    let (_kept, folder) = folder_with(&files);
    let python = python_with("pytest", "pytest>=8");
    let passed = |machine: &str, reaches: &str, options: &[&str]| {
        let mut command = Command::new(&python);
        command.current_dir(&folder).args([
            "-m",
            "pytest",
            "-v",
            "--strict-markers",
            "-p",
            "no:cacheprovider",
        ]);
        command
            .args(options)
            .env("MACHINE", machine)
            .env("REACHES", reaches)
            .env("PYTHONPATH", &folder);
        let said = output(&mut command);
        let passed = said.lines().filter(|line| line.contains(" PASSED"));
        passed
            .map(|line| line.split("::test_").nth(1).unwrap().split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(passed("aarch64", "cuda", &[]), ["arm64_cuda", "gpu", "cuda", "plain"]);
    assert_eq!(passed("arm64", "mps", &[]), ["arm64_mps", "gpu", "mps", "plain"]);
    assert_eq!(passed("AMD64", "cuda", &[]), ["x86_64", "gpu", "cuda", "plain"]);
    assert_eq!(passed("x86_64", "", &[]), ["x86_64", "plain"]);
    assert_eq!(passed("riscv64", "", &[]), ["plain"]);
    assert_eq!(passed("x86_64", "cuda", &["-m", "requires_cuda"]), ["cuda"]);
}
