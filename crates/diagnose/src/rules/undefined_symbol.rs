use super::{Context, Need, Rule, Text, python_outside_venv};
use crate::abi::{build_here, is_torch_symbol, words};
use crate::cuda_library::known;
use crate::native::{Native, by_owner};
use crate::remedy::{quote, text};
use facts::{Confidence, Finding, FoundBy, MissingSymbol, Severity};

pub(super) const RULE: Rule = Rule {
    id: "undefined-symbol",
    title: "a compiled module calls a function that no library here has",
    about: "\
A module was compiled against other releases of its libraries than the installed ones: another Python, another copy of a
library that its package bundles, or files of two versions of one package, mixed by an interrupted upgrade. The loader
resolves every symbol when the module is imported, and fails at the first missing one.

It shows as
  ImportError: .../x.so: undefined symbol: ...
An extension of torch that is imported before torch lacks the symbols of torch's Python bindings (THPVariableClass).

Detected by looking up every undefined symbol of the module in all libraries that the loader has opened by then. Other
rules cover symbols of torch and of CUDA's libraries; modules that no import opens are left out.

Reinstall the package in the recorded version; if that does not help, build it here.",
    links: &["https://docs.python.org/3/c-api/stable.html"],
    texts: &[Text::new("undefined symbol: THP*", "ImportError: ./smtl_cuda.so: undefined symbol: THPVariableClass")],
    remedy: |seen| {
        let mut lines =
            vec!["# torch brings these functions: `import torch` first, then the extension; else:".to_owned()];
        lines.extend(text(seen.fitting_extension()));
        match seen.text.contains("symbol: THP") {
            true => lines,
            false => lines.split_off(1),
        }
    },
    needs: &[Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let wants = |native: &Native<'_>| {
        gone(native).is_some()
            && native.elf.module == Some(true)
            && native.elf.opened_by.is_some()
            && native.is_for(context.machine)
            && !native.has_alternative_build(|other| other.elf.missing_symbols_total == 0)
    };
    // Without an interpreter, or with another release's, every Python symbol is missing: `python-outside-venv` reports it.
    let envs = context.envs.iter().filter(|env| {
        env.interpreter.resolved.is_some() && python_outside_venv::other_release(env).is_none()
    });
    let groups = envs.flat_map(|env| by_owner(env, wants));
    groups.filter_map(|group| judge(&group)).collect()
}

/// The first missing symbol, if no other rule covers any of the missing symbols.
fn gone<'a>(native: &Native<'a>) -> Option<&'a MissingSymbol> {
    let elf = native.elf;
    let of_others = elf.missing_symbols.iter().any(|symbol| {
        let of_cuda = symbol.library.as_deref().is_some_and(|library| known(library).is_some());
        of_cuda || is_torch_symbol(&symbol.symbol)
    });
    let unsure = elf.needed.iter().any(|needed| {
        let shadowed = needed.found_by == Some(FoundBy::LdLibraryPath) && needed.other.is_some();
        needed.path.is_none() || shadowed
    });
    let versions = !elf.missing_versions.is_empty();
    elf.missing_symbols.first().filter(|_| !of_others && !unsure && !versions)
}

fn judge(group: &[Native<'_>]) -> Option<Finding> {
    let first = group.first()?;
    let symbol = gone(first)?;
    let name = words(&symbol.symbol, symbol.demangled.as_deref());
    let mut draft = RULE
        .finding(
            Severity::Error,
            Confidence::Likely,
            format!(
                "{} in {} calls {}, which no library here has",
                first.label(),
                first.env.root,
                symbol.symbol
            ),
        )
        .evidence(format!("needs {name}"), first.file.path.clone())
        .evidence(
            "imports it when the package is imported",
            first.elf.opened_by.clone().unwrap_or_default(),
        );
    let total: u32 = group.iter().map(|native| native.elf.missing_symbols_total).sum();
    if total > 1 {
        draft = draft.evidence(
            format!("{total} symbols that no library exports, in {} files", group.len()),
            first.file.path.clone(),
        );
    }
    let fix = match first.owner() {
        Some(dist) => {
            let mut lines = super::damaged_files::reinstall_commands(first.env, &[dist]);
            lines.push("# if the same version does not load either, build it here:".into());
            lines.extend(build_here(first));
            lines
        }
        None => vec![format!("rm {}", quote(&first.file.path)).into()],
    };
    let cause = "The module and the libraries it is loaded with are of different releases.";
    Some(draft.cause(cause).fix(fix).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, machines};
    use facts::{Confidence::*, Elf, MissingSymbol, PyEnv, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let one = |symbol: &str, module: bool, opened: bool| -> Vec<PyEnv> {
            let missing = MissingSymbol {
                symbol: symbol.into(),
                demangled: None,
                version: None,
                library: None,
                instead: Vec::new(),
            };
            let elf = Elf {
                missing_symbols: vec![missing],
                missing_symbols_total: 1,
                module: Some(module),
                opened_by: opened.then(|| "/v/lib/python3.12/site-packages/own/__init__.py".into()),
                ..elf()
            };
            vec![env("/v").dist("own", "1.0").compiled("own", "own/_C.so", elf).build()]
        };
        vec![
            Case::new(
                "a function of another Python",
                machines::a10(),
                one("_PyUnicode_Ready", true, true),
            )
            .finds(
                Error,
                Likely,
                &[
                    "own 1.0 in /v calls _PyUnicode_Ready, which no library here has",
                    "--force-reinstall --no-deps own==1.0",
                ],
            ),
            Case::new("the Python it was made from was removed", machines::a10(), {
                let mut envs = one("PyUnicode_FromFormat", true, true);
                envs[0].interpreter.resolved = None;
                envs
            }),
            Case::new("that Python became another release", machines::a10(), {
                let mut envs = one("_PyUnicode_Ready", true, true);
                envs[0].interpreter.resolved = Some("/usr/bin/python3.13".into());
                envs
            }),
            Case::new(
                "a module that no import opens",
                machines::a10(),
                one("_PyUnicode_Ready", true, false),
            ),
            Case::new("a library", machines::a10(), one("own_function", false, true)),
            Case::new(
                "a torch symbol is left to another rule",
                machines::a10(),
                one("_ZN3c105ErrorC2ESs", true, true),
            ),
        ]
    }
}
