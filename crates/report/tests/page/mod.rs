//! A strict parser of the report's pages: tags must nest, attributes must be quoted, and no tag may be left open.

/// Tags and attributes of a page.
pub(crate) struct Page {
    tags: Vec<(String, Vec<(String, String)>)>,
    /// The content of `<style>`.
    pub(crate) style: String,
}

/// Elements without an end tag.
const VOID: [&str; 4] = ["meta", "br", "hr", "!doctype"];

impl Page {
    /// Reads a page, or says where it is not well formed.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut page = Self { tags: Vec::new(), style: String::new() };
        let mut open: Vec<String> = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            let (content, tail) = (&rest[..start], &rest[start + 1..]);
            if content.contains('>') {
                return Err(format!("an unescaped > in {content:?}"));
            }
            let end = tail.find('>').ok_or("an unclosed tag")?;
            let tag = &tail[..end];
            rest = &tail[end + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                let last = open.pop();
                if last.as_deref() != Some(name) {
                    return Err(format!("</{name}> closes {last:?}"));
                }
                continue;
            }
            let closed = tag.ends_with('/');
            let (name, attributes) = parts(tag.trim_end_matches('/'))?;
            if name == "style" {
                let end = rest.find("</style>").ok_or("an unclosed style")?;
                page.style.push_str(&rest[..end]);
                rest = &rest[end + "</style>".len()..];
            } else if !closed && !VOID.contains(&name.as_str()) {
                open.push(name.clone());
            }
            page.tags.push((name, attributes));
        }
        if open.is_empty() { Ok(page) } else { Err(format!("left open: {open:?}")) }
    }

    /// How many elements of this name there are.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.tags.iter().filter(|(tag, _)| tag == name).count()
    }

    /// Values of an attribute in any element.
    pub(crate) fn attributes<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let all = self.tags.iter().flat_map(|(_, attributes)| attributes);
        all.filter(move |(attribute, _)| attribute == name).map(|(_, value)| value.as_str())
    }
}

fn parts(tag: &str) -> Result<(String, Vec<(String, String)>), String> {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    let mut attributes = Vec::new();
    while !rest.trim().is_empty() {
        let Some((attribute, tail)) = rest.trim_start().split_once("=\"") else {
            if name == "!doctype" {
                break;
            }
            return Err(format!("an attribute without a quoted value in <{tag}>"));
        };
        let (value, tail) =
            tail.split_once('"').ok_or_else(|| format!("an unclosed value in <{tag}>"))?;
        attributes.push((attribute.to_owned(), value.to_owned()));
        rest = tail;
    }
    Ok((name.to_owned(), attributes))
}
