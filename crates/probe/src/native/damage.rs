//! Classifies a file with a library's name that does not start as an ELF file.

use object::read::ReadRef;

/// Why the loader refuses it; `None` for a file that may be intended: a linker script, a line of text instead of a
/// link.
pub(super) fn of_another_kind<'data, R: ReadRef<'data>>(data: R) -> Option<String> {
    let length = data.len().ok()?;
    let begin = data.read_bytes_at(0, length.min(256)).ok()?;
    classify(begin, length)
}

fn classify(begin: &[u8], length: u64) -> Option<String> {
    if begin.is_empty() {
        return Some("is empty".to_owned());
    }
    if begin.iter().all(|byte| *byte == 0) {
        return Some(format!("begins with zero bytes; it has {length} bytes"));
    }
    if begin.starts_with(b"\x7fELF") {
        return Some(format!("is cut off within its first header, at {length} bytes"));
    }
    let text = String::from_utf8_lossy(begin);
    let lower = text.trim_start().to_ascii_lowercase();
    if text.starts_with("version https://git-lfs") {
        return Some("is a Git LFS pointer in the place of the file".to_owned());
    }
    if lower.starts_with("<!doctype") || lower.starts_with("<html") {
        return Some("is a web page in the place of the file".to_owned());
    }
    // Wheels for several systems contain Mach-O and PE files.
    let other_systems: [&[u8]; 6] = [
        b"MZ",
        b"\xcf\xfa\xed\xfe",
        b"\xce\xfa\xed\xfe",
        b"\xfe\xed\xfa\xce",
        b"\xfe\xed\xfa\xcf",
        b"\xca\xfe\xba\xbe",
    ];
    if other_systems.iter().any(|magic| begin.starts_with(magic)) {
        return None;
    }
    let is_text = begin.iter().all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace());
    (!is_text).then(|| "does not begin as an ELF file does".to_owned())
}

#[cfg(test)]
mod tests {
    use super::classify;

    #[test]
    fn replaced_library_files_are_reported() {
        let check = |begin: &[u8], expect: Option<&str>| {
            let got = classify(begin, begin.len() as u64);
            match expect {
                None => assert_eq!(got, None),
                Some(words) => {
                    assert!(got.as_ref().is_some_and(|it| it.contains(words)), "{got:?}")
                }
            }
        };
        check(b"", Some("is empty"));
        check(&[0; 64], Some("zero bytes"));
        check(b"\x7fELF\x02\x01", Some("first header"));
        check(b"version https://git-lfs.github.com/spec/v1\noid sha256:", Some("Git LFS"));
        check(b"<!DOCTYPE html><html>", Some("web page"));
        check(b"\x01\x02\x03garbage", Some("does not begin"));
        check(b"/* GNU ld script */\nINPUT(libx.so.1)", None);
        check(b"libx.so.1", None);
        check(b"MZ\x90\x00", None);
    }
}
