//! Writes a wheel (PEP 427) with the command and the Python package: pip, uv and pipx install the program on PATH, and its man
//! pages and completions below `share`.

use super::{File, sha256};
use anyhow::Context;
use std::io::{Cursor, Write};
use std::path::Path;
use time::OffsetDateTime;
use zip::write::SimpleFileOptions;
use zip::{DateTime, ZipWriter};

/// The package's fields of METADATA.
#[derive(Debug)]
pub(super) struct Package<'a> {
    pub(super) version: &'a str,
    /// The one-line description.
    pub(super) summary: &'a str,
    /// The long description: the README.
    pub(super) description: &'a str,
    /// `repository` of the manifest.
    pub(super) repository: Option<&'a str>,
}

/// The file name of a wheel with this platform tag.
pub(super) fn name(version: &str, tag: &str) -> String {
    format!("firstlight-{version}-py3-none-{tag}.whl")
}

/// Writes the wheel reproducibly: the same files give the same bytes.
pub(super) fn write(
    path: &Path,
    package: &Package,
    tag: &str,
    files: &[File],
    time: u64,
) -> anyhow::Result<()> {
    let bytes = bytes(package, tag, files, time)?;
    std::fs::write(path, bytes).with_context(|| format!("could not write {}", path.display()))
}

fn bytes(package: &Package, tag: &str, files: &[File], time: u64) -> anyhow::Result<Vec<u8>> {
    let stem = format!("firstlight-{}", package.version);
    let info = format!("{stem}.dist-info");
    let mut entries: Vec<File> = files
        .iter()
        .filter_map(|file| Some(File { path: place(&stem, &file.path)?, ..file.clone() }))
        .collect();
    entries.push(File::text(&format!("{info}/METADATA"), metadata(package).into_bytes()));
    entries.push(File::text(&format!("{info}/WHEEL"), wheel(package.version, tag).into_bytes()));
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    // RECORD comes last, as PEP 427 recommends, and has no hash of itself.
    let record = format!("{info}/RECORD");
    let mut lines: Vec<String> = entries
        .iter()
        .map(|file| {
            let hash = url_safe(&sha256(&file.bytes));
            format!("{},sha256={hash},{}\n", file.path, file.bytes.len())
        })
        .collect();
    lines.push(format!("{record},,\n"));
    entries.push(File::text(&record, lines.concat().into_bytes()));
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for file in &entries {
        let options = SimpleFileOptions::default()
            .last_modified_time(date(time)?)
            .unix_permissions(if file.executable { 0o755 } else { 0o644 });
        zip.start_file(&file.path, options)?;
        zip.write_all(&file.bytes)?;
    }
    Ok(zip.finish()?.into_inner())
}

/// The path in a wheel of an archive's file; `None` for files that only the archive has.
fn place(stem: &str, path: &str) -> Option<String> {
    let data = |folder: &str, name: &str| Some(format!("{stem}.data/data/share/{folder}/{name}"));
    match path.rsplit_once('/') {
        Some((package, _)) if package.split('/').next() == Some("firstlight") => {
            Some(path.to_owned())
        }
        Some(("man", page)) => data("man/man1", page),
        Some(("completions", "firstlight.bash")) => {
            data("bash-completion/completions", "firstlight")
        }
        Some(("completions", "_firstlight")) => data("zsh/site-functions", "_firstlight"),
        Some(("completions", name)) => data("fish/vendor_completions.d", name),
        None if path == "firstlight" => Some(format!("{stem}.data/scripts/{path}")),
        None if path == "LICENSE" => Some(format!("{stem}.dist-info/licenses/{path}")),
        _ => None,
    }
}

/// Trove classifiers.
const CLASSIFIERS: [&str; 17] = [
    "Development Status :: 4 - Beta",
    "Environment :: Console",
    "Environment :: GPU :: NVIDIA CUDA",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: 3.9",
    "Programming Language :: Python :: 3.10",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Programming Language :: Python :: Implementation :: CPython",
    "Programming Language :: Rust",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
];

fn metadata(package: &Package) -> String {
    let classifiers: String =
        CLASSIFIERS.iter().map(|classifier| format!("Classifier: {classifier}\n")).collect();
    let urls = package.repository.map_or_else(String::new, |url| {
        let url = url.trim_end_matches('/').trim_end_matches(".git");
        format!(
            "Project-URL: Source, {url}\n\
             Project-URL: Issues, {url}/issues\n\
             Project-URL: Changelog, {url}/blob/HEAD/CHANGELOG.md\n"
        )
    });
    format!(
        "Metadata-Version: 2.4\n\
         Name: firstlight\n\
         Version: {}\n\
         Summary: {}\n\
         License-Expression: Apache-2.0\n\
         License-File: LICENSE\n\
         Author: The firstlight maintainers\n\
         Keywords: gpu,cuda,diagnostics,attention,benchmark\n\
         {urls}{classifiers}\
         Requires-Python: >=3.9\n\
         Description-Content-Type: text/markdown\n\
         \n{}",
        package.version, package.summary, package.description
    )
}

fn wheel(version: &str, tag: &str) -> String {
    format!(
        "Wheel-Version: 1.0\n\
         Generator: firstlight-xtask ({version})\n\
         Root-Is-Purelib: false\n\
         Tag: py3-none-{tag}\n"
    )
}

/// The date in UTC, because zip has no time zone.
fn date(time: u64) -> anyhow::Result<DateTime> {
    let utc = OffsetDateTime::from_unix_timestamp(i64::try_from(time)?)?;
    let (hour, minute, second) = utc.to_hms();
    let year = u16::try_from(utc.year())?;
    DateTime::from_date_and_time(year, utc.month().into(), utc.day(), hour, minute, second)
        .map_err(|_| anyhow::anyhow!("a zip file has no date like {utc}"))
}

/// Base64 with `-` and `_` and without padding, as RECORD has it.
fn url_safe(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| chunk.get(at).map_or(0, |byte| u32::from(*byte));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=chunk.len() {
            let index = bits >> (18 - 6 * digit) & 63;
            text.push(char::from(DIGITS[index as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn made() -> Vec<u8> {
        let files = [
            File::text("README.md", b"for the archive".to_vec()),
            File::text("completions/_firstlight", b"z".to_vec()),
            File::text("completions/firstlight.bash", b"b".to_vec()),
            File::text("LICENSE", b"Apache".to_vec()),
            File::program("firstlight", b"ELF".to_vec()),
            File::text("man/firstlight.1", b"page".to_vec()),
            File::text("firstlight/compat/__init__.py", b"pass".to_vec()),
        ];
        let package = Package {
            version: "1.2.3",
            summary: "one line",
            description: "# Title\n",
            repository: Some("https://example.org/firstlight.git"),
        };
        bytes(&package, "manylinux_2_28_x86_64", &files, 1_763_700_000).unwrap()
    }

    #[test]
    fn wheel_has_the_expected_paths_and_hashes() {
        let mut zip = zip::ZipArchive::new(Cursor::new(made())).unwrap();
        let mut record = String::new();
        let last = zip.len() - 1;
        zip.by_index(last).unwrap().read_to_string(&mut record).unwrap();
        let names: Vec<String> =
            record.lines().map(|line| line.split(',').next().unwrap().to_owned()).collect();
        let expect = [
            "firstlight-1.2.3.data/data/share/bash-completion/completions/firstlight",
            "firstlight-1.2.3.data/data/share/man/man1/firstlight.1",
            "firstlight-1.2.3.data/data/share/zsh/site-functions/_firstlight",
            "firstlight-1.2.3.data/scripts/firstlight",
            "firstlight-1.2.3.dist-info/METADATA",
            "firstlight-1.2.3.dist-info/WHEEL",
            "firstlight-1.2.3.dist-info/licenses/LICENSE",
            "firstlight/compat/__init__.py",
            "firstlight-1.2.3.dist-info/RECORD",
        ];
        assert_eq!(names, expect);
        let inside: Vec<String> = zip.file_names().map(|name| name.unwrap().into_owned()).collect();
        assert_eq!(inside, expect);
        // The hash of `ELF` by another program: printf ELF | openssl dgst -sha256 -binary | base64.
        assert!(
            record.contains(
                "scripts/firstlight,sha256=cGq-PJAVIHXmVrZhB5cw-s8yPz68zadUfuGTXJCEWgk,3\n"
            ),
            "{record}"
        );
        let program = zip.by_name(expect[3]).unwrap();
        assert_eq!(program.unix_mode().map(|mode| mode & 0o777), Some(0o755));
        assert_eq!(program.last_modified().unwrap().to_string(), "2025-11-21 04:40:00");
    }

    #[test]
    fn metadata_names_author_classifiers_and_urls() {
        let mut zip = zip::ZipArchive::new(Cursor::new(made())).unwrap();
        let mut text = String::new();
        let mut file = zip.by_name("firstlight-1.2.3.dist-info/METADATA").unwrap();
        file.read_to_string(&mut text).unwrap();
        let (header, body) = text.split_once("\n\n").unwrap();
        assert_eq!(body, "# Title\n");
        for line in [
            "Author: The firstlight maintainers",
            "Project-URL: Source, https://example.org/firstlight",
            "Classifier: Programming Language :: Python :: 3.12",
            "Classifier: Typing :: Typed",
            "Requires-Python: >=3.9",
        ] {
            assert!(header.lines().any(|one| one == line), "{line}: {header}");
        }
        let package = Package { version: "1", summary: "s", description: "d", repository: None };
        assert!(!metadata(&package).contains("Project-URL"));
    }

    #[test]
    fn wheel_is_reproducible() {
        assert_eq!(made(), made());
    }

    #[test]
    fn url_safe_base64_matches_rfc_4648() {
        // RFC 4648, section 10, without the padding.
        for (bytes, text) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")]
        {
            assert_eq!(url_safe(bytes.as_bytes()), text);
        }
        assert_eq!(url_safe(&[0xfb, 0xff]), "-_8");
    }
}
