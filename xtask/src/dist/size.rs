//! How large a release program would be, estimated from the program that the tests built.
//!
//! A release build takes seven minutes of two idle cores, which no submission is asked to wait for. The test build has the same code, less
//! optimised, so each kind of section shrinks by a ratio that hardly changes from commit to commit. The release workflow builds the real
//! program and judges its real size.

use anyhow::{Context, bail};
use object::elf::{SHF_ALLOC, SHF_EXECINSTR};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, SectionFlags};

/// Bytes of a program, by what becomes of them in a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sections {
    /// Machine code.
    code: u64,
    /// Tables for unwinding.
    unwind: u64,
    /// Constants, tables of functions and initial values. Relocations and the GOT are not counted: a release has none.
    data: u64,
}

/// One commit built both ways, for x86_64 Linux by Rust 1.95 on 2026-11-29: the tests' program, and that of `cargo xtask wheel` with
/// 29,531,384 bytes. These ratios give 0.3 % too much for an earlier commit of that day, and its ratios gave 0.4 % too little for this one.
/// Sizes that the estimate misses are found by the release workflow.
const TEST: Sections = Sections { code: 54_140_417, unwind: 10_100_260, data: 9_658_604 };
const RELEASE: Sections = Sections { code: 20_045_894, unwind: 3_186_648, data: 6_289_153 };

/// ELF headers, section names, relocations and the GOT of the release program.
const REST: u64 = 9_689;

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

    /// Bytes of the release program of the same code.
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

    /// The earlier commit: the sections of the tests' program, and the bytes of the release.
    const EARLIER: (Sections, u64) =
        (Sections { code: 55_190_593, unwind: 10_238_772, data: 9_809_034 }, 29_960_344);

    #[test]
    fn estimates_of_recorded_commits_are_within_three_percent() {
        for (test, bytes) in [(TEST, 29_531_384), EARLIER] {
            let estimate = test.estimate();
            assert!(estimate.abs_diff(bytes) * 100 < 3 * bytes, "{estimate} for {bytes}");
        }
        // What the limit is compared with is the whole file.
        assert!(TEST.estimate().abs_diff(29_531_384) < 10);
        TEST.hold(30_000_000).unwrap();
        let larger = Sections { code: TEST.code + 1_300_000, ..TEST };
        larger.hold(30_000_000).unwrap_err();
    }

    /// A test build with more constants, and one with more code, are refused by the limit that the program itself just meets.
    #[test]
    #[cfg(target_os = "linux")]
    fn an_enlarged_program_is_refused() {
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
