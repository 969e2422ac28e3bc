//! Reads the other machine's facts and files in one call that changes nothing.

use super::file_system::FileSystem;
use super::ssh::Ssh;
use crate::failure::Failure;

const SCRIPT: &str = include_str!("survey.sh");

/// A file there with its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hashed {
    /// SHA-256 in lower-case hexadecimal.
    pub(super) sha256: String,
    /// Relative to the working folder there.
    pub(super) path: String,
}

/// The machine and the working folder there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RemoteMachine {
    /// In Rust's terms: `linux`, `macos`.
    pub(super) system: String,
    /// In Rust's terms: `x86_64`, `aarch64`.
    pub(super) processor: String,
    /// The machine's host name.
    pub(super) name: String,
    /// The folder, absolute.
    pub(super) folder: String,
    /// Free bytes of its file system.
    pub(super) free_bytes: u64,
    /// Its file system.
    pub(super) file_system: FileSystem,
    /// The requested files that exist.
    pub(super) files: Vec<Hashed>,
    /// Names of the folder's entries.
    pub(super) entries: Vec<String>,
    /// The `run.json` of each run folder.
    pub(super) runs: Vec<Hashed>,
}

impl RemoteMachine {
    /// Queries the machine; `files` are those whose hashes are needed.
    pub(super) fn ask(ssh: &Ssh, folder: &str, files: &[&str]) -> anyhow::Result<Self> {
        let answer = ssh.ask(SCRIPT, &[&[folder], files].concat())?;
        Self::parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| {
            Failure::hinted("its answer was truncated", "try again, perhaps with a larger --wait")
        })
    }

    /// `None` if lines are missing.
    fn parse(text: &str) -> Option<Self> {
        let lines: Vec<(&str, &str)> =
            text.lines().filter_map(|line| line.split_once('\t')).collect();
        let all =
            |kind: &'static str| lines.iter().filter(move |line| line.0 == kind).map(|line| line.1);
        let one = |kind| all(kind).next();
        one("end")?;
        let hashed = |line: &str| {
            let (sha256, path) = line.split_once(' ')?;
            Some(Hashed { sha256: sha256.to_owned(), path: path.to_owned() })
        };
        // Device, blocks of 1024 bytes, used, free, percent, mount point.
        let disk: Vec<&str> = one("df")?.split_whitespace().collect();
        let mount = disk.get(5..)?.join(" ");
        Some(Self {
            system: match one("system")? {
                "Darwin" => "macos".to_owned(),
                system => system.to_ascii_lowercase(),
            },
            processor: match one("processor")? {
                "amd64" => "x86_64".to_owned(),
                "arm64" => "aarch64".to_owned(),
                processor => processor.to_owned(),
            },
            name: one("name")?.to_owned(),
            folder: one("folder")?.to_owned(),
            free_bytes: disk.get(3)?.parse::<u64>().ok()?.saturating_mul(1024),
            file_system: FileSystem::at(&mount, all("mount")),
            files: all("file").filter_map(hashed).collect(),
            entries: all("entry").map(str::to_owned).collect(),
            runs: all("run").filter_map(hashed).collect(),
        })
    }

    /// The hash of a requested file there.
    pub(super) fn hash_of(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.sha256.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of a pod with a volume.
    const POD: &str = "system\tLinux\nprocessor\tx86_64\nname\t5f0c2a\nfolder\t/workspace/firstlight\n\
        df\t/dev/nvme0n1 104857600 4194304 100663296 5% /workspace\n\
        mount\toverlay / overlay rw,relatime 0 0\nmount\ttmpfs /dev/shm tmpfs rw 0 0\n\
        mount\t/dev/nvme0n1 /workspace ext4 rw,relatime 0 0\nfile\tab12 bin/ab/firstlight\nentry\tbin\nentry\t.venv\n\
        run\tcd34 firstlight-runs/20261121T200000Z-5f0c2a/run.json\nend\t-\n";

    #[test]
    fn survey_reads_machine_facts_and_files() {
        let survey = RemoteMachine::parse(POD).unwrap();
        assert_eq!((survey.system.as_str(), survey.processor.as_str()), ("linux", "x86_64"));
        assert_eq!(
            (survey.folder.as_str(), survey.free_bytes),
            ("/workspace/firstlight", 96 << 30)
        );
        assert_eq!(survey.file_system.mount, "/workspace");
        assert_eq!(survey.hash_of("bin/ab/firstlight"), Some("ab12"));
        assert_eq!(survey.hash_of("plan.toml"), None);
        assert_eq!(survey.entries, ["bin", ".venv"]);
        assert_eq!(survey.runs[0].path, "firstlight-runs/20261121T200000Z-5f0c2a/run.json");
        let mac = POD.replace("Linux", "Darwin").replace("x86_64", "arm64");
        let mac = RemoteMachine::parse(&mac).unwrap();
        assert_eq!((mac.system.as_str(), mac.processor.as_str()), ("macos", "aarch64"));
    }

    #[test]
    fn truncated_answer_is_none() {
        for end in 0..POD.len() - "end\t-\n".len() {
            assert_eq!(RemoteMachine::parse(&POD[..end]), None, "{end}");
        }
    }
}
