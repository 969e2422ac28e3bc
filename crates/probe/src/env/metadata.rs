//! METADATA of a dist-info folder and PKG-INFO of an egg-info: headers in email format, then the description.

/// The fields that are used.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) requires: Vec<String>,
    pub(crate) requires_python: Option<String>,
}

impl Metadata {
    /// Reads the headers.
    ///
    /// # Errors
    /// Which of the two required fields is missing or malformed.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let mut metadata = Self::default();
        for (key, value) in headers(text) {
            let field = match key.to_ascii_lowercase().as_str() {
                "name" if metadata.name.is_empty() => &mut metadata.name,
                "version" if metadata.version.is_empty() => &mut metadata.version,
                "requires-dist" => {
                    metadata.requires.push(value);
                    continue;
                }
                "requires-python" => {
                    metadata.requires_python = Some(value);
                    continue;
                }
                _ => continue,
            };
            *field = value;
        }
        match (is_name(&metadata.name), is_version(&metadata.version)) {
            (true, true) => Ok(metadata),
            (false, _) => Err("has no readable `Name:` line"),
            (true, false) => Err("has no readable `Version:` line"),
        }
    }
}

/// Header fields up to the first empty line; a line that begins with white space continues the previous one.
fn headers(text: &str) -> Vec<(&str, String)> {
    let mut fields: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        // Only an empty line ends the headers: a folded licence has lines of white space.
        if line.is_empty() {
            break;
        }
        let line = line.trim_end();
        if line.is_empty() || line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut().filter(|_| !line.is_empty()) {
                value.push(' ');
                value.push_str(line.trim_start());
            }
        } else if let Some((key, value)) = line.split_once(':') {
            fields.push((key.trim(), value.trim().to_string()));
        }
    }
    fields
}

/// PEP 508: ASCII alphanumerics, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_name(name: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
}

/// Deliberately lenient: old packages have versions that are invalid in PEP 440.
fn is_version(version: &str) -> bool {
    !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Name and version of a folder such as `flash_attn-2.8.3.dist-info`, if its METADATA is missing or invalid.
pub(crate) fn of_folder_name(folder: &str) -> Option<(String, String)> {
    let stem = folder.strip_suffix(".dist-info").or_else(|| folder.strip_suffix(".egg-info"))?;
    let (name, version) = stem.split_once('-')?;
    // An egg-info's name ends with the Python version: `ffpa_attn-0.0.2.1-py3.10`.
    let version = version.split_once("-py").map_or(version, |(version, _)| version);
    (is_name(name) && is_version(version)).then(|| (name.to_string(), version.to_string()))
}

#[cfg(test)]
mod tests {
    use super::{Metadata, of_folder_name};

    #[test]
    fn parses_the_metadata_of_torch() {
        let text = include_str!(
            "../../fixtures/h200/root/opt/torch/.venv/lib/python3.12/site-packages/torch-2.11.0.dist-info/METADATA"
        );
        let metadata = Metadata::parse(text).unwrap();
        assert_eq!((metadata.name.as_str(), metadata.version.as_str()), ("torch", "2.11.0"));
        assert_eq!(metadata.requires_python.as_deref(), Some(">=3.10"));
        assert_eq!(metadata.requires.len(), 17);
        assert_eq!(metadata.requires[13], "triton==3.6.0; platform_system == \"Linux\"");
    }

    #[test]
    fn parses_unusual_headers_and_rejects_corrupt_files() {
        let check = |text: &str, expect: Result<(&str, &str, &[&str]), &str>| {
            let got = Metadata::parse(text);
            let got =
                got.as_ref().map(|m| (m.name.as_str(), m.version.as_str(), m.requires.clone()));
            let expect = expect.map(|(n, v, r)| (n, v, r.iter().map(|r| r.to_string()).collect()));
            assert_eq!(got.map_err(|error| *error), expect, "{text:?}");
        };
        check("NAME: a\nVERSION: 1\n", Ok(("a", "1", &[])));
        check(
            "Name: a\r\nVersion: 1\r\nLicense: x\r\n        Name: b\r\n\r\nName: c\r\n",
            Ok(("a", "1", &[])),
        );
        check(
            "Name: a\nVersion: 1\nRequires-Dist: b\n  (>=2)\n\nRequires-Dist: body\n",
            Ok(("a", "1", &["b (>=2)"])),
        );
        // A licence text with several paragraphs, as in pandas, scipy, sglang and tiktoken.
        check(
            "Name: a\nVersion: 1\nLicense: MIT\n        \n        Copyright\nRequires-Dist: b\n\nbody\n",
            Ok(("a", "1", &["b"])),
        );
        check(
            "Name: a\r\nVersion: 1\r\n\t\r\nRequires-Dist: b\r\n\r\nRequires-Dist: body",
            Ok(("a", "1", &["b"])),
        );
        check("Version: 1\n", Err("has no readable `Name:` line"));
        check("Name: a\n\nVersion: 1\n", Err("has no readable `Version:` line"));
        check("Name: \u{fffd}\u{fffd}\nVersion: 1\n", Err("has no readable `Name:` line"));
        check("Name: a\nVersion: \u{1}\n", Err("has no readable `Version:` line"));
        check("", Err("has no readable `Name:` line"));
    }

    #[test]
    fn folder_names_have_name_and_version() {
        let check = |folder, expect: Option<(&str, &str)>| {
            let expect = expect.map(|(name, version)| (name.to_string(), version.to_string()));
            assert_eq!(of_folder_name(folder), expect, "{folder}");
        };
        check("flash_attn-2.8.3.dist-info", Some(("flash_attn", "2.8.3")));
        check("torch-2.11.0+cu130.dist-info", Some(("torch", "2.11.0+cu130")));
        check("ffpa_attn-0.0.2.1-py3.10.egg-info", Some(("ffpa_attn", "0.0.2.1")));
        check("ffpa_attn-0.0.2.1-py3.10-linux-aarch64.egg-info", Some(("ffpa_attn", "0.0.2.1")));
        check("demo.egg-info", None);
        check("~orch-2.9.dist-info", None);
    }
}
