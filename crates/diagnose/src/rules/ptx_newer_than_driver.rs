use super::{Rule, Text};
use crate::host;
pub(super) const RULE: Rule = Rule {
    id: "ptx-newer-than-driver",
    title: "GPU code that only a newer driver can compile",
    about: "\
A file without machine code for this GPU carries PTX instead, which the driver compiles when it is loaded. Each CUDA
release writes a newer PTX version (7.8 by 11.8, 8.7 by 12.8, 9.0 by 13.0, 9.2 by 13.2), and a driver knows those up
to its own CUDA release. Minor version compatibility does not reach this far.

It shows, at the first kernel, as
  CUDA error: the provided PTX was compiled with an unsupported toolchain.

Seen by comparing the PTX version in the file's fatbin with the CUDA release the driver accepts, and by the file
having no machine code that would run.

Update the driver, or install a build that has machine code for this GPU, or build it here for its architecture.",
    links: &[
        "https://github.com/vllm-project/vllm/issues/31700",
    ],
    texts: &[
        Text {
            pattern: "the provided PTX was compiled with an unsupported toolchain",
            sample: "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        },
    ],
    remedy: |seen| {
        let mut lines = host::update_driver(seen.machine(), 580);
        lines.push("# or build the package for the GPU here instead:".into());
        lines.extend(seen.fitting_extension());
        lines
    },
    ..Rule::BLANK
};
