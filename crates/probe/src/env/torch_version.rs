//! torch/version.py: the build of torch, without importing it.

use crate::Source;
use facts::Torch;
use std::path::Path;

/// Reads the file of one site-packages folder; `None` without torch.
pub(super) fn read(source: &Source, site: &Path) -> Option<Result<Torch, String>> {
    let file = site.join("torch/version.py");
    if !source.exists(&file) {
        return None;
    }
    let name = file.display().to_string();
    Some(match source.text(&file) {
        None => Err(format!("{name} cannot be read")),
        Some(text) => {
            parse(&text, &name).ok_or_else(|| format!("{name} has no readable `__version__` line"))
        }
    })
}

/// Parses assignments of plain strings and `None`, with or without an annotation: `cuda: Optional[str] = '13.0'`.
pub(crate) fn parse(text: &str, source: &str) -> Option<Torch> {
    let value = |name: &str| {
        text.lines().find_map(|line| {
            let rest = line.strip_prefix(name)?.trim_start();
            // Either `= value` or `: annotation = value`; a longer name has neither.
            let value = match rest.strip_prefix(':') {
                Some(annotated) => annotated.split_once('=')?.1,
                None => rest.strip_prefix('=')?,
            };
            string_literal(value)
        })
    };
    Some(Torch {
        version: value("__version__")?,
        cuda: value("cuda"),
        hip: value("hip"),
        git_version: value("git_version"),
        source: source.to_string(),
    })
}

/// The text of a Python string literal without escapes; `None` for the word None and for other values.
fn string_literal(text: &str) -> Option<String> {
    let text = text.trim();
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (inside, _) = text[1..].split_once(quote)?;
    (!inside.is_empty() && !inside.contains('\\')).then(|| inside.to_string())
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn check(text: &str, expect: Option<(&str, Option<&str>, Option<&str>)>) {
        let torch = parse(text, "version.py");
        let got = torch.as_ref().map(|t| (t.version.as_str(), t.cuda.as_deref(), t.hip.as_deref()));
        assert_eq!(got, expect, "{text:?}");
    }

    #[test]
    fn version_of_torch_is_parsed() {
        let text = include_str!(
            "../../fixtures/h200/root/opt/torch/.venv/lib/python3.12/site-packages/torch/version.py"
        );
        check(text, Some(("2.11.0+cu130", Some("13.0"), None)));
        let git = parse(text, "").unwrap().git_version;
        assert_eq!(git.as_deref(), Some("70d99e998b4955e0049d13a98d77ae1b14db1f45"));
    }

    #[test]
    fn old_cpu_rocm_and_corrupt_version_files_are_parsed() {
        check(
            "__version__ = '1.13.1+cu117'\ndebug = False\ncuda = '11.7'\nhip = None\n",
            Some(("1.13.1+cu117", Some("11.7"), None)),
        );
        check(
            "__version__ = \"2.9.0+cpu\"\ncuda: Optional[str] = None\n",
            Some(("2.9.0+cpu", None, None)),
        );
        check(
            "__version__='2.8'\ncuda = None\nhip: Optional[str] = '6.4'  # rocm\n",
            Some(("2.8", None, Some("6.4"))),
        );
        check("cuda_version = '12'\n__version__ = '1'\n", Some(("1", None, None)));
        check("__version__ = \n", None);
        check("__version__ = '\n", None);
        check("\u{fffd}\0", None);
        check("", None);
    }
}
