use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "glibc-too-old",
    title: "a compiled file needs a newer C library than this system has",
    about: "\
A wheel was built on a newer distribution than the one it runs on and is tagged linux_x86_64, which promises nothing, in
place of manylinux_2_28, which pip would have refused here. The C library of a system cannot be exchanged by itself.

It shows, when the extension is imported, as
  ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by .../flash_attn_2_cuda...so)

Seen by comparing the versions the file requires (.gnu.version_r) with the C library here; Ubuntu 20.04 has 2.31, 22.04
has 2.35, Debian 12 has 2.36, Ubuntu 24.04 has 2.39.

Take an older wheel or one tagged manylinux, build the extension here, or use a newer distribution or container.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/1762",
        "https://github.com/Dao-AILab/flash-attention/issues/1708",
    ],
    texts: &[
        Text {
            pattern: "version `GLIBC_{wanted}' not found (required by",
            sample: "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by /v/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so)",
        },
    ],
    remedy: |seen| {
        let mut lines = vec!["ldd --version".to_owned()];
        lines.extend(seen.fitting_extension());
        lines
    },
    ..Rule::BLANK
};
