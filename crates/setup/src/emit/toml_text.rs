//! TOML written by hand, for the sake of comments; `toml` quotes the values.

/// A string, quoted.
pub(super) fn quote(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Strings as an array in one line.
pub(super) fn array<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<_> = texts.into_iter().map(quote).collect();
    format!("[{}]", quoted.join(", "))
}
