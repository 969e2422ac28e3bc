//! Reads and writes safetensors files.

use crate::failure::Failure;
use anyhow::Context;
use half::{bf16, f16};
use ops::{DType, E4m3, Tensor, TensorMap, U4Pair};
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView, serialize};
use std::path::Path;

/// Reads every tensor of a file.
pub(crate) fn read(path: &Path) -> anyhow::Result<TensorMap> {
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::hinted(
            format!("cannot read {}: {error}", path.display()),
            "check the path and its permissions",
        )
    })?;
    parse(&bytes).with_context(|| format!("cannot use {}", path.display()))
}

/// Reads every tensor of a safetensors file's bytes.
pub(crate) fn parse(bytes: &[u8]) -> anyhow::Result<TensorMap> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| not_safetensors(bytes, &error))?;
    let mut tensors = TensorMap::new();
    for (name, view) in file.tensors() {
        tensors.insert(name.clone(), tensor(&name, &view)?);
    }
    Ok(tensors)
}

fn not_safetensors(bytes: &[u8], error: &SafeTensorError) -> anyhow::Error {
    let hint = "a safetensors file is 8 bytes of header length, a JSON header, then the tensors; write it again";
    let what = match error {
        SafeTensorError::HeaderTooSmall => {
            format!("it ends after {} bytes, before its header", bytes.len())
        }
        SafeTensorError::InvalidHeaderLength | SafeTensorError::MetadataIncompleteBuffer => {
            format!("it is truncated: {} bytes are fewer than its header says", bytes.len())
        }
        other => format!("it is not a valid safetensors file ({other})"),
    };
    Failure::hinted(what, hint)
}

fn tensor(name: &str, view: &TensorView<'_>) -> anyhow::Result<Tensor> {
    let (shape, data) = (view.shape(), view.data());
    // Files are little-endian on every machine.
    Ok(match view.dtype() {
        Dtype::F64 => Tensor::new(shape, elements(data, f64::from_le_bytes)),
        Dtype::F32 => Tensor::new(shape, elements(data, f32::from_le_bytes)),
        Dtype::BF16 => Tensor::new(shape, elements(data, bf16::from_le_bytes)),
        Dtype::F16 => Tensor::new(shape, elements(data, f16::from_le_bytes)),
        Dtype::I32 => Tensor::new(shape, elements(data, i32::from_le_bytes)),
        Dtype::F8_E4M3 => Tensor::new(shape, elements(data, |[bits]| E4m3::from_bits(bits))),
        Dtype::I8 => Tensor::new(shape, elements(data, i8::from_le_bytes)),
        Dtype::U8 => Tensor::new(shape, elements(data, u8::from_le_bytes)),
        // Frameworks store offsets as 64-bit integers; ops take 32.
        Dtype::I64 => {
            let wide = elements(data, i64::from_le_bytes);
            let narrow: Result<Vec<i32>, _> = wide.into_iter().map(i32::try_from).collect();
            let narrow = narrow.map_err(|_| {
                Failure::hinted(
                    format!("tensor `{name}` has an integer beyond 32 bits"),
                    "ops take 32-bit indices",
                )
            })?;
            Tensor::new(shape, narrow)
        }
        other => {
            let hint = "use F32, BF16, F16, F64, F8_E4M3, I8 or U8 for values and I32 or I64 for offsets and indices";
            return Err(Failure::hinted(
                format!("tensor `{name}` is {other:?}, which no op supports"),
                hint,
            ));
        }
    })
}

fn elements<const SIZE: usize, T>(data: &[u8], read: impl Fn([u8; SIZE]) -> T) -> Vec<T> {
    data.as_chunks().0.iter().map(|bytes| read(*bytes)).collect()
}

/// The bytes of a safetensors file with these tensors.
pub(crate) fn to_bytes(tensors: &TensorMap) -> anyhow::Result<Vec<u8>> {
    let raw: Vec<(&String, Dtype, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| (name, dtype(tensor), tensor.file_shape(), little_endian(tensor)))
        .collect();
    let views: Result<Vec<_>, SafeTensorError> = raw
        .iter()
        .map(|(name, dtype, shape, data)| {
            Ok((name, TensorView::new(*dtype, shape.to_vec(), data)?))
        })
        .collect();
    Ok(serialize(views?, None)?)
}

fn dtype(tensor: &Tensor) -> Dtype {
    match tensor.dtype() {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I32 => Dtype::I32,
        DType::E4m3 => Dtype::F8_E4M3,
        DType::I8 => Dtype::I8,
        // Files have no 4-bit type: a byte holds a pair.
        DType::U8 | DType::U4 => Dtype::U8,
    }
}

fn little_endian(tensor: &Tensor) -> Vec<u8> {
    fn bytes<T: Copy, const SIZE: usize>(
        values: Option<&[T]>,
        write: impl Fn(T) -> [u8; SIZE],
    ) -> Vec<u8> {
        values.unwrap_or_default().iter().flat_map(|value| write(*value)).collect()
    }
    match tensor.dtype() {
        DType::F64 => bytes(tensor.view(), f64::to_le_bytes),
        DType::F32 => bytes(tensor.view(), f32::to_le_bytes),
        DType::Bf16 => bytes(tensor.view(), bf16::to_le_bytes),
        DType::F16 => bytes(tensor.view(), f16::to_le_bytes),
        DType::I32 => bytes(tensor.view(), i32::to_le_bytes),
        DType::E4m3 => bytes(tensor.view(), |number: E4m3| [number.to_bits()]),
        DType::U4 => bytes(tensor.view(), |pair: U4Pair| [pair.to_bits()]),
        DType::I8 => bytes(tensor.view(), i8::to_le_bytes),
        DType::U8 => bytes(tensor.view(), u8::to_le_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> TensorMap {
        let mut tensors = TensorMap::new();
        tensors.insert("q".into(), Tensor::new(&[2, 3], vec![1.5f32, -2.0, 0.0, 4.0, 5.0, 6.0]));
        tensors.insert("k".into(), Tensor::new(&[3], vec![1.0f64, 2.5, -3.0]).cast(DType::Bf16));
        tensors.insert("cu_seqlens".into(), Tensor::new(&[2], vec![0i32, 2]));
        tensors.insert("empty".into(), Tensor::new::<f32>(&[0, 4], vec![]));
        tensors
    }

    #[test]
    fn written_tensors_are_read_back() {
        let tensors = sample();
        assert_eq!(parse(&to_bytes(&tensors).unwrap()).unwrap(), tensors);
    }

    #[test]
    fn a_truncated_file_is_one_sentence() {
        let whole = to_bytes(&sample()).unwrap();
        for length in 0..whole.len() {
            let error = parse(&whole[..length]).unwrap_err();
            assert!(!format!("{error:#}").contains('\n'), "{error:#}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

        /// No file may make the reader panic: random bytes, and valid files with changed bytes.
        #[test]
        fn any_bytes_give_tensors_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn any_header_gives_tensors_or_an_error(header in "[ \\[\\]{}\":,0-9a-zA-Z_-]{0,120}", tail in 0usize..64) {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.as_bytes());
            bytes.extend(std::iter::repeat_n(7u8, tail));
            let _ = parse(&bytes);
        }

        #[test]
        fn a_changed_byte_gives_tensors_or_an_error(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut bytes = to_bytes(&sample()).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(tensors) = parse(&bytes) {
                prop_assert!(tensors.values().all(|tensor| tensor.to_f64().len() == tensor.len()));
            }
        }
    }
}
