//! Parses hub names of models: `org/name`, `org/name@REVISION`, and a GGUF file as `org/name:FILE.gguf` or by its
//! quantization, as in llama.cpp: `org/name:Q4_K_M`.

/// A model on the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name<'a> {
    pub(super) name: &'a str,
    /// A branch, a tag or a commit.
    pub(super) revision: &'a str,
    /// A file name with its extension, or a quantization.
    pub(super) file: Option<&'a str>,
}

/// The default revision.
pub(super) const MAIN: &str = "main";

impl<'a> Name<'a> {
    /// Parses a hub name: two words separated by a slash, and optional suffixes.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let (text, file) = match text.split_once(':') {
            Some((text, file)) => (text, Some(file)),
            None => (text, None),
        };
        let (name, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let good = name.split('/').count() == 2
            && is_path(name)
            && is_path(revision)
            && file.is_none_or(is_path);
        good.then_some(Self { name, revision, file })
    }

    /// Whether a file of the repository is the named one or a part of it.
    pub(super) fn is_file(&self, path: &str) -> bool {
        let Some(wanted) = self.file else { return false };
        if wanted.ends_with(".gguf") {
            let split = |path: &str| {
                Some(
                    path.strip_suffix(".gguf")?
                        .rsplit_once("-of-")?
                        .0
                        .rsplit_once('-')?
                        .0
                        .to_owned(),
                )
            };
            return path == wanted || (split(path).is_some() && split(path) == split(wanted));
        }
        // `name-Q4_K_M.gguf`, `name.Q4_K_M-00001-of-00003.gguf`, `Q4_K_M/name.gguf`; not a vision projector.
        let of = path.to_ascii_lowercase();
        let Some(stem) = of.strip_suffix(".gguf").filter(|stem| !stem.contains("mmproj")) else {
            return false;
        };
        let stem = stem
            .rsplit_once("-of-")
            .and_then(|(stem, _)| stem.rsplit_once('-'))
            .map_or(stem, |(stem, _)| stem);
        let wanted = wanted.to_ascii_lowercase();
        let folder = stem.rsplit_once('/').map(|(folder, _)| folder);
        let ends = |end: char| stem.ends_with(&format!("{end}{wanted}"));
        stem == wanted || folder == Some(&wanted) || ['-', '.', '/'].into_iter().any(ends)
    }
}

/// Whether a relative path stays within its folder.
pub(super) fn is_path(text: &str) -> bool {
    let word = |word: &str| {
        !word.starts_with('.')
            && !word.is_empty()
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
    };
    text.split('/').all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_names_are_distinguished_from_folders() {
        let of = |name, revision, file| Some(Name { name, revision, file });
        for (text, want) in [
            ("ibm-granite/granite-4.0-h-micro", of("ibm-granite/granite-4.0-h-micro", MAIN, None)),
            ("a/b@v1.0", of("a/b", "v1.0", None)),
            ("a/b@refs/pr/3:x/y.gguf", of("a/b", "refs/pr/3", Some("x/y.gguf"))),
            ("a/b:Q4_K_M", of("a/b", MAIN, Some("Q4_K_M"))),
        ] {
            assert_eq!(Name::of(text), want, "{text}");
        }
        let folders = [
            "m", "./m", "../m", "a/b/c", "/m", "a/", "a b/c", "", "a/b@", "a/b:", "a/b:../c",
            "a/b@../c",
        ];
        for folder in folders {
            assert_eq!(Name::of(folder), None, "{folder}");
        }
    }

    #[test]
    fn gguf_file_is_selected_by_name_or_type() {
        for (wanted, path, is) in [
            ("Q4_K_M", "model-Q4_K_M.gguf", true),
            ("q4_k_m", "model.Q4_K_M.gguf", true),
            ("Q4_K_M", "Q4_K_M/model-Q4_K_M-00002-of-00003.gguf", true),
            ("Q4_K_M", "Q4_K_M/model.gguf", true),
            ("Q4_K_M", "model-IQ4_K_M.gguf", false),
            ("Q4_K_M", "model-Q4_K_M.txt", false),
            ("F16", "mmproj-model-F16.gguf", false),
            ("F16", "model-BF16.gguf", false),
            ("a.gguf", "a.gguf", true),
            ("a.gguf", "ba.gguf", false),
            ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", true),
            ("a-00001-of-00002.gguf", "b-00002-of-00002.gguf", false),
        ] {
            let name = Name { name: "a/b", revision: MAIN, file: Some(wanted) };
            assert_eq!(name.is_file(path), is, "{wanted} {path}");
        }
        assert!(!Name { name: "a/b", revision: MAIN, file: None }.is_file("a.gguf"));
    }
}
