//! A test of a GPU's free memory: each pattern is written to all of it, then all of it is read back. The kernel's
//! contract is in `memory_test.cu`.
#![allow(unsafe_code)] // Launches.

use super::{BUNDLE, arguments, gpu};
use crate::source;
use device::Device;
use device::cuda::{Buffer, BundledArch, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use facts::{MemoryError, MemoryTest};
use std::time::{Duration, Instant};

const PARTS: &[SourcePart] = &[source!("memory_test.cu")];

/// Errors that are described for each pattern.
const MAX_REPORTED: usize = 16;
/// Errors that are described in total.
const EXAMPLES: usize = 8;
/// Size of an allocation: all free memory need not be contiguous.
const CHUNK_BYTES: u64 = 1 << 30;
/// Memory left for the driver and other programs, bytes.
const SPARE_BYTES: u64 = 256 << 20;
/// Page size of the driver's allocations.
const PAGE_BYTES: u64 = 2 << 20;
/// The name that launches are counted under.
const NAME: &str = "memory.test";

/// A pattern: its name and the value of a word, which the first two combine with the word's address by exclusive or.
/// Only those detect that two addresses access one word, so they are first.
const PATTERNS: [(&str, u64, bool); 6] = [
    ("address in address", 0, true),
    ("inverted address", u64::MAX, true),
    ("0x00", 0, false),
    ("0xff", u64::MAX, false),
    ("0xaa", 0xaaaa_aaaa_aaaa_aaaa, false),
    ("0x55", 0x5555_5555_5555_5555, false),
];

arguments! {
    Test: memory_test {
        words: Pointer, found: Pointer, count: i64, pattern: i64, addressed: i32, check: i32,
    }
}

fn source(arch: GpuArch) -> KernelSource {
    KernelSource::new("memory_test", PARTS, arch).define("MOST", MAX_REPORTED)
}

/// For the bundle.
pub(super) fn bundled() -> Vec<KernelSource> {
    BundledArch::ALL.iter().map(|arch| source(arch.arch())).collect()
}

/// Tests a GPU's free memory until all patterns are done or the time budget is spent; a started pattern completes.
///
/// The result has every error: words that differ from the written value, or why the test ended early.
pub fn test_memory(device: &Device, budget: Duration) -> MemoryTest {
    let began = Instant::now();
    let before = device.launches().of(NAME).count;
    let mut test = MemoryTest {
        left_out: PATTERNS.map(|(name, ..)| name.to_owned()).into(),
        ..MemoryTest::default()
    };
    if let Err(error) = run(device, began, budget, &mut test) {
        test.broke = Some(error.to_string());
    }
    test.seconds = began.elapsed().as_secs_f64();
    test.launches = device.launches().of(NAME).count - before;
    test
}

fn run(
    device: &Device,
    began: Instant,
    budget: Duration,
    test: &mut MemoryTest,
) -> Result<(), DeviceError> {
    let cuda = gpu(device)?;
    let here = cuda.capabilities();
    let stream = cuda.stream();
    let kernel = cuda.kernel(&source(GpuArch::of(here.compute)), &BUNDLE)?;
    let nothing = [0; 8 * (1 + 3 * MAX_REPORTED)];
    let found = stream.upload(&nothing)?;
    test.free_bytes = cuda.free_bytes();
    let chunks = take(test.free_bytes, |bytes| stream.allocate(bytes))?;
    test.bytes = chunks.iter().map(|chunk| chunk.bytes() as u64).sum();
    let mut longest = Duration::ZERO;
    for (name, pattern, addressed) in PATTERNS {
        if began.elapsed() + longest > budget {
            break;
        }
        let since = Instant::now();
        for check in [false, true] {
            for chunk in &chunks {
                let args = Test {
                    words: chunk,
                    found: &found,
                    count: (chunk.bytes() / 8) as i64,
                    pattern: pattern.cast_signed(),
                    addressed: addressed.into(),
                    check: check.into(),
                };
                let shape = Launch::new([8 * here.multiprocessors, 1, 1], 256, 0);
                // SAFETY: the words are the chunk's, `found` is large enough for the kernel's output, and both live
                // until the stream is synchronised below.
                unsafe { stream.launch(NAME, &kernel, &shape, &args.into())? };
            }
        }
        stream.synchronize()?;
        let mut told = nothing;
        stream.read(&found, &mut told)?;
        let words: Vec<u64> = told
            .chunks_exact(8)
            .map(|bytes| u64::from_ne_bytes(std::array::from_fn(|at| bytes[at])))
            .collect();
        note(test, name, &words);
        if words[0] > 0 {
            stream.write(&found, &nothing)?;
        }
        test.patterns.push(test.left_out.remove(0));
        longest = longest.max(since.elapsed());
    }
    Ok(())
}

/// Allocates memory in pieces until none is left but the spared part.
fn take(
    free: u64,
    mut allocate: impl FnMut(usize) -> Result<Buffer, DeviceError>,
) -> Result<Vec<Buffer>, DeviceError> {
    let mut left = free.saturating_sub(SPARE_BYTES);
    let mut chunks = Vec::new();
    while left >= PAGE_BYTES {
        let bytes = left.min(CHUNK_BYTES) / PAGE_BYTES * PAGE_BYTES;
        match allocate(bytes as usize) {
            Ok(chunk) => chunks.push(chunk),
            // Other programs allocated some meanwhile, or the remaining memory is fragmented.
            Err(DeviceError::OutOfMemory { .. }) => break,
            Err(error) => return Err(error),
        }
        left -= bytes;
    }
    Ok(chunks)
}

/// Adds the kernel's result for a pattern.
fn note(test: &mut MemoryTest, pattern: &str, found: &[u64]) {
    let count = found[0];
    test.errors += count;
    let told = found[1..].chunks_exact(3).take(count.min(MAX_REPORTED as u64) as usize);
    let room = EXAMPLES - test.examples.len();
    test.examples.extend(told.take(room).map(|word| {
        let (address, written, read) = (word[0], word[1], word[2]);
        MemoryError {
            pattern: pattern.to_owned(),
            address: format!("{address:#x}"),
            written: format!("{written:#018x}"),
            read: format!("{read:#018x}"),
            bits: (0..64).filter(|bit| (written ^ read) >> bit & 1 == 1).collect(),
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_a_wrong_word_by_address_and_bits() {
        let mut found = vec![0; 1 + 3 * MAX_REPORTED];
        let mut test = MemoryTest::default();
        note(&mut test, "0x00", &found);
        assert_eq!(test, MemoryTest::default());
        // More errors than are described.
        found[0] = 1000;
        for word in found[1..].chunks_exact_mut(3) {
            word.copy_from_slice(&[0x7f00_0000_1008, 0xaaaa_aaaa_aaaa_aaaa, 0x2aaa_aaaa_aaaa_aaab]);
        }
        note(&mut test, "0xaa", &found);
        assert_eq!((test.errors, test.examples.len()), (1000, EXAMPLES));
        let word = &test.examples[0];
        assert_eq!((word.address.as_str(), word.bits.as_slice()), ("0x7f0000001008", &[0, 63][..]));
        assert_eq!(word.read, "0x2aaaaaaaaaaaaaab");
        note(&mut test, "0x55", &found);
        assert_eq!((test.errors, test.examples.len()), (2000, EXAMPLES));
    }

    #[test]
    fn allocates_in_pieces_and_spares_some_memory() {
        // Allocation fails without a GPU, so only the first request is observed.
        let check = |free: u64, expect: &[u64]| {
            let mut asked = Vec::new();
            let gave = take(free, |bytes| {
                asked.push(bytes as u64);
                Err(DeviceError::OutOfMemory { asked: 0, free: 0, total: 0, held: 0 })
            });
            assert_eq!(gave.map(|chunks| chunks.len()), Ok(0), "{free}");
            assert_eq!(asked, expect, "{free}");
        };
        check(0, &[]);
        check(SPARE_BYTES + PAGE_BYTES - 1, &[]);
        check(SPARE_BYTES + PAGE_BYTES + 1, &[PAGE_BYTES]);
        check(SPARE_BYTES + 3 * CHUNK_BYTES, &[CHUNK_BYTES]);
    }
}
