use super::{FileMetadata, Source};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// An open folder. Its files are looked up relative to its descriptor (`fstatat`), which is several times faster than by
/// full path.
pub(crate) struct Folder {
    path: PathBuf,
    /// `None` on a recorded machine, whose links are resolved differently, and if the folder does not exist.
    open: Option<OwnedFd>,
}

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Folder {
    pub(crate) fn open(source: &Source, path: PathBuf) -> Self {
        let open = source
            .is_live()
            .then(|| rustix::fs::open(source.absolute(&path).as_ref(), FLAGS, Mode::empty()).ok());
        Self { path, open: open.flatten() }
    }

    /// A folder below this one.
    pub(crate) fn inner(&self, relative: &str) -> Self {
        let open = self.open.as_ref();
        let open = open.and_then(|it| rustix::fs::openat(it, relative, FLAGS, Mode::empty()).ok());
        Self { path: self.path.join(relative), open }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// [`Source::about`] for a path relative to this folder.
    pub(crate) fn about(&self, source: &Source, relative: &str) -> Option<FileMetadata> {
        let Some(folder) = &self.open else { return source.about(self.path.join(relative)) };
        let found = rustix::fs::statat(folder, relative, AtFlags::empty()).ok()?;
        let is_file = rustix::fs::FileType::from_raw_mode(found.st_mode).is_file();
        is_file.then(|| FileMetadata {
            bytes: found.st_size.unsigned_abs(),
            changed: found.st_mtime,
            unwritten: found.st_blocks == 0 && found.st_size > 0,
        })
    }

    /// [`Source::state_of`] for a path relative to this folder.
    pub(crate) fn state_of(&self, source: &Source, relative: &str) -> [u64; 4] {
        let Some(folder) = &self.open else { return source.state_of(&self.path.join(relative)) };
        let Ok(it) = rustix::fs::statat(folder, relative, AtFlags::empty()) else { return [0; 4] };
        [
            it.st_size.unsigned_abs(),
            it.st_ino,
            it.st_mtime.unsigned_abs(),
            // Signed on some systems, and never negative.
            u64::from_ne_bytes(it.st_mtime_nsec.to_ne_bytes()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::Folder;
    use crate::Source;

    #[test]
    fn metadata_by_name_and_by_path_are_equal() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        std::fs::create_dir_all(folder.join("inner")).unwrap();
        std::fs::write(folder.join("x.py"), "abc").unwrap();
        std::os::unix::fs::symlink("x.py", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("gone", folder.join("broken")).unwrap();
        let source = Source::live();
        let opened = Folder::open(&source, folder.clone());
        let (root, inner) = (Folder::open(&source, root.path().to_owned()), "a/inner");
        let below = root.inner("a");
        assert!(opened.open.is_some() && below.open.is_some() && root.inner(inner).open.is_some());
        assert_eq!(below.path(), folder);
        for name in ["x.py", "link", "broken", "inner", "absent"] {
            let tell =
                |about: crate::source::FileMetadata| (about.bytes, about.changed, about.unwritten);
            let by_name = opened.about(&source, name).map(tell);
            assert_eq!(by_name, source.about(folder.join(name)).map(tell), "{name}");
            assert_eq!(by_name.is_some(), matches!(name, "x.py" | "link"), "{name}");
            assert_eq!(below.about(&source, name).map(tell), by_name, "{name}");
            let state = source.state_of(&folder.join(name));
            assert_eq!(opened.state_of(&source, name), state, "{name}");
            assert_eq!(state == [0; 4], matches!(name, "broken" | "absent"), "{name}");
            assert_eq!(root.about(&source, &format!("a/{name}")).map(tell), by_name, "{name}");
        }
        assert!(root.inner("absent").about(&source, "x.py").is_none());
        assert!(Folder::open(&source, folder.join("absent")).about(&source, "x.py").is_none());
    }
}
