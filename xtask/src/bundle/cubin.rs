//! What a compiled kernel says of itself: registers and stack, from the sections of its ELF file.

use anyhow::{Context, bail};

/// Resources of one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resources {
    /// Registers of a thread.
    pub(super) registers: u32,
    /// Local memory of a thread, bytes: what is spilled, and arrays that did not fit registers.
    pub(super) stack_bytes: u32,
}

/// Attributes of `.nv.info`: `EIATTR_FRAME_SIZE`, `EIATTR_MIN_STACK_SIZE` and `EIATTR_REGCOUNT`.
const FRAME_SIZE: u8 = 0x11;
const MIN_STACK_SIZE: u8 = 0x12;
const REGISTER_COUNT: u8 = 0x2f;
/// `EIFMT_SVAL`: a size and that many bytes follow. The other formats keep their value in the same four bytes.
const SIZED: u8 = 4;

/// Reads a cubin with one kernel.
pub(super) fn read(cubin: &[u8]) -> anyhow::Result<Resources> {
    if !cubin.starts_with(b"\x7fELF\x02\x01") {
        bail!("it is no 64-bit ELF file");
    }
    let (mut registers, mut stack_bytes) = (None, 0);
    for (name, content) in sections(cubin)? {
        if name.starts_with(".nv.local") && !content.is_empty() {
            stack_bytes = stack_bytes.max(content.len() as u32);
        }
        if name != ".nv.info" {
            continue;
        }
        for (attribute, value) in attributes(content)? {
            match attribute {
                REGISTER_COUNT => registers = registers.max(Some(value)),
                FRAME_SIZE | MIN_STACK_SIZE => stack_bytes = stack_bytes.max(value),
                _ => {}
            }
        }
    }
    let registers = registers.context("it does not say how many registers it has")?;
    Ok(Resources { registers, stack_bytes })
}

/// Names and contents of the sections.
fn sections(elf: &[u8]) -> anyhow::Result<Vec<(String, &[u8])>> {
    let (table, size) = (number::<8>(elf, 0x28)?, number::<2>(elf, 0x3a)?);
    let (count, names_at) = (number::<2>(elf, 0x3c)?, number::<2>(elf, 0x3e)?);
    let content = |header: usize| -> anyhow::Result<&[u8]> {
        // A section without bits in the file (`SHT_NOBITS`) still has its size.
        let (offset, length) = (number::<8>(elf, header + 0x18)?, number::<8>(elf, header + 0x20)?);
        if number::<4>(elf, header + 4)? == 8 {
            return Ok(elf.get(..length.min(elf.len())).unwrap_or_default());
        }
        elf.get(offset..offset + length).context("a section leaves the file")
    };
    let names = content(table + names_at * size)?;
    (0..count)
        .map(|index| {
            let header = table + index * size;
            let name = names.get(number::<4>(elf, header)?..).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            Ok((String::from_utf8_lossy(name).into_owned(), content(header)?))
        })
        .collect()
}

/// Attributes whose content is a symbol and a value.
fn attributes(info: &[u8]) -> anyhow::Result<Vec<(u8, u32)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + 4 <= info.len() {
        let (format, attribute) = (info[at], info[at + 1]);
        let length = if format == SIZED { number::<2>(info, at + 2)? } else { 0 };
        if length == 8 {
            found.push((attribute, number::<4>(info, at + 8)? as u32));
        }
        at += 4 + length;
    }
    Ok(found)
}

/// A little-endian number of `BYTES` bytes.
fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> anyhow::Result<usize> {
    let field = bytes.get(at..at + BYTES).context("the file ends early")?;
    let mut whole = [0; 8];
    whole[..BYTES].copy_from_slice(field);
    Ok(u64::from_le_bytes(whole) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with `.nv.info` of these attributes.
    fn file(attributes: &[(u8, u32)]) -> Vec<u8> {
        let names = b"\0.nv.info\0.names\0";
        let mut info = Vec::new();
        for (attribute, value) in attributes {
            info.extend([SIZED, *attribute, 8, 0, 1, 0, 0, 0]);
            info.extend(value.to_le_bytes());
        }
        // An attribute of another format in between must be stepped over.
        info.extend([3, 0x1b, 0xff, 0]);
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let (names_at, info_at) = (elf.len(), elf.len() + names.len());
        elf.extend(names);
        elf.extend(&info);
        let table = elf.len();
        elf[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
        (elf[0x3a], elf[0x3c], elf[0x3e]) = (64, 2, 1);
        for (name, offset, length) in [(1u32, info_at, info.len()), (10, names_at, names.len())] {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
            elf.extend(header);
        }
        elf
    }

    #[test]
    fn registers_and_stack_are_read() {
        let read = |attributes: &[(u8, u32)]| read(&file(attributes)).unwrap();
        let clean = Resources { registers: 168, stack_bytes: 0 };
        assert_eq!(read(&[(FRAME_SIZE, 0), (MIN_STACK_SIZE, 0), (REGISTER_COUNT, 168)]), clean);
        let spilled = Resources { registers: 255, stack_bytes: 48 };
        assert_eq!(read(&[(REGISTER_COUNT, 255), (FRAME_SIZE, 48)]), spilled);
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        assert!(read(b"text").is_err());
        assert!(read(&file(&[])).is_err());
        let whole = file(&[(REGISTER_COUNT, 168)]);
        // The last section header ends with fields that are not read.
        for length in 0..whole.len() - 64 {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
    }
}
