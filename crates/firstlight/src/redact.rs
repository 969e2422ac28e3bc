//! Redacts the files of a run.
//!
//! Run folders are shared and published. `firstlight remote` removes the address by which a machine was reached, and
//! `--redact` removes more: names of the host and of users, their home folders, folders with names that a user chose,
//! processes of others, and packages unrelated to kernels. Everything is redacted before it is hashed or written.

use facts::{CompactCollect, CompactSort};
use facts::{DoctorReport, GpuProcess, RunManifest};
use std::collections::BTreeSet;

/// The variable in which `remote` passes the texts to redact, separated by spaces. It is not an argument, because
/// arguments are recorded.
pub(crate) const VARIABLE: &str = "FIRSTLIGHT_REDACT";
/// Placeholders of an address, a host, a home folder, other folders and a user.
const ADDRESS: &str = "[address]";
const HOST: &str = "[host]";
const HOME: &str = "[home]";
const FOLDER: &str = "[folder]";
const USER: &str = "[user]";

/// The texts to redact with their placeholders.
#[derive(Debug, Clone, Default)]
pub(crate) struct Redaction {
    words: Vec<(String, &'static str)>,
    /// Whether `--redact` was given.
    for_sharing: bool,
}

impl Redaction {
    /// The texts in the environment variable.
    pub(crate) fn from_environment() -> Self {
        Self::new(&std::env::var(VARIABLE).unwrap_or_default())
    }

    fn new(words: &str) -> Self {
        let mut redaction = Self::default();
        redaction.add(words.split_whitespace().map(|word| (word.to_owned(), ADDRESS)));
        redaction
    }

    /// Adds the redactions of a shared run: `texts` are its contents, from which home folders are collected.
    pub(crate) fn for_sharing<'t>(
        mut self,
        host: &str,
        texts: impl IntoIterator<Item = &'t str>,
    ) -> Self {
        self.for_sharing = true;
        let mut homes: BTreeSet<String> = texts.into_iter().flat_map(homes).compact_set();
        homes.extend(std::env::var("HOME").ok().filter(|home| home.len() > 1));
        let mut users: BTreeSet<String> =
            homes.iter().filter_map(|home| Some(home.rsplit('/').next()?.to_owned())).compact_set();
        users.extend(["USER", "LOGNAME"].into_iter().filter_map(|name| std::env::var(name).ok()));
        // Every machine has a root, which is part of many words; a one-letter name would match too much.
        users.retain(|user| user.len() > 1 && user != "root");
        if host.len() > 1 {
            // A fully qualified name contains the short one.
            let short = host.split('.').next().unwrap_or(host).to_owned();
            self.add([(host.to_owned(), HOST), (short, HOST)]);
        }
        self.add(homes.into_iter().map(|home| (home, HOME)));
        self.add(users.into_iter().map(|user| (user, USER)));
        self
    }

    fn add(&mut self, words: impl IntoIterator<Item = (String, &'static str)>) {
        self.words.extend(words.into_iter().filter(|(word, _)| !word.is_empty()));
        // `host:port` is replaced before `host`, and a home folder before its user: the longer text first.
        self.words.compact_sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
    }

    /// The redacted text.
    pub(crate) fn of(&self, text: &str) -> String {
        let text = self
            .words
            .iter()
            .fold(text.to_owned(), |text, (word, mark)| without(&text, word, mark));
        if self.for_sharing { without_folders(&text) } else { text }
    }

    /// The machine without identifying data, and the environments with the packages that kernels depend on.
    pub(crate) fn of_doctor(&self, doctor: &DoctorReport) -> DoctorReport {
        let mut doctor = doctor.clone();
        if !self.for_sharing {
            return doctor;
        }
        let machine = &mut doctor.machine;
        for gpu in &mut machine.gpus {
            gpu.uuid = None;
        }
        // It may list GPUs by their UUIDs.
        machine.access.visible_devices = None;
        let evidence = doctor.findings.iter_mut().flat_map(|finding| &mut finding.evidence);
        for seen in evidence.filter(|seen| seen.what.starts_with("CUDA_VISIBLE_DEVICES=")) {
            seen.what = "CUDA_VISIBLE_DEVICES is set".into();
        }
        for process in &mut machine.gpu_processes {
            // Other users' programs are private.
            *process = GpuProcess {
                pid: process.pid,
                uses: process.uses.clone(),
                age_seconds: process.age_seconds.clone(),
                state: process.state.clone(),
                ..GpuProcess::default()
            };
        }
        for env in &mut doctor.envs {
            env.dists.retain(|dist| of_stack(&dist.name));
            env.native_files.retain(|file| file.dist.as_deref().is_none_or(of_stack));
        }
        doctor
    }

    /// The manifest with the redacted host name.
    pub(crate) fn of_manifest(&self, manifest: &RunManifest) -> RunManifest {
        let mut manifest = manifest.clone();
        if self.for_sharing {
            HOST.clone_into(&mut manifest.host);
        }
        manifest
    }
}

/// Whether a package is one that kernels depend on. The others reveal what a user works on.
fn of_stack(name: &str) -> bool {
    const NAMES: [&str; 21] = [
        "accelerate",
        "apex",
        "causal-conv1d",
        "cupy",
        "deepspeed",
        "fla",
        "flash-attn",
        "flash-linear-attention",
        "flashinfer",
        "jax",
        "mamba-ssm",
        "numpy",
        "pip",
        "pytorch-triton",
        "sglang",
        "tilelang",
        "torch",
        "transformers",
        "triton",
        "vllm",
        "xformers",
    ];
    const FAMILIES: [&str; 6] = ["nvidia-", "torch", "cuda-", "triton-", "flash-attn-", "ffpa"];
    let name = name.to_ascii_lowercase().replace(['_', '.'], "-");
    NAMES.contains(&name.as_str()) || FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Home folders in a text.
fn homes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["/home/", "/Users/"] {
        for (at, _) in text.match_indices(folder) {
            let name: String = text[at + folder.len()..]
                .chars()
                .take_while(|letter| letter.is_alphanumeric() || "-_.@".contains(*letter))
                .collect();
            // A path that ends a sentence is followed by a full stop.
            let name = name.trim_end_matches('.');
            if !name.is_empty() {
                found.push(format!("{folder}{name}"));
            }
        }
    }
    if text.contains("/root/") {
        found.push("/root".to_owned());
    }
    found
}

/// First folders of paths that systems define; the names below them are not a user's.
const SYSTEM_FOLDERS: [&str; 19] = [
    "Applications",
    "Library",
    "System",
    "bin",
    "boot",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "nix",
    "proc",
    "run",
    "sbin",
    "snap",
    "sys",
    "usr",
    "var",
];
/// Folders that programs name; the names below them are theirs too. So are those that begin with a dot, as `.venv`.
const PROGRAM_FOLDERS: [&str; 18] = [
    "bin",
    "conda",
    "cuda",
    "envs",
    "firstlight-runs",
    "include",
    "lib",
    "lib64",
    "mambaforge",
    "miniconda3",
    "miniforge3",
    "nvidia",
    "python",
    "share",
    "site-packages",
    "dist-packages",
    "venv",
    "virtualenvs",
];

/// Replaces the folders of absolute paths whose names a user chose: `/data/alice/project/.venv/bin` becomes
/// `[folder]/.venv/bin`.
fn without_folders(text: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || "/-_.@+~".contains(c);
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, path) = rest.split_at(at);
        let home = before.ends_with(HOME);
        // A path begins after a space, a quote or a sign; a relative path, a URL or a tag has other text before its slash.
        let begins = before
            .chars()
            .next_back()
            .is_none_or(|c| c.is_whitespace() || "\"'`=:(,>;|".contains(c))
            && !before.ends_with("base64,");
        let end = path.find(|c: char| !is_part(c)).unwrap_or(path.len());
        // A path that ends a sentence is followed by a full stop.
        let (path, after) = path.split_at(path[..end].trim_end_matches('.').len());
        kept.push_str(before);
        if (begins || home) && !path.starts_with("//") {
            kept.push_str(&without_folder(path, home));
        } else {
            kept.push_str(path);
        }
        rest = after;
    }
    kept + rest
}

/// The same for one path; below a home folder, its name has been replaced before.
fn without_folder(path: &str, home: bool) -> String {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let of_program = |part: &&str| {
        part.starts_with('.') && part.len() > 2
            || PROGRAM_FOLDERS.contains(part)
            || part.starts_with("python3")
            || part.starts_with("cuda-")
    };
    let system = !home && SYSTEM_FOLDERS.contains(&parts[0]);
    // One name after a slash is no folder, as in `/4`.
    if system || (!home && parts.len() < 2) {
        return path.to_owned();
    }
    let named = parts.iter().position(of_program).unwrap_or(parts.len());
    // A file keeps its ending, which says what it is.
    let ending = match parts.last().filter(|_| named == parts.len()) {
        Some(last) => last.rfind('.').map_or("", |at| &last[at..]),
        None => "",
    };
    match parts[..named].concat().is_empty() {
        true => path.to_owned(),
        false => {
            let below: String = parts[named..].iter().map(|part| format!("/{part}")).collect();
            format!("{}{FOLDER}{below}{ending}", if home { "/" } else { "" })
        }
    }
}

/// Replaces each `word` that is not part of a longer one.
fn without(text: &str, word: &str, mark: &str) -> String {
    let inner = |character: char| character.is_alphanumeric();
    let mut kept = String::with_capacity(text.len());
    let mut from = 0;
    for (at, found) in text.match_indices(word) {
        let end = at + found.len();
        // An existing placeholder stays, even if a user is named `user`.
        let marked = text[..at].ends_with('[') && text[end..].starts_with(']');
        let parted = !marked && !text[..at].ends_with(inner) && !text[end..].starts_with(inner);
        kept.push_str(&text[from..at]);
        kept.push_str(if parted { mark } else { found });
        from = end;
    }
    kept + &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r4_21_an_address_is_taken_out_and_nothing_that_looks_like_a_part_of_it() {
        let redaction = Redaction::new("203.0.113.7 203.0.113.7:22014");
        let check = |text: &str, expect: &str| assert_eq!(redaction.of(text), expect);
        check(
            "serve --to 203.0.113.7:22014 --from 203.0.113.7",
            "serve --to [address] --from [address]",
        );
        check("\"root@203.0.113.7\"", "\"root@[address]\"");
        check("203.0.113.77 and 1203.0.113.7", "203.0.113.77 and 1203.0.113.7");
        check("203.0.113.8", "203.0.113.8");
        assert_eq!(Redaction::new("").of("203.0.113.7"), "203.0.113.7");
    }

    #[test]
    fn host_user_and_home_names_are_redacted_as_whole_words() {
        // Assembled here, so that no file of this project contains a home folder.
        let (mac, root) = (format!("/{}/Grace.H", "Users"), format!("/{}/", "root"));
        let text = format!("a venv in /home/user/code/.venv and {mac}., {root}.cache");
        let redaction = Redaction::default().for_sharing("gpu7.lab.example", [text.as_str()]);
        let check = |text: &str, expect: &str| assert_eq!(redaction.of(text), expect);
        check("/home/user/code/.venv/bin", "[home]/[folder]/.venv/bin");
        check("/home/user/.cache/uv", "[home]/.cache/uv");
        check("user@gpu7.lab.example, gpu7", "[user]@[host], [host]");
        check(&format!("{mac}/x of Grace.H"), "[home]/[folder] of [user]");
        check(&format!("cp {root}.cache"), "cp [home]/.cache");
        for (text, expect) in [
            (
                "\"/data/alice/project/.venv/lib/python3.12/x.so\"",
                "\"[folder]/.venv/lib/python3.12/x.so\"",
            ),
            ("--venv=/scratch/acme/env", "--venv=[folder]"),
            ("wrote /mnt/acme/model.gguf.", "wrote [folder].gguf."),
            ("/opt/conda/lib/python3.12", "[folder]/conda/lib/python3.12"),
        ] {
            check(text, expect);
            check(expect, expect);
        }
        for same in [
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1, /proc/driver/nvidia/version",
            "https://pypi.org/simple/torch/ and //cdn/x/y",
            "8 GB/s, 1/2, and/or/not, crates/ops/src, a / b",
            "<td>1</td></tr>",
            "src=\"data:font/woff2;base64,/9j/4AAQ/x\"",
            "/dev/nvidia0 [home]/.venv [folder]/.venv",
        ] {
            check(same, same);
        }
        check("superuser, gpu77, the root of a tree", "superuser, gpu77, the root of a tree");
        for (name, stays) in [
            ("torch", true),
            ("torchvision", true),
            ("nvidia-cublas-cu12", true),
            ("flash_attn", true),
            ("secret-project", false),
            ("requests", false),
        ] {
            assert_eq!(of_stack(name), stays, "{name}");
        }
    }
}
