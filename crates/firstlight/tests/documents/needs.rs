//! Requirements of blocks, and whether this machine has them.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Programs that a block may need. They are taken from the caller's PATH, because a page runs with the system's PATH only.
const PROGRAMS: [&str; 10] =
    ["curl", "uv", "uvx", "pipx", "openssl", "srun", "mpirun", "torchrun", "docker", "nginx"];

/// The environment variable that enables blocks that take minutes.
pub const SLOW: &str = "FIRSTLIGHT_DOCUMENTS_SLOW";
/// A Python with the package `openai`; `cargo xtask test` sets it.
pub const OPENAI: &str = "FIRSTLIGHT_OPENAI_PYTHON";

/// Why this machine cannot run a block with this need; `None` if it can.
pub fn missing(need: &str) -> Result<Option<String>, String> {
    let unless = |here: bool, why: &str| Ok((!here).then(|| why.to_owned()));
    match need {
        "gpu" => unless(gpu(), "there is no NVIDIA GPU"),
        "no-gpu" => unless(!gpu(), "it shows a machine without a GPU"),
        "root" => unless(root(), "it is not run by root"),
        "network" => unless(network(), "PyPI and Hugging Face cannot be reached"),
        "hosts" => unless(false, "it needs several hosts"),
        "ssh" => unless(false, "it needs another host"),
        "minutes" => unless(std::env::var_os(SLOW).is_some(), "it takes minutes"),
        "openai" => unless(std::env::var_os(OPENAI).is_some(), "there is no Python with openai"),
        program if PROGRAMS.contains(&program) => {
            Ok(found(program).is_none().then(|| format!("`{program}` is not installed")))
        }
        _ => Err(format!("`needs: {need}` is not a need that the test knows")),
    }
}

/// A program's path, from the PATH of the test process.
pub fn found(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|it| it.is_file())
}

fn gpu() -> bool {
    Path::new("/proc/driver/nvidia/version").exists() || Path::new("/dev/dxg").exists()
}

fn root() -> bool {
    // The owner of a process's folder in /proc is its user.
    std::fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0)
}

fn network() -> bool {
    static REACHED: OnceLock<bool> = OnceLock::new();
    let reaches = |host: &str| {
        let mut addresses = (host, 443).to_socket_addrs().into_iter().flatten();
        let wait = Duration::from_secs(2);
        addresses.any(|address| TcpStream::connect_timeout(&address, wait).is_ok())
    };
    *REACHED.get_or_init(|| reaches("pypi.org") && reaches("huggingface.co"))
}
