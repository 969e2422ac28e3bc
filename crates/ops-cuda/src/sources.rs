//! The sources of kernels, packed by `build.rs` and unpacked when one is first read: to compute a kernel's key or to
//! compile it.

use std::collections::HashMap;
use std::sync::LazyLock;

/// A part of a kernel's source: an existing file below `src`, given by its path relative to the file that names it.
macro_rules! source {
    ($path:literal) => {{
        const _: &str = include_str!($path);
        device::cuda::SourcePart::Packed { by: file!(), path: $path, unpack: crate::sources::text }
    }};
}
pub(crate) use source;

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sources.lzma"));

/// Sources by their paths below `src`.
static TEXTS: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    let all = device::cuda::unpack(PACKED, 16 << 20).unwrap_or_default();
    let mut texts = HashMap::new();
    let mut rest = &all[..];
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (head, behind) = (String::from_utf8_lossy(&rest[..end]), &rest[end + 1..]);
        let Some((path, length)) = head.split_once(' ') else { break };
        let Some((text, next)) = length.parse().ok().and_then(|at| behind.split_at_checked(at))
        else {
            break;
        };
        texts.insert(path.to_owned(), String::from_utf8_lossy(text).into_owned());
        rest = next;
    }
    texts
});

/// The source at `path`, relative to the file `by`.
pub(crate) fn text(by: &str, path: &str) -> &'static str {
    let below = by.rsplit_once("src/").map_or(by, |(_, below)| below);
    let mut parts: Vec<&str> = below.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    TEXTS.get(&parts.join("/")).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comments::without_comments;

    /// The program contains the sources of its build, without comments.
    #[test]
    fn packed_texts_are_the_files_without_comments() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/src/");
        for (path, text) in TEXTS.iter() {
            let file = std::fs::read_to_string(format!("{root}{path}")).unwrap();
            assert!(without_comments(&file) == *text, "{path}");
            assert!(file.lines().count() == text.lines().count(), "{path}: other lines");
        }
        assert!(TEXTS.len() > 100, "{}", TEXTS.len());
        let slots = text("crates/ops-cuda/src/slots.rs", "slots.cu");
        assert!(slots == without_comments(include_str!("slots.cu")));
        assert!(
            text("crates/ops-cuda/src/moe/sum.rs", "../slots.cu") == slots
                && text(file!(), "none.cu").is_empty()
        );
    }
}
