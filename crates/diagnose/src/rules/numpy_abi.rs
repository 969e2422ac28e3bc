use super::{Context, Need, Rule, Text};
use crate::native::{Native, by_owner, files};
use crate::remedy::Installer;
use crate::torch_build::live_dist;
use facts::CompactCollect;
use facts::{Confidence, Dist, Finding, Needed, NumpyApi, PyEnv, RemedyStep, Severity};
use knowledge::Version;
use std::cmp::Ordering;
use std::collections::BTreeSet;

pub(super) const RULE: Rule = Rule {
    id: "numpy-abi",
    title: "modules compiled for another NumPy",
    about: "\
NumPy 2 changed the ABI that compiled modules use. A module compiled with NumPy 1's headers does not load with NumPy 2;
a module compiled with NumPy 2's headers loads with both, down to the oldest release that it names. Upgrading NumPy
alone breaks older wheels of scipy, pandas, numba, scikit-learn and many others.

It shows as one of
  A module that was compiled using NumPy 1.x cannot be run in NumPy 2.3.5 as it may crash.
  ImportError: numpy.core.multiarray failed to import
  ValueError: numpy.dtype size changed, may indicate binary incompatibility.
  RuntimeError: module was compiled against NumPy C-API version 0x14 (NumPy 2.3) but the running ...

Detected in the messages that NumPy's headers compile into each module, and in the version of NumPy that is installed.

Install a release of the package for the installed NumPy, or an older NumPy.",
    links: &["https://numpy.org/devdocs/numpy_2_0_migration_guide.html"],
    texts: &[
        Text::new("A module that was compiled using NumPy 1.", "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.0 as it may crash."),
        Text::new("downgrade to 'numpy<2' or try to upgrade the affected module", "If you are a user of the module, the easiest solution will be to\ndowngrade to 'numpy<2' or try to upgrade the affected module."),
        Text::new("numpy.dtype size changed, may indicate binary incompatibility", "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject"),
        Text::new("numpy.core.multiarray failed to import (auto-generated because you didn't call", "ImportError: numpy.core.multiarray failed to import (auto-generated because you didn't call 'numpy.import_array()' after cimporting numpy; use '<void>numpy._import_array' to disable if you are certain you don't need it)."),
        Text::new("module was compiled against NumPy C-API version * but the running NumPy has", "RuntimeError: module was compiled against NumPy C-API version 0x14 (NumPy 2.3) but the running NumPy has C-API version 0x10. Check the section C-API incompatibility"),
        // pyarrow 26, imported with numpy 1.26.4.
        Text::new("requires NumPy * or newer, found", "ImportError: pyarrow requires NumPy 2.0 or newer, found 1.26.4"),
    ],
    remedy: |seen| {
        let wanted = least(seen.text).map_or("numpy<2".to_owned(), |least| format!("numpy>={least}"));
        vec![seen.installer().install(&[wanted], None).into()]
    },
    needs: &[Need::Package("numpy"), Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// The oldest NumPy that an error message of a module, or of its package, names.
fn least(text: &str) -> Option<&str> {
    let (_, rest) = text
        .split_once("C-API version")
        .and_then(|(_, rest)| rest.split_once("(NumPy "))
        .or_else(|| text.split_once("requires NumPy "))?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|version| !version.is_empty())
}

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().flat_map(judge).collect()
}

fn judge(env: &PyEnv) -> Vec<Finding> {
    let Some(numpy) = live_dist(env, "numpy") else { return Vec::new() };
    let Some(version) = Version::parse(&numpy.version) else { return Vec::new() };
    let refuses = |native: &Native<'_>| {
        let own = native.owner_name().as_deref() == Some("numpy");
        !own && native.elf.numpy.as_ref().is_some_and(|api| refuses(api, &version))
    };
    let mut groups = by_owner(env, refuses);
    // If other modules of a package accept this NumPy, the package imports those for a newer NumPy only with that one
    // (h5py 3.16's _npystrings).
    let takes = |native: &Native<'_>| native.elf.numpy.is_some() && !refuses(native);
    let of = |native: &Native<'_>| native.owner_name().filter(|_| takes(native));
    let content: BTreeSet<String> = files(env).filter_map(|native| of(&native)).compact_set();
    groups.retain(|group| !group[0].owner_name().is_some_and(|owner| content.contains(&owner)));
    groups.iter().filter_map(|group| finding(env, numpy, group)).collect()
}

/// Whether a module refuses a NumPy.
fn refuses(api: &NumpyApi, numpy: &Version) -> bool {
    let two = numpy.release.first().is_some_and(|major| *major >= 2);
    let least = api.least.as_deref().and_then(Version::parse);
    (api.before_2 && two) || least.is_some_and(|least| numpy.compare(&least) == Ordering::Less)
}

/// Whether a module is linked with the library, as pyarrow's modules are with libarrow_python.so.
fn is_needed(env: &PyEnv, native: &Native<'_>) -> bool {
    let is_it = |needed: &Needed| needed.path.as_ref() == Some(&native.file.path);
    files(env).any(|it| it.elf.module == Some(true) && it.elf.needed.iter().any(is_it))
}

fn finding(env: &PyEnv, numpy: &Dist, group: &[Native<'_>]) -> Option<Finding> {
    // torch works without NumPy, and raises an error only when a tensor is converted to an array.
    let opened =
        |native: &&Native<'_>| (native.is_opened() || is_needed(env, native)) && !native.is_torch();
    let shown = group.iter().find(opened).or(group.first())?;
    let severity = if group.iter().any(|native| opened(&native)) {
        Severity::Error
    } else {
        Severity::Warning
    };
    let api = shown.elf.numpy.as_ref()?;
    let (wanted, what) = match (&api.least, api.before_2) {
        (Some(least), false) => (
            format!("NumPy {least} or newer"),
            format!("its message names NumPy {least} as the oldest"),
        ),
        _ => ("NumPy 1".to_owned(), "it has the messages of NumPy 1's headers".to_owned()),
    };
    let title = format!(
        "{} in {} is compiled for {wanted}, and NumPy {} is installed",
        shown.label(),
        env.root,
        numpy.version
    );
    let mut draft = RULE
        .finding(severity, Confidence::Certain, title)
        .evidence(what, shown.file.path.clone())
        .evidence(format!("numpy {}", numpy.version), format!("{}/METADATA", numpy.path));
    if group.len() > 1 {
        draft = draft.evidence(
            format!("so do {} of its compiled files", group.len()),
            shown.owner().map_or(shown.file.path.clone(), |dist| format!("{}/RECORD", dist.path)),
        );
    }
    let cause = match severity {
        Severity::Error => {
            "Each of these modules compares NumPy's ABI version with its own when it is imported."
        }
        _ => "torch is imported, with a warning; converting between tensors and arrays fails.",
    };
    Some(draft.cause(cause).fix(fix(env, api, shown.owner())).finish())
}

fn fix(env: &PyEnv, api: &NumpyApi, owner: Option<&Dist>) -> Vec<RemedyStep> {
    let installer = Installer::of(env);
    match (&api.least, api.before_2) {
        (Some(least), false) => vec![installer.install(&[format!("numpy>={least}")], None)],
        _ => {
            let mut lines = vec![installer.install(&["numpy<2".into()], None)];
            if let Some(dist) = owner {
                lines.insert(
                    0,
                    format!(
                        "# or a release of {} that is built for NumPy 2, instead of this:",
                        dist.name
                    )
                    .into(),
                );
            }
            lines
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, found, machines};
    use facts::{Confidence::*, Elf, FoundBy, NumpyApi, PyEnv, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let with = |numpy: &str,
                    dist: &str,
                    file: &str,
                    before_2: bool,
                    least: Option<&str>|
         -> Vec<PyEnv> {
            let api = NumpyApi { before_2, least: least.map(str::to_owned) };
            let elf = Elf { numpy: Some(api), ..elf() };
            let env = env("/v").dist("numpy", numpy).dist(dist, "1.11.4").compiled(dist, file, elf);
            vec![env.build()]
        };
        let fblas = "scipy/linalg/_fblas.cpython-312-x86_64-linux-gnu.so";
        vec![
            Case::new(
                "scipy 1.11 under NumPy 2",
                machines::a10(),
                with("2.3.5", "scipy", fblas, true, None),
            )
            .finds(
                Error,
                Certain,
                &[
                    "scipy 1.11.4 in /v is compiled for NumPy 1, and NumPy 2.3.5 is installed",
                    "it has the messages of NumPy 1's headers",
                    "pip install 'numpy<2'",
                ],
            ),
            Case::new(
                "a module that needs a newer NumPy",
                machines::a10(),
                with("1.23.5", "scipy", fblas, false, Some("1.25")),
            )
            .finds(
                Error,
                Certain,
                &["compiled for NumPy 1.25 or newer", "'numpy>=1.25'"],
            ),
            Case::new(
                "an old torch",
                machines::a10(),
                with("2.3.5", "torch", "torch/lib/libtorch_python.so", true, None),
            )
            .finds(Warning, Certain, &["converting between tensors and arrays"]),
            Case::new(
                "pyarrow 26, whose modules are linked with a library for NumPy 2",
                machines::a10(),
                {
                    let library = "pyarrow/libarrow_python.so.2600";
                    let mut envs = with("1.26.4", "pyarrow", library, false, Some("2.0"));
                    let path = envs[0].native_files[0].path.clone();
                    let needed = vec![found("libarrow_python.so.2600", &path, FoundBy::Runpath)];
                    let module = Elf { needed, module: Some(true), ..elf() };
                    let lib = env("/v").compiled("pyarrow", "pyarrow/lib.so", module).build();
                    envs[0].native_files.extend(lib.native_files);
                    envs
                },
            )
            .finds(
                Error,
                Certain,
                &["pyarrow 1.11.4 in /v is compiled for NumPy 2.0 or newer", "'numpy>=2.0'"],
            ),
            Case::new("the same library, which nothing needs", machines::a10(), {
                with("1.26.4", "pyarrow", "pyarrow/libarrow_python.so", false, Some("2.0"))
            })
            .finds(
                Warning,
                Certain,
                &["pyarrow 1.11.4 in /v is compiled for NumPy 2.0 or newer"],
            ),
            Case::new("h5py 3.16, which has one module for NumPy 2", machines::a10(), {
                let accepts = NumpyApi { before_2: false, least: Some("1.20".into()) };
                let mut envs = with("1.26.4", "h5py", "h5py/_npystrings.so", false, Some("2.0"));
                let other = env("/v").compiled(
                    "h5py",
                    "h5py/_conv.so",
                    Elf { numpy: Some(accepts), ..elf() },
                );
                envs[0].native_files.extend(other.build().native_files);
                envs
            }),
            Case::new("under NumPy 1", machines::a10(), with("1.26.4", "scipy", fblas, true, None)),
            Case::new(
                "built with NumPy 2",
                machines::a10(),
                with("2.3.5", "scipy", fblas, false, Some("1.25")),
            ),
            Case::new(
                "built with NumPy 2, under 1",
                machines::a10(),
                with("1.26.4", "scipy", fblas, false, Some("1.25")),
            ),
        ]
    }
}
