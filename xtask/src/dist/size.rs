//! Estimates the size of a release program from the test build.
//!
//! A release build takes seven minutes on two idle cores, too long for CI. The test build has the same code, less optimised, and
//! the ratio of each kind of section hardly changes from commit to commit. The release workflow checks the size of the real
//! program.

use anyhow::{Context, bail};
use object::elf::{SHF_ALLOC, SHF_EXECINSTR};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, SectionFlags};

/// Bytes of a program by kind of section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sections {
    /// Machine code.
    code: u64,
    /// Unwind tables.
    unwind: u64,
    /// Constants, function tables and initial values, without relocations and the GOT, which a release build does not need.
    data: u64,
}

/// The test build and the release build (`cargo xtask wheel`, 29,775,080 bytes) of one commit, for x86_64 Linux by Rust 1.95 on
/// 2026-11-30. The release workflow finds sizes that the estimate misses.
const TEST: Sections = Sections { code: 56_390_417, unwind: 10_240_236, data: 10_180_585 };
const RELEASE: Sections = Sections { code: 19_659_302, unwind: 3_482_140, data: 6_623_864 };

/// ELF headers, section names, relocations and the GOT of the release program.
const REST: u64 = 9_774;

impl Sections {
    /// Reads an ELF program.
    pub(super) fn of(bytes: &[u8]) -> anyhow::Result<Self> {
        let file = ElfFile64::<Endianness>::parse(bytes).context("its ELF tables")?;
        let mut sections = Self { code: 0, unwind: 0, data: 0 };
        for section in file.sections() {
            let SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
            let name = section.name().unwrap_or_default();
            let has = |flag| sh_flags & flag == flag;
            let is_loaded = has(SHF_ALLOC);
            let is_linking = name.starts_with(".rel") || name.starts_with(".got");
            if !is_loaded || is_linking || section.file_range().is_none() {
                continue;
            }
            let kind = if name.starts_with(".eh_frame") || name == ".gcc_except_table" {
                &mut sections.unwind
            } else if has(SHF_EXECINSTR) {
                &mut sections.code
            } else {
                &mut sections.data
            };
            *kind += section.size();
        }
        Ok(sections)
    }

    /// Estimated bytes of the release program of the same code.
    pub(super) fn estimate(self) -> u64 {
        let scaled = |now: u64, test: u64, release: u64| now * release / test.max(1);
        scaled(self.code, TEST.code, RELEASE.code)
            + scaled(self.unwind, TEST.unwind, RELEASE.unwind)
            + scaled(self.data, TEST.data, RELEASE.data)
            + REST
    }

    /// Fails if the release program would have more than `most` bytes.
    pub(super) fn hold(self, most: u64) -> anyhow::Result<()> {
        let estimate = self.estimate();
        println!(
            "a release program would have about {estimate} bytes, of {most} at most ({self:?})"
        );
        if estimate > most {
            bail!(
                "a release program would have about {estimate} bytes; wanted {most} or fewer\n\
                 hint: `cargo xtask wheel` builds it and prints its size; if it fits, write its sections and the test build's into xtask/src/dist/size.rs"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_of_the_recorded_commit_is_its_size() {
        // The size of the whole file, not of its sections.
        assert!(TEST.estimate().abs_diff(29_775_080) < 10);
        TEST.hold(30_000_000).unwrap();
        let larger = Sections { code: TEST.code + 1_300_000, ..TEST };
        larger.hold(30_000_000).unwrap_err();
    }

    /// The limit is the estimate of the program, so that an added section of constants or code exceeds it.
    #[test]
    #[cfg(target_os = "linux")]
    fn refuses_an_enlarged_program() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let program = std::env::current_exe().unwrap();
        let plain = Sections::of(&std::fs::read(&program).unwrap()).unwrap();
        assert!(plain.code > 1_000_000 && plain.unwind > 100_000 && plain.data > 100_000);
        plain.hold(plain.estimate()).unwrap();
        const MORE: u64 = 4_000_000;
        std::fs::write(path("more"), vec![7; MORE as usize]).unwrap();
        for (flags, grown) in [
            ("alloc,load,readonly,data", Sections { data: plain.data + MORE, ..plain }),
            ("alloc,load,readonly,code", Sections { code: plain.code + MORE, ..plain }),
        ] {
            let (add, set) =
                (format!(".more={}", path("more").display()), format!(".more={flags}"));
            let mut objcopy = std::process::Command::new("objcopy");
            objcopy.args(["--add-section", &add, "--set-section-flags", &set]);
            crate::steps::run(objcopy.arg(&program).arg(path("large"))).unwrap();
            let large = Sections::of(&std::fs::read(path("large")).unwrap()).unwrap();
            assert_eq!(large, grown, "{flags}");
            let error = large.hold(plain.estimate()).unwrap_err().to_string();
            assert!(error.contains("a release program would have about"), "{error}");
        }
    }
}
