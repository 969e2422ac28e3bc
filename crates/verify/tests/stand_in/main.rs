//! Every CUDA variant plans and launches every case on a stand-in for the driver, which computes nothing and refuses what a
//! GPU would refuse. A launcher that gives a kernel other parameters than it takes fails here, on a machine without a GPU.
#![cfg(target_os = "linux")] // The stand-in is found by the loader's path and built by the C compiler.
#![allow(clippy::unwrap_used)] // Helpers of tests may panic like tests.

use facts::BackendKind;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use verify::{Tier, cases};

/// Set in the process that has the stand-in.
const COMPUTE: &str = "FAKE_CUDA_COMPUTE";

/// The loader reads its path when a process starts: the test runs itself again, once for each kind of GPU.
#[test]
fn kernels_are_given_what_they_take() {
    if std::env::var_os(COMPUTE).is_some() {
        return launch_everything();
    }
    let folder = tempfile::tempdir().unwrap();
    let (library, launches) = (folder.path().join("libcuda.so.1"), folder.path().join("launches"));
    build(&library);
    let start = |compute| {
        let tested = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kernels_are_given_what_they_take", "--nocapture"])
            .env(COMPUTE, compute)
            .env("FAKE_CUDA_LAUNCHES", &launches)
            .env("FIRSTLIGHT_NVRTC", &library)
            .env("LD_LIBRARY_PATH", folder.path())
            // Binaries of text must not stay in the user's cache.
            .env("FIRSTLIGHT_CACHE", folder.path())
            .stderr(Stdio::piped())
            .spawn();
        (compute, tested.unwrap())
    };
    for (compute, tested) in ["90", "80"].map(start) {
        let tested = tested.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&tested.stderr);
        assert!(tested.status.success(), "compute capability {compute}: {said}");
    }
    let launched = std::fs::read_to_string(launches).unwrap();
    let launched: BTreeSet<&str> = launched.lines().collect();
    let sources = kernels::cuda::bundled();
    let missed: BTreeSet<&str> = sources
        .iter()
        .map(|source| source.name())
        .filter(|name| !launched.contains(name))
        .collect();
    assert!(missed.is_empty(), "no case launches {missed:?}");
}

fn build(library: &Path) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand_in/cuda.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Werror", "-o"])
        .arg(library)
        .arg(source)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

fn launch_everything() {
    let device = device::open(BackendKind::Cuda).unwrap();
    let mut launched = 0;
    for op in kernels::OPS {
        let variants =
            op.variants().into_iter().filter(|(_, backend)| *backend == BackendKind::Cuda);
        let variants: Vec<&str> = variants.map(|(name, _)| name).collect();
        for case in cases(op.spec().name).into_iter().filter(|case| case.tier <= Tier::Standard) {
            let (inputs, settings) = (case.build)();
            let call = op.bind(&inputs, &settings).unwrap();
            for variant in &variants {
                if call.select(&device, Some(variant)).is_err() {
                    continue;
                }
                let ran = call.prepare(&device, variant).and_then(|mut ready| ready.launch());
                assert!(ran.is_ok(), "{variant} of {case:?}: {}", ran.unwrap_err());
                launched += 1;
            }
        }
    }
    assert!(launched > 500, "only {launched} calls were launched");
}
