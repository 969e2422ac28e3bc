//! Reads a cubin's function, architecture, CUDA release, register count and stack size from its ELF file.

use anyhow::{Context, bail};

/// Properties of one compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cubin {
    /// The name of its function.
    pub(super) function: String,
    /// The compute capability, 10 * major + minor: 90.
    pub(super) sm: u8,
    /// The compiler's CUDA release, 10 * major + minor: 129.
    pub(super) cuda: u32,
    /// Registers per thread.
    pub(super) registers: u32,
    /// Local memory per thread in bytes: spilled registers, and arrays that are not in registers.
    pub(super) stack_bytes: u32,
}

/// Attributes of `.nv.info`: `EIATTR_FRAME_SIZE`, `EIATTR_MIN_STACK_SIZE` and `EIATTR_REGCOUNT`.
const FRAME_SIZE: u8 = 0x11;
const MIN_STACK_SIZE: u8 = 0x12;
const REGISTER_COUNT: u8 = 0x2f;
/// `EIATTR_CUDA_API_VERSION`, whose value has no symbol.
const CUDA_API_VERSION: u8 = 0x37;
/// `EIFMT_SVAL`: a 16-bit size, then the value. The other formats have the value in the place of the size.
const SIZED: u8 = 4;

/// Reads a cubin with one kernel.
pub(super) fn read(cubin: &[u8]) -> anyhow::Result<Cubin> {
    if !cubin.starts_with(b"\x7fELF\x02\x01") {
        bail!("not a 64-bit ELF file");
    }
    let (mut function, mut cuda, mut registers, mut stack_bytes) = (None, None, None, 0);
    for (name, content) in sections(cubin)? {
        if name.starts_with(".nv.local") && !content.is_empty() {
            stack_bytes = stack_bytes.max(content.len() as u32);
        }
        if let Some(name) = name.strip_prefix(".text.")
            && function.replace(name.to_owned()).is_some()
        {
            bail!("it has more than one function");
        }
        if name != ".nv.info" && !name.starts_with(".nv.info.") {
            continue;
        }
        for (attribute, value) in attributes(content)? {
            match (attribute, value.as_slice()) {
                (CUDA_API_VERSION, &[release]) => cuda = Some(release),
                // The other attributes have a symbol and a value.
                (REGISTER_COUNT, &[_, value]) => registers = registers.max(Some(value)),
                (FRAME_SIZE | MIN_STACK_SIZE, &[_, value]) => stack_bytes = stack_bytes.max(value),
                _ => {}
            }
        }
    }
    // `e_flags` has the architecture in its first byte; with `EI_ABIVERSION` 8, in its second.
    let sm = cubin.get(if cubin.get(8) == Some(&8) { 0x31 } else { 0x30 });
    Ok(Cubin {
        function: function.context("it has no function")?,
        sm: *sm.context("the file ends early")?,
        cuda: cuda.context("it has no CUDA release (`EIATTR_CUDA_API_VERSION`)")?,
        registers: registers.context("it has no register count (`EIATTR_REGCOUNT`)")?,
        stack_bytes,
    })
}

/// Names and contents of the sections.
fn sections(elf: &[u8]) -> anyhow::Result<Vec<(String, &[u8])>> {
    let (table, size) = (number::<8>(elf, 0x28)?, number::<2>(elf, 0x3a)?);
    let (count, names_at) = (number::<2>(elf, 0x3c)?, number::<2>(elf, 0x3e)?);
    let content = |header: usize| -> anyhow::Result<&[u8]> {
        // A section of type `SHT_NOBITS` has a size and no bytes in the file.
        let (offset, length) = (number::<8>(elf, header + 0x18)?, number::<8>(elf, header + 0x20)?);
        if number::<4>(elf, header + 4)? == 8 {
            return Ok(elf.get(..length.min(elf.len())).unwrap_or_default());
        }
        elf.get(offset..offset + length).context("a section exceeds the file")
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

/// Attributes with their 32-bit values; empty for formats other than [`SIZED`].
fn attributes(info: &[u8]) -> anyhow::Result<Vec<(u8, Vec<u32>)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + 4 <= info.len() {
        let (format, attribute) = (info[at], info[at + 1]);
        let length = if format == SIZED { number::<2>(info, at + 2)? } else { 0 };
        let numbers = (at + 4..at + 4 + length).step_by(4).map(|at| number::<4>(info, at));
        let numbers = numbers.map(|number| Ok(number? as u32)).collect::<anyhow::Result<_>>()?;
        found.push((attribute, numbers));
        at += 4 + length;
    }
    Ok(found)
}

/// Reads a little-endian integer of `BYTES` bytes.
fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> anyhow::Result<usize> {
    let field = bytes.get(at..at + BYTES).context("the file ends early")?;
    let mut whole = [0; 8];
    whole[..BYTES].copy_from_slice(field);
    Ok(u64::from_le_bytes(whole) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file for compute capability 9.0 with the function `f` and these attributes.
    fn file(attributes: &[(u8, &[u32])]) -> Vec<u8> {
        let names = b"\0.nv.info\0.names\0.text.f\0";
        let mut info = Vec::new();
        for (attribute, numbers) in attributes {
            info.extend([SIZED, *attribute, 4 * numbers.len() as u8, 0]);
            info.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        // An attribute of another format, which must be skipped.
        info.extend([3, 0x1b, 0xff, 0]);
        let mut elf = vec![0; 64];
        elf[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\x33\x07");
        elf[0x30] = 90;
        let (names_at, info_at) = (elf.len(), elf.len() + names.len());
        elf.extend(names);
        elf.extend(&info);
        let table = elf.len();
        elf[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
        (elf[0x3a], elf[0x3c], elf[0x3e]) = (64, 3, 1);
        let sections = [(1u32, info_at, info.len()), (10, names_at, names.len()), (17, info_at, 0)];
        for (name, offset, length) in sections {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
            elf.extend(header);
        }
        elf
    }

    const RELEASE: (u8, &[u32]) = (CUDA_API_VERSION, &[129]);

    #[test]
    fn reads_registers_and_stack_of_a_kernel() {
        let read = |attributes: &[(u8, &[u32])]| read(&file(attributes)).unwrap();
        let kernel = |registers, stack_bytes| {
            let function = "f".to_owned();
            Cubin { function, sm: 90, cuda: 129, registers, stack_bytes }
        };
        let clean = [(FRAME_SIZE, &[1, 0][..]), (MIN_STACK_SIZE, &[1, 0]), RELEASE];
        assert_eq!(read(&[&clean[..], &[(REGISTER_COUNT, &[1, 168])]].concat()), kernel(168, 0));
        let spilled = [(REGISTER_COUNT, &[1, 255][..]), RELEASE, (FRAME_SIZE, &[1, 48])];
        assert_eq!(read(&spilled), kernel(255, 48));
    }

    #[test]
    fn reads_the_architecture_of_abi_version_8() {
        let mut later = file(&[RELEASE, (REGISTER_COUNT, &[1, 168])]);
        (later[8], later[0x30], later[0x31]) = (8, 10, 100);
        assert_eq!(read(&later).unwrap().sm, 100);
    }

    #[test]
    fn rejects_files_that_are_not_complete_kernels() {
        assert!(read(b"text").is_err());
        assert!(read(&file(&[])).is_err());
        let whole = file(&[RELEASE, (REGISTER_COUNT, &[1, 168])]);
        assert!(read(&file(&[(REGISTER_COUNT, &[1, 168])])).is_err());
        // The reader ignores the last fields of the last section header.
        for length in 0..whole.len() - 64 {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
    }
}
