//! RECORD of a dist-info folder: one line per file, `path,hash,size`, quoted as in CSV if necessary.

use facts::CompactSort;
use std::borrow::Cow;

/// The used content of RECORD. torch has about 15,000 lines, so only this is kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Number of files.
    pub(crate) files: u32,
    /// Paths of native files, relative to the parent of the dist-info folder, with the size in RECORD.
    pub(crate) native: Vec<(String, Option<u64>)>,
    /// First components of the paths inside that folder, each once: the packages' folders and modules.
    pub(crate) top_level: Vec<String>,
}

impl Record {
    pub(crate) fn parse(text: &str) -> Self {
        let mut record = Self::default();
        for line in lines(text) {
            let Some((path, rest)) = path_of(line) else { continue };
            record.files = record.files.saturating_add(1);
            if is_native(&path) {
                let size = rest.rsplit(',').next().and_then(|size| size.trim().parse().ok());
                record.native.push((path.clone().into_owned(), size));
            }
            let first = path.split('/').next().unwrap_or_default();
            // Files of one package are adjacent, so comparing with the last entry keeps this list short.
            if first != ".."
                && !first.is_empty()
                && record.top_level.last().is_none_or(|last| last != first)
            {
                record.top_level.push(first.to_string());
            }
        }
        record.top_level.compact_sort();
        record.top_level.dedup();
        record
    }
}

/// The lines of a text, as [`str::lines`], but faster: the RECORD files of one environment have about ten million characters.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memchr(b'\n', rest.as_bytes());
        let (line, after) = end.map_or((rest, ""), |end| (&rest[..end], &rest[end + 1..]));
        rest = after;
        Some(if end.is_some() { line.strip_suffix('\r').unwrap_or(line) } else { line })
    })
}

/// The first field of a line, and the rest.
pub(crate) fn path_of(line: &str) -> Option<(Cow<'_, str>, &str)> {
    let (path, rest) = match line.strip_prefix('"') {
        None => {
            let end = memchr::memchr(b',', line.as_bytes());
            let (path, rest) = end.map_or((line, ""), |end| (&line[..end], &line[end + 1..]));
            (Cow::Borrowed(path), rest)
        }
        Some(quoted) => {
            // A doubled quote is an escaped quote; the first single one ends the field.
            let mut from = 0;
            let end = loop {
                let at = from + quoted.get(from..)?.find('"')?;
                if quoted[at + 1..].starts_with('"') { from = at + 2 } else { break at }
            };
            (Cow::Owned(quoted[..end].replace("\"\"", "\"")), &quoted[end + 1..])
        }
    };
    (!path.trim().is_empty()).then_some((path, rest))
}

/// Whether a path is compiled code: `.so`, `.so.13`, `.pyd`, `.dylib`.
pub(crate) fn is_native(path: &str) -> bool {
    // There are tens of thousands of names, and the last character excludes nearly all of them.
    match path.as_bytes().last() {
        Some(b'o' | b'd' | b'b') => {
            [".so", ".pyd", ".dylib"].iter().any(|ending| path.ends_with(ending))
        }
        Some(b'0'..=b'9') => {
            let name = path.rsplit('/').next().unwrap_or(path);
            let version = name.split_once(".so.").map(|(_, version)| version);
            version.is_some_and(crate::text::is_dotted_number)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{Record, is_native};

    #[test]
    fn parses_files_native_files_and_top_level_names() {
        let check = |text, files, native: &[(&str, Option<u64>)], top: &[&str]| {
            let record = Record::parse(text);
            let native: Vec<_> =
                native.iter().map(|(path, size)| (path.to_string(), *size)).collect();
            assert_eq!((record.files, record.native), (files, native), "{text:?}");
            assert_eq!(record.top_level, top, "{text:?}");
        };
        check(
            "torch/__init__.py,sha256=x,10\ntorch/lib/libtorch.so,sha256=y,123\n../../../bin/torchrun,sha256=z,9\ntorch-2.dist-info/RECORD,,\n",
            4,
            &[("torch/lib/libtorch.so", Some(123))],
            &["torch", "torch-2.dist-info"],
        );
        check(
            "\"a,b \"\"c\"\"/x.so\",sha256=,7\n",
            1,
            &[("a,b \"c\"/x.so", Some(7))],
            &["a,b \"c\""],
        );
        check("_x.so,,\r\nb.py\n\n,,\n\"open,1,2\n", 2, &[("_x.so", None)], &["_x.so", "b.py"]);
        check("", 0, &[], &[]);
    }

    #[test]
    fn lines_equal_those_of_the_standard_library() {
        for text in ["", "a", "a\n", "a\r\nb\r", "\n\n", "\r\n", "a\rb\nc", "é\n漢"] {
            assert!(super::lines(text).eq(text.lines()), "{text:?}");
        }
    }

    #[test]
    fn native_files_are_recognized_by_name() {
        let check = |name, expect| assert_eq!(is_native(name), expect, "{name}");
        check("a/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so", true);
        check("nvidia/cu13/lib/libcudart.so.13", true);
        check("torch.libs/libgomp-a34b3233.so.1.0.0", true);
        check("a/_C.cp312-win_amd64.pyd", true);
        check("torch/lib/libtorch.dylib", true);
        check("a/so.py", false);
        check("a/x.so.txt", false);
        check("libx.so/readme", false);
    }
}
