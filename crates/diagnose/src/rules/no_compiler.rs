use super::{Rule, Text};
use crate::host;

pub(super) const RULE: Rule = Rule {
    id: "no-compiler",
    title: "a C compiler is needed but not installed",
    about: "\
Triton compiles a small C file when its first kernel runs, torch.compile a C++ file, and packages without a wheel all
their sources. Slim container images and fresh servers have no compiler, so a program that was installed without
errors fails at its first kernel.

It shows as one of
  RuntimeError: Failed to find C compiler. Please specify via CC environment variable.
  error: command 'gcc' failed: No such file or directory
  torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found

Install the distribution's compiler, with Python's headers; or name an installed one in CC and CXX. torch.compile can be
disabled (TORCHDYNAMO_DISABLE=1); Triton always needs a compiler.",
    links: &["https://github.com/triton-lang/triton/blob/main/python/triton/runtime/build.py"],
    texts: &[
        Text::new("Failed to find C compiler. Please specify via CC", "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."),
        Text::new("error: command 'gcc' failed: No such file or directory", "error: command 'gcc' failed: No such file or directory"),
        Text::new("error: command '*-linux-gnu-g*' failed: No such file or directory", "error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory"),
        Text::new("unable to execute 'gcc': No such file or directory", "unable to execute 'gcc': No such file or directory"),
        Text::new("InvalidCxxCompiler: No working C++ compiler found", "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')"),
    ],
    remedy: |seen| vec![host::install_package(seen.machine(), "build-essential python3-dev", "gcc gcc-c++ make python3-devel")],
    ..Rule::BLANK
};
