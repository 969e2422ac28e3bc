//! The subfolders `glibc-hwcaps/x86-64-v3` and so on: in each library folder, the loader prefers a build for this
//! processor to the baseline one (ld.so(8), glibc 2.33 and later).

use crate::Source;
use facts::CompactSort;
use std::path::{Path, PathBuf};

/// The parent folder of the levels' folders.
pub(crate) const FOLDER: &str = "glibc-hwcaps";

/// Levels of the x86-64 psABI, best first, each with the flags of /proc/cpuinfo that it adds to the one below. 64-bit
/// Arm has none.
#[rustfmt::skip]
const LEVELS: &[(&str, &[&str])] = &[
    ("x86-64-v4", &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
    ("x86-64-v3", &["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"]),
    ("x86-64-v2", &["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"]),
];

/// The subfolders that this processor's loader searches, best first.
pub(crate) fn of(source: &Source) -> Vec<&'static str> {
    levels(&source.text("/proc/cpuinfo").unwrap_or_default())
}

fn levels(cpuinfo: &str) -> Vec<&'static str> {
    let flags = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("flags")?.split_once(':'))
        .map(|(_, flags)| flags.split_whitespace().collect::<Vec<_>>())
        .unwrap_or_default();
    let mut fit: Vec<&str> = LEVELS
        .iter()
        .rev()
        .take_while(|(_, wanted)| wanted.iter().all(|flag| flags.contains(flag)))
        .map(|(name, _)| *name)
        .collect();
    fit.reverse();
    fit
}

/// The files with one soname in ld.so.cache, in the loader's order: the best level first, the baseline last; unsupported
/// levels are omitted.
pub(crate) fn ordered(files: Vec<PathBuf>, levels: &[&str]) -> Vec<PathBuf> {
    let mut ranked: Vec<(usize, PathBuf)> = files
        .into_iter()
        .filter_map(|file| {
            let rank = match level(&file) {
                Some(level) => levels.iter().position(|known| *known == level)?,
                None => levels.len(),
            };
            Some((rank, file))
        })
        .collect();
    ranked.compact_sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, file)| file).collect()
}

/// The level of the folder of a file.
fn level(file: &Path) -> Option<&str> {
    let folder = file.parent()?;
    (folder.parent()?.file_name()? == FOLDER).then(|| folder.file_name()?.to_str())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_requires_all_lower_levels() {
        const V2: &str = "flags\t\t: fpu cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3";
        const V3: &str = " avx avx2 bmi1 bmi2 f16c fma abm movbe xsave";
        const V4: &str = " avx512f avx512bw avx512cd avx512dq avx512vl";
        let check = |text: &str, expect: &[&str]| assert_eq!(levels(text), expect, "{text}");
        check(V2, &["x86-64-v2"]);
        check(&format!("{V2}{V3}\n"), &["x86-64-v3", "x86-64-v2"]);
        check(&format!("{V2}{V3}{V4}\n"), &["x86-64-v4", "x86-64-v3", "x86-64-v2"]);
        check(&format!("{V2}{V4}\n"), &["x86-64-v2"]);
        check(&format!("flags\t:{V3}{V4}\n"), &[]);
        check("Features\t: fp asimd sve\n", &[]);
        check("", &[]);
    }

    #[test]
    fn supported_levels_come_first_and_others_are_omitted() {
        let files = ["/l/a.so", "/l/glibc-hwcaps/x86-64-v4/a.so", "/l/glibc-hwcaps/x86-64-v2/a.so"];
        let files = || files.iter().map(PathBuf::from).collect();
        let two = ordered(files(), &["x86-64-v3", "x86-64-v2"]);
        assert_eq!(two, [Path::new("/l/glibc-hwcaps/x86-64-v2/a.so"), Path::new("/l/a.so")]);
        assert_eq!(ordered(files(), &[]), [Path::new("/l/a.so")]);
    }
}
