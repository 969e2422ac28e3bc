//! Preprocesses a template's source before it is parsed.

/// Normalizes line ends as Jinja does, and replaces transformers' `generation` blocks, which mark the assistant's text,
/// by blocks that minijinja knows and that have the same scope.
pub(super) fn prepared(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() {
        let (text, tag) = rest.split_at(at);
        out += text;
        let length = if tag.starts_with("{#") {
            tag.find("#}").map_or(tag.len(), |end| end + 2)
        } else {
            tag_length(tag)
        };
        let (tag, after) = tag.split_at(length);
        rest = after;
        match statement(tag) {
            Some("generation") => out += &tag.replacen("generation", "with", 1),
            Some("endgeneration") => out += &tag.replacen("endgeneration", "endwith", 1),
            Some("raw") => {
                out += tag;
                // Text inside a raw block is not parsed for tags.
                let end = raw_length(rest);
                out += &rest[..end];
                rest = &rest[end..];
            }
            _ => out += tag,
        }
    }
    out + rest
}

/// The length of a tag that begins with `{{` or `{%`; strings inside may contain its end.
fn tag_length(tag: &str) -> usize {
    let close = if tag.starts_with("{{") { "}}" } else { "%}" };
    let mut quote = None;
    let mut chars = tag.char_indices().skip(2);
    while let Some((at, c)) = chars.next() {
        match quote {
            Some(_) if c == '\\' => {
                chars.next();
            }
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '\'' | '"') => quote = Some(c),
            None if tag[at..].starts_with(close) => return at + close.len(),
            None => {}
        }
    }
    tag.len()
}

/// The keyword of a statement that consists of one word.
fn statement(tag: &str) -> Option<&str> {
    let inside = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(inside.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+')))
}

/// The length of the text before the `endraw` tag.
fn raw_length(text: &str) -> usize {
    let ends = text.match_indices("{%").map(|(at, _)| at);
    let mut ends =
        ends.filter(|at| statement(&text[*at..*at + tag_length(&text[*at..])]) == Some("endraw"));
    ends.next().unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_become_scopes() {
        for (source, want) in [
            ("a{% generation %}b{% endgeneration %}", "a{% with %}b{% endwith %}"),
            ("{%- generation -%}\n{%+endgeneration%}", "{%- with -%}\n{%+endwith%}"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{{ 'it\\'s }}' }}{% if '%}' %}", "{{ 'it\\'s }}' }}{% if '%}' %}"),
            ("{% raw %}{% generation %}{% endraw %}", "{% raw %}{% generation %}{% endraw %}"),
            ("{% set generation = 1 %}", "{% set generation = 1 %}"),
            ("a\r\nb\rc", "a\nb\nc"),
            ("{% generation", "{% generation"),
            ("{{", "{{"),
        ] {
            assert_eq!(prepared(source), want);
        }
    }
}
