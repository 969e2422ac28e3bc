//! Packages installed in editable mode: their files stay in the source folder, which direct_url.json names (PEP 610).

use crate::Source;
use std::path::{Path, PathBuf};

/// The source folder of an editable install, from its direct_url.json.
pub(super) fn parse(text: &str) -> Option<PathBuf> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let editable = json.get("dir_info")?.get("editable")?.as_bool()?;
    let url = json.get("url")?.as_str()?;
    // `file://localhost/x` is `file:///x`.
    let path = url.strip_prefix("file://")?;
    let path = path.strip_prefix("localhost").unwrap_or(path);
    let path = PathBuf::from(unquoted(path)?);
    (editable && path.is_absolute()).then_some(path)
}

/// A URL's path with `%20` and the like decoded.
fn unquoted(path: &str) -> Option<String> {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'%' {
            let digits = std::str::from_utf8(bytes.get(at + 1..at + 3)?).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            out.push(byte);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}

/// Whether a folder of a source tree may contain imported files: not a build folder, a tool's folder, or another
/// environment.
pub(super) fn is_source(source: &Source, folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let excluded = ["build", "dist", "node_modules", "target", "__pycache__"].contains(&name);
    !(excluded || name.starts_with('.') || source.exists(folder.join("pyvenv.cfg")))
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::path::PathBuf;

    #[test]
    fn only_local_editable_folders_are_used() {
        let check = |url: &str, info: &str, expect: Option<&str>| {
            let text = format!("{{\"url\": \"{url}\", \"dir_info\": {info}}}");
            assert_eq!(parse(&text), expect.map(PathBuf::from), "{text}");
        };
        let editable = "{\"editable\": true}";
        check("file:///home/user/mamba", editable, Some("/home/user/mamba"));
        check("file://localhost/home/user/mamba", editable, Some("/home/user/mamba"));
        check("file:///home/user/my%20kernels", editable, Some("/home/user/my kernels"));
        check("file:///home/user/mamba", "{}", None);
        check("file:///home/user/mamba", "{\"editable\": false}", None);
        check("file:///home/%zz", editable, None);
        check("file:///home/%e", editable, None);
        check("https://example.org/mamba.git", editable, None);
        check("file://relative", editable, None);
        assert_eq!(parse("not json"), None);
        assert_eq!(parse("[]"), None);
    }
}
