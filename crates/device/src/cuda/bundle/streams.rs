//! A cubin as two byte streams that compress better separately: its machine code, rearranged, and the rest of the ELF
//! file.
//!
//! An instruction has 128 bits since Volta. Its upper 23 bits control scheduling: stall cycles and yield (bits 105 to
//! 109), the barriers that it writes and reads (110 to 115), those that it waits for (116 to 121), and operand reuse
//! (122 to 125). These fields change between kernels while operation and registers stay, so each gets a byte; and the
//! opcode is moved after the operands, next to them. The layout is that of maxas and turingas:
//! <https://github.com/daadaada/turingas>.

use std::ops::Range;

/// Bytes of an instruction.
const INSTRUCTION: usize = 16;

/// Source offset of each byte of an instruction in the stream.
const ORDER: [usize; INSTRUCTION] = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 13, 14, 15];

/// `SHT_PROGBITS` and `SHF_EXECINSTR`.
const WITH_CONTENT: u32 = 1;
const EXECUTABLE: u64 = 4;

/// The largest executable section of an ELF file, in whole instructions; empty for other files.
pub(super) fn code_of(binary: &[u8]) -> Range<usize> {
    sections(binary).unwrap_or_default()
}

fn sections(elf: &[u8]) -> Option<Range<usize>> {
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let number = |at: usize, bytes: usize| {
        let field = elf.get(at..at.checked_add(bytes)?)?;
        let whole = field.iter().rev().fold(0_u64, |whole, byte| whole << 8 | u64::from(*byte));
        usize::try_from(whole).ok()
    };
    let (table, size, count) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?);
    let mut largest = 0..0;
    for index in 0..count {
        let header = table.checked_add(index * size)?;
        let (kind, flags) = (number(header + 4, 4)?, number(header + 8, 8)?);
        if kind != WITH_CONTENT as usize || flags as u64 & EXECUTABLE == 0 {
            continue;
        }
        let (from, length) = (number(header + 0x18, 8)?, number(header + 0x20, 8)?);
        let section = from..from.checked_add(length)?;
        if section.end <= elf.len() && length % INSTRUCTION == 0 && length > largest.len() {
            largest = section;
        }
    }
    Some(largest)
}

/// Appends machine code in stream order; bytes after the last whole instruction are unchanged.
pub(super) fn rearrange(code: &[u8], into: &mut Vec<u8>) {
    let (instructions, rest) = code.as_chunks::<INSTRUCTION>();
    for instruction in instructions {
        let [.., a, b, c] = *instruction;
        let mut fields = *instruction;
        let control = u32::from_le_bytes([a, b, c, 0]);
        let field = |from: u32, bits: u32| (control >> (from - 104)) & ((1 << bits) - 1);
        // The upper two bits of each byte have the remaining bits 126 and 127, and the reuse flags.
        fields[13] = (field(104, 6) | field(126, 2) << 6) as u8;
        fields[14] = (field(110, 6) | field(122, 2) << 6) as u8;
        fields[15] = (field(116, 6) | field(124, 2) << 6) as u8;
        into.extend(ORDER.map(|place| fields[place]));
    }
    into.extend(rest);
}

/// Restores the machine code of a stream in place.
pub(super) fn restore(stream: &mut [u8]) {
    let (instructions, _) = stream.as_chunks_mut::<INSTRUCTION>();
    for instruction in instructions {
        let mut fields = [0; INSTRUCTION];
        for (byte, place) in instruction.iter().zip(ORDER) {
            fields[place] = *byte;
        }
        let byte = |at: usize| u32::from(fields[at]);
        let low = |at: usize| byte(at) & 0x3f;
        let control = low(13)
            | low(14) << 6
            | low(15) << 12
            | (byte(14) >> 6) << 18
            | (byte(15) >> 6) << 20
            | (byte(13) >> 6) << 22;
        let [a, b, c, _] = control.to_le_bytes();
        fields[13..].copy_from_slice(&[a, b, c]);
        *instruction = fields;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_code_is_the_code_that_was_rearranged() {
        // Each bit of an instruction alone, then random numbers, and half an instruction after them.
        let bits = (0..128).map(|bit| (1_u128 << bit).to_le_bytes());
        let mut state = 1_u128;
        let drawn = (0..1000).map(|_| {
            state = state.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(11);
            (state ^ state >> 64).to_le_bytes()
        });
        let mut code: Vec<u8> = bits.chain(drawn).flatten().collect();
        code.extend([1, 2, 3, 4, 5, 6, 7]);
        let mut stream = Vec::new();
        rearrange(&code, &mut stream);
        assert!(stream != code && stream.len() == code.len());
        restore(&mut stream);
        assert!(stream == code);
    }

    /// An ELF file with sections of these types, flags, offsets and sizes.
    fn elf(sections: &[(u32, u64, usize, usize)]) -> Vec<u8> {
        let mut elf = vec![7; 512];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let table = elf.len() as u64;
        elf[0x28..0x30].copy_from_slice(&table.to_le_bytes());
        elf[0x3a..0x3e].copy_from_slice(&[64, 0, sections.len() as u8, 0]);
        for (kind, flags, from, length) in sections {
            let mut header = [0; 64];
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&flags.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(*from as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(*length as u64).to_le_bytes());
            elf.extend(header);
        }
        elf
    }

    #[test]
    fn code_is_the_largest_executable_section_of_whole_instructions() {
        let good = (1, 6, 128, 64);
        for (sections, expect) in [
            (vec![good], 128..192),
            (vec![(1, 6, 64, 32), good], 128..192),
            // Without content, not executable, half an instruction, beyond the file.
            (vec![(8, 6, 64, 96)], 0..0),
            (vec![(1, 2, 64, 96)], 0..0),
            (vec![(1, 6, 64, 40)], 0..0),
            (vec![(1, 6, 64, 1 << 20)], 0..0),
            (vec![(1, 6, usize::MAX, 64)], 0..0),
        ] {
            assert_eq!(code_of(&elf(&sections)), expect, "{sections:?}");
        }
        let whole = elf(&[good]);
        for length in 0..whole.len() - 32 {
            assert_eq!(code_of(&whole[..length]), 0..0, "{length}");
        }
        assert_eq!(code_of(b"text"), 0..0);
    }
}
