use super::*;
use crate::random::mix;
use serde_json::Value as Json;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The type and bytes of a value, as gguf-py encodes it.
fn value(of: &Json) -> (u32, Vec<u8>) {
    match of {
        Json::Bool(flag) => (7, vec![u8::from(*flag)]),
        Json::String(of) => (8, text(of)),
        Json::Number(of) if of.is_f64() => {
            (6, (of.as_f64().unwrap() as f32).to_le_bytes().to_vec())
        }
        Json::Number(of) => (4, (of.as_u64().unwrap() as u32).to_le_bytes().to_vec()),
        Json::Array(items) => {
            let kind = items.first().map_or(4, |item| value(item).0);
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend((items.len() as u64).to_le_bytes());
            bytes.extend(items.iter().flat_map(|item| value(item).1));
            (9, bytes)
        }
        other => panic!("{other}"),
    }
}

/// A file with these metadata and float32 tensors.
pub(in crate::gguf) fn file(pairs: &[(&str, Json)], tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((pairs.len() as u64).to_le_bytes());
    for (key, of) in pairs {
        let (kind, bytes) = value(of);
        file.extend(text(key));
        file.extend(kind.to_le_bytes());
        file.extend(bytes);
    }
    let mut data = 0;
    for (name, shape) in tensors {
        file.extend(text(name));
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|side| file.extend((*side as u64).to_le_bytes()));
        file.extend(0u32.to_le_bytes());
        file.extend((data as u64).to_le_bytes());
        data += shape.iter().product::<usize>() * 4;
        data = data.next_multiple_of(32);
    }
    file.resize(file.len().next_multiple_of(32) + data, 0);
    file
}

fn sample() -> Vec<u8> {
    let pairs = [
        ("general.architecture", Json::from("llama")),
        ("llama.scale", Json::from(0.22)),
        ("list", serde_json::json!(["a", "", "bc"])),
        ("counts", serde_json::json!([1, 2, 3])),
        ("flag", Json::from(true)),
    ];
    file(&pairs, &[("one", &[3, 4]), ("two", &[5])])
}

#[test]
fn header_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, sample()).unwrap();
    let header = Header::read(&path).unwrap();
    assert_eq!(header.text("general.architecture"), Some("llama"));
    // The decimal, not its float32 rounding.
    assert_eq!(header.get("llama.scale"), Some(&Value::Number(0.22)));
    assert_eq!(header.texts("list").unwrap(), ["a", "", "bc"]);
    assert_eq!(header.list("counts").unwrap(), [1, 2, 3].map(Value::Whole));
    assert_eq!(header.flag("flag"), Some(true));
    assert_eq!([header.whole("none"), header.whole("flag")], [None; 2]);
    let two = &header.tensors["two"];
    assert_eq!((two.kind, &*two.shape, two.bytes.len()), (Kind::F32, &[5][..], 20));
    assert_eq!(header.tensors["one"].shape, [3, 4]);
}

#[test]
fn split_model_is_read_from_its_first_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |nth: usize| folder.path().join(format!("m-{nth:05}-of-00002.gguf"));
    let splits = ("split.count", Json::from(2));
    std::fs::write(path(1), file(std::slice::from_ref(&splits), &[("one", &[3, 4])])).unwrap();
    let missing = Header::read(&path(1)).unwrap_err().to_string();
    assert!(missing.contains("m-00002-of-00002.gguf"), "{missing}");
    std::fs::write(path(2), file(std::slice::from_ref(&splits), &[("two", &[5])])).unwrap();
    let header = Header::read(&path(1)).unwrap();
    assert_eq!((header.shards.len(), header.tensors["two"].shard), (2, 1));
    let second = Header::read(&path(2)).unwrap_err();
    assert!(second.hint().unwrap().contains("name the first"));
    std::fs::write(path(2), file(&[splits], &[("one", &[5])])).unwrap();
    let twice = Header::read(&path(1)).unwrap_err().to_string();
    assert!(twice.contains("holds tensor `one` once more"), "{twice}");
}

/// Rows must be whole blocks, and the file must have all of their bytes.
#[test]
fn rows_that_are_not_whole_blocks_are_refused() {
    let mut checked = 0;
    for number in 0..64 {
        let Ok(kind @ Kind::Blocks(block)) = Kind::of(number) else { continue };
        let with = |columns: usize| {
            let mut bytes = file(&[], &[("one", &[3, columns])]);
            // The type follows the name, the number of dimensions and two dimensions.
            let at = bytes.windows(3).position(|part| part == b"one").unwrap() + 3 + 4 + 16;
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            bytes
        };
        for columns in [1, kind.values() - 1, kind.values() + 1, kind.values() * 3 / 2] {
            let Err(HeaderError::Said(error)) = parse(&with(columns), 0) else {
                panic!("{} with {columns} columns", block.name());
            };
            assert!(error.contains("has a shape"), "{error}");
        }
        let bytes = with(2 * kind.values());
        let start = bytes.len() - (3 * 2 * kind.values() * 4).next_multiple_of(32);
        let end = start + 6 * kind.bytes();
        assert_eq!(parse(&bytes[..end], 0).ok().unwrap().1[0].1.bytes, start..end);
        assert!(
            matches!(parse(&bytes[..end - 1], 0), Err(HeaderError::Short(of)) if of == end as u64)
        );
        checked += 1;
    }
    assert_eq!(checked, architectures::GgmlType::ALL.len());
}

/// Arbitrary bytes are read or refused without a panic.
#[test]
fn arbitrary_bytes_are_read_or_refused() {
    let sample = sample();
    assert!(parse(&sample, 0).is_ok());
    let (mut read, mut refused) = (0, 0);
    for seed in 0..100_000u64 {
        let mut bytes = sample.clone();
        for turn in 0..1 + seed % 4 {
            let drawn = mix(seed * 8 + turn);
            let at = (drawn >> 16) as usize % bytes.len();
            match seed % 3 {
                0 => bytes[at] = drawn as u8,
                1 => bytes[at] ^= 1 << (drawn % 8),
                _ => bytes.truncate(at.max(1)),
            }
        }
        match parse(&bytes, 0) {
            Ok((_, tensors)) => {
                read += 1;
                assert!(tensors.iter().all(|(_, of)| of.bytes.end <= bytes.len()));
            }
            Err(_) => refused += 1,
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} {refused}");
}
