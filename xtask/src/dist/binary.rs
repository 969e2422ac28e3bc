//! Reads the system requirements of a program from its ELF or Mach-O file.

use anyhow::{Context, bail};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, elf};
use std::fmt;

/// The newest glibc that a release may need, which RHEL 8, Debian 10 and Ubuntu 20.04 have.
pub(super) const NEWEST_GLIBC: (u32, u32) = (2, 28);

/// The oldest glibc of a manylinux tag for these architectures.
const OLDEST_TAG: (u32, u32) = (2, 17);

/// Libraries of every manylinux system (PEP 600 and auditwheel's policy). A wheel has to bundle any other.
const EVERYWHERE: &[&str] = &[
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// The newest symbol version of RHEL 8's libgcc.
const NEWEST_GCC: (u32, u32) = (8, 0);

/// System requirements of a program or library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) system: System,
    /// The architecture, as in platform tags: `x86_64`, `aarch64`, `arm64`.
    pub(super) processor: &'static str,
    /// Libraries that the dynamic loader needs (`DT_NEEDED`).
    pub(super) libraries: Vec<String>,
}

/// The minimum operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    /// Linux with this release of glibc or a newer one.
    Glibc(u32, u32),
    /// This release of macOS or a newer one.
    Macos(u32, u32),
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Glibc(major, minor) => write!(f, "glibc {major}.{minor}"),
            Self::Macos(major, minor) => write!(f, "macOS {major}.{minor}"),
        }
    }
}

impl Needs {
    /// Reads an ELF or a 64-bit Mach-O file.
    pub(super) fn of(bytes: &[u8]) -> anyhow::Result<Self> {
        match bytes {
            [0x7f, b'E', b'L', b'F', ..] => linux(bytes).context("its ELF tables"),
            [0xcf, 0xfa, 0xed, 0xfe, ..] => macos(bytes).context("its Mach-O load commands"),
            _ => bail!("this is neither an ELF nor a 64-bit Mach-O program"),
        }
    }

    /// The platform tag of its wheel: the oldest system that satisfies its requirements.
    ///
    /// # Errors
    /// If it loads a library that a manylinux system may not have.
    pub(super) fn tag(&self) -> anyhow::Result<String> {
        match self.system {
            System::Glibc(major, minor) => {
                let (major, minor) = (major, minor).max(OLDEST_TAG);
                let other = self.libraries.iter().find(|it| !EVERYWHERE.contains(&it.as_str()));
                if let Some(library) = other {
                    bail!("it loads {library}, which a manylinux machine need not have");
                }
                Ok(format!("manylinux_{major}_{minor}_{}", self.processor))
            }
            System::Macos(major, minor) => Ok(format!("macosx_{major}_{minor}_{}", self.processor)),
        }
    }

    /// The requirements of both together.
    pub(super) fn and(&self, other: &Self) -> Self {
        let newer = match (self.system, other.system) {
            (System::Glibc(a, b), System::Glibc(c, d)) => (c, d) > (a, b),
            (System::Macos(a, b), System::Macos(c, d)) => (c, d) > (a, b),
            _ => false,
        };
        let libraries = [self.libraries.clone(), other.libraries.clone()].concat();
        let system = if newer { other.system } else { self.system };
        Self { system, processor: self.processor, libraries }
    }

    /// Fails if it needs a newer glibc than [`NEWEST_GLIBC`], or has no platform tag.
    pub(super) fn hold(&self) -> anyhow::Result<()> {
        if let System::Glibc(major, minor) = self.system
            && (major, minor) > NEWEST_GLIBC
        {
            let (wanted_major, wanted_minor) = NEWEST_GLIBC;
            bail!("it needs glibc {major}.{minor}; wanted {wanted_major}.{wanted_minor} or older");
        }
        self.tag().map(|_| ())
    }
}

fn linux(bytes: &[u8]) -> anyhow::Result<Needs> {
    let file = ElfFile64::<Endianness>::parse(bytes)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let processor = match file.elf_header().e_machine(endian) {
        elf::EM_X86_64 => "x86_64",
        elf::EM_AARCH64 => "aarch64",
        other => bail!("machine {other:?} is neither x86-64 nor 64-bit Arm"),
    };
    let mut libraries = Vec::new();
    if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, strings)?;
        for entry in entries {
            if entry.d_tag(endian) == elf::DT_NEEDED {
                libraries
                    .push(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned());
            }
        }
    }
    let mut glibc = (0, 0);
    if let Some((mut needed, strings)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, strings)?;
        while let Some((_, mut versions)) = needed.next()? {
            while let Some(version) = versions.next()? {
                let name = String::from_utf8_lossy(version.name(endian, strings)?);
                match name.split_once('_').map(|(family, number)| (family, release(number))) {
                    Some(("GLIBC", Some(version))) => glibc = glibc.max(version),
                    Some(("GCC", Some(version))) if version <= NEWEST_GCC => {}
                    _ => bail!("symbol version {name} is in no manylinux policy"),
                }
            }
        }
    }
    if glibc == (0, 0) {
        bail!("it names no version of glibc: not a program that is linked with it");
    }
    Ok(Needs { system: System::Glibc(glibc.0, glibc.1), processor, libraries })
}

/// Parses the first two numbers of `2.28`, `2.2.5` or `3.0`.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Constants of Apple's headers `mach-o/loader.h` and `mach/machine.h`.
mod mach {
    pub(super) const CPU_ARM64: u32 = 0x0100_000c;
    pub(super) const HEADER: usize = 32;
    pub(super) const BUILD_VERSION: u32 = 0x32;
    pub(super) const PLATFORM_MACOS: u32 = 1;
}

fn macos(bytes: &[u8]) -> anyhow::Result<Needs> {
    let word = |at: usize| -> anyhow::Result<u32> {
        let bytes =
            at.checked_add(4).and_then(|end| bytes.get(at..end)).context("the file ends early")?;
        Ok(u32::from_le_bytes(bytes.try_into()?))
    };
    if word(4)? != mach::CPU_ARM64 {
        bail!("processor {:#x} is not arm64", word(4)?);
    }
    let (count, mut at) = (word(16)?, mach::HEADER);
    for _ in 0..count {
        let (command, size) = (word(at)?, word(at + 4)?);
        if command == mach::BUILD_VERSION && word(at + 8)? == mach::PLATFORM_MACOS {
            let oldest = word(at + 12)?;
            let system = System::Macos(oldest >> 16, (oldest >> 8) & 0xff);
            return Ok(Needs { system, processor: "arm64", libraries: Vec::new() });
        }
        at = at.checked_add(size.max(8) as usize).context("a load command is too large")?;
    }
    bail!("no load command says which macOS it is for")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_glibc(major: u32, minor: u32, libraries: &[&str]) -> Needs {
        let libraries = libraries.iter().map(|name| (*name).to_owned()).collect();
        Needs { system: System::Glibc(major, minor), processor: "x86_64", libraries }
    }

    #[test]
    fn tag_is_the_oldest_system_that_satisfies_the_requirements() {
        let tag = |needs: &Needs| needs.tag().map_err(|error| error.to_string());
        assert_eq!(tag(&on_glibc(2, 28, &["libc.so.6"])), Ok("manylinux_2_28_x86_64".to_owned()));
        assert_eq!(tag(&on_glibc(2, 5, &[])), Ok("manylinux_2_17_x86_64".to_owned()));
        assert_eq!(
            tag(&on_glibc(2, 28, &["libc.so.6", "libonig.so.5"])),
            Err("it loads libonig.so.5, which a manylinux machine need not have".to_owned())
        );
        let both = on_glibc(2, 17, &["libc.so.6"]).and(&on_glibc(2, 27, &["libm.so.6"]));
        assert_eq!(both, on_glibc(2, 27, &["libc.so.6", "libm.so.6"]));
        assert_eq!(on_glibc(2, 28, &[]).and(&on_glibc(2, 4, &[])), on_glibc(2, 28, &[]));
        assert!(on_glibc(2, 28, &[]).hold().is_ok());
        let error = on_glibc(2, 34, &[]).hold().unwrap_err();
        assert_eq!(error.to_string(), "it needs glibc 2.34; wanted 2.28 or older");
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn reads_a_program_of_this_machine() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needs = Needs::of(&bytes).unwrap();
        assert_eq!(needs.processor, std::env::consts::ARCH);
        assert!(needs.libraries.iter().any(|library| library == "libc.so.6"), "{needs:?}");
        // Rust's standard library needs glibc 2.17 or newer.
        assert!(matches!(needs.system, System::Glibc(2, minor) if minor >= 17), "{needs:?}");
        let cut = Needs::of(&bytes[..4096]).unwrap_err();
        assert!(format!("{cut:#}").starts_with("its ELF tables: "), "{cut:#}");
    }

    #[test]
    fn reads_the_macos_release_of_a_mach_o_program() {
        let header = [0xfeed_facf_u32, mach::CPU_ARM64, 0, 2, 2, 48, 0, 0];
        let commands = [0x1b, 16, 0, 0, mach::BUILD_VERSION, 32, mach::PLATFORM_MACOS, 11 << 16];
        let words = header.into_iter().chain(commands).chain([0; 4]);
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        assert_eq!(Needs::of(&bytes).unwrap().tag().unwrap(), "macosx_11_0_arm64");
        let error = Needs::of(&bytes[..40]).unwrap_err();
        assert_eq!(format!("{error:#}"), "its Mach-O load commands: the file ends early");
        assert!(Needs::of(b"#!/bin/sh\n").is_err());
    }
}
