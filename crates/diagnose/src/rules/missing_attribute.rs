use super::{Rule, Text};
use crate::remedy::Installer;

pub(super) const RULE: Rule = Rule {
    id: "missing-attribute",
    title: "a package uses a name that the installed release of another package does not have",
    about: "\
Each torch release adds types and functions and removes old modules, as NumPy's do. A package that uses such a name at
import fails with a release that does not have it yet, or has removed it, although its METADATA often requires only
`torch` without a version. One of the two was upgraded without the other: an index for an older CUDA, a pin or conda
keeps torch at an old release, or the other package is unmaintained.

It shows as one of
  AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'
  ModuleNotFoundError: No module named 'torchvision.transforms.functional_tensor'
  AttributeError: module 'numpy' has no attribute 'bool'

The same error appears if your own file or folder named torch is found before the package, or if torch's files are
damaged: then every name is missing, even `torch.Tensor`.

For a new name, install a newer torch with matching torchvision and torchaudio. For a removed name, install a newer
release of the package that uses it (the last one in the traceback), or an older release of the other package.",
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
        // The last release with the name, from the release notes of each package.
        let older = [
            ("torch._six", "torch<2.0"),
            ("functional_tensor", "torchvision<0.17"),
            ("NumPy 2.0 release", "numpy<2"),
            ("'numpy'", "numpy<1.24"),
        ];
        match older.iter().find(|(words, _)| seen.text.contains(words)) {
            Some((_, older)) => vec![
                "# a newer release of the package that uses the name, or the last release that has it:".into(),
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
        "# which torch is imported, and its release:".to_owned(),
        format!("{python} -c 'import torch; print(torch.__file__, torch.__version__, hasattr(torch, \"{name}\"))'"),
        "# a newer torch (with its torchvision and torchaudio), or an older release of the package that uses the name:".to_owned(),
        installer.install(&["torch".to_owned()], None).upgraded().into(),
    ]
}
