use super::{Context, Need, Rule, Text};
use crate::abi::{self, Mismatch};
use crate::remedy::text;
use facts::Finding;

pub(super) const RULE: Rule = Rule {
    id: "extension-other-torch",
    title: "an extension compiled against another torch than the installed one",
    about: "\
An extension calls functions of torch (c10, at, torch) that the installed torch does not export under that name: it was
compiled against another release. This happens when pip builds a source package with build isolation: it downloads the
newest torch into a temporary environment, compiles against it, and installs the result next to an older torch.

It shows, when the extension is imported, as for example
  undefined symbol: _ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEE...
or with any other name that begins _ZN3c10, _ZN2at or _ZN5torch.

Detected by looking the extension's undefined symbols up in what the installed torch libraries export.

Build the extension here without build isolation, so that it is compiled against the installed torch.",
    links: &[
        "https://github.com/state-spaces/mamba/issues/764",
        "https://github.com/state-spaces/mamba/issues/787",
    ],
    texts: &[
        Text::new("undefined symbol: _ZN3c107WarningC1E*SourceLocationESsb", "ImportError: /v/selective_scan_cuda.so: undefined symbol: _ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEERKNS_14SourceLocationESsb"),
        Text::new("undefined symbol: _ZN3c107WarningC1ESt7variantI*", "ImportError: /v/lib/python3.11/site-packages/selective_scan_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEERKNS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEb"),
        Text::new("undefined symbol: _ZN3c10*", "ImportError: /v/lib/python3.12/site-packages/own_ops.so: undefined symbol: _ZN3c1021throwNullDataPtrErrorEv"),
        Text::new("undefined symbol: _ZNK3c10*", "OSError: /v/lib/python3.12/site-packages/own_ops.so: undefined symbol: _ZNK3c1010TensorImpl15decref_pyobjectEv"),
        Text::new("undefined symbol: _ZN2at*", "ImportError: /v/lib/own_ops.so: undefined symbol: _ZN2at6detail10noopDeleteEPv"),
        Text::new("undefined symbol: _ZNK2at*", "ImportError: /v/lib/own_ops.so: undefined symbol: _ZNK2at6Tensor8data_ptrIdEEPT_v"),
        Text::new("undefined symbol: _ZN5torch*", "ImportError: /v/lib/own_ops.so: undefined symbol: _ZN5torch8autograd4NodeC2EmSt6vectorINS0_4EdgeESaIS3_EE"),
    ],
    remedy: |seen| text(seen.fitting_extension()),
    needs: &[Need::Torch, Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    const CAUSE: &str = "torch has no stable C++ ABI between releases: the installed torch lacks a function that this file calls.";
    abi::findings(&RULE, context, Mismatch::Other, CAUSE)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let env = |owner: &'static str, wanted: &'static str, file: &'static str| {
            let env = env("/v").torch("2.9.1+cu128", Some("12.8")).dist("xformers", "0.0.35");
            let env = env.requires("xformers", "torch==2.10.0");
            vec![env.misses(owner, file, wanted, "torch/lib/libc10_cuda.so", "").build()]
        };
        let gone = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb";
        vec![
            Case::new(
                "xformers of another torch",
                machines::a10(),
                env("xformers", gone, "xformers/_C.so"),
            )
            .finds(
                Error,
                Certain,
                &[
                    "xformers 0.0.35 in /v was built for another torch than the installed 2.9.1+cu128",
                    "it is in torch 2.10 to 2.13",
                    "/v/bin/python -m pip install xformers torch==2.9.1",
                ],
            ),
            Case::new("a file that no package lists", machines::a10(), env("", gone, "own.so"))
                .finds(
                    Error,
                    Certain,
                    &[
                        "/v/lib/python3.12/site-packages/own.so in /v",
                        "rm /v/lib/python3.12/site-packages/own.so",
                    ],
                ),
            Case::new(
                "a library its package may never open",
                machines::a10(),
                env("xformers", gone, "xformers/libaddon.so"),
            )
            .finds(Warning, Certain, &["libaddon.so"]),
            Case::new("torchtext: a library that an import names", machines::a10(), {
                let mut envs = env("xformers", gone, "xformers/libtorchtext.so");
                let elf = envs[0].native_files[0].elf.as_mut().expect("an ELF file");
                elf.opened_by =
                    Some("/v/lib/python3.12/site-packages/xformers/_extension.py".into());
                envs
            })
            .finds(Error, Certain, &["libtorchtext.so"]),
            Case::new(
                "a symbol of torch's stable interface, which is C",
                machines::a10(),
                env("xformers", "torch_call_dispatcher", "xformers/_C.so"),
            )
            .finds(Error, Certain, &["torch_call_dispatcher"]),
            Case::new(
                "not torch's symbol",
                machines::a10(),
                env("xformers", "MPI_Init", "xformers/_C.so"),
            ),
            Case::new(
                "a python symbol",
                machines::a10(),
                env("xformers", "PyObject_Call", "xformers/_C.so"),
            ),
        ]
    }
}
