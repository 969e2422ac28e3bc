use super::{Context, Need, Rule, Text};
use crate::native::by_owner;
use crate::remedy::{Installer, quote, text};
use facts::{Confidence, Finding, Machine, Platform, PyEnv, Severity};
use std::collections::BTreeMap;
pub(super) const RULE: Rule = Rule {
    id: "wrong-architecture",
    title: "a compiled file for another CPU architecture",
    about: "\
A package contains machine code for another CPU architecture: an x86-64 .so on 64-bit Arm, or the reverse. This happens
when a wheel is tagged py3-none-any but contains compiled files, when an environment was copied from another machine,
and when a container image of the other architecture runs under emulation.

It shows as one of
  OSError: .../x.so: cannot open shared object file: No such file or directory
although the file is there, as
  OSError: .../x.so: wrong ELF class: ELFCLASS32
  exec format error
or as a module that is not found although its .cpython-312-x86_64-linux-gnu.so is there.

Detected by reading the machine field in the file's ELF header, and the architecture in its name.

Build the package here, or install its wheel for this architecture.",
    links: &[
        "https://github.com/state-spaces/mamba/issues/891",
    ],
    texts: &[
        Text::new("wrong ELF class: ELFCLASS*", "OSError: /v/lib/libown.so: wrong ELF class: ELFCLASS32"),
        Text::new("cannot execute binary file: Exec format error", "bash: ./bin/ptxas: cannot execute binary file: Exec format error"),
        Text::new("Exec format error: *ptxas", "OSError: [Errno 8] Exec format error: '/v/lib/python3.12/site-packages/triton/backends/nvidia/bin/ptxas'"),
        Text::new("ELF file's phentsize not the expected size", "ImportError: /v/lib/x.so: ELF file's phentsize not the expected size"),
        Text::new("x86_64-linux-gnu.so: cannot open shared object file: No such file or directory", "ImportError: /v/lib/python3.12/site-packages/selective_scan_cuda.cpython-312-x86_64-linux-gnu.so: cannot open shared object file: No such file or directory"),
    ],
    remedy: |seen| text(seen.fitting_extension()),
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(|env| judge(context.machine, env)).collect()
}

/// CPython puts the architecture into the name of every extension it compiles.
fn judge(machine: &Machine, env: &PyEnv) -> Option<Finding> {
    let (own, other) = match machine.platform {
        Platform::LinuxX86_64 => ("x86-64", "-aarch64-linux-gnu.so"),
        Platform::LinuxAarch64 => ("64-bit Arm", "-x86_64-linux-gnu.so"),
        _ => return None,
    };
    let mut strays: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for file in env.native_files.iter().filter(|file| file.path.ends_with(other)) {
        let dist = file.dist.as_deref().unwrap_or("no package");
        strays.entry(dist).or_insert((file.path.as_str(), 0)).1 += 1;
    }
    // The ELF header decides for files without the architecture in their names. Some packages, such as debuggers, contain
    // files for several architectures, so a package counts only if all its files are for another one.
    let here = if machine.platform == Platform::LinuxAarch64 { "aarch64" } else { "x86_64" };
    let mut headers: Vec<(&str, &str)> = Vec::new();
    for group in by_owner(env, |native| native.file.dist.is_some()) {
        if let (Some(dist), true) =
            (group[0].file.dist.as_deref(), group.iter().all(|native| native.elf.machine != here))
        {
            headers.push((group[0].file.path.as_str(), group[0].elf.machine.as_str()));
            strays.entry(dist).or_insert((group[0].file.path.as_str(), group.len()));
        }
    }
    if strays.is_empty() {
        return None;
    }
    let names: Vec<&str> = strays.keys().copied().collect();
    let mut draft = RULE.finding(
        Severity::Error,
        Confidence::Certain,
        format!(
            "{} in {} is compiled for another processor than this {own} one",
            names.join(", "),
            env.root
        ),
    );
    for (dist, (path, count)) in &strays {
        let header = headers.iter().find(|(known, _)| known == path).map(|(_, machine)| *machine);
        let words = match header {
            Some(machine) => {
                format!("{dist}: the ELF header says {machine}, as in all its {count}")
            }
            None => format!("{dist}: {count} named for {}", other.trim_matches('-')),
        };
        draft = draft.evidence(words, *path);
    }
    let installer = Installer::of(env);
    let packages: Vec<&str> = names.into_iter().filter(|name| *name != "no package").collect();
    let fix = match packages.is_empty() {
        true => vec![
            "# recreate the environment on this machine: it was copied from another one".into(),
            format!("python3 -m venv --clear {}", quote(&env.root)).into(),
        ],
        false => installer.build_for_this_python(&packages),
    };
    Some(draft.cause("Python ignores an extension module named for another architecture, and the loader rejects its code.").fix(fix).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let mamba = |arch: &str| {
            let file = format!("selective_scan_cuda.cpython-312-{arch}-linux-gnu.so");
            vec![env("/v").dist("mamba-ssm", "2.3.1").native("mamba-ssm", &file).build()]
        };
        let plain = |machines: &[&str]| {
            let start = (0, env("/v").dist("own-ops", "1.0"));
            let add = |(index, env): (usize, crate::test_support::EnvBuilder), machine: &&str| {
                let elf = facts::Elf { machine: (*machine).to_owned(), ..elf() };
                (index + 1, env.compiled("own-ops", &format!("own/x{index}_x.so"), elf))
            };
            vec![machines.iter().fold(start, add).1.build()]
        };
        vec![
            Case::new("the x86-64 wheel on a GB10", machines::gb10(), mamba("x86_64")).finds(
                Error,
                Certain,
                &[
                    "mamba-ssm in /v is compiled for another processor than this 64-bit Arm one",
                    "selective_scan_cuda.cpython-312-x86_64-linux-gnu.so",
                    "--no-build-isolation --no-binary mamba-ssm mamba-ssm",
                ],
            ),
            Case::new("an Arm file on x86-64", machines::a10(), mamba("aarch64")).finds(
                Error,
                Certain,
                &["x86-64"],
            ),
            Case::new(
                "an x86-64 file in a wheel for any machine",
                machines::gb10(),
                plain(&["x86_64", "x86_64"]),
            )
            .finds(
                Error,
                Certain,
                &["own-ops: the ELF header says x86_64, as in all its 2"],
            ),
            Case::new(
                "files for both architectures",
                machines::gb10(),
                plain(&["x86_64", "aarch64"]),
            ),
            Case::new("the right one", machines::gb10(), mamba("aarch64")),
            Case::new("the right one on x86-64", machines::a10(), mamba("x86_64")),
            Case::new("off Linux", machines::m3_max(), mamba("x86_64")),
        ]
    }
}
