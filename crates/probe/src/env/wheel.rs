//! WHEEL of a dist-info folder.

/// The `Tag:` lines: `cp312-cp312-manylinux_2_28_x86_64`.
pub(crate) fn parse_tags(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| key.trim().eq_ignore_ascii_case("tag"))
        .map(|(_, tag)| tag.trim())
        // interpreter, ABI, platform: everything else is not a tag.
        .filter(|tag| tag.split('-').count() == 3 && tag.split('-').all(|part| !part.is_empty()))
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parse_tags;

    #[test]
    fn tags() {
        let check = |text, expect: &[&str]| assert_eq!(parse_tags(text), expect);
        check(
            include_str!(
                "../../fixtures/h200/root/opt/torch/.venv/lib/python3.12/site-packages/torch-2.11.0.dist-info/WHEEL"
            ),
            &["cp312-cp312-manylinux_2_28_x86_64"],
        );
        check("Tag: py2-none-any\r\nTag: py3-none-any\r\n", &["py2-none-any", "py3-none-any"]);
        check("Tag: py3\nTag:\nTag: a--b\n", &[]);
    }
}
