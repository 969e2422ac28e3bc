use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "ninja-missing",
    title: "an extension is to be compiled and ninja is not there",
    about: "\
PyTorch's extensions are compiled by ninja, also those that a program compiles when it first runs (DeepSpeed's,
ExLlama's, xformers' and one's own `load_inline`). It is a small program with a package of its own, which torch does
not require.

It shows as
  RuntimeError: Ninja is required to load C++ extensions
also where ninja is installed and its folder is not on PATH, as when a program is started by the full path of an
environment's python without activating it.

Install it into the environment, and activate that.",
    links: &["https://docs.pytorch.org/docs/stable/cpp_extension.html"],
    texts: &[
        Text::new("Ninja is required to load C++ extensions", "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)"),
    ],
    remedy: |seen| vec![seen.installer().install(&["ninja".to_owned()], None).into(), "ninja --version".into()],
    ..Rule::BLANK
};
