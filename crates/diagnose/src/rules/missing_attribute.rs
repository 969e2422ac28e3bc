use super::{Rule, Text};
use crate::remedy::Installer;

pub(super) const RULE: Rule = Rule {
    id: "missing-attribute",
    title: "a package asks another one for a name that this release of it does not have",
    about: "\
torch gets new types and functions in each release, and drops old modules, as NumPy did. A package that names one of
them when it is imported fails with a release that does not have it yet, or no longer, although its METADATA often
asks for no more than `torch`. One of the two was upgraded and the other was not: torch is held back by the CUDA of
its index, by a pin, or by conda; an old package is not maintained any more.

It shows as one of
  AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'
  ModuleNotFoundError: No module named 'torchvision.transforms.functional_tensor'
  AttributeError: module 'numpy' has no attribute 'bool'

It also shows where a file or folder of one's own is called torch and is found before the package, or where torch's
files are damaged: then every name is missing, even `torch.Tensor`.

Where the name is new, install a newer torch with the companions that fit it; where it is gone, a newer release of the
package that asks, which is the last one above the error, or the older release of the other.",
    links: &["https://github.com/huggingface/transformers/issues/46515"],
    texts: &[
        Text::new("AttributeError: module 'torch' has no attribute '{name}'", "AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'"),
        Text::new("No module named 'torch._six'", "ModuleNotFoundError: No module named 'torch._six'"),
        Text::new("No module named 'torchvision.transforms.functional_tensor'", "ModuleNotFoundError: No module named 'torchvision.transforms.functional_tensor'"),
        Text::new("module 'numpy' has no attribute '{name}'", "AttributeError: module 'numpy' has no attribute 'bool'.\n`np.bool` was a deprecated alias for the builtin `bool`."),
        Text::new("was removed in the NumPy 2.0 release", "AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead."),
    ],
    remedy: |seen| {
        let installer = seen.installer();
        // The last release that has it, by the release notes of each.
        let older = [
            ("torch._six", "torch<2.0"),
            ("functional_tensor", "torchvision<0.17"),
            ("NumPy 2.0 release", "numpy<2"),
            ("'numpy'", "numpy<1.24"),
        ];
        match older.iter().find(|(words, _)| seen.text.contains(words)) {
            Some((_, older)) => vec![
                "# a newer release of the package that asks; where there is none, the last one that has the name:".into(),
                installer.install(&[(*older).to_owned()], None).into(),
            ],
            None => commands(&installer, seen.word("name").unwrap_or("Tensor")),
        }
    },
    ..Rule::BLANK
};

fn commands(installer: &Installer, name: &str) -> Vec<String> {
    let python = installer.python();
    vec![
        "# whether it is the torch that is meant, and its release:".to_owned(),
        format!("{python} -c 'import torch; print(torch.__file__, torch.__version__, hasattr(torch, \"{name}\"))'"),
        "# a newer one, with the companions that are installed; or an older release of the package that asks:".to_owned(),
        installer.install(&["torch".to_owned()], None).upgraded().into(),
    ]
}
