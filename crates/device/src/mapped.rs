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

    /// Lets go of the memory in which bytes of the file were kept; what is looked at again is read again. A file that is
    /// walked through once then takes no more memory than the part that is looked at.
    pub fn release(&self, bytes: std::ops::Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            let len = bytes.end.min(map.len()).saturating_sub(bytes.start);
            // SAFETY: the mapping is of a file and only read, so its pages hold what the file holds, also when read anew.
            // That a page could not be let go is no harm.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, bytes.start, len)
            };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = bytes;
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
            let file = MappedFile::open(&path).unwrap();
            assert_eq!(&*file, bytes);
            file.release(0..usize::MAX);
            assert_eq!(&*file, bytes);
        }
        assert!(MappedFile::open(&folder.path().join("none")).is_err());
    }
}
