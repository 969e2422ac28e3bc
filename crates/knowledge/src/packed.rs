//! The texts of the tables, which `build.rs` compresses; all are decompressed when the first one is read, in two milliseconds.

use lzma_rust2::LzmaReader;
use std::io::Read;
use std::sync::LazyLock;

/// The text of a table below `data`; a missing file is a compile error.
macro_rules! table {
    ($name:literal) => {{
        const _: &str = include_str!(concat!("../data/", $name));
        crate::packed::text($name)
    }};
}
pub(crate) use table;

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tables.lzma"));

/// Memory limit of the decompression, in KiB.
const UNPACKING_KIB: u32 = 64 << 10;

static TEXTS: LazyLock<String> = LazyLock::new(|| {
    let mut all = String::new();
    LzmaReader::new_mem_limit(PACKED, UNPACKING_KIB, None)
        .and_then(|mut reader| reader.read_to_string(&mut all))
        .unwrap_or_else(|wrong| panic!("the packed tables: {wrong}"));
    all
});

/// The text of the table with this file name.
pub(crate) fn text(name: &str) -> &'static str {
    let mut rest = TEXTS.as_str();
    while let Some((head, after)) = rest.split_once('\n') {
        let Some((file, length)) = head.split_once(' ') else { break };
        let Some((text, next)) = length.parse().ok().and_then(|at| after.split_at_checked(at))
        else {
            break;
        };
        if file == name {
            return text;
        }
        rest = next;
    }
    panic!("there is no table {name}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_table_is_packed_unchanged() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/data");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(super::text(name), std::fs::read_to_string(&path).unwrap(), "{name}");
            count += 1;
        }
        assert!(count > 10);
    }
}
