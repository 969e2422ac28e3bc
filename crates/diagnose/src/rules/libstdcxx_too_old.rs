use super::{Rule, Text};
use facts::EnvKind;
pub(super) const RULE: Rule = Rule {
    id: "libstdcxx-too-old",
    title: "a compiled file needs a newer C++ library than the one that is found first",
    about: "\
A file was compiled with a newer g++ than the one whose libstdc++.so.6 the loader finds. Most often the system's library
is new enough and an older copy in front of it is not: conda's, or one on LD_LIBRARY_PATH. The loader takes the first.

It shows, when the extension is imported, as
  ImportError: .../lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by .../x.so)
or with CXXABI_1.3.15 in place of GLIBCXX; the path in front tells which copy was found.

Seen by comparing the versions the file requires with those the found libstdc++ defines.

In a conda environment install its newer libstdcxx-ng; elsewhere take the old copy off LD_LIBRARY_PATH.",
    links: &[
        "https://github.com/pytorch/pytorch/issues/111469",
    ],
    texts: &[
        Text {
            pattern: "version `GLIBCXX_{wanted}' not found",
            sample: "ImportError: /opt/conda/bin/../lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /opt/conda/lib/python3.11/site-packages/own_ops.so)",
        },
        Text {
            pattern: "version `CXXABI_{wanted}' not found",
            sample: "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /opt/conda/lib/python3.11/lib-dynload/../../libicui18n.so.78)",
        },
    ],
    remedy: |seen| {
        let conda = seen.env().filter(|env| env.kind == EnvKind::Conda);
        match conda {
            Some(_) => vec![seen.installer().conda(&["libstdcxx-ng".into()])],
            None => vec!["unset LD_LIBRARY_PATH".into()],
        }
    },
    ..Rule::BLANK
};
