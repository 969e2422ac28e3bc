//! The firstlight program that is copied, and the machines that it runs on, according to its header.

use super::copy::CopiedFile;
use super::survey::RemoteMachine;
use crate::failure::Failure;
use anyhow::Context;
use std::path::Path;

/// The selected program, or the running one. Its remote path contains its hash, so that nothing is overwritten.
pub(super) fn read(named: Option<&Path>) -> anyhow::Result<CopiedFile> {
    let own = || std::env::current_exe().context("the path of this program is not known");
    let path = named.map_or_else(own, |path| Ok(path.to_owned()))?;
    let content = std::fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(CopiedFile::new(content, "700", |sha256| format!("bin/{}/firstlight", &sha256[..16])))
}

/// Refuses a machine that the program does not run on.
pub(super) fn fits(program: &CopiedFile, machine: &RemoteMachine) -> anyhow::Result<()> {
    let there = (machine.system.as_str(), machine.processor.as_str());
    let is = match header(&program.content) {
        Some(is) if is == there => return Ok(()),
        Some((system, processor)) => format!("this firstlight is for {system} on {processor}"),
        None => "the named file is not a known executable format".to_owned(),
    };
    Err(Failure::hinted(
        format!("{} runs programs for {} on {}, and {is}", machine.name, there.0, there.1),
        "build firstlight for that machine (`cargo build --release --target TRIPLE`) and name it: --binary FILE",
    ))
}

/// The system and processor in a program's header, in Rust's terms; `None` for other files.
fn header(content: &[u8]) -> Option<(&'static str, &'static str)> {
    let number = |at: usize, bytes: usize| {
        let field = content.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0_u32, |value, byte| value << 8 | u32::from(*byte)))
    };
    // Little-endian, 64 bits: ELF's e_machine, and Mach-O's cputype.
    if content.starts_with(b"\x7fELF\x02\x01") {
        return match number(18, 2)? {
            62 => Some(("linux", "x86_64")),
            183 => Some(("linux", "aarch64")),
            _ => None,
        };
    }
    match (number(0, 4)?, number(4, 4)?) {
        (0xfeed_facf, 0x0100_0007) => Some(("macos", "x86_64")),
        (0xfeed_facf, 0x0100_000c) => Some(("macos", "aarch64")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_platform_is_read_from_its_header() {
        let elf = |machine: u8| [b"\x7fELF\x02\x01".as_slice(), &[0; 12], &[machine, 0]].concat();
        let mac = |cpu: u8| [0xcf, 0xfa, 0xed, 0xfe, cpu, 0, 0, 1];
        assert_eq!(header(&elf(62)), Some(("linux", "x86_64")));
        assert_eq!(header(&elf(183)), Some(("linux", "aarch64")));
        assert_eq!(header(&elf(40)), None);
        assert_eq!(header(&mac(12)), Some(("macos", "aarch64")));
        assert_eq!(header(&mac(7)), Some(("macos", "x86_64")));
        for other in [b"#!/bin/sh\n".as_slice(), b"", b"\x7fELF\x02\x01"] {
            assert_eq!(header(other), None);
        }
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(header(&own), Some((std::env::consts::OS, std::env::consts::ARCH)));
    }
}
