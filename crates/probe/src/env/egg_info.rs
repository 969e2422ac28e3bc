//! Legacy installations: an egg-info folder (or a single PKG-INFO file) next to the packages.

/// Requirements in requires.txt: plain ones, then sections `[extra]`, `[:marker]` or `[extra:marker]`, converted to
/// METADATA's syntax.
pub(crate) fn parse_requires(text: &str) -> Vec<String> {
    let mut condition = String::new();
    let mut requires = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let (extra, marker) = section.split_once(':').unwrap_or((section, ""));
            let extra =
                if extra.is_empty() { String::new() } else { format!("extra == \"{extra}\"") };
            condition = match (marker.is_empty(), extra.is_empty()) {
                (true, _) => extra,
                (false, true) => marker.to_string(),
                (false, false) => format!("({marker}) and {extra}"),
            };
        } else if !line.is_empty() && !line.starts_with('#') {
            requires.push(if condition.is_empty() {
                line.to_string()
            } else {
                format!("{line}; {condition}")
            });
        }
    }
    requires
}

/// Compiled files in installed-files.txt, relative to the egg-info folder; and the number of all paths.
pub(crate) fn parse_installed_files(text: &str) -> (u32, Vec<String>) {
    let paths = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let native =
        paths().filter(|path| super::record::is_native(path)).map(str::to_string).collect();
    (u32::try_from(paths().count()).unwrap_or(u32::MAX), native)
}

#[cfg(test)]
mod tests {
    use super::{parse_installed_files, parse_requires};

    #[test]
    fn requirements_and_files() {
        let text = "torch\neinops>=0.6\n\n[:python_version < \"3.11\"]\ntomli\n\n[dev]\npytest\n\n[dev:os_name == \"nt\"]\ncolorama\n";
        assert_eq!(
            parse_requires(text),
            [
                "torch",
                "einops>=0.6",
                "tomli; python_version < \"3.11\"",
                "pytest; extra == \"dev\"",
                "colorama; (os_name == \"nt\") and extra == \"dev\"",
            ]
        );
        let files = "../ffpa/__init__.py\n../ffpa/_C.so\nPKG-INFO\n\n";
        assert_eq!(parse_installed_files(files), (3, vec!["../ffpa/_C.so".to_string()]));
    }
}
