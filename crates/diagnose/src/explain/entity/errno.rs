//! Errors of the operating system, by number and by the sentence that programs print.

use super::{Entity, Form, keyed};
use crate::rules::PastedError;

/// Number, name, the C library's message, meaning, commands.
type Row = (u32, &'static str, &'static str, &'static str, &'static [&'static str]);

const ROWS: [Row; 8] = [
    (
        28,
        "ENOSPC",
        "No space left on device",
        "A file system is full: the disk of the cache or the environment, a small /tmp, or /dev/shm. Models and CUDA wheels take gigabytes; the path in the message, or TMPDIR, tells which it is.",
        &[
            "df -h . /tmp ~/.cache /dev/shm; df -i .",
            "uv cache prune; python -m pip cache purge",
            "hf cache ls  # models; HF_HOME=/big/disk moves them",
            "export TMPDIR=/big/disk/tmp",
        ],
    ),
    (
        122,
        "EDQUOT",
        "Disk quota exceeded",
        "Your share of the file system is used up, often that of the home folder on a cluster. Move caches to another file system.",
        &[
            "quota -s; du -sh ~/.cache ~/.local",
            "export HF_HOME=/scratch/$USER/hf UV_CACHE_DIR=/scratch/$USER/uv PIP_CACHE_DIR=/scratch/$USER/pip",
        ],
    ),
    (
        13,
        "EACCES",
        "Permission denied",
        "The user may not read or write that path: it belongs to root or to another user, or the file system is mounted read-only or noexec. Install into a virtual environment of your own, not with sudo.",
        &["ls -ld PATH; id", "uv venv && source .venv/bin/activate"],
    ),
    (
        24,
        "EMFILE",
        "Too many open files",
        "The process has as many files open as its limit allows: many data loader workers, file-backed tensors in shared memory, or many connections of a server.",
        &[
            "ulimit -n; ulimit -n 65536",
            "# PyTorch's loaders: torch.multiprocessing.set_sharing_strategy('file_system')",
        ],
    ),
    (
        30,
        "EROFS",
        "Read-only file system",
        "The file system is mounted read-only, as in some containers: caches and compiled kernels need a folder that can be written.",
        &[
            "export HF_HOME=/tmp/hf TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor XDG_CACHE_HOME=/tmp/cache",
        ],
    ),
    (
        98,
        "EADDRINUSE",
        "Address already in use",
        "Another process listens on that port: an earlier run of the same server or of torchrun that has not ended, or another user's.",
        &[
            "ss -ltnp | grep :PORT",
            "# another port: --port 8001 (servers), --master-port 29501 (torchrun)",
        ],
    ),
    (
        26,
        "ETXTBSY",
        "Text file busy",
        "The file is a program that runs, and cannot be written meanwhile: end it first.",
        &["fuser -v PATH"],
    ),
    (
        116,
        "ESTALE",
        "Stale file handle",
        "The file on a network file system was replaced or removed by another machine: a cache that several nodes share. Give each node a separate cache.",
        &["export TRITON_CACHE_DIR=/tmp/triton-$USER TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$USER"],
    ),
];

/// The meaning of ENOSPC while packages are installed.
const INSTALL_SPACE: &str = "The package manager unpacks into the temporary directory (TMPDIR, else /tmp), which is often a separate small file system, or in memory: it can be full \
     while the disk has room. Otherwise the disk of the environment or of the cache is full.";

const INSTALL_SPACE_FIX: &[&str] = &[
    "df -h /tmp . ~/.cache; df -i /tmp .",
    "mkdir -p ~/tmp && TMPDIR=~/tmp python -m pip install ...  # any folder on a disk with room",
    "python -m pip cache purge; uv cache prune",
];

pub(super) fn forms() -> Vec<Form> {
    let mut all = Vec::new();
    for (number, name, words, ..) in &ROWS {
        all.push(keyed(format!("[Errno {number}] {words}: '{{path}}'"), name, read));
        all.push(keyed(format!("[Errno {number}]"), name, read));
        all.push(keyed(format!("(os error {number})"), name, read));
        // `Permission denied` alone is also a message of ssh and of shells.
        if *name != "EACCES" {
            all.push(keyed(*words, name, read));
        }
    }
    all
}

fn read(seen: &PastedError, key: &'static str) -> Option<Entity> {
    let (number, name, words, meaning, fix) = ROWS.iter().find(|(_, name, ..)| *name == key)?;
    let path = seen.word("path").map_or(String::new(), |path| format!(": {path}"));
    let shm = *name == "ENOSPC"
        && (seen.text.contains("/dev/shm") || seen.text.contains("shared memory"));
    let install = *name == "ENOSPC"
        && !shm
        && ["Could not install packages", "Collecting "].iter().any(|it| seen.text.contains(it));
    let (meaning, fix): (&str, Vec<String>) = match (shm, install) {
        (true, _) => (*meaning, crate::host::enlarge_shared_memory(seen.machine())),
        (_, true) => {
            (INSTALL_SPACE, INSTALL_SPACE_FIX.iter().map(|line| (*line).to_owned()).collect())
        }
        _ => (*meaning, fix.iter().map(|line| (*line).to_owned()).collect()),
    };
    Some(
        Entity::new("errno", format!("{name} ({number}): {words}{path}"))
            .meaning(meaning)
            .fix(fix)
            .rank(2),
    )
}
