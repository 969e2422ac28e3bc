use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "triton-shared-memory",
    title: "a Triton kernel needs more shared memory than the GPU has",
    about: "\
Many Triton kernels are tuned for A100 or H100, whose blocks can use 163 or 227 KiB of shared memory. On consumer GPUs
(RTX 30, 40 and 50: 99 KiB), Turing (64 KiB) and older (48 KiB) the same tile does not fit, and the launch fails. The
cause is the kernel's tile configuration, not the machine: GPU memory did not run out.

It shows as
  triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.

Use a release of the package that has tiles for this GPU, another backend of it, or smaller tiles: halve the block sizes
or num_stages that the kernel is called with.",
    links: &[
        "https://github.com/vllm-project/vllm/issues/12498",
        "https://github.com/triton-lang/triton/issues/8182",
    ],
    texts: &[Text::new("out of resource: shared memory", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.")],
    remedy: |seen| {
        vec![
            "# the traceback above names the kernel; a newer release may have tiles for this GPU:".into(),
            format!("{} -m pip list --outdated", seen.installer().python()),
        ]
    },
    ..Rule::BLANK
};
