//! Parses the list of environments.

use anyhow::{Context, bail};
use toml::{Table, Value};

/// One environment and its variants.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Environment {
    pub(super) name: String,
    /// Release of Python; `None` for the `python3` on PATH.
    pub(super) python: Option<String>,
    /// Arguments of successive `uv pip install` calls.
    pub(super) install: Vec<Vec<String>>,
    /// Packages whose modules are imported in every variant.
    pub(super) watch: Vec<String>,
    /// Whether it is small enough for CI.
    pub(super) sample: bool,
    pub(super) variants: Vec<Variant>,
}

/// A variant of an environment by small edits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Variant {
    pub(super) name: String,
    pub(super) edits: Vec<Edit>,
    /// Packages of which an error has to name one.
    pub(super) names: Vec<String>,
}

/// One edit; the first word of its text selects the variant.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Edit {
    Uninstall(String),
    Install(String),
    Resolve(String),
    Truncate(String),
    Delete(String),
    Zero(String),
    OtherPython {
        python: String,
        spec: String,
    },
    OtherMachine(String),
    /// Truncates a file to zero bytes, as after a write to a full disk.
    Empty(String),
    Rename {
        from: String,
        to: String,
    },
    /// Unpacks a wheel over the existing files; files that the wheel does not have stay.
    Unpack(String),
    /// Installs with `--target` into a separate folder and sets PYTHONPATH to it.
    PythonPath(String),
    /// Installs with `--target` into a separate folder and sets LD_LIBRARY_PATH to its library folders.
    LibraryPath(String),
    /// Removes the base Python of the environment.
    BaseRemoved,
    /// Links the environment to a base Python of this release; its packages stay below the folder of the old release.
    BaseUpgraded(String),
    /// Makes scripts contain another path, as after `mv` of the environment.
    Moved,
}

impl Edit {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let own = |word: &&str| (*word).to_owned();
        Ok(match words.as_slice() {
            ["uninstall", name] => Self::Uninstall(own(name)),
            ["install", spec] => Self::Install(own(spec)),
            ["resolve", spec] => Self::Resolve(own(spec)),
            ["truncate", file] => Self::Truncate(own(file)),
            ["delete", file] => Self::Delete(own(file)),
            ["zero", file] => Self::Zero(own(file)),
            ["other-python", python, spec] => {
                Self::OtherPython { python: own(python), spec: own(spec) }
            }
            ["other-machine", spec] => Self::OtherMachine(own(spec)),
            ["empty", file] => Self::Empty(own(file)),
            ["rename", from, to] => Self::Rename { from: own(from), to: own(to) },
            ["unpack", spec] => Self::Unpack(own(spec)),
            ["python-path", spec] => Self::PythonPath(own(spec)),
            ["library-path", spec] => Self::LibraryPath(own(spec)),
            ["base-removed"] => Self::BaseRemoved,
            ["base-upgraded", python] => Self::BaseUpgraded(own(python)),
            ["moved"] => Self::Moved,
            _ => bail!("`{text}` is not an edit"),
        })
    }

    /// The package of an edit; `None` for an edit of files or of the base Python.
    pub(super) fn package(&self) -> Option<&str> {
        match self {
            Self::Uninstall(spec)
            | Self::Install(spec)
            | Self::Resolve(spec)
            | Self::OtherPython { spec, .. }
            | Self::OtherMachine(spec)
            | Self::Unpack(spec)
            | Self::PythonPath(spec)
            | Self::LibraryPath(spec) => spec.split("==").next(),
            _ => None,
        }
    }
}

/// Parses the list.
pub(super) fn parse(text: &str) -> anyhow::Result<Vec<Environment>> {
    let table: Table = text.parse().context("the list of environments")?;
    let list = table.get("environment").and_then(Value::as_array).context("no [[environment]]")?;
    list.iter().map(environment).collect()
}

fn environment(value: &Value) -> anyhow::Result<Environment> {
    let row = value.as_table().context("an environment is a table")?;
    let name = text(row, "name")?;
    let at = || format!("environment {name}");
    const KEYS: [&str; 6] = ["name", "python", "install", "watch", "sample", "variants"];
    if let Some(key) = row.keys().find(|key| !KEYS.contains(&key.as_str())) {
        bail!("{}: `{key}` is not known", at());
    }
    let install = row.get("install").and_then(Value::as_array).with_context(at)?;
    let variants = row.get("variants").and_then(Value::as_array).cloned().unwrap_or_default();
    Ok(Environment {
        python: row.get("python").and_then(Value::as_str).map(str::to_owned),
        install: install.iter().map(words).collect::<anyhow::Result<_>>().with_context(at)?,
        watch: row.get("watch").map(words).transpose()?.unwrap_or_default(),
        sample: row.get("sample").and_then(Value::as_bool).unwrap_or_default(),
        variants: variants.iter().map(variant).collect::<anyhow::Result<_>>().with_context(at)?,
        name,
    })
}

fn variant(value: &Value) -> anyhow::Result<Variant> {
    let row = value.as_table().context("a variant is a table")?;
    let edits = words(row.get("edits").context("a variant has edits")?)?;
    Ok(Variant {
        name: text(row, "name")?,
        edits: edits.iter().map(|edit| Edit::parse(edit)).collect::<anyhow::Result<_>>()?,
        names: row.get("names").map(words).transpose()?.unwrap_or_default(),
    })
}

fn text(row: &Table, key: &str) -> anyhow::Result<String> {
    row.get(key).and_then(Value::as_str).map(str::to_owned).with_context(|| format!("no {key}"))
}

fn words(value: &Value) -> anyhow::Result<Vec<String>> {
    let list = value.as_array().context("a list of words is wanted")?;
    let word = |value: &Value| value.as_str().map(str::to_owned).context("a word is wanted");
    list.iter().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn list_is_valid_and_its_names_are_unique() {
        let list = parse(super::super::LIST).unwrap();
        assert!(list.len() >= 25, "{} environments", list.len());
        assert!(list.iter().any(|environment| environment.sample));
        let mut names = BTreeSet::new();
        for environment in &list {
            assert!(names.insert(environment.name.clone()), "{} twice", environment.name);
            assert!(!environment.watch.is_empty(), "{}: nothing is watched", environment.name);
            for variant in &environment.variants {
                let name = format!("{}/{}", environment.name, variant.name);
                assert!(!variant.edits.is_empty() && names.insert(name.clone()), "{name}");
            }
        }
    }

    #[test]
    fn rejects_invalid_edits_and_keys() {
        assert_eq!(Edit::parse("truncate a/b*.so").unwrap(), Edit::Truncate("a/b*.so".into()));
        for wrong in ["", "remove x", "uninstall", "other-python numpy", "moved x"] {
            assert!(Edit::parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("[[environment]]\nname = \"x\"\ninstall = []\ncolour = 1\n").is_err());
    }
}
