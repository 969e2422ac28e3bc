use super::{Rule, Text};
use crate::remedy::Installer;

pub(super) const RULE: Rule = Rule {
    id: "missing-attribute",
    title: "a package asks torch for a name that this release of it does not have",
    about: "\
torch gets new types and functions in each release. A package that names one of them when it is imported fails with an
older torch, although its METADATA often asks for no more than `torch` or for a release that is too old. The package
was upgraded and torch was not: torch is held back by the CUDA of its index, by a pin, or by conda.

It shows as
  AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'

It also shows where a file or folder of one's own is called torch and is found before the package, or where torch's
files are damaged: then every name is missing, even `torch.Tensor`.

Install a newer torch with the companions that fit it, or an older release of the package that asks, which is the last
one above the error that is not torch.",
    links: &["https://github.com/huggingface/transformers/issues/46515"],
    texts: &[Text {
        pattern: "AttributeError: module 'torch' has no attribute '{name}'",
        sample: "AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'",
    }],
    remedy: |seen| commands(&seen.installer(), seen.word("name").unwrap_or("Tensor")),
    ..Rule::BLANK
};

fn commands(installer: &Installer, name: &str) -> Vec<String> {
    let python = installer.python();
    vec![
        "# whether it is the torch that is meant, and its release:".to_owned(),
        format!("{python} -c 'import torch; print(torch.__file__, torch.__version__, hasattr(torch, \"{name}\"))'"),
        "# a newer one, with the companions that are installed; or an older release of the package that asks:".to_owned(),
        installer.install(&["--upgrade".to_owned(), "torch".to_owned()], None),
    ]
}
