//! A per-user cache of kernels compiled on this machine.
//!
//! Any number of processes may use it concurrently: an entry appears atomically by a rename, and a damaged entry (a
//! full disk, a broken file system) counts as missing.

use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Magic number of an entry; the SHA-256 of the binary follows, then the binary.
const MAGIC: &[u8; 8] = b"flcache1";
const HEADER: usize = MAGIC.len() + 32;

/// The folder of compiled kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The user's cache; `None` if the environment has no cache folder.
    pub fn of_user() -> Option<Self> {
        Self::place(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// `FIRSTLIGHT_CACHE`, or the platform's cache folder.
    fn place(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let folder = variable("FIRSTLIGHT_CACHE").map(PathBuf::from).or_else(|| {
            let base = variable("XDG_CACHE_HOME").map(PathBuf::from);
            let base = base.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
            let base = base.or_else(|| variable("LOCALAPPDATA").map(PathBuf::from));
            base.map(|base| base.join("firstlight"))
        })?;
        Some(Self::at(folder.join("kernels")))
    }

    /// A cache in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The file of a key.
    pub fn file(&self, key: &[u8; 32]) -> PathBuf {
        let mut name = String::with_capacity(70);
        for byte in key {
            // Writing to a String cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        self.folder.join(name + ".cubin")
    }

    /// The binary of a key; `None` if it is missing or damaged.
    pub fn find(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.file(key)).ok()?;
        let sum = bytes.strip_prefix(MAGIC)?.get(..32)?;
        let sum = <[u8; 32]>::try_from(sum).ok()?;
        let binary = bytes.split_off(HEADER);
        (<[u8; 32]>::from(Sha256::digest(&binary)) == sum).then_some(binary)
    }

    /// Stores a binary.
    ///
    /// # Errors
    /// The folder cannot be written; the binary is usable anyway.
    pub fn keep(&self, key: &[u8; 32], binary: &[u8]) -> io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.folder)?;
        let file = self.file(key);
        // A unique file for this call, so that no other writer touches it before the rename. Process and call numbers
        // are not unique, because processes of several containers may share the folder and their numbers.
        let (partial, opened) = loop {
            let nth = NEXT.fetch_add(1, Ordering::Relaxed);
            let partial = file.with_extension(format!("{}-{nth}.partial", std::process::id()));
            match fs::File::create_new(&partial) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => break (partial, opened?),
            }
        };
        let written = Self::write(opened, binary).and_then(|()| fs::rename(&partial, &file));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written
    }

    fn write(mut file: fs::File, binary: &[u8]) -> io::Result<()> {
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(binary))?;
        file.write_all(binary)?;
        // Otherwise a crash of the machine could leave a renamed file without its content.
        file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_follows_the_environment() {
        let check = |set: &[(&str, &str)], expect: Option<&str>| {
            let found = Cache::place(|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            });
            assert_eq!(found, expect.map(Cache::at), "{set:?}");
        };
        check(&[("FIRSTLIGHT_CACHE", "/c"), ("HOME", "/h")], Some("/c/kernels"));
        check(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/x/firstlight/kernels"));
        check(&[("HOME", "/h")], Some("/h/.cache/firstlight/kernels"));
        check(&[], None);
    }

    #[test]
    fn a_damaged_entry_is_absent_and_can_be_kept_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("deep/er"));
        let (key, binary) = ([9; 32], b"\x7fELF and more".to_vec());
        assert_eq!(cache.find(&key), None);
        cache.keep(&key, &binary).unwrap();
        assert_eq!(cache.find(&key), Some(binary.clone()));
        let whole = fs::read(cache.file(&key)).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..20], b"", b"\x7fELF and more"] {
            fs::write(cache.file(&key), damaged).unwrap();
            assert_eq!(cache.find(&key), None);
        }
        let mut flipped = whole.clone();
        flipped[HEADER + 3] ^= 1;
        fs::write(cache.file(&key), flipped).unwrap();
        assert_eq!(cache.find(&key), None);
        cache.keep(&key, &binary).unwrap();
        assert_eq!(cache.find(&key), Some(binary));
        let left = fs::read_dir(cache.file(&key).parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no partial file remains");
    }

    #[test]
    fn a_partial_file_of_another_container_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let key = [4; 32];
        // Processes of two containers may have the same PID and counter.
        let taken = (0..100).map(|nth| {
            let name = format!("{}-{nth}.partial", std::process::id());
            let partial = cache.file(&key).with_extension(name);
            fs::write(&partial, "half of an entry").unwrap();
            partial
        });
        let taken: Vec<PathBuf> = taken.collect();
        cache.keep(&key, b"binary").unwrap();
        assert_eq!(cache.find(&key), Some(b"binary".to_vec()));
        for partial in taken {
            assert_eq!(fs::read(partial).unwrap(), b"half of an entry");
        }
    }

    #[test]
    fn many_writers_leave_one_whole_entry() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let (key, binary) = ([3; 32], vec![5u8; 1 << 20]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    cache.keep(&key, &binary).unwrap();
                    assert_eq!(cache.find(&key).as_ref(), Some(&binary));
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
