//! Writes the harness and its adapters to files, and tensors as safetensors: 8 bytes of header length, a JSON header,
//! then the tensors. Files are written and read whole, because a benchmark's inputs have gigabytes.

use ops::{DType, OutputSpec, Tensor, TensorMap};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Error, Read, Result, Seek, SeekFrom, Write};
use std::path::Path;

/// The harness program, in several files.
pub(super) const HARNESS: (&str, &str) = (
    "harness.py",
    concat!(
        include_str!("channel.py"),
        include_str!("tensors.py"),
        include_str!("timing.py"),
        include_str!("tuning.py"),
        include_str!("harness.py")
    ),
);
/// The folder of its adapters.
pub(super) const ADAPTERS: &str = "peers";

/// The name of a type in safetensors.
pub(crate) fn word(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::Bf16 => "BF16",
        DType::F16 => "F16",
        DType::I32 => "I32",
        DType::E4m3 => "F8_E4M3",
        DType::I8 => "I8",
        DType::U8 | DType::U4 => "U8",
    }
}

/// Writes tensors.
pub(crate) fn write_inputs(path: &Path, tensors: &TensorMap) -> Result<()> {
    let mut header = Map::new();
    let mut at = 0;
    for (name, tensor) in tensors {
        let end = at + tensor.bytes().len();
        let entry = json!({
            "dtype": word(tensor.dtype()), "shape": tensor.file_shape(), "data_offsets": [at, end]
        });
        header.insert(name.clone(), entry);
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for tensor in tensors.values() {
        file.write_all(tensor.bytes())?;
    }
    file.flush()
}

/// Reads the outputs that a file has; each must have the contract's shape and type.
pub(crate) fn read_outputs(path: &Path, specs: &[OutputSpec]) -> Result<TensorMap> {
    let wrong = |what: String| Error::other(what);
    let mut file = File::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let size = file.metadata()?.len();
    let length = u64::from_le_bytes(length);
    if length.saturating_add(8) > size {
        return Err(wrong(format!("its header has {length} bytes, the file {size}")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let header: Map<String, Value> = serde_json::from_slice(&header)?;
    let body = size - 8 - length;
    let mut outputs = TensorMap::new();
    for spec in specs {
        let Some(entry) = header.get(spec.name) else { continue };
        let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone())?;
        if shape != spec.shape {
            let wanted = &spec.shape;
            return Err(wrong(format!(
                "output `{}` has shape {shape:?}, expected {wanted:?}",
                spec.name
            )));
        }
        let [from, to]: [u64; 2] = serde_json::from_value(entry["data_offsets"].clone())?;
        let mut tensor = Tensor::poisoned(&spec.shape, spec.dtype);
        let fits = from <= to && to <= body && to - from == tensor.bytes().len() as u64;
        if !fits || entry["dtype"] != word(spec.dtype) {
            return Err(wrong(format!("output `{}` is no {}", spec.name, spec.dtype)));
        }
        file.seek(SeekFrom::Start(8 + length + from))?;
        file.read_exact(tensor.bytes_mut())?;
        outputs.insert(spec.name.to_owned(), tensor);
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_round_trip_and_wrong_shapes_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tensors");
        let mut tensors = TensorMap::new();
        for (name, dtype) in [("a", DType::F32), ("b", DType::Bf16), ("c", DType::I32)] {
            let tensor = Tensor::new(&[2, 3], vec![1f64, -2.0, 3.0, 4.0, 0.0, 6.0]).cast(dtype);
            tensors.insert(name.to_owned(), tensor);
        }
        write_inputs(&path, &tensors).unwrap();
        let spec = |name, shape: &[usize], dtype| OutputSpec { name, shape: shape.to_vec(), dtype };
        let specs = [
            spec("a", &[2, 3], DType::F32),
            spec("b", &[2, 3], DType::Bf16),
            spec("c", &[2, 3], DType::I32),
            spec("absent", &[1], DType::F32),
        ];
        assert_eq!(read_outputs(&path, &specs).unwrap(), tensors);
        let check = |spec: OutputSpec, expect: &str| {
            assert_eq!(read_outputs(&path, &[spec]).unwrap_err().to_string(), expect);
        };
        check(spec("a", &[3, 2], DType::F32), "output `a` has shape [2, 3], expected [3, 2]");
        check(spec("b", &[2, 3], DType::F16), "output `b` is no f16");
        std::fs::write(&path, [255; 9]).unwrap();
        assert!(read_outputs(&path, &specs).is_err());
        std::fs::write(&path, b"").unwrap();
        assert!(read_outputs(&path, &specs).is_err());
    }
}
