//! What a compiled kernel says of itself, from its ELF file: its function, its architecture, the compiler's release,
//! registers and stack.

use anyhow::{Context, bail};

/// One kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cubin {
    /// Its function.
    pub(super) function: String,
    /// Compute capability it is compiled for, major times ten and minor: 90.
    pub(super) sm: u8,
    /// The compiler's release of CUDA, major times ten and minor: 129.
    pub(super) cuda: u32,
    /// Registers of a thread.
    pub(super) registers: u32,
    /// Local memory of a thread, bytes: what is spilled, and arrays that did not fit registers.
    pub(super) stack_bytes: u32,
}

/// Attributes of `.nv.info`: `EIATTR_FRAME_SIZE`, `EIATTR_MIN_STACK_SIZE` and `EIATTR_REGCOUNT`.
const FRAME_SIZE: u8 = 0x11;
const MIN_STACK_SIZE: u8 = 0x12;
const REGISTER_COUNT: u8 = 0x2f;
/// `EIATTR_CUDA_API_VERSION`, whose value is no symbol's.
const CUDA_API_VERSION: u8 = 0x37;
/// `EIFMT_SVAL`: a size and that many bytes follow. The other formats keep their value in the same four bytes.
const SIZED: u8 = 4;

/// Reads a cubin with one kernel.
pub(super) fn read(cubin: &[u8]) -> anyhow::Result<Cubin> {
    if !cubin.starts_with(b"\x7fELF\x02\x01") {
        bail!("it is no 64-bit ELF file");
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
                // The others are a symbol and a value.
                (REGISTER_COUNT, &[_, value]) => registers = registers.max(Some(value)),
                (FRAME_SIZE | MIN_STACK_SIZE, &[_, value]) => stack_bytes = stack_bytes.max(value),
                _ => {}
            }
        }
    }
    // `e_flags`; the eighth release of the format (`EI_ABIVERSION`) keeps the architecture in its second byte.
    let sm = cubin.get(if cubin.get(8) == Some(&8) { 0x31 } else { 0x30 });
    Ok(Cubin {
        function: function.context("it has no function")?,
        sm: *sm.context("the file ends early")?,
        cuda: cuda.context("it does not say by which release of CUDA it was compiled")?,
        registers: registers.context("it does not say how many registers it has")?,
        stack_bytes,
    })
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

/// Attributes and the numbers that are their content; none for those that keep their value in the head.
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

    /// An ELF file for compute capability 9.0 with the function `f` and these attributes.
    fn file(attributes: &[(u8, &[u32])]) -> Vec<u8> {
        let names = b"\0.nv.info\0.names\0.text.f\0";
        let mut info = Vec::new();
        for (attribute, numbers) in attributes {
            info.extend([SIZED, *attribute, 4 * numbers.len() as u8, 0]);
            info.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        // An attribute of another format in between must be stepped over.
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
    fn what_a_kernel_says_is_read() {
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
    fn a_later_release_of_the_format_says_the_architecture_elsewhere() {
        let mut later = file(&[RELEASE, (REGISTER_COUNT, &[1, 168])]);
        (later[8], later[0x30], later[0x31]) = (8, 10, 100);
        assert_eq!(read(&later).unwrap().sm, 100);
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        assert!(read(b"text").is_err());
        assert!(read(&file(&[])).is_err());
        let whole = file(&[RELEASE, (REGISTER_COUNT, &[1, 168])]);
        assert!(read(&file(&[(REGISTER_COUNT, &[1, 168])])).is_err());
        // The last section header ends with fields that are not read.
        for length in 0..whole.len() - 64 {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
    }
}
