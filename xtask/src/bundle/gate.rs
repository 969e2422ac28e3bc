//! Checks compiled kernels: function, architecture and CUDA release, required instructions, no unexpected local memory.

use super::cubin;
use crate::steps::output;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// Instructions that a kernel must have, by the prefix of its name: HGMMA is WGMMA and UTMALDG is a TMA load. Without them a
/// Hopper kernel would use the MMA and copy instructions of Ampere.
const WANTED: &[(&str, &[&str])] = &[("attention_hopper", &["HGMMA", "UTMALDG"])];
/// Instructions that a kernel must not have: loads and stores of local memory, which are register spills.
const UNWANTED: &[&str] = &["LDL", "STL"];

/// The CUDA release that compiles the bundle, 10 * major + minor, as in [`cubin::Cubin::cuda`].
const CUDA: u32 = 129;

/// Accepted local memory with negligible cost: prefix and suffix of the label, prefix of the architecture, bytes per thread.
/// The combine kernel adds a few values per row; at 96 columns the compiler keeps one of them in local memory.
const ACCEPTED: &[(&str, &str, &str, u32)] = &[
    ("attention_combine<DV=96 ", "", "sm_10", 8),
    ("attention_combine<DV=96 ", "", "sm_12", 8),
    ("ssd_chunk<", " STRIDED=1>", "sm_", 8),
];

/// A compiled kernel, as `kernels.tsv` lists it.
struct Compiled {
    file: String,
    arch: String,
    label: String,
}

/// Statistics of the kernels of one function and architecture.
#[derive(Debug, Default)]
struct Row {
    kernels: usize,
    registers: Vec<u32>,
    stack_bytes: u32,
    /// Minimum count of each required instruction.
    fewest: BTreeMap<&'static str, usize>,
}

/// Checks every kernel that `kernels.tsv` lists, and prints a table.
pub(super) fn check(folder: &Path, nvdisasm: &Path) -> anyhow::Result<()> {
    let list = fs::read_to_string(folder.join("kernels.tsv"))?;
    let compiled = list.lines().map(line).collect::<anyhow::Result<Vec<_>>>()?;
    let rows = Mutex::new(BTreeMap::<(String, String), Row>::new());
    let problems = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        for nth in 0..threads {
            let (compiled, rows, problems) = (&compiled, &rows, &problems);
            scope.spawn(move || {
                for kernel in compiled.iter().skip(nth).step_by(threads) {
                    let checked = check_kernel(folder, nvdisasm, kernel, rows);
                    let found = checked.unwrap_or_else(|error| vec![format!("{error:#}")]);
                    let named = found
                        .into_iter()
                        .map(|what| format!("{} {}: {what}", kernel.label, kernel.arch));
                    if let Ok(mut problems) = problems.lock() {
                        problems.extend(named);
                    }
                }
            });
        }
    });
    let rows = rows.into_inner().ok().context("a thread panicked")?;
    println!(
        "{:<24}{:<9}{:>8}  {:>9}  {:>5}  fewest instructions",
        "function", "arch", "kernels", "registers", "stack"
    );
    for ((function, arch), row) in &rows {
        let least = row.registers.iter().min().copied().unwrap_or(0);
        let most = row.registers.iter().max().copied().unwrap_or(0);
        let fewest: Vec<String> =
            row.fewest.iter().map(|(name, count)| format!("{name} {count}")).collect();
        println!(
            "{function:<24}{arch:<9}{:>8}  {:>9}  {:>5}  {}",
            row.kernels,
            format!("{least}-{most}"),
            row.stack_bytes,
            fewest.join(", ")
        );
    }
    let mut problems = problems.into_inner().ok().context("a thread panicked")?;
    if problems.is_empty() {
        return Ok(());
    }
    problems.sort();
    bail!("{} problems:\n{}", problems.len(), problems.join("\n"))
}

fn line(line: &str) -> anyhow::Result<Compiled> {
    let mut fields = line.split('\t').map(str::to_owned);
    let (Some(file), Some(arch), Some(label)) = (fields.next(), fields.next(), fields.next())
    else {
        bail!("`{line}` does not have three fields");
    };
    Ok(Compiled { file: file + ".cubin", arch, label })
}

/// Checks one kernel, adds it to its row and returns its problems.
fn check_kernel(
    folder: &Path,
    nvdisasm: &Path,
    kernel: &Compiled,
    rows: &Mutex<BTreeMap<(String, String), Row>>,
) -> anyhow::Result<Vec<String>> {
    let file = folder.join(&kernel.file);
    let cubin = cubin::read(&fs::read(&file)?)?;
    let function = kernel.label.split('<').next().unwrap_or_default();
    let wanted = WANTED.iter().find(|(start, _)| function.starts_with(start));
    let mut counts = BTreeMap::new();
    let mut problems = Vec::new();
    let is = format!("{} for sm_{} of CUDA {}", cubin.function, cubin.sm, cubin.cuda);
    let listed = format!("{function} for {} of CUDA {CUDA}", kernel.arch.trim_end_matches('a'));
    if is != listed {
        problems.push(format!("its binary is {is}"));
    }
    let accepted = ACCEPTED.iter().any(|(start, end, arch, bytes)| {
        kernel.label.starts_with(start)
            && kernel.label.ends_with(end)
            && kernel.arch.starts_with(arch)
            && cubin.stack_bytes <= *bytes
    });
    if cubin.stack_bytes > 0 && !accepted {
        problems.push(format!("{} bytes of local memory", cubin.stack_bytes));
    }
    // A kernel without a stack cannot spill, so only kernels with required instructions are disassembled.
    if let Some((_, wanted)) = wanted {
        let text = output(Command::new(nvdisasm).arg("-c").arg(&file))?;
        counts = wanted.iter().map(|name| (*name, count(&text, name))).collect();
        problems.extend(
            counts.iter().filter(|(_, count)| **count == 0).map(|(name, _)| format!("no {name}")),
        );
        let unwanted = UNWANTED.iter().filter(|name| count(&text, name) > 0);
        problems.extend(unwanted.map(|name| format!("{name} in its code")));
    }
    if let Ok(mut rows) = rows.lock() {
        let row = rows.entry((function.to_owned(), kernel.arch.clone())).or_default();
        row.kernels += 1;
        row.registers.push(cubin.registers);
        row.stack_bytes = row.stack_bytes.max(cubin.stack_bytes);
        for (name, count) in counts {
            row.fewest
                .entry(name)
                .and_modify(|fewest| *fewest = count.min(*fewest))
                .or_insert(count);
        }
    }
    Ok(problems)
}

/// The number of instructions of a listing with this name and any suffix: `UTMALDG.4D [UR8], [UR4]`.
fn count(listing: &str, name: &str) -> usize {
    let is_one = |line: &&str| {
        let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        words.into_iter().any(|word| word == name)
    };
    listing.lines().filter(is_one).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_by_their_whole_name() {
        let listing = "  /*0010*/  HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;\n\
                       /*0020*/ @P0 UTMALDG.4D.MULTICAST [UR8], [UR4] ;\n\
                       /*0030*/  LDL.LU R2, [R1] ;\n.text.STLABEL:\n";
        for (name, expect) in [("HGMMA", 1), ("UTMALDG", 1), ("LDL", 1), ("STL", 0)] {
            assert_eq!(count(listing, name), expect, "{name}");
        }
    }

    #[test]
    fn a_line_of_the_list_has_three_fields() {
        let kernel = line("00ff\tsm_90a\tattention_hopper<D=64>").unwrap();
        assert_eq!((kernel.file.as_str(), kernel.arch.as_str()), ("00ff.cubin", "sm_90a"));
        assert_eq!(kernel.label, "attention_hopper<D=64>");
        assert!(line("00ff sm_90a").is_err());
    }
}
