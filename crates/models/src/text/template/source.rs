//! A template's text, before it is parsed.

/// The text with its line ends as Jinja has them, and with transformers' `generation` blocks, which only mark what an assistant
/// said, as blocks that the engine knows and that hold what is set inside, as those do.
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
                // What looks like a tag in there is text.
                let end = raw_length(rest);
                out += &rest[..end];
                rest = &rest[end..];
            }
            _ => out += tag,
        }
    }
    out + rest
}

/// The length of a tag that begins with `{{` or `{%`; strings inside may have its end in them.
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

/// The word of a statement that is a word alone.
fn statement(tag: &str) -> Option<&str> {
    let inside = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(inside.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+')))
}

/// The length of what stands before the `endraw` tag.
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
    fn generation_blocks_are_scopes_and_nothing_else_changes() {
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
