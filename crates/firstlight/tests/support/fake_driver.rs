//! A driver for tests: a libnvidia-ml.so.1 in C, found by the loader as the real one is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder with the library, built once by the C compiler.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // Test files run side by side and share the folder above.
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

/// The built command with the fake driver on its library path, told how to behave.
pub fn with_driver(folder: &Path, arguments: &[&str], behaviour: &[(&str, &str)]) -> Command {
    let mut command = super::command(folder, arguments);
    command.env("LD_LIBRARY_PATH", library());
    command.envs(behaviour.iter().copied());
    command
}

/// A library to preload into programs that shall look as if they used a GPU, as they must in a container.
pub fn libcuda() -> PathBuf {
    library().join("libcuda.so.1")
}
