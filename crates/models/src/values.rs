//! Reads the values of a tensor, from a file or random, as the wanted type into the wanted memory.

mod laid;

use crate::ModelError;
use crate::bitsandbytes::BitsAndBytes;
use crate::checkpoint::{Shard, TensorLocation};
use crate::float8::Scales;
use crate::gguf::GgufParam;
use crate::group_quant::IntegerValues;
use crate::params::{Param, TensorSlice};
use crate::random_weights::RandomTensor;
use half::{bf16, f16};
use ops::E4m3;
use safetensors::tensor::Dtype;
use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A type that tensors can be read as.
pub(crate) trait Value: Copy + Default + Send + Sync {
    /// Its name in files.
    const DTYPE: Dtype;
    /// Its size in bytes.
    const BYTES: usize;
    fn of_f32(x: f32) -> Self;
    fn of_bf16(x: bf16) -> Self;
    fn is_nan(self) -> bool;
    /// Writes values in this machine's byte order.
    fn put(values: &[Self], into: &mut [u8]);
    /// Index of the first NaN among values in memory.
    fn nan_in(bytes: &[u8]) -> Option<usize>;
}

impl Value for f32 {
    const DTYPE: Dtype = Dtype::F32;
    const BYTES: usize = 4;

    fn of_f32(x: f32) -> Self {
        x
    }
    fn of_bf16(x: bf16) -> Self {
        x.to_f32()
    }
    fn is_nan(self) -> bool {
        self.is_nan()
    }
    fn put(values: &[Self], into: &mut [u8]) {
        put(values, into, f32::to_ne_bytes);
    }
    fn nan_in(bytes: &[u8]) -> Option<usize> {
        first(bytes.as_chunks().0, |bytes| f32::from_ne_bytes(*bytes).is_nan())
    }
}

impl Value for bf16 {
    const DTYPE: Dtype = Dtype::BF16;
    const BYTES: usize = 2;

    fn of_f32(x: f32) -> Self {
        Self::from_f32(x)
    }
    fn of_bf16(x: bf16) -> Self {
        x
    }
    fn is_nan(self) -> bool {
        self.is_nan()
    }
    fn put(values: &[Self], into: &mut [u8]) {
        put(values, into, bf16::to_ne_bytes);
    }
    fn nan_in(bytes: &[u8]) -> Option<usize> {
        first(bytes.as_chunks().0, |bytes| bf16::from_ne_bytes(*bytes).is_nan())
    }
}

fn put<T: Copy, const SIZE: usize>(values: &[T], into: &mut [u8], bytes: fn(T) -> [u8; SIZE]) {
    for (value, into) in values.iter().zip(into.as_chunks_mut::<SIZE>().0) {
        *into = bytes(*value);
    }
}

/// Index of the first value that satisfies a predicate. Matches are rare, so runs are checked without branches, which
/// vectorizes.
fn first<T>(values: &[T], is: impl Fn(&T) -> bool) -> Option<usize> {
    const RUN: usize = 1024;
    let run =
        values.chunks(RUN).position(|run| run.iter().fold(false, |any, one| any | is(one)))?;
    values[run * RUN..].iter().position(is).map(|at| run * RUN + at)
}

/// A tensor of a checkpoint.
#[derive(Clone, Copy)]
pub(crate) struct Values<'a> {
    pub(crate) name: &'a str,
    pub(crate) of: ValueSource<'a>,
    /// A rank's part of it; `None` for all. Indices and lengths are those of the part.
    pub(crate) cut: Option<&'a TensorSlice>,
    /// The parameter, if its file stores it in another order.
    pub(crate) laid: Option<&'a Param>,
    pub(crate) read: &'a AtomicU64,
}

/// The location of its values.
#[derive(Clone, Copy)]
pub(crate) enum ValueSource<'a> {
    /// A tensor of a file, with the scales of float8.
    File(&'a Shard, &'a TensorLocation, Option<&'a Scales>),
    Random(&'a RandomTensor),
    Integers(IntegerValues<'a>),
    /// A bitsandbytes weight.
    BitsAndBytes(&'a [Shard], &'a BitsAndBytes),
    /// Rows of a GGUF file.
    Gguf(&'a [Shard], &'a GgufParam),
}

/// Smaller reads use the mapping instead of a read call: they may be one of many scattered pieces.
const FEW: usize = 4096;

thread_local! {
    /// Buffer for bytes that are not read directly to their destination.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<'a> Values<'a> {
    /// A whole tensor in file order.
    pub(crate) fn whole(name: &'a str, of: ValueSource<'a>, read: &'a AtomicU64) -> Self {
        Self { name, of, cut: None, laid: None, read }
    }
}

impl Values<'_> {
    /// Fills a slice with values starting at `first`.
    ///
    /// # Errors
    /// [`ModelError::Weights`] when a value is NaN, the range is too long, or the type is not supported;
    /// [`ModelError::File`] when the file cannot be read.
    pub(crate) fn fill<V: Value>(&self, first: usize, into: &mut [V]) -> Result<(), ModelError> {
        self.for_each_run(first, into, 1, |first, into| match self.laid {
            None => self.fill_run(first, into),
            Some(param) => {
                let beside = laid::fill(param, first, into, |at, into| self.fill_run(at, into))?;
                // Interleaved halves are read together, so the other half is not counted twice.
                self.read.fetch_sub((beside * self.stored_width()) as u64, Ordering::Relaxed);
                Ok(())
            }
        })
    }

    /// Bytes per value, for progress.
    fn stored_width(&self) -> usize {
        match self.of {
            ValueSource::File(_, found, _) => width(found.dtype),
            ValueSource::Random(drawn) => width(drawn.dtype()),
            ValueSource::Integers(_) | ValueSource::BitsAndBytes(..) | ValueSource::Gguf(..) => 0,
        }
    }

    /// Values starting at `first`.
    ///
    /// # Errors
    /// As [`Values::fill`].
    pub(crate) fn read<V: Value>(&self, first: usize, len: usize) -> Result<Vec<V>, ModelError> {
        let mut values = vec![V::default(); len];
        self.fill(first, &mut values)?;
        Ok(values)
    }

    /// Iterates over the contiguous runs of the whole tensor that a range consists of. A value is `width` elements of
    /// `into`.
    fn for_each_run<T>(
        &self,
        first: usize,
        into: &mut [T],
        width: usize,
        mut read: impl FnMut(usize, &mut [T]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let Some(cut) = self.cut else { return read(first, into) };
        let mut rest = into;
        for run in cut.runs(first, rest.len() / width) {
            let (own, behind) = rest.split_at_mut(run.len() * width);
            read(run.start, own)?;
            rest = behind;
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(self.wrong(Path::new("a rank's part"), "has fewer values")),
        }
    }

    fn fill_run<V: Value>(&self, first: usize, into: &mut [V]) -> Result<(), ModelError> {
        match self.of {
            ValueSource::File(shard, found, scales) => BYTES.with_borrow_mut(|bytes| {
                bytes.resize(into.len() * width(found.dtype), 0);
                self.copy(first, into.len(), bytes)?;
                // Files are little-endian on every machine.
                match found.dtype {
                    Dtype::F32 => decode(bytes, into, |x| V::of_f32(f32::from_le_bytes(x))),
                    Dtype::BF16 => decode(bytes, into, |x| V::of_bf16(bf16::from_le_bytes(x))),
                    Dtype::F16 => {
                        decode(bytes, into, |x| V::of_f32(f16::from_le_bytes(x).to_f32()))
                    }
                    other => {
                        let Some(scales) = scales.filter(|_| other == Dtype::F8_E4M3) else {
                            let what = format!("is {other:?}, expected F32, BF16 or F16");
                            return Err(self.wrong(&shard.path, &what));
                        };
                        scales.each(first, into.len(), |scale, run| {
                            let value =
                                |bits: &u8| V::of_f32(E4m3::from_bits(*bits).to_f32() * scale);
                            let values = bytes[run.clone()].iter().map(value);
                            into[run].iter_mut().zip(values).for_each(|(to, value)| *to = value);
                        });
                    }
                }
                self.hold(first, self::first(into, |value| value.is_nan()))
            }),
            ValueSource::Integers(integers) => {
                integers.fill(first, into)?;
                self.hold(first, self::first(into, |value| value.is_nan()))
            }
            ValueSource::BitsAndBytes(shards, of) => {
                let mut wide = vec![0f32; into.len()];
                if !of.fill((shards, self.read), first, &mut wide) {
                    let path = shards.first().map_or(Path::new("weights"), |shard| &shard.path);
                    return Err(self.wrong(path, &format!("dequantizes to {:?}", of.shape)));
                }
                into.iter_mut().zip(wide).for_each(|(into, value)| *into = V::of_f32(value));
                self.hold(first, self::first(into, |value| value.is_nan()))
            }
            ValueSource::Gguf(shards, placed) => {
                placed.fill((shards, self.read), first, into)?;
                self.hold(first, self::first(into, |value| value.is_nan()))
            }
            ValueSource::Random(drawn) => {
                if !drawn.fill(first, into) {
                    let what = format!("has {} values", drawn.len());
                    return Err(self.wrong(Path::new("random model"), &what));
                }
                self.count(into.len() * width(drawn.dtype()));
                Ok(())
            }
        }
    }

    /// Fills bytes with values in memory order. Values that the file has in this type are copied.
    ///
    /// # Errors
    /// As [`Values::fill`].
    pub(crate) fn fill_bytes<V: Value>(
        &self,
        first: usize,
        into: &mut [u8],
    ) -> Result<(), ModelError> {
        if self.laid.is_some() {
            V::put(&self.read::<V>(first, into.len() / V::BYTES)?, into);
            return Ok(());
        }
        self.for_each_run(first, into, V::BYTES, |first, into| {
            self.fill_run_bytes::<V>(first, into)
        })
    }

    fn fill_run_bytes<V: Value>(&self, first: usize, into: &mut [u8]) -> Result<(), ModelError> {
        let len = into.len() / V::BYTES;
        match self.of {
            ValueSource::File(_, found, _)
                if found.dtype == V::DTYPE && cfg!(target_endian = "little") =>
            {
                self.copy(first, len, into)?;
                self.hold(first, V::nan_in(into))
            }
            _ => {
                let mut values = vec![V::default(); len];
                self.fill_run(first, &mut values)?;
                V::put(&values, into);
                Ok(())
            }
        }
    }

    /// Fills bytes with float8 values without their scales.
    ///
    /// # Errors
    /// As [`Values::fill`].
    pub(crate) fn fill_float8(&self, first: usize, into: &mut [u8]) -> Result<(), ModelError> {
        self.for_each_run(first, into, 1, |first, into| self.fill_run_float8(first, into))
    }

    fn fill_run_float8(&self, first: usize, into: &mut [u8]) -> Result<(), ModelError> {
        match self.of {
            ValueSource::File(..) => self.copy(first, into.len(), into)?,
            // These have no float8 values.
            ValueSource::Integers(_) | ValueSource::BitsAndBytes(..) | ValueSource::Gguf(..) => {}
            ValueSource::Random(drawn) => {
                drawn.fill_float8(first, into);
                self.count(into.len());
            }
        }
        self.hold(first, self::first(into, |bits| E4m3::from_bits(*bits).is_nan()))
    }

    /// Copies the file's bytes of `len` values starting at `first`.
    fn copy(&self, first: usize, len: usize, into: &mut [u8]) -> Result<(), ModelError> {
        let ValueSource::File(shard, found, _) = self.of else { return Ok(()) };
        let width = width(found.dtype);
        if first + len > found.bytes.len() / width {
            return Err(self.wrong(&shard.path, &format!("has shape {:?}", found.shape)));
        }
        let start = found.bytes.start + first * width;
        let mapped = shard.file.get(start..start + into.len());
        match mapped.filter(|_| into.len() < FEW) {
            Some(bytes) => into.copy_from_slice(bytes),
            None => {
                let read = shard.file.read_at(start, into);
                read.map_err(|error| ModelError::file(&shard.path, error))?;
            }
        }
        self.count(into.len());
        Ok(())
    }

    fn count(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn hold(&self, first: usize, nan: Option<usize>) -> Result<(), ModelError> {
        let (shard, at) = match (self.of, nan) {
            (ValueSource::File(shard, ..), Some(at)) => (Some(shard), at),
            (
                ValueSource::Integers(IntegerValues { shards, .. })
                | ValueSource::BitsAndBytes(shards, _)
                | ValueSource::Gguf(shards, _),
                Some(at),
            ) => (shards.first(), at),
            _ => return Ok(()),
        };
        let path = shard.map_or(Path::new("random model"), |shard| &shard.path);
        Err(self.wrong(path, &format!("is NaN at element {}", first + at)))
    }

    fn wrong(&self, path: &Path, what: &str) -> ModelError {
        ModelError::weights(path, format!("tensor `{}` {what}", self.name))
    }
}

/// Bytes per value of a supported type; other types were refused.
fn width(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 => 4,
        Dtype::F8_E4M3 => 1,
        _ => 2,
    }
}

fn decode<const SIZE: usize, V>(bytes: &[u8], into: &mut [V], read: impl Fn([u8; SIZE]) -> V) {
    for (into, bytes) in into.iter_mut().zip(bytes.as_chunks::<SIZE>().0) {
        *into = read(*bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;
    use safetensors::tensor::{TensorView, serialize_to_file};

    /// A checkpoint with one tensor of each supported type, whose values are exact in all of them.
    fn checkpoint(folder: &Path, values: &[f32]) -> Checkpoint {
        fn bytes<const SIZE: usize>(values: &[f32], of: impl Fn(f32) -> [u8; SIZE]) -> Vec<u8> {
            values.iter().flat_map(|value| of(*value)).collect()
        }
        let all = [
            ("wide", Dtype::F32, bytes(values, f32::to_le_bytes)),
            ("brain", Dtype::BF16, bytes(values, |x| bf16::from_f32(x).to_le_bytes())),
            ("half", Dtype::F16, bytes(values, |x| f16::from_f32(x).to_le_bytes())),
        ];
        let views = all.iter().map(|(name, dtype, data)| {
            (*name, TensorView::new(*dtype, vec![values.len()], data).unwrap())
        });
        serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
        Checkpoint::open(folder).unwrap()
    }

    fn check<V: Value + PartialEq + std::fmt::Debug>(checkpoint: &Checkpoint, want: &[V]) {
        let mut bytes = vec![0; size_of_val(want)];
        V::put(want, &mut bytes);
        for name in ["wide", "brain", "half"] {
            let values = checkpoint.values(name).unwrap();
            for (first, len) in [(0, want.len()), (3, 2000), (want.len() - 1, 1), (5, 0)] {
                let mut into = vec![V::default(); len];
                values.fill(first, &mut into).unwrap();
                assert_eq!(into, want[first..first + len], "{name}");
                let mut raw = vec![7; len * V::BYTES];
                values.fill_bytes::<V>(first, &mut raw).unwrap();
                assert_eq!(raw, bytes[first * V::BYTES..][..len * V::BYTES], "{name}");
            }
            let behind = values.fill(want.len() - 1, &mut [V::default(); 2]);
            assert!(behind.unwrap_err().to_string().contains("has shape [5000]"));
        }
    }

    #[test]
    fn values_convert_between_all_types_at_any_offset() {
        let folder = tempfile::tempdir().unwrap();
        let mut values: Vec<f32> = (0..5000).map(|i| (i % 255 - 127) as f32 / 4.0).collect();
        let checked = checkpoint(folder.path(), &values);
        check::<f32>(&checked, &values);
        let rounded: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
        check::<bf16>(&checked, &rounded);
        let counted = checked.bytes_read().load(Ordering::Relaxed);
        assert_eq!(counted, 2 * 2 * (4 + 2 + 2) * (5000 + 2000 + 1), "bytes of the files");
        // A NaN is found in any run and reported with its index.
        values[2049] = f32::NAN;
        let folder = tempfile::tempdir().unwrap();
        let checked = checkpoint(folder.path(), &values);
        for name in ["wide", "brain", "half"] {
            let values = checked.values(name).unwrap();
            let said = |read: Result<(), ModelError>| read.unwrap_err().to_string();
            let words = format!("tensor `{name}` is NaN at element 2049");
            assert!(said(values.fill(1000, &mut [0f32; 2000])).ends_with(&words));
            assert!(said(values.fill_bytes::<bf16>(2, &mut [0; 8000])).ends_with(&words));
            assert!(said(values.fill_bytes::<f32>(2, &mut [0; 12000])).ends_with(&words));
            assert!(values.fill(2050, &mut [0f32; 2000]).is_ok());
        }
        assert!(checked.values("none").is_err());
    }
}
