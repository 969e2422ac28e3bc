use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "ninja-missing",
    title: "an extension needs ninja to compile, and ninja is not installed",
    about: "\
PyTorch's extensions are compiled by ninja, including those that a program compiles when it first runs (DeepSpeed's,
ExLlama's, xformers' and your own `load_inline`). ninja is a small program in a separate package, which torch does not
require.

It shows as
  RuntimeError: Ninja is required to load C++ extensions
also if ninja is installed but its folder is not on PATH, for example when a program is started by the full path of an
environment's python without activating the environment.

Install it into the environment, and activate that.",
    links: &["https://docs.pytorch.org/docs/stable/cpp_extension.html"],
    texts: &[
        Text::new("Ninja is required to load C++ extensions", "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)"),
    ],
    remedy: |seen| vec![seen.installer().install(&["ninja".to_owned()], None).into(), "ninja --version".into()],
    ..Rule::BLANK
};
