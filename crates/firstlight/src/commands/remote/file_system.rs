//! The files that a stop or a termination of a machine deletes, as far as its mounts show it.
//!
//! A stopped pod usually loses the container's layer and keeps its volume; a stopped machine keeps its disk; a
//! terminated one keeps neither. The provider's rules are unknown: no file documents them.

use serde::Serialize;

/// The file system of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct FileSystem {
    /// Its mount point.
    pub(super) mount: String,
    /// Its type in the kernel's terms; `None` if the machine does not list its mounts.
    pub(super) kind: Option<String>,
}

/// Writable layers of a container, above its image.
const LAYERS: &[&str] = &["overlay", "fuse.fuse-overlayfs", "aufs"];
/// File systems in memory.
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
    /// The file system at a mount point, from lines of /proc/self/mounts; a later one hides an earlier one.
    pub(super) fn at<'a>(mount: &str, lines: impl Iterator<Item = &'a str>) -> Self {
        let fields = |line: &'a str| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        };
        let found = lines.filter_map(fields).filter(|(at, _)| *at == mount).last();
        Self { mount: mount.to_owned(), kind: found.map(|(_, kind)| kind.to_owned()) }
    }

    /// Whether a stop of the machine loses it, and not only a termination.
    pub(super) fn is_lost_on_stop(&self) -> bool {
        let kind = self.kind.as_deref();
        kind.is_some_and(|kind| LAYERS.contains(&kind) || MEMORY.contains(&kind))
    }

    /// The consequence, as a clause.
    pub(super) fn words(&self) -> String {
        let mount = &self.mount;
        let Some(kind) = self.kind.as_deref() else {
            return format!(
                "the file system at {mount}: the provider documents what a stop or a termination keeps"
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
                "a file system of another machine ({kind} at {mount}): stays when this one is stopped; the provider documents whether a termination keeps it"
            );
        }
        match mount.as_str() {
            "/" => format!(
                "the machine's disk ({kind} at /): a stop usually keeps it, a termination usually does not"
            ),
            _ => format!(
                "a separate disk ({kind} at {mount}): a stop usually keeps a volume; the provider documents whether a termination does"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r3_11_mounts_determine_the_files_lost_by_a_stop() {
        let mounts = "overlay / overlay rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nserver:/home /home nfs4 rw 0 0\n\
                      tmpfs /workspace tmpfs rw 0 0\n/dev/nvme0n1 /workspace ext4 rw 0 0";
        let check = |mount: &str, lost: bool, words: &str| {
            let system = FileSystem::at(mount, mounts.lines());
            assert_eq!(system.is_lost_on_stop(), lost, "{mount}");
            assert!(system.words().contains(words), "{}", system.words());
        };
        check("/", true, "the container's own layer (overlay at /): lost");
        check("/dev/shm", true, "memory (tmpfs at /dev/shm): lost");
        check("/home", false, "of another machine (nfs4 at /home): stays");
        check("/workspace", false, "a separate disk (ext4 at /workspace): a stop usually keeps");
        check("/elsewhere", false, "the provider documents what a stop or a termination keeps");
        let machine = FileSystem::at("/", "/dev/sda1 / ext4 rw 0 0".lines());
        assert!(!machine.is_lost_on_stop());
        assert!(machine.words().contains("a termination usually does not"), "{}", machine.words());
    }
}
