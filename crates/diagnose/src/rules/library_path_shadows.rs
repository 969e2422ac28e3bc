use super::{Context, Need, Rule, Text};
use crate::abi::words;
use crate::native::{Native, files};
use facts::CompactSort;
use facts::{Confidence, Finding, FoundBy, MissingSymbol, Needed, PyEnv, Severity};

pub(super) const RULE: Rule = Rule {
    id: "library-path-shadows",
    title: "LD_LIBRARY_PATH puts another CUDA in front of torch's own libraries",
    about: "\
torch's wheels find their CUDA libraries by a search path inside each file. LD_LIBRARY_PATH comes after an RPATH but
before a RUNPATH, so a system CUDA on LD_LIBRARY_PATH replaces some of the libraries, and the process mixes libraries of
different CUDA releases.

It shows as
  libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12
from `import torch`, with the wheel's libcusparse and the system's older libnvJitLink; and from JAX's plugin as
  RuntimeError: Unable to load cuSPARSE. Is it installed?

Detected by following the loader's search order for each library torch needs.

Unset LD_LIBRARY_PATH, in the shell and in its start-up files; programs that need the system CUDA usually find it
without.",
    links: &[
        "https://github.com/pytorch/pytorch/issues/134929",
        "https://github.com/pytorch/pytorch/issues/111469",
        "https://github.com/pytorch/pytorch/issues/157381",
        "https://github.com/jax-ml/jax/issues/28929",
    ],
    texts: &[
        Text::new("undefined symbol: __nvJitLink*", "ImportError: /v/lib/python3.12/site-packages/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"),
        Text::new("undefined symbol: cublasLt*, version libcublasLt.so", "ImportError: /v/lib/python3.11/site-packages/torch/lib/../../nvidia/cublas/lib/libcublas.so.12: undefined symbol: cublasLtGetEnvironmentMode, version libcublasLt.so.12"),
        // Another copy hides the right one, or the right one is missing; `check` distinguishes them.
        Text::new("undefined symbol: {symbol}, version libcudart.so", "ImportError: /v/lib/python3.12/site-packages/deep_gemm_cpp.cpython-312-x86_64-linux-gnu.so: undefined symbol: cudaLibraryGetKernel, version libcudart.so.12"),
        Text::new("undefined symbol: {symbol}, version libcupti.so", "ImportError: /home/user/.local/lib/python3.10/site-packages/torch/lib/libtorch_cpu.so: undefined symbol: cuptiActivityEnableDriverApi, version libcupti.so.12"),
        Text::new("undefined symbol: nccl*", "ImportError: /usr/local/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclAlltoAll"),
        Text::new("symbol {symbol} version libcublasLt.so* not defined in file", "OSError: /v/lib/python3.7/lib-dynload/../../libcublas.so.11: symbol free_gemm_select version libcublasLt.so.11 not defined in file libcublasLt.so.11 with link time reference"),
        // https://github.com/zai-org/CogVLM2/issues/207
        Text::new("symbol {symbol} version libnvJitLink.so* not defined in file", "ImportError: /home/user/anaconda/envs/cogvlm2/lib/python3.10/site-packages/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12: symbol __nvJitLinkComplete_12_4, version libnvJitLink.so.12 not defined in file libnvJitLink.so.12 with link time reference"),
        Text::new("RuntimeError: Unable to load cu*. Is it installed?", "RuntimeError: Unable to load cuSPARSE. Is it installed?"),
        Text::new("versions_helpers.cc:* operation * library was not found", "RuntimeError: jaxlib/cuda/versions_helpers.cc:81: operation cusparseGetProperty(MAJOR_VERSION, &major) failed: The cuSPARSE library was not found."),
        Text::new("cuDNN version incompatibility: PyTorch was compiled against", "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (8, 7, 0) but found runtime version (8, 2, 4). PyTorch already comes bundled with cuDNN."),
        Text::new("cuDNN version mismatch: PyTorch was compiled against", "RuntimeError: cuDNN version mismatch: PyTorch was compiled against 7102 but linked against 7600"),
        Text::new("CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"),
        // One of cuDNN's nine libraries is of another release than the library that loads it.
        Text::new("libcudnn_*: undefined symbol: cudnn*", "symbol cudnnGetLibConfig. Error: /usr/local/cuda/lib64/libcudnn_graph.so.9: undefined symbol: cudnnGetLibConfig"),
    ],
    remedy: |_| vec!["unset LD_LIBRARY_PATH".into(), "grep -n LD_LIBRARY_PATH ~/.bashrc ~/.profile /etc/environment".into()],
    needs: &[Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(judge).collect()
}

/// Libraries found through LD_LIBRARY_PATH that the file would otherwise find as another copy.
fn shadowed<'a>(native: &Native<'a>) -> Vec<&'a Needed> {
    let needed = native.elf.needed.iter();
    // `libstdcxx-too-old` covers the C++ library.
    let cxx = |needed: &Needed| {
        ["libstdc++.so", "libgcc_s.so"].iter().any(|stem| needed.name.starts_with(stem))
    };
    needed
        .filter(|needed| !cxx(needed))
        .filter(|needed| needed.found_by == Some(FoundBy::LdLibraryPath) && needed.other.is_some())
        .collect()
}

fn judge(env: &PyEnv) -> Option<Finding> {
    let all: Vec<(Native<'_>, &Needed)> = files(env)
        .flat_map(|native| shadowed(&native).into_iter().map(move |needed| (native, needed)))
        .collect();
    // A symbol missing from the replaced library proves it; another missing symbol makes it likely.
    let asked = |(native, needed): &(Native<'_>, &Needed)| -> Option<MissingSymbol> {
        let mut symbols = native.elf.missing_symbols.iter();
        symbols.find(|symbol| symbol.library.as_ref() == Some(&needed.name)).cloned()
    };
    let version = |(native, needed): &(Native<'_>, &Needed)| {
        let mut versions = native.elf.missing_versions.iter();
        versions
            .find(|missing| missing.library == needed.name)
            .map(|missing| missing.version.clone())
    };
    let proved = all.iter().find(|pair| asked(pair).is_some() || version(pair).is_some());
    let likely = all.iter().find(|(native, _)| native.elf.missing_symbols_total > 0);
    let (native, needed) = proved.or(likely).or(all.first())?;
    let (severity, confidence) = match (proved, likely) {
        (Some(_), _) => (Severity::Error, Confidence::Certain),
        (None, Some(_)) => (Severity::Error, Confidence::Likely),
        (None, None) => (Severity::Warning, Confidence::Likely),
    };
    let path = needed.path.as_deref().unwrap_or_default();
    let title = match severity {
        Severity::Error => format!(
            "LD_LIBRARY_PATH breaks {} in {}: another {} is loaded",
            native.label(),
            env.root,
            needed.name
        ),
        _ => format!(
            "LD_LIBRARY_PATH puts another {} in front of the one {} in {} brings",
            needed.name,
            native.label(),
            env.root
        ),
    };
    let mut draft = RULE
        .finding(severity, confidence, title)
        .evidence(format!("needs {}", needed.name), native.file.path.clone())
        .evidence("taken first, by LD_LIBRARY_PATH", path);
    if let Some(other) = &needed.other {
        draft = draft.evidence("found without it", other.clone());
    }
    let symbol = asked(&(*native, needed)).or_else(|| native.elf.missing_symbols.first().cloned());
    if let Some(symbol) = symbol {
        let words = words(&symbol.symbol, symbol.demangled.as_deref());
        draft =
            draft.evidence(format!("no library loaded exports {words}"), native.file.path.clone());
    }
    if let Some(version) = version(&(*native, needed)) {
        draft = draft.evidence(format!("it has no version {version}"), path);
    }
    let mut names: Vec<&str> = all.iter().map(|(_, needed)| needed.name.as_str()).collect();
    names.compact_sort();
    names.dedup();
    if names.len() > 1 {
        draft = draft
            .evidence(format!("all replaced libraries: {}", names.join(", ")), "LD_LIBRARY_PATH");
    }
    let cause = match severity {
        Severity::Error => {
            "LD_LIBRARY_PATH is searched before the RUNPATH of the files, so the process mixes libraries of different releases."
        }
        _ => {
            "LD_LIBRARY_PATH is searched before the RUNPATH of the files. The two copies are compatible now, but may not be after the next upgrade of either."
        }
    };
    let fix =
        ["unset LD_LIBRARY_PATH", "grep -n LD_LIBRARY_PATH ~/.bashrc ~/.profile /etc/environment"];
    Some(draft.cause(cause).fix(fix).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, found, machines};
    use facts::{Confidence::*, Elf, FoundBy, MissingSymbol, PyEnv, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let env = |by, other: Option<&str>, symbol: Option<(&str, Option<&str>)>| -> Vec<PyEnv> {
            let mut needed =
                found("libnvJitLink.so.12", "/usr/local/cuda/lib64/libnvJitLink.so.12", by);
            needed.other = other.map(str::to_owned);
            let symbols = symbol.into_iter().map(|(name, library)| MissingSymbol {
                symbol: name.into(),
                demangled: None,
                version: library.map(str::to_owned),
                library: library.map(str::to_owned),
                instead: Vec::new(),
            });
            let missing_symbols: Vec<MissingSymbol> = symbols.collect();
            let elf = Elf {
                needed: vec![needed],
                missing_symbols_total: missing_symbols.len() as u32,
                missing_symbols,
                ..elf()
            };
            let env = env("/v")
                .torch("2.5.1+cu124", Some("12.4"))
                .dist("nvidia-cusparse-cu12", "12.3.1.170");
            vec![
                env.compiled("nvidia-cusparse-cu12", "nvidia/cusparse/lib/libcusparse.so.12", elf)
                    .build(),
            ]
        };
        let own = Some("/v/lib/python3.12/site-packages/nvidia/nvjitlink/lib/libnvJitLink.so.12");
        let gone = "__nvJitLinkComplete_12_4";
        vec![
            Case::new(
                "the system's older nvJitLink (row 16)",
                machines::a10(),
                env(FoundBy::LdLibraryPath, own, Some((gone, Some("libnvJitLink.so.12")))),
            )
            .finds(
                Error,
                Certain,
                &[
                    "LD_LIBRARY_PATH breaks nvidia-cusparse-cu12 12.3.1.170 in /v: another libnvJitLink.so.12 is loaded",
                    "[/usr/local/cuda/lib64/libnvJitLink.so.12]",
                    "found without it [/v/lib/python3.12/site-packages/nvidia/nvjitlink/lib/libnvJitLink.so.12]",
                    "no library loaded exports __nvJitLinkComplete_12_4",
                    "unset LD_LIBRARY_PATH",
                ],
            ),
            Case::new(
                "a symbol without a version",
                machines::a10(),
                env(FoundBy::LdLibraryPath, own, Some((gone, None))),
            )
            .finds(Error, Likely, &[gone]),
            Case::new("compatible copies", machines::a10(), env(FoundBy::LdLibraryPath, own, None)).finds(
                Warning,
                Likely,
                &["puts another libnvJitLink.so.12 in front", "compatible now"],
            ),
            Case::new("there is no other copy", machines::a10(), env(FoundBy::LdLibraryPath, None, None)),
            Case::new("an RPATH comes before the variable", machines::a10(), env(FoundBy::Rpath, own, None)),
            Case::new("found by RUNPATH", machines::a10(), env(FoundBy::Runpath, None, None)),
        ]
    }
}
