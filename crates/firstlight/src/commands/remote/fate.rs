//! What becomes of files when a machine is stopped or ended, as far as its mounts tell.
//!
//! A pod that is stopped usually loses the container's own layer and keeps its volume; a machine that is stopped keeps its
//! disk; one that is terminated keeps neither. No file tells what a provider promises, so nothing here does.

use serde::Serialize;

/// What a folder lies on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct FileSystem {
    /// Where it is mounted.
    pub(super) mount: String,
    /// Its type, as the kernel names it; `None` where the machine does not list its mounts.
    pub(super) kind: Option<String>,
}

/// Layers of a container's own, above its image.
const LAYERS: &[&str] = &["overlay", "fuse.fuse-overlayfs", "aufs"];
/// Memory under the name of a file system.
const MEMORY: &[&str] = &["tmpfs", "ramfs"];
/// File systems of another machine.
const ELSEWHERE: &[&str] = &[
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "virtiofs",
    "ceph",
    "lustre",
    "beegfs",
    "gpfs",
    "fuse.juicefs",
    "fuse.glusterfs",
];

impl FileSystem {
    /// The one that is mounted there, by lines as /proc/self/mounts has them; a later one hides an earlier one.
    pub(super) fn at<'a>(mount: &str, lines: impl Iterator<Item = &'a str>) -> Self {
        let fields = |line: &'a str| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        };
        let found = lines.filter_map(fields).filter(|(at, _)| *at == mount).last();
        Self { mount: mount.to_owned(), kind: found.map(|(_, kind)| kind.to_owned()) }
    }

    /// Whether a stop of the machine, and not only its end, loses what lies there.
    pub(super) fn is_lost_by_a_stop(&self) -> bool {
        let kind = self.kind.as_deref();
        kind.is_some_and(|kind| LAYERS.contains(&kind) || MEMORY.contains(&kind))
    }

    /// What that means, in a sentence without an end.
    pub(super) fn words(&self) -> String {
        let mount = &self.mount;
        let Some(kind) = self.kind.as_deref() else {
            return format!(
                "the file system at {mount}: what a stop or a termination keeps is the provider's to say"
            );
        };
        if LAYERS.contains(&kind) {
            return format!(
                "the container's own layer ({kind} at {mount}): lost when the container goes, as with most pods that are \
                 stopped, and with all that are terminated"
            );
        }
        if MEMORY.contains(&kind) {
            return format!(
                "memory ({kind} at {mount}): lost when the machine is stopped or terminated"
            );
        }
        if ELSEWHERE.contains(&kind) {
            return format!(
                "a file system of another machine ({kind} at {mount}): stays when this one is stopped; whether a \
                 termination keeps it is the provider's to say"
            );
        }
        match mount.as_str() {
            "/" => format!(
                "the machine's disk ({kind} at /): a stop usually keeps it, a termination usually does not"
            ),
            _ => format!(
                "a disk of its own ({kind} at {mount}): a stop usually keeps a volume; whether a termination does is the \
                 provider's to say"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r3_11_what_a_stop_loses_is_told_by_the_mounts() {
        let mounts = "overlay / overlay rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nserver:/home /home nfs4 rw 0 0\n\
                      tmpfs /workspace tmpfs rw 0 0\n/dev/nvme0n1 /workspace ext4 rw 0 0";
        let check = |mount: &str, lost: bool, words: &str| {
            let system = FileSystem::at(mount, mounts.lines());
            assert_eq!(system.is_lost_by_a_stop(), lost, "{mount}");
            assert!(system.words().contains(words), "{}", system.words());
        };
        check("/", true, "the container's own layer (overlay at /): lost");
        check("/dev/shm", true, "memory (tmpfs at /dev/shm): lost");
        check("/home", false, "of another machine (nfs4 at /home): stays");
        check("/workspace", false, "a disk of its own (ext4 at /workspace): a stop usually keeps");
        check("/elsewhere", false, "what a stop or a termination keeps is the provider's to say");
        let machine = FileSystem::at("/", "/dev/sda1 / ext4 rw 0 0".lines());
        assert!(!machine.is_lost_by_a_stop());
        assert!(machine.words().contains("a termination usually does not"), "{}", machine.words());
    }
}
