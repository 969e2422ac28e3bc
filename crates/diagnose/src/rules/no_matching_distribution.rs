use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "no-matching-distribution",
    title: "no index has a build of the package for this Python and machine",
    about: "\
An installer offers what has a wheel for this release of Python, this processor and this C library. A Python that is
newer than the package's last wheels, or older than its first, a 32-bit Python, musl in place of glibc (Alpine), macOS
on an Intel processor (torch ended there with 2.2), or a label such as +cu118 without the index it lies on leave
nothing.

It shows as
  ERROR: Could not find a version that satisfies the requirement torch (from versions: none)
  ERROR: No matching distribution found for torch
with the releases that do fit in the brackets.

Make an environment with a Python that has wheels; take one of the releases in the brackets; name the index of the
label.",
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
