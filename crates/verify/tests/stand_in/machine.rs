//! A machine with stand-ins for the NVIDIA driver (`cuda.c`) and for NCCL (`nccl.c`).

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// Set in a process that uses the stand-in.
const COMPUTE: &str = "FAKE_CUDA_COMPUTE";

/// Runs `work` with the stand-in as the driver, once for each kind of GPU, and returns the names of the kernels that
/// were launched, and what was compiled. The loader reads its path when a process starts, so the test `name` is run
/// again in a child process, which does the work and returns `None`. NVRTC is a stand-in too; tests whose names end
/// with `without_a_compiler` have none, unless it is among the machine's own libraries. Allocations above 16 MiB have no
/// memory, but for tests whose names end with `in_real_memory`.
pub(crate) fn launched(name: &str, work: fn()) -> Option<BTreeSet<String>> {
    if std::env::var_os(COMPUTE).is_some() {
        work();
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (library, launches) = (folder.path().join("libcuda.so.1"), folder.path().join("launches"));
    build("cuda.c", &library);
    build("nccl.c", &folder.path().join("libnccl.so.2"));
    let compiles = !name.ends_with("without_a_compiler");
    let nvrtc = if compiles { library.clone() } else { folder.path().join("none") };
    let start = |compute| {
        let mut tested = Command::new(std::env::current_exe().unwrap());
        if !compiles {
            let places = ["VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "PATH", "HOME"];
            for place in places {
                tested.env_remove(place);
            }
        }
        let tested = tested
            .args(["--exact", name, "--nocapture"])
            .env(COMPUTE, compute)
            .env("FAKE_CUDA_LAUNCHES", &launches)
            .env("FAKE_CUDA_ARGUMENTS", folder.path().join(format!("arguments-{compute}")))
            .env("FAKE_CUDA_COPIES", folder.path().join(format!("copies-{compute}")))
            .env("FAKE_CUDA_PAUSE", "100")
            .envs(name.ends_with("in_real_memory").then_some(("FAKE_CUDA_MOST_REAL", "134217728")))
            .env("FAKE_CUDA_GPUS", "2")
            .env("FIRSTLIGHT_NVRTC", &nvrtc)
            .env("FIRSTLIGHT_NCCL", folder.path())
            .env("FAKE_NCCL_CALLS", folder.path().join(format!("sums-{compute}")))
            // One of the two kinds supports memory shared between processes.
            .envs((compute == "90").then_some(("FAKE_CUDA_SHARED", "1")))
            .env("LD_LIBRARY_PATH", folder.path())
            // Tokens that no kernel chooses are the first of the vocabulary.
            .env("FAKE_CUDA_FILLS", "1")
            // Fake binaries must not stay in the user's cache.
            .env("FIRSTLIGHT_CACHE", folder.path().join(compute))
            .stderr(Stdio::piped())
            .spawn();
        (compute, tested.unwrap())
    };
    for (compute, tested) in ["90", "80"].map(start) {
        let tested = tested.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&tested.stderr);
        assert!(tested.status.success(), "compute capability {compute}: {said}");
    }
    // There is no file if nothing was launched.
    let launched = std::fs::read_to_string(launches).unwrap_or_default();
    Some(launched.lines().map(str::to_owned).collect())
}

fn build(source: &str, library: &Path) {
    // Tests of several crates include this file.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verify/tests/stand_in");
    let source = folder.join(source);
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Werror", "-o"])
        .arg(library)
        .arg(source)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}
