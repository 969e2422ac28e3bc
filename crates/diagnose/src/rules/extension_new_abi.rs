use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "extension-new-abi",
    title: "an extension built for the new C++ ABI beside a torch with the old one",
    about: "\
An extension (flash-attn, mamba-ssm and the like) was compiled with _GLIBCXX_USE_CXX11_ABI=1, and the installed torch
with 0. The two spell std::string differently inside every function's name, so the dynamic loader finds none of torch's
functions that take a string. PyTorch's x86-64 wheels have the new ABI from 2.7 on, and of 2.6 only those for CUDA 12.6.

It shows, when the extension is imported, as
  undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE
which reads c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char>): `__cxx11` is the new ABI.

Seen by looking the extension's undefined symbols up in what the installed libc10.so exports.

Install the wheel whose name has cxx11abiFALSE, or torch 2.7 or newer, or build the extension here.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/1691",
        "https://github.com/Dao-AILab/flash-attention/issues/1832",
    ],
    texts: &[
        Text {
            pattern: "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            sample: "ImportError: /v/lib/python3.12/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        },
        Text {
            pattern: "undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_string*",
            sample: "ImportError: /v/lib/python3.11/site-packages/selective_scan_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        },
    ],
    remedy: |seen| seen.fitting_extension(),
    ..Rule::BLANK
};
