use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "extension-old-abi",
    title: "an extension built for the old C++ ABI beside a torch with the new one",
    about: "\
An extension was compiled with _GLIBCXX_USE_CXX11_ABI=0, and the installed torch with 1, the default of PyTorch's wheels
from 2.7 on. The two spell std::string differently inside every function's name, so the dynamic loader finds none of
torch's functions that take a string.

It shows, when the extension is imported, as
  undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs
which reads c10::Error::Error(c10::SourceLocation, std::string): the `Ss` at the end is the old ABI.

Seen by looking the extension's undefined symbols up in what the installed libc10.so exports.

Install the wheel whose name has cxx11abiTRUE, or build the extension here against the installed torch.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/1832",
    ],
    texts: &[
        Text {
            pattern: "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
            sample: "ImportError: /v/lib/python3.12/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
        },
        Text {
            pattern: "undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
            sample: "ImportError: /v/lib/python3.12/site-packages/causal_conv1d_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
        },
    ],
    remedy: |seen| seen.fitting_extension(),
    ..Rule::BLANK
};
