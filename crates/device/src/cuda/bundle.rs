//! Kernels compiled ahead: one file of compressed binaries, found by the key of their source.
//!
//! Binaries of one op differ little, from function to function, macro to macro and one GPU to the next, so they are packed together: in
//! blocks, a third of what they are one by one. A block is unpacked when a kernel of it is first asked for, and kept.

use super::KernelSource;
use lzma_rust2::LzmaReader;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::sync::OnceLock;

/// What a bundle file starts with; two numbers follow, of kernels and of blocks.
const MAGIC: &[u8; 8] = b"flcubin3";
const HEADER: usize = MAGIC.len() + 2 * 4;
/// Bytes of a binary's SHA-256 that stand beside its key.
const SUM: usize = 8;
/// Key, sum, block, offset there and length of one kernel.
const KERNEL: usize = 32 + SUM + 3 * 4;
/// Offset, packed length and length of one block.
const BLOCK: usize = 3 * 4;
/// Most that a block of several kernels holds: about 16 ms to unpack.
const BLOCK_BYTES: usize = 4 << 20;
/// Memory that unpacking may take, whatever a damaged head says.
const UNPACKING_KIB: u32 = 64 << 10;

/// Binaries by source key.
#[derive(Debug)]
pub struct Bundle {
    bytes: &'static [u8],
    /// What was unpacked so far.
    blocks: OnceLock<Vec<OnceLock<Vec<u8>>>>,
}

impl Bundle {
    /// A bundle in memory, as [`Bundle::pack`] made it; one of no bytes has nothing in it.
    pub const fn new(bytes: &'static [u8]) -> Self {
        Self { bytes, blocks: OnceLock::new() }
    }

    /// Packs binaries, each block by `compress`, which gives an LZMA file; the same binaries in any order give the same bytes.
    ///
    /// # Errors
    ///
    /// What `compress` says.
    pub fn pack<E>(
        binaries: Vec<(KernelSource, Vec<u8>)>,
        mut compress: impl FnMut(&[u8]) -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        // Functions of one op have much in common too.
        let op = |source: &KernelSource| {
            source.name().split_once('_').map_or(source.name(), |(op, _)| op)
        };
        let mut binaries: Vec<_> = binaries
            .into_iter()
            .map(|(source, binary)| {
                let generation = source.arch().generation().to_owned();
                let order = (
                    op(&source),
                    (generation, source.label()),
                    source.arch().clone(),
                    source.key(),
                );
                (order, binary)
            })
            .collect();
        binaries.sort();
        binaries.dedup_by(|one, other| one.0.3 == other.0.3);
        let (mut kernels, mut blocks) = (Vec::new(), Vec::<(_, Vec<u8>)>::new());
        for ((group, _, _, key), binary) in &binaries {
            let fits = blocks.last().is_some_and(|(last, block)| {
                *last == group && block.len() + binary.len() <= BLOCK_BYTES
            });
            if !fits {
                blocks.push((group, Vec::new()));
            }
            let nth = blocks.len() - 1;
            let block = &mut blocks[nth].1;
            kernels.push((key, sum(binary), [nth, block.len(), binary.len()]));
            block.extend(binary);
        }
        kernels.sort();
        let mut bytes = MAGIC.to_vec();
        let numbers = |bytes: &mut Vec<u8>, numbers: &[usize]| {
            bytes.extend(numbers.iter().flat_map(|number| (*number as u32).to_le_bytes()));
        };
        numbers(&mut bytes, &[kernels.len(), blocks.len()]);
        for (key, sum, place) in &kernels {
            bytes.extend(*key);
            bytes.extend(sum);
            numbers(&mut bytes, place);
        }
        let mut frames = Vec::new();
        let from = bytes.len() + BLOCK * blocks.len();
        for (_, block) in &blocks {
            let frame = compress(block)?;
            numbers(&mut bytes, &[from + frames.len(), frame.len(), block.len()]);
            frames.extend(frame);
        }
        bytes.extend(frames);
        Ok(bytes)
    }

    /// Number of binaries.
    pub fn len(&self) -> usize {
        self.counts().map_or(0, |[kernels, _]| kernels)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The binary of a source; `None` when it is not in the bundle or its bytes are damaged.
    pub fn find(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
        let index = self.bytes.get(HEADER..)?.get(..KERNEL.checked_mul(self.len())?)?;
        let (kernels, _) = index.as_chunks::<KERNEL>();
        let at = kernels.binary_search_by(|kernel| kernel[..32].cmp(key)).ok()?;
        let kernel = &kernels[at];
        let [block, offset, length] = numbers(&kernel[32 + SUM..])?;
        let binary = self.block(block)?.get(offset..offset.checked_add(length)?)?;
        (sum(binary) == kernel[32..][..SUM]).then(|| binary.to_vec())
    }

    /// A block, unpacked once; an empty one where it is damaged.
    fn block(&self, nth: usize) -> Option<&[u8]> {
        let [kernels, count] = self.counts()?;
        let index = HEADER + KERNEL * kernels;
        // As many as there is room for, whatever a damaged number says.
        let blocks = self.blocks.get_or_init(|| {
            let room = self.bytes.len().saturating_sub(index) / BLOCK;
            (0..count.min(room)).map(|_| OnceLock::new()).collect()
        });
        let block = blocks.get(nth)?.get_or_init(|| {
            let unpacked = || {
                let [offset, packed, length] = numbers(self.bytes.get(index + BLOCK * nth..)?)?;
                let frame = self.bytes.get(offset..offset.checked_add(packed)?)?;
                unpack(frame, length)
            };
            unpacked().unwrap_or_default()
        });
        Some(block)
    }

    /// How many kernels and blocks there are.
    fn counts(&self) -> Option<[usize; 2]> {
        numbers(self.bytes.strip_prefix(MAGIC)?)
    }
}

/// What an LZMA file holds, up to so many bytes; none where it is damaged.
pub fn unpack(file: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = LzmaReader::new_mem_limit(file, UNPACKING_KIB, None).ok()?;
    reader.take(most as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn sum(binary: &[u8]) -> [u8; SUM] {
    let mut sum = [0; SUM];
    sum.copy_from_slice(&Sha256::digest(binary)[..SUM]);
    sum
}

/// The little-endian numbers that `bytes` begin with.
fn numbers<const COUNT: usize>(bytes: &[u8]) -> Option<[usize; COUNT]> {
    let (words, _) = bytes.get(..4 * COUNT)?.as_chunks::<4>();
    let mut numbers = [0; COUNT];
    for (number, word) in numbers.iter_mut().zip(words) {
        *number = u32::from_le_bytes(*word) as usize;
    }
    Some(numbers)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cuda::{ComputeCapability, GpuArch, Part};
    use lzma_rust2::{LzmaOptions, LzmaWriter};
    use std::io::{self, Write};

    type Binaries = Vec<(KernelSource, Vec<u8>)>;

    fn pack(binaries: Binaries) -> Vec<u8> {
        let compress = |block: &[u8]| {
            let options = LzmaOptions::with_preset(0);
            let size = Some(block.len() as u64);
            let mut file = LzmaWriter::new_use_header(Vec::new(), &options, size)?;
            file.write_all(block)?;
            file.finish()
        };
        Bundle::pack::<io::Error>(binaries, compress).unwrap()
    }

    /// A bundle of these.
    pub(in crate::cuda) fn packed(binaries: Binaries) -> Bundle {
        leak(pack(binaries))
    }

    fn leak(bytes: Vec<u8>) -> Bundle {
        Bundle::new(Box::leak(bytes.into_boxed_slice()))
    }

    /// A kernel of `bytes` bytes for compute capability `major`.0, told from others by `number`.
    fn kernel(name: &'static str, major: u32, number: u32, bytes: u32) -> (KernelSource, Vec<u8>) {
        let arch = GpuArch::of(ComputeCapability::new(major, 0));
        let binary = (0..bytes).map(|x| (x.wrapping_mul(number) >> 3) as u8).collect();
        (KernelSource::new(name, &[Part::Text("text")], arch).define("N", number), binary)
    }

    #[test]
    fn what_is_packed_is_found_and_nothing_else() {
        let binaries = vec![
            kernel("f", 8, 7, 1000),
            kernel("f", 8, 1, 0),
            kernel("g", 8, 200, 1000),
            kernel("f", 9, 7, 900),
            // Two of these do not fit a block.
            kernel("f", 8, 3, 2800 << 10),
            kernel("f", 8, 4, 2800 << 10),
        ];
        let bytes = pack(binaries.clone());
        let twice = binaries.iter().rev().chain(&binaries).cloned().collect();
        assert!(bytes == pack(twice), "other bytes for the same binaries in another order");
        let bundle = leak(bytes);
        assert_eq!(bundle.counts(), Some([6, 3]));
        for (source, binary) in &binaries {
            assert!(bundle.find(&source.key()).as_ref() == Some(binary), "{}", source.label());
        }
        assert_eq!(bundle.find(&[8; 32]), None);
        assert!(!bundle.is_empty());
        let empty = Bundle::new(&[]);
        assert_eq!(empty.find(&[7; 32]), None);
        assert!(empty.is_empty());
    }

    #[test]
    fn a_block_is_unpacked_once_and_only_when_it_is_asked_for() {
        let binaries = [kernel("f", 8, 1, 50), kernel("f", 8, 2, 50), kernel("g", 8, 3, 50)];
        let bundle = leak(pack(binaries.to_vec()));
        let unpacked = || match bundle.blocks.get() {
            Some(blocks) => blocks.iter().filter(|block| block.get().is_some()).count(),
            None => 0,
        };
        let counts = binaries.map(|(source, _)| {
            let before = unpacked();
            assert!(bundle.find(&source.key()).is_some());
            (before, unpacked())
        });
        assert_eq!(counts, [(0, 1), (1, 1), (1, 2)]);
    }

    #[test]
    fn a_damaged_bundle_misses_and_never_panics() {
        let (source, binary) = kernel("f", 8, 5, 4000);
        let key = source.key();
        let whole = pack(vec![(source, binary.clone())]);
        for length in 0..whole.len() {
            assert_eq!(leak(whole[..length].to_vec()).find(&key), None, "{length}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let found = leak(damaged).find(&key);
            assert!(found.is_none_or(|found| found == binary), "{at}");
        }
    }
}
