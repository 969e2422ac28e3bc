//! Files as memory.
#![allow(unsafe_code)] // A mapping is only as constant as the file behind it.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A file's bytes, read from the disk where they are looked at and not before: weights larger than memory can be walked
/// through, and those of several processes are there once.
///
/// Whoever truncates the file meanwhile ends this process (SIGBUS), as with every program that maps its weights.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<memmap2::Mmap>,
}

impl MappedFile {
    /// Maps a whole file.
    ///
    /// # Errors
    /// When it cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // Nothing of no length can be mapped.
        if file.metadata()?.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the bytes are only read, and plain data whatever they are; see the type for a file that shrinks.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map: Some(map) })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_its_bytes_and_an_empty_one_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        for bytes in [&b""[..], b"abc"] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(&*MappedFile::open(&path).unwrap(), bytes);
        }
        assert!(MappedFile::open(&folder.path().join("none")).is_err());
    }
}
