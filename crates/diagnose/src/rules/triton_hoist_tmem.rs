use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "triton-hoist-tmem",
    title: "Triton 3.4 crashes on a kernel for data-centre Blackwell",
    about: "\
On B200 and GB200 (compute capability 10.x) Triton keeps accumulators in tensor memory (TMEM). The compiler pass that
hoists their allocation out of loops, HoistTMEMAlloc, aborts the whole process on some kernels, such as the backward
pass of the gated delta rule. This is a compiler bug, not a fault of the environment.

It shows as
  Failed to hoist tmem_store
  UNREACHABLE executed at /project/lib/Dialect/TritonGPU/Transforms/HoistTMEMAlloc.cpp:418!

Install a newer Triton with the torch that pins it, or a release of the kernel's package that avoids the pattern.",
    links: &[
        "https://github.com/fla-org/flash-linear-attention/issues/607",
        "https://github.com/triton-lang/triton/issues/8459",
    ],
    texts: &[
        Text::new("Failed to hoist tmem_store", "Failed to hoist tmem_store\nUNREACHABLE executed at /project/lib/Dialect/TritonGPU/Transforms/HoistTMEMAlloc.cpp:418!"),
        Text::new("HoistTMEMAlloc.cpp", "UNREACHABLE executed at /project/lib/Dialect/TritonGPU/Transforms/HoistTMEMAlloc.cpp:418!"),
    ],
    remedy: |seen| {
        let installer = seen.installer();
        vec![
            "# torch pins Triton: upgrade the two together".into(),
            format!("{} -m pip show torch triton flash-linear-attention", installer.python()),
            installer.install(&["torch>=2.10".into(), "flash-linear-attention".into()], None).into(),
        ]
    },
    ..Rule::BLANK
};
