//! GPU code in a shared object: the fatbin containers that nvcc writes into `.nv_fatbin` and `__nv_relfatbin`.
//!
//! Only headers are read, a few bytes of each image, so a gigabyte of GPU code costs some thousands of small reads.

use facts::{GpuCode, GpuImage, GpuImageKind, GpuReach};
use object::read::ReadRef;

const MAGIC: u32 = 0xBA55_ED50;
/// The shortest header of an image with its architecture and flags.
const IMAGE_HEADER: u64 = 48;
/// Containers are aligned to 8 bytes; the linker aligns sections to at most a page.
const LONGEST_GAP: u64 = 4096;
/// libtorch_cuda.so has about 5,000 containers and 25,000 images.
const MAX_IMAGES: u32 = 2_000_000;

/// One library is compiled with only a few lists of architectures.
const MAX_SETS: usize = 1000;

const ARCHITECTURE_ONLY: u64 = 0x0010_0000;
const FAMILY_ONLY: u64 = 0x0020_0000;
/// LZ4 and zstd.
const COMPRESSED: u64 = 0x2000 | 0x8000;

/// Adds the containers of one section.
pub(crate) fn walk<'data, R: ReadRef<'data>>(
    data: R,
    start: u64,
    size: u64,
    code: &mut Vec<GpuCode>,
) -> Result<(), String> {
    let length = data.len().unwrap_or(0);
    let end = start.saturating_add(size);
    if end > length {
        return Err(format!("has GPU code up to byte {end}, but the file ends at {length}"));
    }
    let mut at = start;
    let mut images_read = 0u32;
    while let Some(container) = next_container(data, at, end) {
        let header = bytes(data, container, 16).ok_or("has a torn fatbin container")?;
        let from = container.saturating_add(u16_at(header, 6).into());
        let to = from.saturating_add(u64_at(header, 8));
        if to > end || from < container + 16 {
            return Err(format!(
                "has a fatbin container at byte {container} that leaves its section"
            ));
        }
        let mut images = Vec::new();
        let mut image_at = from;
        while image_at + IMAGE_HEADER <= to {
            let Some(header) = bytes(data, image_at, IMAGE_HEADER) else { break };
            let next =
                image_at.saturating_add(u32_at(header, 4).into()).saturating_add(u64_at(header, 8));
            if u64::from(u32_at(header, 4)) < IMAGE_HEADER || next > to {
                return Err(format!(
                    "has a fatbin image at byte {image_at} that leaves its container"
                ));
            }
            images.push(image(header));
            images_read += 1;
            if images_read > MAX_IMAGES {
                return Err("has more fatbin images than any real library".to_owned());
            }
            image_at = next;
        }
        images.sort_unstable();
        images.dedup();
        match code.iter().position(|known| known.images == images) {
            Some(known) => code[known].containers = code[known].containers.saturating_add(1),
            None if images.is_empty() => {}
            None if code.len() >= MAX_SETS => {
                return Err("has more different sets of GPU code than any real library".to_owned());
            }
            None => code.push(GpuCode { containers: 1, images }),
        }
        at = to;
    }
    Ok(())
}

/// The next container at or after an offset; `None` if only padding follows.
fn next_container<'data, R: ReadRef<'data>>(data: R, at: u64, end: u64) -> Option<u64> {
    let is_magic =
        |bytes: &[u8]| bytes.first_chunk().is_some_and(|word| u32::from_le_bytes(*word) == MAGIC);
    if at + 16 > end {
        return None;
    }
    if is_magic(data.read_bytes_at(at, 16).ok()?) {
        return Some(at);
    }
    let aligned = at.checked_next_multiple_of(8)?;
    let gap = data.read_bytes_at(aligned, end.checked_sub(aligned)?.min(LONGEST_GAP)).ok()?;
    let words = gap.chunks_exact(8).position(is_magic)? as u64;
    Some(aligned + words * 8).filter(|found| found + 16 <= end)
}

fn image(header: &[u8]) -> GpuImage {
    let kind = match u16_at(header, 0) {
        1 => GpuImageKind::Ptx,
        2 => GpuImageKind::Cubin,
        _ => GpuImageKind::Other,
    };
    let sm = u32_at(header, 28);
    let flags = u64_at(header, 40);
    let reach = match flags {
        _ if flags & ARCHITECTURE_ONLY != 0 => GpuReach::Architecture,
        _ if flags & FAMILY_ONLY != 0 => GpuReach::Family,
        _ => GpuReach::Onward,
    };
    GpuImage {
        kind,
        sm: (sm / 10, sm % 10),
        reach,
        ptx_isa: (kind == GpuImageKind::Ptx)
            .then(|| (u16_at(header, 26).into(), u16_at(header, 24).into())),
        compressed: flags & COMPRESSED != 0,
    }
}

fn bytes<'data, R: ReadRef<'data>>(data: R, at: u64, size: u64) -> Option<&'data [u8]> {
    data.read_bytes_at(at, size).ok()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
