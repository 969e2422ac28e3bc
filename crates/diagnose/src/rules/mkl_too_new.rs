use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "mkl-too-new",
    title: "torch calls a function that the installed MKL does not export",
    about: "\
conda's torch up to 2.2 is linked with MKL and calls a function of Intel's profiler that MKL exported by accident. MKL
2024.1 does not export it, and conda installs the newest MKL that the recipe allows.

It shows, at `import torch`, as
  ImportError: .../torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent

Install an older MKL in the environment, or a torch from PyPI, which has MKL linked in.",
    links: &["https://github.com/pytorch/pytorch/issues/123097"],
    texts: &[
        Text::new("undefined symbol: iJIT_NotifyEvent", "ImportError: /opt/conda/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent"),
    ],
    remedy: |seen| vec![seen.installer().conda(&["mkl<2024.1".to_owned()]).into()],
    ..Rule::BLANK
};
