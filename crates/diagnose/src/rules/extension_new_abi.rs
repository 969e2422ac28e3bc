use super::{Context, Need, Rule, Text};
use crate::abi::{self, Mismatch};
use crate::remedy::text;
use facts::Finding;

pub(super) const RULE: Rule = Rule {
    id: "extension-new-abi",
    title: "an extension built for the new C++ ABI with a torch of the old one",
    about: "\
An extension (flash-attn, mamba-ssm and the like) was compiled with _GLIBCXX_USE_CXX11_ABI=1, and the installed torch
with 0. The two ABIs mangle std::string differently, so the dynamic loader finds none of torch's functions that take a
string. PyTorch's x86-64 wheels have the new ABI from 2.7 on; of torch 2.6, only the wheels for CUDA 12.6 have it.

It shows, when the extension is imported, as
  undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE
which reads c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char>): `__cxx11` is the new ABI.

Detected by looking the extension's undefined symbols up in what the installed libc10.so exports.

Install the wheel whose name has cxx11abiFALSE, or torch 2.7 or newer, or build the extension here.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/1691",
        "https://github.com/Dao-AILab/flash-attention/issues/1832",
    ],
    texts: &[
        Text::new("undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", "ImportError: /v/lib/python3.12/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        Text::new("undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_string*", "ImportError: /v/lib/python3.11/site-packages/selective_scan_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
        Text::new("_ZN3c106ivalue14ConstantString6createENSt7", "ImportError: vllm/_C.abi3.so: undefined symbol _ZN3c106ivalue14ConstantString6createENSt7"),
    ],
    remedy: |seen| text(seen.fitting_extension()),
    needs: &[Need::Torch, Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    const CAUSE: &str = "The two C++ ABIs mangle std::string differently, so the loader finds none of torch's functions that take a string.";
    abi::findings(&RULE, context, Mismatch::NewAbi, CAUSE)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let env = |wanted: &'static str, exported: &'static str| {
            let env = env("/v").torch("2.6.0+cu124", Some("12.4")).dist("flash_attn", "2.8.3");
            vec![
                env.misses(
                    "flash_attn",
                    "flash_attn_2_cuda.so",
                    wanted,
                    "torch/lib/libc10.so",
                    exported,
                )
                .build(),
            ]
        };
        let new = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
        let old = "_ZN3c105ErrorC2ENS_14SourceLocationESs";
        vec![
            Case::new("abiTRUE with an old torch", machines::a10(), env(new, old)).finds(
                Error,
                Certain,
                &[
                    "flash_attn 2.8.3 in /v was built for the new C++ ABI; torch 2.6.0+cu124 has the old one",
                    "needs _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx11",
                    "/v/lib/python3.12/site-packages/flash_attn_2_cuda.so",
                    "exports _ZN3c105ErrorC2ENS_14SourceLocationESs",
                    "it is in torch 2.7 and newer",
                    "cu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64",
                    "FLASH_ATTENTION_FORCE_BUILD=TRUE /v/bin/python -m pip install",
                    "flash-attn==2.8.3",
                ],
            ),
            Case::new("the reverse is another rule", machines::a10(), env(old, new)),
            Case::new(
                "a changed signature of the same ABI",
                machines::a10(),
                env("_ZN3c104warnERKSs", "_ZN3c104warnESsb"),
            ),
        ]
    }
}
