//! Requirements in a wheel's METADATA.

/// The `Requires-Dist` lines without an extra.
pub(super) fn requires(metadata: &str) -> Vec<String> {
    // The description follows an empty line; blank lines of a folded header (a license's text) are indented.
    let headers = metadata.lines().take_while(|line| !line.is_empty());
    let lines = headers.filter_map(|line| line.strip_prefix("Requires-Dist:"));
    let unconditional =
        |line: &&str| line.split_once(';').is_none_or(|(_, marker)| !names_extra(marker));
    lines.map(str::trim).filter(unconditional).map(str::to_owned).collect()
}

/// Whether a marker depends on an extra.
fn names_extra(marker: &str) -> bool {
    let words = marker.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.into_iter().any(|word| word == "extra")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_under_an_extra_are_left_out() {
        let text = "Metadata-Version: 2.4\nName: x\nLicense: Apache\n        \n        Version 2\n\
            Requires-Dist: torch==2.14.1\n\
            Requires-Dist: extra-helpers>=1; python_version < \"3.13\"\n\
            Requires-Dist: ray; extra == 'cluster'\n\nRequires-Dist: prose\n";
        assert_eq!(
            requires(text),
            ["torch==2.14.1", "extra-helpers>=1; python_version < \"3.13\""]
        );
    }
}
