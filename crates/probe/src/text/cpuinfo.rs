//! /proc/cpuinfo of x86-64 and AArch64, and its instruction sets.

use super::sysctl::Sysctl;
use facts::CompactCollect;
use std::collections::BTreeSet;

/// The content of /proc/cpuinfo.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuInfo {
    pub(crate) model: Option<String>,
    /// Instruction sets under the names of [`facts::CpuFacts::features`], sorted.
    pub(crate) features: Vec<String>,
    pub(crate) processors: u32,
    /// (socket, core) of each physical core; empty on Arm, whose cpuinfo has neither.
    pub(crate) cores: BTreeSet<(u32, u32)>,
}

/// The relevant instruction sets, by the kernel's name and the name in the facts. x86 names are the kernel's own;
/// AArch64 names are the HWCAP names of the Linux documentation (arch/arm64/elf_hwcaps).
const FEATURES: &[(&str, &str)] = &[
    ("avx", "avx"),
    ("avx2", "avx2"),
    ("fma", "fma"),
    ("f16c", "f16c"),
    ("avx512f", "avx512f"),
    ("avx512bw", "avx512bw"),
    ("avx512dq", "avx512dq"),
    ("avx512vl", "avx512vl"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx512_bf16", "avx512_bf16"),
    ("avx512_fp16", "avx512_fp16"),
    ("avx_vnni", "avx_vnni"),
    ("amx_tile", "amx_tile"),
    ("amx_bf16", "amx_bf16"),
    ("asimd", "neon"),
    ("asimdhp", "fp16"),
    ("asimddp", "dotprod"),
    ("bf16", "bf16"),
    ("i8mm", "i8mm"),
    ("sve", "sve"),
    ("sve2", "sve2"),
    ("sme", "sme"),
];

/// Arm cores by implementer and part number. Source: arch/arm64/include/asm/cputype.h of Linux 6.12.
const ARM_CORES: &[(u32, u32, &str)] = &[
    (0x41, 0xd07, "Cortex-A57"),
    (0x41, 0xd08, "Cortex-A72"),
    (0x41, 0xd0b, "Cortex-A76"),
    (0x41, 0xd0c, "Neoverse-N1"),
    (0x41, 0xd40, "Neoverse-V1"),
    (0x41, 0xd42, "Cortex-A78AE"),
    (0x41, 0xd49, "Neoverse-N2"),
    (0x41, 0xd4f, "Neoverse-V2"),
    (0x41, 0xd83, "Neoverse-V3AE"),
    (0x41, 0xd84, "Neoverse-V3"),
    (0x41, 0xd85, "Cortex-X925"),
    (0x41, 0xd87, "Cortex-A725"),
    (0x41, 0xd8e, "Neoverse-N3"),
    (0x4e, 0x003, "Denver 2"),
    (0x4e, 0x004, "Carmel"),
    (0xc0, 0xac3, "Ampere-1"),
    (0xc0, 0xac4, "Ampere-1A"),
];

impl CpuInfo {
    pub(crate) fn parse(text: &str) -> Self {
        let mut info = Self::default();
        let mut arm_cores: Vec<&str> = Vec::new();
        let (mut implementer, mut socket) = (None, None);
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match key.trim() {
                "processor" => {
                    info.processors = info.processors.saturating_add(1);
                    (implementer, socket) = (None, None);
                }
                "model name" if info.model.is_none() && !value.is_empty() => {
                    info.model = Some(value.to_string())
                }
                // All cores have the same sets: the first line counts.
                "flags" | "Features" if info.features.is_empty() => info.features = features(value),
                "physical id" => socket = value.parse().ok(),
                "core id" => {
                    if let (Some(socket), Ok(core)) = (socket, value.parse()) {
                        info.cores.insert((socket, core));
                    }
                }
                "CPU implementer" => implementer = hexadecimal(value),
                "CPU part" => {
                    let name =
                        implementer.zip(hexadecimal(value)).and_then(|(implementer, part)| {
                            ARM_CORES
                                .iter()
                                .find(|core| (core.0, core.1) == (implementer, part))
                                .map(|core| core.2)
                        });
                    arm_cores.extend(name.filter(|name| !arm_cores.contains(name)));
                }
                _ => {}
            }
        }
        if info.model.is_none() && !arm_cores.is_empty() {
            // A GB10 has fast and slow cores: both are listed.
            info.model = Some(arm_cores.join(" + "));
        }
        info
    }
}

fn hexadecimal(value: &str) -> Option<u32> {
    u32::from_str_radix(value.strip_prefix("0x")?, 16).ok()
}

fn features(flags: &str) -> Vec<String> {
    let names: BTreeSet<&str> = flags
        .split_whitespace()
        .filter_map(|flag| FEATURES.iter().find(|(word, _)| *word == flag))
        .map(|(_, name)| *name)
        .compact_set();
    names.into_iter().map(str::to_string).collect()
}

/// The same names from macOS's flags.
pub(crate) fn features_of_sysctl(sysctl: &Sysctl) -> Vec<String> {
    const FLAGS: &[(&str, &str)] = &[
        ("hw.optional.avx1_0", "avx"),
        ("hw.optional.avx2_0", "avx2"),
        ("hw.optional.avx512f", "avx512f"),
        ("hw.optional.avx512bw", "avx512bw"),
        ("hw.optional.avx512dq", "avx512dq"),
        ("hw.optional.avx512vl", "avx512vl"),
        ("hw.optional.f16c", "f16c"),
        ("hw.optional.AdvSIMD", "neon"),
        ("hw.optional.neon", "neon"),
        ("hw.optional.arm.FEAT_FP16", "fp16"),
        ("hw.optional.arm.FEAT_DotProd", "dotprod"),
        ("hw.optional.arm.FEAT_BF16", "bf16"),
        ("hw.optional.arm.FEAT_I8MM", "i8mm"),
        ("hw.optional.arm.FEAT_SME", "sme"),
    ];
    let mut names: BTreeSet<&str> =
        FLAGS.iter().filter(|(flag, _)| sysctl.is_set(flag)).map(|(_, name)| *name).compact_set();
    // Intel Macs list FMA only in the processor's own feature names.
    let words = sysctl.word("machdep.cpu.features").unwrap_or_default();
    if words.split_whitespace().any(|word| word == "FMA") {
        names.insert("fma");
    }
    names.into_iter().map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::CpuInfo;

    fn check(text: &str, model: Option<&str>, features: &[&str], processors: u32, cores: usize) {
        let info = CpuInfo::parse(text);
        assert_eq!(info.model.as_deref(), model);
        assert_eq!(info.features, features);
        assert_eq!((info.processors, info.cores.len()), (processors, cores));
    }

    #[test]
    fn x86_with_hardware_threads() {
        let core = |processor, core| {
            format!(
                "processor\t: {processor}\nmodel name\t: AMD EPYC 9654\nphysical id\t: 0\ncore id\t\t: {core}\nflags\t\t: fpu sse2 avx2 fma avx512f avx512_bf16 f16c\n\n"
            )
        };
        let text = core(0, 0) + &core(1, 1) + &core(2, 0) + &core(3, 1);
        check(
            &text,
            Some("AMD EPYC 9654"),
            &["avx2", "avx512_bf16", "avx512f", "f16c", "fma"],
            4,
            2,
        );
    }

    #[test]
    fn arm_core_numbers_have_names() {
        let core = |processor, part| {
            format!(
                "processor\t: {processor}\nFeatures\t: fp asimd asimdhp asimddp sve bf16 i8mm\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n"
            )
        };
        let text = core(0, "0xd4f") + &core(1, "0xd4f");
        check(
            &text,
            Some("Neoverse-V2"),
            &["bf16", "dotprod", "fp16", "i8mm", "neon", "sve"],
            2,
            0,
        );
        let text = core(0, "0xd85") + &core(1, "0xd87");
        check(
            &text,
            Some("Cortex-X925 + Cortex-A725"),
            &["bf16", "dotprod", "fp16", "i8mm", "neon", "sve"],
            2,
            0,
        );
        check(&core(0, "0xfff"), None, &["bf16", "dotprod", "fp16", "i8mm", "neon", "sve"], 1, 0);
    }

    #[test]
    fn nothing() {
        check("", None, &[], 0, 0);
        check("processor\nflags : \nCPU part : 0x", None, &[], 0, 0);
    }
}
