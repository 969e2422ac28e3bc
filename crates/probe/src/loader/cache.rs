//! /etc/ld.so.cache, glibc's list of the libraries in the configured folders (sysdeps/generic/dl-cache.h).

/// One library of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheEntry {
    pub(crate) path: String,
}

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const NEW_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";

/// Entries of the 64-bit architectures, in the cache's order; empty for an invalid file.
pub(crate) fn parse_cache(bytes: &[u8]) -> Vec<CacheEntry> {
    // Header: magic (20), count (4), length of the strings (4), flags (4), extension offset (4), unused (12).
    const HEADER: usize = 48;
    // Entry: flags (4), name offset (4), path offset (4), OS version (4), hardware capabilities (8).
    const ENTRY: usize = 24;
    // Type ELF of libc 6 (3), with the architecture in the second byte: x86-64 is 3, AArch64 is 10.
    const ARCHITECTURES: [u32; 2] = [0x0303, 0x0a03];

    let Some(cache) = new_format(bytes) else { return Vec::new() };
    let Some(count) = word(cache, 20) else { return Vec::new() };
    (0..count as usize)
        .map_while(|index| cache.get(HEADER + index.checked_mul(ENTRY)?..))
        .take_while(|entry| entry.len() >= ENTRY)
        .filter(|entry| word(entry, 0).is_some_and(|flags| ARCHITECTURES.contains(&flags)))
        .filter_map(|entry| string(cache, word(entry, 8)? as usize))
        .map(|path| CacheEntry { path })
        .collect()
}

/// The cache in the current format, which older glibc writes after one in the old format.
fn new_format(bytes: &[u8]) -> Option<&[u8]> {
    if bytes.starts_with(NEW_MAGIC) {
        return Some(bytes);
    }
    // Old header: magic (11) padded to 12, count (4); entries of 12 bytes; the new header is aligned to 8.
    bytes.strip_prefix(OLD_MAGIC)?;
    let end = (word(bytes, 12)? as usize).checked_mul(12)?.checked_add(16)?;
    bytes.get(end.checked_next_multiple_of(8)?..).filter(|rest| rest.starts_with(NEW_MAGIC))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    // The byte order is the machine's; supported platforms are little-endian.
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn string(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&rest[..end]).ok()?;
    text.starts_with('/').then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::{OLD_MAGIC, parse_cache};

    /// Written by ldconfig 2.36 over three libraries, one of them 32-bit.
    const RECORDED: &[u8] = include_bytes!("../../fixtures/ld.so.cache");

    fn check(bytes: &[u8], expect: &[&str]) {
        let paths: Vec<String> = parse_cache(bytes).into_iter().map(|entry| entry.path).collect();
        assert_eq!(paths, expect);
    }

    #[test]
    fn sixty_four_bit_libraries_in_order() {
        const EXPECT: &[&str] =
            &["/opt/cuda/lib64/libnvrtc.so.12", "/opt/cuda/lib64/libcublasLt.so.12"];
        check(RECORDED, EXPECT);
        // The same after an old-format cache without entries.
        let mut both = OLD_MAGIC.to_vec();
        both.resize(16, 0);
        both.extend_from_slice(RECORDED);
        check(&both, EXPECT);
    }

    #[test]
    fn other_texts_are_empty() {
        check(b"", &[]);
        check(b"glibc-ld.so.cache1.1", &[]);
        check(&RECORDED[..60], &[]);
        check(b"\x7fELF and so on", &[]);
    }
}
