//! The C library, which determines the loadable binary wheels (manylinux_2_28 needs glibc 2.28 or later).

use crate::Source;
use facts::{Fact, Machine, Platform};
use memchr::memmem;
use std::io::Read;
use std::path::Path;

const GLIBC: &[&str] = &[
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/aarch64-linux-gnu/libc.so.6",
    "/lib64/libc.so.6",
    "/usr/lib/libc.so.6",
    "/lib/libc.so.6",
];

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    if !matches!(machine.platform, Platform::LinuxX86_64 | Platform::LinuxAarch64) {
        return;
    }
    let glibc = GLIBC.iter().find_map(|file| {
        let version = glibc_version(source.open(Path::new(file)).ok()?)?;
        Some(Fact::new(format!("glibc {version}"), *file))
    });
    // musl has no version text at a fixed place, so Alpine's package list is used.
    let musl = || {
        let installed = "/lib/apk/db/installed";
        let version = parse_apk_version(&source.text(installed)?, "musl")?;
        Some(Fact::new(format!("musl {version}"), installed))
    };
    machine.os.libc = glibc.or_else(musl);
    if machine.os.libc.is_none() {
        machine.notes.push(
            "no C library was found in the standard folders: its version is unknown".to_string(),
        );
    }
}

/// The version in a C library, which is read in parts of 64 KiB.
fn glibc_version(mut library: impl Read) -> Option<String> {
    let mut part = vec![0; 64 << 10];
    let mut carried = 0;
    loop {
        let read = library.read(&mut part[carried..]).ok()?;
        let bytes = &part[..carried + read];
        // A version text that crosses the end of this part is found after the next read: the end is kept.
        let whole = |at: usize| read == 0 || at + BANNER <= bytes.len();
        match memmem::find(bytes, NAME).filter(|at| whole(*at)) {
            Some(at) => return parse_glibc_banner(&bytes[at..]),
            None if read == 0 => return None,
            None => {
                let from = bytes.len().saturating_sub(BANNER);
                carried = bytes.len() - from;
                part.copy_within(from..from + carried, 0);
            }
        }
    }
}

const NAME: &[u8] = b"GNU C Library ";

/// The text is one line of about 80 bytes.
const BANNER: usize = 200;

/// Version in the line that glibc prints when libc.so.6 is run: `GNU C Library (...) stable release version 2.39.`
pub(crate) fn parse_glibc_banner(bytes: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"release version ";
    let at = memmem::find(bytes, NAME)?;
    let line = &bytes[at..bytes.len().min(at + BANNER)];
    let version = &line[memmem::find(line, BEFORE)? + BEFORE.len()..];
    let end = version
        .iter()
        .position(|byte| !(byte.is_ascii_digit() || *byte == b'.'))
        .unwrap_or(version.len());
    let version = std::str::from_utf8(&version[..end]).ok()?.trim_end_matches('.');
    crate::text::is_dotted_number(version).then(|| version.to_string())
}

/// Version of a package in Alpine's list: a `P:name` line followed by a `V:version-rN` line.
pub(crate) fn parse_apk_version(text: &str, package: &str) -> Option<String> {
    let lines = text.lines().skip_while(|line| line.strip_prefix("P:") != Some(package));
    let version =
        lines.take_while(|line| !line.is_empty()).find_map(|line| line.strip_prefix("V:"))?;
    let version = version.split("-r").next().unwrap_or(version);
    (!version.is_empty()).then(|| version.to_string())
}

#[cfg(test)]
mod tests {
    use super::{glibc_version, parse_apk_version, parse_glibc_banner};

    #[test]
    fn parses_glibc_banners() {
        let check = |bytes: &[u8], expect: Option<&str>| {
            assert_eq!(parse_glibc_banner(bytes).as_deref(), expect);
        };
        check(
            b"\x7fELF\0GNU C\0GNU C Library (Ubuntu GLIBC 2.39-0ubuntu8.9) stable release version 2.39.\nCopyright",
            Some("2.39"),
        );
        check(
            b"GNU C Library (GNU libc) stable release version 2.17, by Roland McGrath",
            Some("2.17"),
        );
        check(
            b"GNU C Library (GNU libc) development release version 2.40.9000.",
            Some("2.40.9000"),
        );
        check(b"GNU C Library (GNU libc) stable release version .", None);
        check(b"GNU C Library ", None);
        check(b"", None);
    }

    #[test]
    fn banner_split_over_two_reads_is_found() {
        let banner = b"GNU C Library (GNU libc) stable release version 2.41.\n";
        for before in (65_200..65_600).step_by(7) {
            for after in [0, 1000, 70_000] {
                let library = [vec![b'G'; before].as_slice(), banner, &vec![0; after]].concat();
                let found = glibc_version(library.as_slice());
                assert_eq!(found.as_deref(), Some("2.41"), "{before} {after}");
            }
        }
        assert_eq!(glibc_version(vec![b'G'; 200_000].as_slice()), None);
    }

    #[test]
    fn reads_the_version_in_alpines_package_list() {
        let text = "C:Q1\nP:musl-utils\nV:9.9-r0\n\nC:Q1\nP:musl\nV:1.2.5-r9\nA:x86_64\n\n";
        assert_eq!(parse_apk_version(text, "musl").as_deref(), Some("1.2.5"));
        assert_eq!(parse_apk_version("P:musl\n\nV:1\n", "musl"), None);
    }
}
