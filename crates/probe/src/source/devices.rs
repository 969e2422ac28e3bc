use super::Source;
use facts::CompactSort;
use std::os::unix::fs::MetadataExt as _;

/// A device file's mode and owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl Source {
    /// An environment variable that may be empty, which [`Source::var`] treats as not set.
    pub(crate) fn set_var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str)
    }

    /// The device files `/dev/nvidia*`, sorted. A recording has them in its file `dev`, one per line: `/dev/nvidia0 666
    /// 0 0`, because repositories do not store device files, owners and modes.
    pub(crate) fn gpu_nodes(&self) -> Vec<Node> {
        let mut nodes = match &self.recording {
            Some(folder) => {
                let text = std::fs::read_to_string(folder.join("dev")).unwrap_or_default();
                text.lines().filter_map(recorded).collect()
            }
            None => live(),
        };
        nodes.compact_sort_by(|a, b| a.path.cmp(&b.path));
        nodes
    }
}

fn live() -> Vec<Node> {
    let Ok(entries) = std::fs::read_dir("/dev") else { return Vec::new() };
    let node = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        let metadata = entry.metadata().ok()?;
        // Capability folders and their files have other rules.
        let counts = name.starts_with("nvidia") && !metadata.is_dir();
        counts.then(|| Node {
            path: format!("/dev/{name}"),
            mode: metadata.mode(),
            user: metadata.uid(),
            group: metadata.gid(),
        })
    };
    entries.filter_map(node).collect()
}

fn recorded(line: &str) -> Option<Node> {
    let mut words = line.split_whitespace();
    Some(Node {
        path: words.next()?.to_owned(),
        mode: u32::from_str_radix(words.next()?, 8).ok()?,
        user: words.next()?.parse().ok()?,
        group: words.next()?.parse().ok()?,
    })
}
