use super::{Rule, Text};
use crate::host;

pub(super) const RULE: Rule = Rule {
    id: "gcc-too-new",
    title: "nvcc refuses a C++ compiler that is newer than itself",
    about: "\
nvcc compiles host code with the system's g++ and accepts only releases that existed when its CUDA release was made:
12.0 accepts GCC up to 12, 12.4 up to 13, 12.8 up to 14. A distribution upgrade installs a newer g++ for the same
toolkit.

It shows as
  error: #error -- unsupported GNU version! gcc versions later than 12 are not supported!

Install an older g++ next to the new one and pass it to nvcc, or use a newer toolkit. -allow-unsupported-compiler
disables the check and often only moves the failure into the C++ headers.",
    links: &[
        "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/index.html#host-compiler-support-policy",
        "https://github.com/NVIDIA/cuda-samples/issues/250",
    ],
    texts: &[Text::new("unsupported GNU version! gcc versions later than {newest} are not supported", "/usr/include/crt/host_config.h:139:2: error: #error -- unsupported GNU version! gcc versions later than 11 are not supported! The nvcc flag '-allow-unsupported-compiler' can be used to override this version check")],
    remedy: |seen| {
        let newest = seen.word("newest").unwrap_or("12");
        let package = format!("g++-{newest}");
        vec![
            host::install_package(seen.machine(), &package, &format!("gcc-toolset-{newest}-gcc-c++")),
            format!("export NVCC_PREPEND_FLAGS='-ccbin /usr/bin/g++-{newest}'"),
            format!("export CUDAHOSTCXX=/usr/bin/g++-{newest}"),
        ]
    },
    ..Rule::BLANK
};
