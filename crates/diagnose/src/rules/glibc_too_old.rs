use super::{Context, Need, Rule, Text};
use crate::abi::{build_here, match_torch};
use crate::native::{Native, by_owner};
use crate::remedy::text;
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "glibc-too-old",
    title: "a compiled file needs a newer C library than this system has",
    about: "\
A wheel was built on a newer distribution than the one it runs on, and is tagged linux_x86_64, which names no glibc
version, instead of manylinux_2_X, which pip would have refused here. The C library of a system cannot be replaced
separately from the distribution.

It shows, when the extension is imported, as
  ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by .../flash_attn_2_cuda...so)

Detected by comparing the versions the file requires (.gnu.version_r) with the C library here; Ubuntu 20.04 has 2.31,
22.04 has 2.35, Debian 12 has 2.36, Ubuntu 24.04 has 2.39.

Install an older wheel or one tagged manylinux, build the extension here, or use a newer distribution or container.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/1762",
        "https://github.com/Dao-AILab/flash-attention/issues/1708",
    ],
    texts: &[
        Text::new("version `GLIBC_{wanted}' not found (required by", "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by /v/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so)"),
        Text::new("version `GLIBC_{wanted}' not found", "OSError: /lib64/libc.so.6: version `GLIBC_2.32' not found"),
    ],
    remedy: |seen| {
        let mut lines = vec!["ldd --version".to_owned()];
        lines.extend(text(seen.fitting_extension()));
        lines
    },
    needs: &[Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let wants = |native: &Native<'_>| missing(native).is_some() && !native.is_one_of_several();
    let groups = context.envs.iter().flat_map(|env| by_owner(env, wants));
    groups.filter_map(|group| judge(context, &group)).collect()
}

/// The newest GLIBC_ symbol version that a file requires and the C library lacks.
fn missing<'a>(native: &Native<'a>) -> Option<&'a facts::MissingVersion> {
    let versions = native.elf.missing_versions.iter();
    let glibc = versions.filter(|missing| missing.version.starts_with("GLIBC_"));
    glibc.max_by_key(|missing| knowledge::Version::parse(&missing.version[6..]).map(|v| v.release))
}

fn judge(context: &Context, group: &[Native<'_>]) -> Option<Finding> {
    let first = group.first()?;
    let wanted = missing(first)?;
    let here = wanted.newest.as_deref().unwrap_or("none of that name");
    let mut draft = RULE
        .finding(
            Severity::Error,
            Confidence::Certain,
            format!(
                "{} in {} needs {}; the C library here ends at {here}",
                first.label(),
                first.env.root,
                wanted.version
            ),
        )
        .evidence(
            format!("requires {} of {}", wanted.version, wanted.library),
            first.file.path.clone(),
        )
        .evidence(format!("its newest version is {here}"), wanted.path.clone());
    if let Some(tag) = first.owner().and_then(|dist| dist.tags.first()) {
        let path = first.owner().map(|dist| format!("{}/WHEEL", dist.path)).unwrap_or_default();
        draft = draft.evidence(format!("the wheel is tagged {tag}"), path);
    }
    let os = &context.machine.os;
    draft = draft.fact("the system is", os.name.as_ref());
    let fix = match first.owner() {
        Some(_) => {
            let mut lines = vec![
                "# a wheel tagged manylinux_2_28 or older fits this system; else build it here:"
                    .into(),
            ];
            lines.extend(build_here(first));
            lines
        }
        None => match_torch(context.machine, first),
    };
    let cause = "The file was compiled on a newer distribution than this one; the loader refuses it before looking at \
                 any symbol. The C library cannot be replaced separately from the distribution.";
    Some(draft.cause(cause).fix(fix).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, machines, missing_version};
    use facts::{Confidence::*, Elf, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let env = |file: &str, wanted: &str| {
            let missing = missing_version(
                wanted,
                "libc.so.6",
                "/lib/x86_64-linux-gnu/libc.so.6",
                "GLIBC_2.31",
            );
            let elf = Elf { missing_versions: vec![missing], ..elf() };
            let env = env("/v").torch("2.6.0+cu124", Some("12.4")).dist("flash_attn", "2.8.0");
            vec![env.compiled("flash_attn", file, elf).build()]
        };
        vec![
            Case::new("a wheel from a newer Ubuntu", machines::a10(), env("flash_attn_2_cuda.so", "GLIBC_2.32"))
                .finds(
                    Error,
                    Certain,
                    &[
                        "flash_attn 2.8.0 in /v needs GLIBC_2.32; the C library here ends at GLIBC_2.31",
                        "requires GLIBC_2.32 of libc.so.6",
                        "FLASH_ATTENTION_FORCE_BUILD=TRUE /v/bin/python -m pip install",
                    ],
                ),
            Case::new(
                "the C++ library is another rule",
                machines::a10(),
                env("flash_attn_2_cuda.so", "GLIBCXX_3.4.32"),
            ),
            Case::new("nothing missing", machines::a10(), vec![crate::test_support::env("/v").compiled("", "a.so", elf()).build()]),
        ]
    }
}
