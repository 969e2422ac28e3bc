//! The loaded NVIDIA kernel module.

use super::driver_of;
use crate::Source;
use facts::{Fact, Machine};

const MODULE: &str = "/sys/module/nvidia/version";
const PROC: &str = "/proc/driver/nvidia/version";

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    let proc = source.text(PROC).and_then(|text| parse_proc_version(&text));
    if let Some(version) = source.word(MODULE) {
        driver_of(machine).kernel_module = Some(Fact::new(version, MODULE));
    } else if let Some(module) = &proc {
        driver_of(machine).kernel_module = Some(Fact::new(module.version.clone(), PROC));
    }
    if let Some(module) = proc {
        driver_of(machine).open_module = Some(Fact::new(module.open, PROC));
    }
}

/// The module in /proc/driver/nvidia/version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) version: String,
    pub(crate) open: bool,
}

/// Parses the NVRM line: `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (...)`,
/// or `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.148.08  Sat Jan 11 ...` for the proprietary module.
pub(crate) fn parse_proc_version(text: &str) -> Option<Module> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("NVRM version:"))?;
    let version = line
        .split_whitespace()
        .skip_while(|word| *word != "Module")
        .find(|word| word.contains('.') && crate::text::is_dotted_number(word))?;
    Some(Module { version: version.to_string(), open: line.contains("Open Kernel Module") })
}

#[cfg(test)]
mod tests {
    use super::{Module, parse_proc_version};

    #[test]
    fn open_and_proprietary_modules() {
        let check = |text: &str, expect: Option<(&str, bool)>| {
            let expect =
                expect.map(|(version, open)| Module { version: version.to_string(), open });
            assert_eq!(parse_proc_version(text), expect, "{text:?}");
        };
        let gcc = "\nGCC version:  gcc version 15.3.0 (GCC)\n";
        let line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  ";
        check(&format!("{line}{gcc}"), Some(("580.159.04", true)));
        let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.148.08  Sat Apr 26 01:16:10 UTC 2025";
        check(&format!("{line}{gcc}"), Some(("570.148.08", false)));
        let line = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.3.0  Release Build  (buildbrain@x)";
        check(line, Some(("540.3.0", true)));
        check("NVRM version: NVIDIA UNIX", None);
        check("GCC version:  gcc version 15.3.0 (GCC)", None);
        check("", None);
    }
}
