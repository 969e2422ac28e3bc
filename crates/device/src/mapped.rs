//! Memory-mapped files.
#![allow(unsafe_code)] // The bytes of a mapping change if its file is changed.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A file's bytes, read from the disk on access: weights larger than memory can be read, and several processes share
/// one copy.
///
/// Truncating the file meanwhile kills this process (SIGBUS), as with every program that maps its weights.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<memmap2::Mmap>,
    #[cfg_attr(not(unix), expect(dead_code, reason = "elsewhere bytes are read from the map"))]
    file: File,
}

impl MappedFile {
    /// Maps a whole file.
    ///
    /// # Errors
    /// It cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // An empty file cannot be mapped.
        if file.metadata()?.len() == 0 {
            return Ok(Self { map: None, file });
        }
        // SAFETY: the bytes are only read, and valid for any content; see the type for a file that shrinks.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map: Some(map), file })
    }

    /// Copies bytes from `start`. Copying data once is faster than reading it through the map: no page has to be
    /// mapped, and none stays in this process's memory.
    ///
    /// # Errors
    /// The file is shorter, even if it was truncated meanwhile, or its disk fails.
    pub fn read_at(&self, start: usize, into: &mut [u8]) -> io::Result<()> {
        #[cfg(unix)]
        return std::os::unix::fs::FileExt::read_exact_at(&self.file, into, start as u64);
        #[cfg(not(unix))]
        {
            let bytes = self.get(start..start.saturating_add(into.len()));
            into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
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
    fn maps_a_file_and_an_empty_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        for bytes in [&b""[..], b"abc"] {
            std::fs::write(&path, bytes).unwrap();
            let file = MappedFile::open(&path).unwrap();
            assert_eq!(&*file, bytes);
            for start in 0..=bytes.len() {
                let mut copy = vec![0; bytes.len() - start];
                file.read_at(start, &mut copy).unwrap();
                assert_eq!(copy, bytes[start..]);
                assert!(file.read_at(start + 1, &mut [0; 3]).is_err());
            }
        }
        assert!(MappedFile::open(&folder.path().join("none")).is_err());
    }
}
