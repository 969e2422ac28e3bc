//! Kernels compiled ahead: one file of compressed binaries, found by the key of their source.

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// What a bundle file starts with.
const MAGIC: &[u8; 8] = b"flcubin1";
/// Key, offset, packed length and length of one entry.
const ENTRY: usize = 32 + 3 * 4;
/// miniz's strongest level: a bundle is packed once and read often.
const LEVEL: u8 = 10;

/// Binaries by source key.
#[derive(Debug, Clone, Copy)]
pub struct Bundle {
    bytes: &'static [u8],
}

impl Bundle {
    /// A bundle with nothing in it.
    pub const EMPTY: Self = Self { bytes: &[] };

    /// A bundle in memory, as [`Bundle::pack`] made it.
    pub const fn new(bytes: &'static [u8]) -> Self {
        Self { bytes }
    }

    /// Packs binaries; the same binaries in any order give the same bytes.
    pub fn pack(mut binaries: Vec<([u8; 32], Vec<u8>)>) -> Vec<u8> {
        binaries.sort();
        binaries.dedup_by(|one, other| one.0 == other.0);
        let packed: Vec<Vec<u8>> =
            binaries.iter().map(|(_, binary)| compress_to_vec_zlib(binary, LEVEL)).collect();
        let mut bytes = MAGIC.to_vec();
        bytes.extend((binaries.len() as u32).to_le_bytes());
        let mut offset = bytes.len() + ENTRY * binaries.len();
        for ((key, binary), packed) in binaries.iter().zip(&packed) {
            bytes.extend(key);
            for number in [offset, packed.len(), binary.len()] {
                bytes.extend((number as u32).to_le_bytes());
            }
            offset += packed.len();
        }
        bytes.extend(packed.into_iter().flatten());
        bytes
    }

    /// Number of binaries.
    pub fn len(&self) -> usize {
        match self.bytes.strip_prefix(MAGIC) {
            Some(rest) => number(rest, 0).unwrap_or(0),
            None => 0,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The binary of a source; `None` when it is not in the bundle or its bytes are damaged.
    pub fn find(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
        let index = self.bytes.get(MAGIC.len() + 4..)?.get(..ENTRY * self.len())?;
        let entries: Vec<&[u8]> = index.chunks_exact(ENTRY).collect();
        let at = entries.binary_search_by(|entry| entry[..32].cmp(key)).ok()?;
        let field = |nth: usize| number(entries[at], 32 + 4 * nth);
        let (offset, packed, length) = (field(0)?, field(1)?, field(2)?);
        let packed = self.bytes.get(offset..offset.checked_add(packed)?)?;
        // The format's own checksum covers the content.
        let binary = decompress_to_vec_zlib_with_limit(packed, length).ok()?;
        (binary.len() == length).then_some(binary)
    }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(four) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leak(bytes: Vec<u8>) -> Bundle {
        Bundle::new(Box::leak(bytes.into_boxed_slice()))
    }

    #[test]
    fn what_is_packed_is_found_and_nothing_else() {
        let binary = |i: u8| (0..1000u32).map(|x| (x * u32::from(i)) as u8).collect::<Vec<u8>>();
        let binaries: Vec<_> = [7u8, 1, 200].iter().map(|i| ([*i; 32], binary(*i))).collect();
        let bytes = Bundle::pack(binaries.clone());
        let reversed = binaries.iter().rev().cloned().collect();
        assert_eq!(bytes, Bundle::pack(reversed));
        let bundle = leak(bytes.clone());
        assert_eq!(bundle.len(), 3);
        for (key, binary) in &binaries {
            assert_eq!(bundle.find(key).as_ref(), Some(binary));
        }
        assert_eq!(bundle.find(&[8; 32]), None);
        assert_eq!(Bundle::EMPTY.find(&[7; 32]), None);
        assert!(Bundle::EMPTY.is_empty());
    }

    #[test]
    fn a_damaged_bundle_misses_and_never_panics() {
        let binary: Vec<u8> = (0..4000u32).map(|x| ((x * x) >> 3) as u8).collect();
        let whole = Bundle::pack(vec![([7; 32], binary.clone())]);
        for length in 0..whole.len() {
            assert_eq!(leak(whole[..length].to_vec()).find(&[7; 32]), None, "{length}");
        }
        for at in (0..whole.len()).step_by(5) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let found = leak(damaged).find(&[7; 32]);
            assert!(found.is_none_or(|found| found == binary), "{at}");
        }
    }
}
