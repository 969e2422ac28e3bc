use super::{Context, Need, Rule, Text};
use crate::abi::{self, Mismatch};
use crate::remedy::text;
use facts::Finding;

pub(super) const RULE: Rule = Rule {
    id: "extension-old-abi",
    title: "an extension built for the old C++ ABI with a torch of the new one",
    about: "\
An extension was compiled with _GLIBCXX_USE_CXX11_ABI=0, and the installed torch with 1, the default of PyTorch's wheels
from 2.7 on. The two ABIs mangle std::string differently, so the dynamic loader finds none of torch's functions that
take a string.

It shows, when the extension is imported, as
  undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs
which reads c10::Error::Error(c10::SourceLocation, std::string): the `Ss` at the end is the old ABI.

Detected by looking the extension's undefined symbols up in what the installed libc10.so exports.

Install the wheel whose name has cxx11abiTRUE, or build the extension here against the installed torch.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/1832",
    ],
    texts: &[
        Text::new("undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs", "ImportError: /v/lib/python3.12/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs"),
        Text::new("undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs", "ImportError: /v/lib/python3.12/site-packages/causal_conv1d_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs"),
        Text::new("undefined symbol: _ZN3c107WarningC1E*SourceLocationESsb", "ImportError: /v/selective_scan_cuda.so: undefined symbol: _ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEERKNS_14SourceLocationESsb"),
        Text::new("undefined symbol: _ZN3c105ErrorC1ENS_14SourceLocationERKSs", "ImportError: /v/resample2d_cuda.so: undefined symbol: _ZN3c105ErrorC1ENS_14SourceLocationERKSs"),
        Text::new("undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSs*", "ImportError: /workspace/vllm/_C.abi3.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb"),
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
    abi::findings(&RULE, context, Mismatch::OldAbi, CAUSE)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let env = |wanted: &'static str, exported: &'static str| {
            let env = env("/v")
                .uv()
                .torch("2.9.1+cu128", Some("12.8"))
                .dist("causal_conv1d", "1.5.3.post1");
            let file = "causal_conv1d_cuda.so";
            vec![env.misses("causal_conv1d", file, wanted, "torch/lib/libc10.so", exported).build()]
        };
        let new = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
        let old = "_ZN3c105ErrorC2ENS_14SourceLocationESs";
        vec![
            Case::new("abiFALSE with a new torch", machines::a10(), env(old, new)).finds(
                Error,
                Certain,
                &[
                    "causal_conv1d 1.5.3.post1 in /v was built for the old C++ ABI; torch 2.9.1+cu128 has the new one",
                    "it is in torch 2.6 and older",
                    "cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64",
                    "CAUSAL_CONV1D_FORCE_BUILD=TRUE uv pip install --python /v/bin/python",
                ],
            ),
            Case::new("a package with a build for each torch", machines::a10(), {
                let env = env(old, new).remove(0);
                let mut sibling = env.native_files[0].clone();
                sibling.path = sibling.path.replace("causal_conv1d_cuda.so", "causal_conv1d_torch29-cpu.so");
                let mut own = env.native_files[0].clone();
                own.path = own.path.replace("causal_conv1d_cuda.so", "causal_conv1d_torch24-cuda.so");
                if let Some(elf) = sibling.elf.as_mut() {
                    elf.missing_symbols.clear();
                    elf.missing_symbols_total = 0;
                }
                vec![facts::PyEnv { native_files: vec![own, sibling], ..env }]
            }),
            Case::new("torch_c_dlpack_ext: a build for each torch, chosen at run time", machines::a10(), {
                let mut env = env(old, new).remove(0);
                let name = "torch_c_dlpack_ext/libtorch_c_dlpack_addon_torch24-cpu.so";
                let mut file = env.native_files.remove(0);
                file.path = file.path.replace("causal_conv1d_cuda.so", name);
                let other = facts::NativeFile { path: file.path.replace("24", "25"), ..file.clone() };
                vec![facts::PyEnv { native_files: vec![file, other], ..env }]
            }),
            Case::new("the reverse is another rule", machines::a10(), env(new, old)),
        ]
    }
}
