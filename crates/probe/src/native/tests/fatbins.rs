//! GPU code: containers in nvcc's format.

use super::super::elf;
use super::world::World;
use facts::{GpuCode, GpuImage, GpuImageKind, GpuReach};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// kind, version words, SM, flags, payload length
pub(super) struct Image(
    pub(super) u16,
    pub(super) (u16, u16),
    pub(super) u32,
    pub(super) u64,
    pub(super) u64,
);

/// One container with these images; payloads are zeros.
pub(super) fn container(images: &[Image]) -> Vec<u8> {
    let mut body = Vec::new();
    for Image(kind, (major, minor), sm, flags, length) in images {
        let mut header = vec![0; 64];
        header[0..2].copy_from_slice(&kind.to_le_bytes());
        header[2..4].copy_from_slice(&0x101u16.to_le_bytes());
        header[4..8].copy_from_slice(&64u32.to_le_bytes());
        header[8..16].copy_from_slice(&length.to_le_bytes());
        header[24..26].copy_from_slice(&minor.to_le_bytes());
        header[26..28].copy_from_slice(&major.to_le_bytes());
        header[28..32].copy_from_slice(&sm.to_le_bytes());
        header[40..48].copy_from_slice(&flags.to_le_bytes());
        body.extend(header);
        body.resize(body.len() + *length as usize, 0);
    }
    let mut out = 0xBA55_ED50u32.to_le_bytes().to_vec();
    out.extend(1u16.to_le_bytes());
    out.extend(16u16.to_le_bytes());
    out.extend((body.len() as u64).to_le_bytes());
    out.extend(body);
    out
}

pub(super) fn as_source(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!(
        "__attribute__((section(\".nv_fatbin\"), aligned(8))) const unsigned char code[] = {{{}}};",
        words.join(",")
    )
}

#[test]
fn images_of_a_library() {
    let first = [
        Image(2, (1, 7), 80, 0x11, 40),
        Image(2, (1, 7), 90, 0x10_0011 | 0x2000, 24),
        Image(1, (8, 7), 90, 0x11, 16),
    ];
    let mut bytes = container(&first);
    bytes.extend(container(&first));
    // Padding between containers, as written by linkers.
    bytes.resize(bytes.len().next_multiple_of(8) + 64, 0);
    bytes.extend(container(&[Image(2, (1, 8), 120, 0x20_0011, 8), Image(8, (1, 8), 120, 0x11, 8)]));
    let world = World::new();
    world.library("kernels.so", &as_source(&bytes), &[]);
    let elf = world.elf("kernels.so");
    assert_eq!(elf.problems, Vec::<String>::new());
    let image =
        |kind, sm, reach, ptx_isa, compressed| GpuImage { kind, sm, reach, ptx_isa, compressed };
    use {GpuImageKind::*, GpuReach::*};
    assert_eq!(
        elf.gpu_code,
        [
            GpuCode {
                containers: 2,
                images: vec![
                    image(Cubin, (8, 0), Onward, None, false),
                    image(Cubin, (9, 0), Architecture, None, true),
                    image(Ptx, (9, 0), Onward, Some((8, 7)), false),
                ],
            },
            GpuCode {
                containers: 1,
                images: vec![
                    image(Cubin, (12, 0), Family, None, false),
                    image(Other, (12, 0), Onward, None, false),
                ],
            },
        ]
    );
}

#[test]
fn code_beyond_its_section_is_a_problem() {
    let check = |bytes: &[u8], expect: &str| {
        let world = World::new();
        world.library("kernels.so", &as_source(bytes), &[]);
        let problems = world.elf("kernels.so").problems;
        assert!(problems.iter().any(|problem| problem.contains(expect)), "{expect}: {problems:?}");
    };
    let whole = container(&[Image(2, (1, 7), 80, 0x11, 40)]);
    check(&whole[..whole.len() - 8], "leaves its section");
    let mut long = whole.clone();
    long[16 + 8..16 + 16].copy_from_slice(&u64::MAX.to_le_bytes());
    check(&long, "leaves its container");
    let mut short = whole;
    short[16 + 4..16 + 8].copy_from_slice(&0u32.to_le_bytes());
    check(&short, "leaves its container");
}

/// A file larger than libtorch_cuda.so, mostly holes: only its headers are read.
#[test]
fn sparse_file_of_two_gigabytes_is_read_quickly() {
    const SIZE: u64 = 2 << 30;
    let world = World::new();
    let path =
        world.library("kernels.so", &as_source(&container(&[Image(2, (1, 7), 80, 0x11, 8)])), &[]);
    let bytes = std::fs::read(&path).unwrap();
    // The section of GPU code starts at the end of the file and covers the hole.
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (headers, count) = (word(40) as usize, u16::from_le_bytes([bytes[60], bytes[61]]));
    let start = bytes.len().next_multiple_of(4096) as u64;
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(SIZE).unwrap();
    let code =
        bytes.windows(4).position(|word| word == 0xBA55_ED50u32.to_le_bytes()).unwrap() as u64;
    let section =
        (0..usize::from(count)).map(|i| headers + i * 64).find(|at| word(at + 24) == code);
    let section = section.expect("the section of GPU code") as u64;
    file.write_all_at(&start.to_le_bytes(), section + 24).unwrap();
    file.write_all_at(&(SIZE - start).to_le_bytes(), section + 32).unwrap();
    // A hundred containers of 20 MB each.
    let (step, payload) = (20u64 << 20, (20u64 << 20) - 80);
    for index in 0..100 {
        let mut header = container(&[Image(2, (1, 7), 90, 0x11, 0)]);
        header[8..16].copy_from_slice(&(payload + 64).to_le_bytes());
        header[24..32].copy_from_slice(&payload.to_le_bytes());
        file.write_all_at(&header, start + index * step).unwrap();
    }
    let since = Instant::now();
    let object =
        elf::parse(&object::read::ReadCache::new(std::fs::File::open(&path).unwrap())).unwrap();
    assert!(since.elapsed() < Duration::from_millis(500), "{:?}", since.elapsed());
    assert_eq!(object.gpu_code.iter().map(|code| code.containers).sum::<u32>(), 100, "{object:?}");
}
