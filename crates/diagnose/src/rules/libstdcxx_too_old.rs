use super::{Context, Need, Rule, Text};
use crate::native::{Native, by_owner};
use crate::remedy::Installer;
use facts::{Confidence, EnvKind, Finding, FoundBy, RemedyStep, Severity};

pub(super) const RULE: Rule = Rule {
    id: "libstdcxx-too-old",
    title: "a compiled file needs a newer C++ library than the one that is found first",
    about: "\
A file was compiled with a newer g++ than the one whose libstdc++.so.6 the loader finds first. Most often the system's
library is new enough, but the loader finds an older copy before it: conda's, or one on LD_LIBRARY_PATH.

It shows, when the extension is imported, as
  ImportError: .../lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by .../x.so)
or with CXXABI_1.3.15 instead of GLIBCXX; the path before it is the copy that was found.

Detected by comparing the versions the file requires with those the found libstdc++ defines.

In a conda environment install a newer libstdcxx-ng; elsewhere remove the old copy from LD_LIBRARY_PATH.",
    links: &[
        "https://github.com/pytorch/pytorch/issues/111469",
    ],
    texts: &[
        Text::new("version `GLIBCXX_{wanted}' not found", "ImportError: /opt/conda/bin/../lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /opt/conda/lib/python3.11/site-packages/own_ops.so)"),
        Text::new("version `CXXABI_{wanted}' not found", "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /opt/conda/lib/python3.11/lib-dynload/../../libicui18n.so.78)"),
        Text::new("version GLIBCXX_{wanted}' not found", "error info /lib/x86_64-linux-gnu/libstdc++.so.6: version GLIBCXX_3.4.32' not found (required by libxyber_controller.so)"),
        // A function of libstdc++ itself. https://github.com/vllm-project/vllm/issues/1758
        Text::new("undefined symbol: _ZNSt15__exception_ptr13exception_ptr*", "cuda_utils.cpython-39-x86_64-linux-gnu.so: undefined symbol: _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv"),
    ],
    remedy: |seen| {
        let conda = seen.env().filter(|env| env.kind == EnvKind::Conda);
        let newer = || vec![seen.installer().conda(&["libstdcxx-ng".into()]).into()];
        match (conda, found_copy(seen.text)) {
            (Some(_), _) | (_, Copy::Conda) => newer(),
            (_, Copy::System) => vec![
                "# the system's own library is too old: a wheel tagged manylinux, a newer system image, or in a conda environment its library first:".into(),
                "export LD_LIBRARY_PATH=$CONDA_PREFIX/lib:$LD_LIBRARY_PATH".into(),
            ],
            (_, Copy::Other) => vec!["unset LD_LIBRARY_PATH".into()],
        }
    },
    needs: &[Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// The copy of libstdc++ that a message names.
enum Copy {
    Conda,
    System,
    Other,
}

/// The copy before `version`, by its path; messages without a path are of no known copy.
fn found_copy(text: &str) -> Copy {
    let path = text.split(": version").next().and_then(|before| before.split_whitespace().last());
    let Some(path) = path.filter(|path| path.contains("libstdc++")) else { return Copy::Other };
    let conda = ["conda", "mamba", "miniforge", "/envs/"].iter().any(|word| path.contains(word));
    let system = ["/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"];
    match (conda, system.iter().any(|folder| path.starts_with(folder))) {
        (true, _) => Copy::Conda,
        (_, true) => Copy::System,
        _ => Copy::Other,
    }
}

fn check(context: &Context) -> Vec<Finding> {
    let wants = |native: &Native<'_>| missing(native).is_some() && !native.is_one_of_several();
    let groups = context.envs.iter().flat_map(|env| by_owner(env, wants));
    groups.filter_map(|group| judge(&group)).collect()
}

/// The newest GLIBCXX_ or CXXABI_ symbol version that a file requires and the C++ library lacks.
fn missing<'a>(native: &Native<'a>) -> Option<&'a facts::MissingVersion> {
    let versions = native.elf.missing_versions.iter();
    let ours = versions.filter(|missing| {
        missing.version.starts_with("GLIBCXX_") || missing.version.starts_with("CXXABI_")
    });
    ours.max_by_key(|missing| {
        let number = missing.version.split_once('_').map(|(_, number)| number).unwrap_or_default();
        knowledge::Version::parse(number).map(|version| version.release)
    })
}

fn judge(group: &[Native<'_>]) -> Option<Finding> {
    let first = group.first()?;
    let wanted = missing(first)?;
    let here = wanted.newest.as_deref().unwrap_or("none of that name");
    let needed = first.elf.needed.iter().find(|needed| needed.name == wanted.library);
    let by = needed.and_then(|needed| needed.found_by);
    let other = needed.and_then(|needed| needed.other.as_deref());
    let mut draft = RULE
        .finding(
            Severity::Error,
            Confidence::Certain,
            format!(
                "{} in {} needs {}; the {} found first ends at {here}",
                first.label(),
                first.env.root,
                wanted.version,
                wanted.library
            ),
        )
        .evidence(
            format!("requires {} of {}", wanted.version, wanted.library),
            first.file.path.clone(),
        )
        .evidence(
            format!(
                "its newest version is {here}; found by {}",
                by.map_or("the loader", FoundBy::as_str)
            ),
            wanted.path.clone(),
        );
    if let Some(other) = other {
        draft = draft.evidence("another copy, which would be found without it", other);
    }
    let installer = Installer::of(first.env);
    let mut fix = Vec::new();
    if by == Some(FoundBy::LdLibraryPath) {
        fix.push(RemedyStep::from("unset LD_LIBRARY_PATH"));
    } else if first.env.kind == EnvKind::Conda {
        fix.push(installer.conda(&["libstdcxx-ng".into()]));
    } else {
        fix.push("# install a wheel tagged manylinux for this system, or build it here:".into());
        fix.extend(crate::abi::build_here(first));
    }
    let cause = "The file was compiled with a newer g++ than that of the C++ library that the loader finds first.";
    Some(draft.cause(cause).fix(fix).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, found, machines, missing_version};
    use facts::{Confidence::*, Elf, FoundBy, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let elf = |path: &str, by, other: Option<&str>| {
            let missing =
                missing_version("GLIBCXX_3.4.32", "libstdc++.so.6", path, "GLIBCXX_3.4.30");
            let mut needed = found("libstdc++.so.6", path, by);
            needed.other = other.map(str::to_owned);
            Elf { missing_versions: vec![missing], needed: vec![needed], ..elf() }
        };
        let shadowed =
            elf("/opt/old/libstdc++.so.6", FoundBy::LdLibraryPath, Some("/usr/lib/libstdc++.so.6"));
        let conda = elf("/c/lib/libstdc++.so.6", FoundBy::Rpath, None);
        let system = elf("/usr/lib/libstdc++.so.6", FoundBy::LdSoCache, None);
        vec![
            Case::new(
                "an old copy on LD_LIBRARY_PATH",
                machines::a10(),
                vec![env("/v").dist("own_ops", "1.0").compiled("own_ops", "own_ops.so", shadowed).build()],
            )
            .finds(
                Error,
                Certain,
                &[
                    "own_ops 1.0 in /v needs GLIBCXX_3.4.32; the libstdc++.so.6 found first ends at GLIBCXX_3.4.30",
                    "found by LD_LIBRARY_PATH [/opt/old/libstdc++.so.6]",
                    "[/usr/lib/libstdc++.so.6]",
                    "unset LD_LIBRARY_PATH",
                ],
            ),
            Case::new(
                "conda's own copy",
                machines::a10(),
                vec![env("/c").conda().dist("own_ops", "1.0").compiled("own_ops", "own_ops.so", conda).build()],
            )
            .finds(Error, Certain, &["conda install --prefix /c -c conda-forge libstdcxx-ng"]),
            Case::new(
                "the system's copy",
                machines::a10(),
                vec![env("/v").dist("own_ops", "1.0").compiled("own_ops", "own_ops.so", system).build()],
            )
            .finds(Error, Certain, &["--no-binary own-ops own-ops==1.0"]),
            Case::new("no compiled file", machines::a10(), vec![env("/v").build()]),
        ]
    }
}
