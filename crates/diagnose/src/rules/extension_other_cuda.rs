use super::{Context, Need, Rule};
use crate::cuda_library::cuda_of_library;
use crate::native::{Native, by_owner, files};
use crate::remedy::Installer;
use facts::{Confidence, Finding, PyEnv, RemedyStep, Severity};
use std::collections::BTreeSet;

pub(super) const RULE: Rule = Rule {
    id: "extension-other-cuda",
    title: "an extension of torch was compiled for another CUDA major version",
    about: "\
An extension that uses torch's C++ API was compiled for CUDA 12, and torch itself for CUDA 13, or the reverse. If both
CUDA runtimes are installed, the import works and the process has two of them: handles of cuBLAS and other libraries
from torch belong to the other runtime, and each runtime loads its own kernels and reserves its own memory.

Detected in the sonames of the CUDA libraries that the compiled files need (libcudart.so.12), for extensions that also
link torch's libraries; labels and versions are ignored. `missing-cuda-library` reports libraries that are missing.

Install the extension's build for the CUDA of your torch, or a torch for that CUDA.",
    links: &["https://github.com/vllm-project/vllm/issues/52300"],
    remedy: |seen| vec![format!("{} -m pip check", seen.installer().python())],
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().flat_map(judge).collect()
}

/// CUDA libraries that a file needs and that are found, each with the CUDA major version in its soname.
fn loaded<'a>(native: &Native<'a>) -> impl Iterator<Item = (&'a str, u32)> {
    let found = native.elf.needed.iter().filter(|needed| needed.path.is_some());
    found.filter_map(|needed| Some((needed.name.as_str(), cuda_of_library(&needed.name)?)))
}

/// The first of them with another CUDA major version than `own`.
fn of_other<'a>(native: &Native<'a>, own: u32) -> Option<(&'a str, u32)> {
    loaded(native).find(|(_, major)| *major != own)
}

fn extends_torch(native: &Native<'_>) -> bool {
    let of_torch = |name: &str| name.starts_with("libtorch") || name.starts_with("libc10");
    native.elf.needed.iter().any(|needed| of_torch(&needed.name))
}

fn judge(env: &PyEnv) -> Vec<Finding> {
    let torch: Vec<Native<'_>> = files(env).filter(Native::is_torch).collect();
    let of_torch: BTreeSet<u32> = torch.iter().flat_map(loaded).map(|(_, major)| major).collect();
    // A torch without CUDA, or one that itself needs two major versions, cannot be compared.
    let [own] = of_torch.into_iter().collect::<Vec<_>>()[..] else { return Vec::new() };
    let needs_own = |native: &&Native<'_>| loaded(native).any(|(_, major)| major == own);
    let Some(of_torch) = torch.iter().find(needs_own) else { return Vec::new() };
    let groups = by_owner(env, |native| {
        !native.is_torch()
            && !native.is_left_to_choice()
            && extends_torch(native)
            && of_other(native, own).is_some()
    });
    let finding = |group: Vec<Native<'_>>| {
        let first = group.first()?;
        let (library, major) = of_other(first, own)?;
        Some(found(env, first, (library, major), of_torch, own))
    };
    groups.into_iter().filter_map(finding).collect()
}

fn found(
    env: &PyEnv,
    native: &Native<'_>,
    (library, major): (&str, u32),
    torch: &Native<'_>,
    own: u32,
) -> Finding {
    let what = native.label();
    let name = native.owner().map_or("the extension", |dist| &dist.name);
    let title = format!("{what} in {} is for CUDA {major}, and its torch for CUDA {own}", env.root);
    let of_torch = loaded(torch).find(|(_, major)| *major == own).map_or("", |(name, _)| name);
    RULE.finding(Severity::Warning, Confidence::Certain, title)
        .evidence(format!("needs {library}"), native.file.path.clone())
        .evidence(format!("needs {of_torch}"), torch.file.path.clone())
        .cause(
            "The process loads two CUDA runtimes, and the extension uses another one than torch.",
        )
        .fix([
            RemedyStep::from(format!(
                "# {name} was compiled for CUDA {major}: install its build for CUDA {own}"
            )),
            Installer::of(env).check(),
        ])
        .finish()
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, found, machines};
    use facts::{Confidence::*, Elf, FoundBy, Severity::*};

    /// A file that needs these libraries, all of which are found.
    fn needing(names: &[&str]) -> Elf {
        let needed = names.iter().map(|name| found(name, &format!("/x/{name}"), FoundBy::Runpath));
        Elf { needed: needed.collect(), ..elf() }
    }

    pub(super) fn cases() -> Vec<Case> {
        let pair = |extension: &[&str]| {
            env("/v")
                .torch("2.14.1+cu130", Some("13.0"))
                .compiled("torch", "torch/lib/libc10_cuda.so", needing(&["libcudart.so.13"]))
                .dist("sgl-kernel", "0.3.5")
                .compiled("sgl-kernel", "sgl_kernel/common_ops.abi3.so", needing(extension))
                .build()
        };
        let check =
            |what, extension: &[&str]| Case::new(what, machines::h200(), vec![pair(extension)]);
        vec![
            check("both runtimes are installed", &["libc10.so", "libcudart.so.12"]).finds(
                Warning,
                Certain,
                &[
                    "sgl-kernel 0.3.5 in /v is for CUDA 12, and its torch for CUDA 13",
                    "needs libcudart.so.12 [/v/lib/python3.12/site-packages/sgl_kernel/common_ops.abi3.so]",
                    "needs libcudart.so.13 [/v/lib/python3.12/site-packages/torch/lib/libc10_cuda.so]",
                    "install its build for CUDA 13",
                ],
            ),
            check("cuFFT 11 is of CUDA 12", &["libtorch.so", "libcufft.so.11"])
                .finds(Warning, Certain, &["is for CUDA 12"]),
            check("of torch's CUDA", &["libc10.so", "libcudart.so.13", "libcufft.so.12"]),
            check("it does not extend torch", &["libcudart.so.12"]),
            check("no CUDA at all", &["libc10.so", "libcudnn.so.9"]),
            Case::new(
                "the library is not installed",
                machines::h200(),
                vec![
                    env("/v")
                        .torch("2.14.1+cu130", Some("13.0"))
                        .compiled("torch", "torch/lib/libc10_cuda.so", needing(&["libcudart.so.13"]))
                        .dist("sgl-kernel", "0.3.5")
                        .compiled(
                            "sgl-kernel",
                            "sgl_kernel/common_ops.abi3.so",
                            crate::test_support::elf_missing_library("libcudart.so.12"),
                        )
                        .build(),
                ],
            ),
        ]
    }
}
