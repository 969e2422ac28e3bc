//! A stand-in driver: a libnvidia-ml.so.1 in C, found through LD_LIBRARY_PATH.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder with the library, built once by the C compiler.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // Test processes run in parallel and share the parent folder.
        let name = format!("fake-driver-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/nvml.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", "-o"])
            .arg(folder.join("libnvidia-ml.so.1"))
            .arg(source)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        std::fs::copy(folder.join("libnvidia-ml.so.1"), folder.join("libcuda.so.1")).unwrap();
        folder
    })
}

/// The built command with the stand-in driver on its library path, and the environment variables `behaviour`.
pub fn with_driver(folder: &Path, arguments: &[&str], behaviour: &[(&str, &str)]) -> Command {
    let mut command = super::command(folder, arguments);
    command.env("LD_LIBRARY_PATH", library());
    command.envs(behaviour.iter().copied());
    command
}

/// The built command on a machine whose only GPU is the stand-in of `verify`'s tests, which runs no kernel.
pub fn with_gpu(folder: &Path, arguments: &[&str], behaviour: &[(&str, &str)]) -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let gpu = BUILT.get_or_init(|| {
        let name = format!("fake-gpu-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        build("cuda.c", &folder.join("libcuda.so.1"));
        folder
    });
    let mut command = super::command(folder, arguments);
    command.env("LD_LIBRARY_PATH", gpu).env("FIRSTLIGHT_NVRTC", gpu.join("libcuda.so.1"));
    command.env("FAKE_CUDA_COMPUTE", "90").env("FAKE_CUDA_LAUNCHES", folder.join("launches"));
    // The stand-in's fake binaries must not get into the cache of other tests.
    command.env("FIRSTLIGHT_CACHE", folder).env_remove("CUDA_VISIBLE_DEVICES");
    command.envs(behaviour.iter().copied());
    command
}

/// Compiles a stand-in of `verify`'s tests into a library.
fn build(source: &str, library: &Path) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../verify/tests/stand_in");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Werror", "-o"])
        .arg(library)
        .arg(Path::new(folder).join(source))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// A stand-in for NCCL in a folder.
pub fn nccl(folder: &Path) -> PathBuf {
    let library = folder.join("libnccl.so.2");
    build("nccl.c", &library);
    library
}

/// The same with a stand-in NVML that lists the GPUs with the UUIDs of the stand-in driver.
pub fn with_gpus(folder: &Path, arguments: &[&str], behaviour: &[(&str, &str)]) -> Command {
    let mut command = with_gpu(folder, arguments, behaviour);
    let gpu = command.get_envs().find(|(name, _)| *name == "LD_LIBRARY_PATH");
    let gpu = gpu.and_then(|(_, value)| value).unwrap().to_str().unwrap().to_owned();
    command.env("LD_LIBRARY_PATH", format!("{gpu}:{}", library().display()));
    command
}

/// A libcuda to preload into programs that have to look like users of a GPU, as is needed in a container.
pub fn libcuda() -> PathBuf {
    library().join("libcuda.so.1")
}
