//! SHA-256 of files, read in blocks.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Instant;

/// Block size in bytes.
const PIECE: usize = 1 << 20;

/// The SHA-256 of a file, in lower-case hexadecimal.
pub(crate) fn of_file(path: &Path) -> io::Result<String> {
    // Without a deadline there always is a hash.
    Ok(until(File::open(path)?, None)?.map(|(hash, _)| hash).unwrap_or_default())
}

/// The hash and the number of bytes read; `None` if the deadline passes first.
pub(crate) fn until(mut file: File, until: Option<Instant>) -> io::Result<Option<(String, u64)>> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0_u8; PIECE];
    let mut read = 0;
    loop {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(None);
        }
        match file.read(&mut piece)? {
            0 => break,
            count => {
                hasher.update(&piece[..count]);
                read += count as u64;
            }
        }
    }
    let hash = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Some((hash, read)))
}
