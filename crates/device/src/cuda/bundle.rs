//! Precompiled kernels: one file of compressed binaries, indexed by the key of their source.
//!
//! Binaries of one op differ little between functions, macros and GPUs, so they are packed together in blocks of one op
//! and one family of GPUs, which takes a quarter of the size. A block is unpacked on the first request for one of its
//! kernels and kept: a process unpacks only the blocks of its GPU. Machine code and the rest of the files are
//! compressed separately (`streams`).

mod streams;

use super::KernelSource;
use lzma_rust2::LzmaReader;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::sync::OnceLock;

/// Magic number of a bundle file; the numbers of kernels and of blocks follow.
const MAGIC: &[u8; 8] = b"flcubin4";
const HEADER: usize = MAGIC.len() + 2 * 4;
/// Bytes of a source's key in the index: SHA-256 truncated to 128 bits.
const KEY: usize = 16;
/// Bytes of a binary's SHA-256 next to its key, which detect a damaged file.
const SUM: usize = 4;
/// Key and checksum of one kernel, and two bytes each for its block and its index there.
const KERNEL: usize = KEY + SUM + 2 + 2;
/// Offset of a block's two streams, and the packed and unpacked length of each.
const BLOCK: usize = 5 * 4;
/// Length of a binary, and offset and length of its machine code: a block's first stream starts with their number and
/// them.
const PLACE: usize = 3 * 4;
/// Maximum size of a block with several kernels: takes about 30 ms to unpack.
const BLOCK_BYTES: usize = 8 << 20;
/// Memory limit for unpacking, whatever a damaged header claims.
const UNPACKING_KIB: u32 = 64 << 10;

/// Binaries by source key.
#[derive(Debug)]
pub struct Bundle {
    bytes: &'static [u8],
    /// The blocks unpacked so far.
    blocks: OnceLock<Vec<OnceLock<Option<Block>>>>,
}

/// The content of a stream, which determines how it is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Instructions of 16 bytes.
    Code,
    /// Tables and names of ELF files.
    Rest,
}

/// An unpacked block.
#[derive(Debug)]
struct Block {
    /// The offsets of the kernels, then their files without machine code.
    rest: Vec<u8>,
    /// The machine code of all kernels.
    code: Vec<u8>,
}

/// Kernels that are packed together.
#[derive(Default)]
struct Group {
    places: Vec<[usize; 3]>,
    files: Vec<u8>,
    code: Vec<u8>,
}

impl Group {
    fn len(&self) -> usize {
        self.files.len() + self.code.len()
    }

    fn add(&mut self, binary: &[u8]) {
        let code = streams::code_of(binary);
        self.places.push([binary.len(), code.start, code.len()]);
        self.files.extend(&binary[..code.start]);
        self.files.extend(&binary[code.end..]);
        streams::rearrange(&binary[code], &mut self.code);
    }

    /// Both streams.
    fn streams(self) -> [(Stream, Vec<u8>); 2] {
        let mut rest = Vec::with_capacity(4 + PLACE * self.places.len() + self.files.len());
        write_numbers(&mut rest, &[self.places.len()]);
        self.places.iter().for_each(|place| write_numbers(&mut rest, place));
        rest.extend(self.files);
        [(Stream::Rest, rest), (Stream::Code, self.code)]
    }
}

impl Bundle {
    /// A bundle in memory, as made by [`Bundle::pack`]; an empty slice is an empty bundle.
    pub const fn new(bytes: &'static [u8]) -> Self {
        Self { bytes, blocks: OnceLock::new() }
    }

    /// Packs binaries, each stream with `compress`, which returns an LZMA file; the result does not depend on the order
    /// of the binaries.
    ///
    /// # Errors
    ///
    /// The error of `compress`.
    ///
    /// # Panics
    ///
    /// With 65536 kernels of one op, or as many blocks.
    pub fn pack<E>(
        binaries: Vec<(KernelSource, Vec<u8>)>,
        mut compress: impl FnMut(Stream, &[u8]) -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        // Functions of one op are similar too.
        let op = |source: &KernelSource| {
            source.name().split_once('_').map_or(source.name(), |(op, _)| op)
        };
        let mut binaries: Vec<_> = binaries
            .into_iter()
            .map(|(source, binary)| {
                let order = (
                    (op(&source), source.arch().family()),
                    (source.arch().generation().to_owned(), source.label()),
                    source.arch().clone(),
                    source.key(),
                );
                (order, binary)
            })
            .collect();
        binaries.sort();
        binaries.dedup_by(|one, other| one.0.3 == other.0.3);
        let (mut kernels, mut blocks) = (Vec::new(), Vec::<(_, Group)>::new());
        for ((group, _, _, key), binary) in &binaries {
            let fits = blocks.last().is_some_and(|(last, block)| {
                last == group && block.len() + binary.len() <= BLOCK_BYTES
            });
            if !fits {
                blocks.push((*group, Group::default()));
            }
            let nth = blocks.len() - 1;
            let block = &mut blocks[nth].1;
            kernels.push((key, sum(binary), [nth, block.places.len()]));
            block.add(binary);
        }
        kernels.sort();
        let mut bytes = MAGIC.to_vec();
        write_numbers(&mut bytes, &[kernels.len(), blocks.len()]);
        for (key, sum, place) in &kernels {
            bytes.extend(&key[..KEY]);
            bytes.extend(sum);
            for number in place {
                let number = u16::try_from(*number).expect("more kernels than a bundle can count");
                bytes.extend(number.to_le_bytes());
            }
        }
        let mut frames = Vec::new();
        let from = bytes.len() + BLOCK * blocks.len();
        for (_, block) in blocks {
            write_numbers(&mut bytes, &[from + frames.len()]);
            for (stream, content) in block.streams() {
                let frame = compress(stream, &content)?;
                write_numbers(&mut bytes, &[frame.len(), content.len()]);
                frames.extend(frame);
            }
        }
        bytes.extend(frames);
        Ok(bytes)
    }

    /// Number of binaries.
    pub fn len(&self) -> usize {
        self.counts().map_or(0, |[kernels, _]| kernels)
    }

    /// Whether it has no binaries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The binary of a source; `None` if it is missing or damaged.
    pub fn find(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
        let index = self.bytes.get(HEADER..)?.get(..KERNEL.checked_mul(self.len())?)?;
        let (kernels, _) = index.as_chunks::<KERNEL>();
        let at = kernels.binary_search_by(|kernel| kernel[..KEY].cmp(&key[..KEY])).ok()?;
        let kernel = &kernels[at];
        let place = &kernel[KEY + SUM..];
        let [block, nth] =
            [0, 2].map(|at| usize::from(u16::from_le_bytes([place[at], place[at + 1]])));
        let binary = self.block(block)?.binary(nth)?;
        (sum(&binary) == kernel[KEY..][..SUM]).then_some(binary)
    }

    /// A block, unpacked once; `None` if it is damaged.
    fn block(&self, nth: usize) -> Option<&Block> {
        let [kernels, count] = self.counts()?;
        let index = HEADER + KERNEL * kernels;
        // Limited by the size of the file, whatever a damaged header claims.
        let blocks = self.blocks.get_or_init(|| {
            let room = self.bytes.len().saturating_sub(index) / BLOCK;
            (0..count.min(room)).map(|_| OnceLock::new()).collect()
        });
        let unpacked = || {
            let [offset, packed_rest, rest, packed_code, code] =
                numbers(self.bytes.get(index + BLOCK * nth..)?)?;
            let frames = self.bytes.get(offset..)?;
            let rest = unpack(frames.get(..packed_rest)?, rest)?;
            let frame = frames.get(packed_rest..packed_rest.checked_add(packed_code)?)?;
            let mut code = unpack(frame, code)?;
            streams::restore(&mut code);
            Some(Block { rest, code })
        };
        blocks.get(nth)?.get_or_init(unpacked).as_ref()
    }

    /// Numbers of kernels and blocks.
    fn counts(&self) -> Option<[usize; 2]> {
        numbers(self.bytes.strip_prefix(MAGIC)?)
    }
}

impl Block {
    /// The file of the `nth` kernel, with its machine code.
    fn binary(&self, nth: usize) -> Option<Vec<u8>> {
        let ([count], tables) = (numbers(&self.rest)?, self.rest.get(4..)?);
        let (places, files) = tables.split_at_checked(PLACE.checked_mul(count)?)?;
        let places = places.as_chunks::<PLACE>().0;
        // Both streams have the kernels in the same order.
        let (mut file, mut code) = (files, self.code.as_slice());
        for place in places.get(..nth)? {
            let [length, _, of_code] = numbers(place)?;
            file = file.get(length.checked_sub(of_code)?..)?;
            code = code.get(of_code..)?;
        }
        let [length, at, of_code] = numbers(places.get(nth)?)?;
        let (before, after) = file.get(..length.checked_sub(of_code)?)?.split_at_checked(at)?;
        Some([before, code.get(..of_code)?, after].concat())
    }
}

/// The content of an LZMA file of at most `most` bytes; none if it is damaged.
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

/// Appends little-endian numbers of four bytes.
fn write_numbers(bytes: &mut Vec<u8>, numbers: &[usize]) {
    bytes.extend(numbers.iter().flat_map(|number| (*number as u32).to_le_bytes()));
}

/// The little-endian numbers at the start of `bytes`.
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
    use crate::cuda::{ComputeCapability, GpuArch, SourcePart};
    use lzma_rust2::{LzmaOptions, LzmaWriter};
    use std::io::{self, Write};

    type Binaries = Vec<(KernelSource, Vec<u8>)>;

    fn pack(binaries: Binaries) -> Vec<u8> {
        let compress = |_, block: &[u8]| {
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

    /// A kernel of `bytes` bytes for compute capability `major`.0, distinguished by `number`.
    fn kernel(name: &'static str, major: u32, number: u32, bytes: u32) -> (KernelSource, Vec<u8>) {
        let arch = GpuArch::of(ComputeCapability::new(major, 0));
        let binary = (0..bytes).map(|x| (x.wrapping_mul(number) >> 3) as u8).collect();
        (KernelSource::new(name, &[SourcePart::Text("text")], arch).define("N", number), binary)
    }

    #[test]
    fn only_packed_kernels_are_found() {
        let binaries = vec![
            kernel("f", 8, 7, 1000),
            kernel("f", 8, 1, 0),
            kernel("g", 8, 200, 1000),
            kernel("f", 9, 7, 900),
            // Two of these do not fit into one block.
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
