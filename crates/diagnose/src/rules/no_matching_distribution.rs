use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "no-matching-distribution",
    title: "no index has a build of the package for this Python and machine",
    about: "\
An installer considers only wheels for this Python release, CPU architecture and C library. No wheel is left with a
Python newer than the package's last wheels or older than its first, a 32-bit Python, musl instead of glibc (Alpine),
macOS on an Intel CPU (torch 2.2 was the last), or a local version label such as +cu118 without the index that has it.

It shows as
  ERROR: Could not find a version that satisfies the requirement torch (from versions: none)
  ERROR: No matching distribution found for torch
with the releases that fit in the parentheses.

Create an environment with a Python that has wheels; install one of the releases in the parentheses; or give the index
of the label.",
    links: &["https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/"],
    texts: &[
        Text::new("Could not find a version that satisfies the requirement torch*(from versions:", "ERROR: Could not find a version that satisfies the requirement torch==2.1.0 (from versions: 2.2.0, 2.2.1, 2.2.2, 2.3.0)"),
        Text::new("Could not find a version that satisfies the requirement tensorflow*(from versions:", "ERROR: Could not find a version that satisfies the requirement tensorflow==2.10 (from versions: none)"),
        Text::new("Could not find a version that satisfies the requirement jaxlib*(from versions:", "ERROR: Could not find a version that satisfies the requirement jaxlib==0.3.25 (from versions: 0.4.17, 0.4.18)"),
        Text::new("Could not find a version that satisfies the requirement onnxruntime-gpu*(from versions:", "ERROR: Could not find a version that satisfies the requirement onnxruntime-gpu (from versions: none)"),
        Text::new("has no wheels with a matching Python*tag", "  × No solution found when resolving dependencies:\n  ╰─▶ Because torch==2.1.0 has no wheels with a matching Python ABI tag (e.g., `cp313`) and you require torch==2.1.0, we can conclude that your requirements are unsatisfiable."),
    ],
    remedy: |_| {
        vec![
            "python -c 'import platform, sys; print(sys.version, platform.machine(), platform.libc_ver())'".into(),
            "uv venv --python 3.12".into(),
        ]
    },
    ..Rule::BLANK
};
