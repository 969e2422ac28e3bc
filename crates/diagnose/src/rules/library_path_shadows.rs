use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "library-path-shadows",
    title: "LD_LIBRARY_PATH puts another CUDA in front of torch's own libraries",
    about: "\
torch's wheels bring their CUDA libraries and find them by a path inside each file, but LD_LIBRARY_PATH is searched
before that path. A system CUDA named there takes the place of single libraries, and two that were never built for
each other meet in one process.

It shows as
  libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12
from `import torch`: libcusparse is the wheel's, libnvJitLink the system's older one.

Seen by following the loader's search order for each library torch asks for.

Unset LD_LIBRARY_PATH, in the shell and in its start-up files; programs that need the system CUDA find it without.",
    links: &[
        "https://github.com/pytorch/pytorch/issues/134929",
        "https://github.com/pytorch/pytorch/issues/111469",
    ],
    texts: &[
        Text {
            pattern: "undefined symbol: __nvJitLink*",
            sample: "ImportError: /v/lib/python3.12/site-packages/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        },
        Text {
            pattern: "undefined symbol: cublasLt*, version libcublasLt.so",
            sample: "ImportError: /v/lib/python3.11/site-packages/torch/lib/../../nvidia/cublas/lib/libcublas.so.12: undefined symbol: cublasLtGetEnvironmentMode, version libcublasLt.so.12",
        },
        Text {
            pattern: "undefined symbol: ncclCommWindowDeregister",
            sample: "ImportError: /v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowDeregister",
        },
    ],
    remedy: |_| vec!["unset LD_LIBRARY_PATH".into(), "grep -n LD_LIBRARY_PATH ~/.bashrc ~/.profile /etc/environment".into()],
    ..Rule::BLANK
};
