//! The values of a tensor, from a file or drawn: in the type and at the place where they are wanted.

mod laid;

use crate::ModelError;
use crate::checkpoint::{Located, Shard};
use crate::drawn::Drawn;
use crate::float8::Scales;
use crate::gguf::Placed;
use crate::integers::IntegerValues;
use crate::looked_up::LookedUp;
use crate::params::{Cut, Param};
use half::{bf16, f16};
use kernels::E4m3;
use safetensors::tensor::Dtype;
use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is read of a tensor's values.
pub(crate) trait Value: Copy + Default + Send + Sync {
    /// What files call it.
    const DTYPE: Dtype;
    /// Its bytes.
    const BYTES: usize;
    fn of_f32(x: f32) -> Self;
    fn of_bf16(x: bf16) -> Self;
    fn is_nan(self) -> bool;
    /// Writes values as this machine's memory holds them.
    fn put(values: &[Self], into: &mut [u8]);
    /// The first that is NaN of values that memory holds.
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

/// The first value that is so. Hardly any is: runs are gone through without a branch, which is done with vectors.
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
    pub(crate) of: Of<'a>,
    /// Which of them a rank has; none: all. Places and lengths are those of what it has.
    pub(crate) cut: Option<&'a Cut>,
    /// The parameter that they are of, where its file lays them otherwise.
    pub(crate) laid: Option<&'a Param>,
    pub(crate) read: &'a AtomicU64,
}

/// Where its values are.
#[derive(Clone, Copy)]
pub(crate) enum Of<'a> {
    /// With the scales of float8.
    File(&'a Shard, &'a Located, Option<&'a Scales>),
    Drawn(&'a Drawn),
    Integers(IntegerValues<'a>),
    /// Numbers of bitsandbytes.
    LookedUp(&'a [Shard], &'a LookedUp),
    /// Rows of a GGUF file.
    Placed(&'a [Shard], &'a Placed),
}

/// Fewer bytes are copied from where a file is mapped: they may be one of many pieces that lie apart.
const FEW: usize = 4096;

thread_local! {
    /// Bytes of a file, where they are not read to where they are wanted.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<'a> Values<'a> {
    /// All of a tensor, as it lies.
    pub(crate) fn whole(name: &'a str, of: Of<'a>, read: &'a AtomicU64) -> Self {
        Self { name, of, cut: None, laid: None, read }
    }
}

impl Values<'_> {
    /// Writes values from `first` on over those of a slice.
    ///
    /// # Errors
    /// [`ModelError::Weights`] when a value is NaN, there are not so many, or they are of a type that is not read;
    /// [`ModelError::File`] when the file cannot be read.
    pub(crate) fn fill<V: Value>(&self, first: usize, into: &mut [V]) -> Result<(), ModelError> {
        self.by_runs(first, into, 1, |first, into| match self.laid {
            None => self.fill_run(first, into),
            Some(param) => {
                let beside = laid::fill(param, first, into, |at, into| self.fill_run(at, into))?;
                // Of halves that lie in turns the other one comes along, and is read when it is wanted.
                self.read.fetch_sub((beside * self.stored_width()) as u64, Ordering::Relaxed);
                Ok(())
            }
        })
    }

    /// Bytes of a value that is counted alone.
    fn stored_width(&self) -> usize {
        match self.of {
            Of::File(_, found, _) => width(found.dtype),
            Of::Drawn(drawn) => width(drawn.dtype()),
            Of::Integers(_) | Of::LookedUp(..) | Of::Placed(..) => 0,
        }
    }

    /// Values from `first` on.
    ///
    /// # Errors
    /// As [`Values::fill`].
    pub(crate) fn read<V: Value>(&self, first: usize, len: usize) -> Result<Vec<V>, ModelError> {
        let mut values = vec![V::default(); len];
        self.fill(first, &mut values)?;
        Ok(values)
    }

    /// Goes over what is wanted in the runs in which it lies in the whole tensor. A value is so many elements of `into`.
    fn by_runs<T>(
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
            Of::File(shard, found, scales) => BYTES.with_borrow_mut(|bytes| {
                bytes.resize(into.len() * width(found.dtype), 0);
                self.copy(first, into.len(), bytes)?;
                // Files are little-endian whatever the machine is.
                match found.dtype {
                    Dtype::F32 => decode(bytes, into, |x| V::of_f32(f32::from_le_bytes(x))),
                    Dtype::BF16 => decode(bytes, into, |x| V::of_bf16(bf16::from_le_bytes(x))),
                    Dtype::F16 => {
                        decode(bytes, into, |x| V::of_f32(f16::from_le_bytes(x).to_f32()))
                    }
                    other => {
                        let Some(scales) = scales.filter(|_| other == Dtype::F8_E4M3) else {
                            let what = format!("is {other:?}, wanted F32, BF16 or F16");
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
            Of::Integers(integers) => {
                integers.fill(first, into)?;
                self.hold(first, self::first(into, |value| value.is_nan()))
            }
            Of::LookedUp(shards, of) => {
                let mut wide = vec![0f32; into.len()];
                if !of.fill((shards, self.read), first, &mut wide) {
                    let path = shards.first().map_or(Path::new("weights"), |shard| &shard.path);
                    return Err(self.wrong(path, &format!("stands for {:?}", of.shape)));
                }
                into.iter_mut().zip(wide).for_each(|(into, value)| *into = V::of_f32(value));
                self.hold(first, self::first(into, |value| value.is_nan()))
            }
            Of::Placed(shards, placed) => {
                placed.fill((shards, self.read), first, into)?;
                self.hold(first, self::first(into, |value| value.is_nan()))
            }
            Of::Drawn(drawn) => {
                if !drawn.fill(first, into) {
                    let what = format!("has {} values", drawn.len());
                    return Err(self.wrong(Path::new("random model"), &what));
                }
                self.count(into.len() * width(drawn.dtype()));
                Ok(())
            }
        }
    }

    /// Writes them over bytes, as a slice of them lies in memory. Values that a file holds so are only copied.
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
        self.by_runs(first, into, V::BYTES, |first, into| self.fill_run_bytes::<V>(first, into))
    }

    fn fill_run_bytes<V: Value>(&self, first: usize, into: &mut [u8]) -> Result<(), ModelError> {
        let len = into.len() / V::BYTES;
        match self.of {
            Of::File(_, found, _) if found.dtype == V::DTYPE && cfg!(target_endian = "little") => {
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

    /// Writes numbers in float8, without their scales.
    ///
    /// # Errors
    /// As [`Values::fill`].
    pub(crate) fn fill_float8(&self, first: usize, into: &mut [u8]) -> Result<(), ModelError> {
        self.by_runs(first, into, 1, |first, into| self.fill_run_float8(first, into))
    }

    fn fill_run_float8(&self, first: usize, into: &mut [u8]) -> Result<(), ModelError> {
        match self.of {
            Of::File(..) => self.copy(first, into.len(), into)?,
            // They have no numbers in float8.
            Of::Integers(_) | Of::LookedUp(..) | Of::Placed(..) => {}
            Of::Drawn(drawn) => {
                drawn.fill_float8(first, into);
                self.count(into.len());
            }
        }
        self.hold(first, self::first(into, |bits| E4m3::from_bits(*bits).is_nan()))
    }

    /// Copies the file's bytes of `len` values from `first` on.
    fn copy(&self, first: usize, len: usize, into: &mut [u8]) -> Result<(), ModelError> {
        let Of::File(shard, found, _) = self.of else { return Ok(()) };
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
            (Of::File(shard, ..), Some(at)) => (Some(shard), at),
            (
                Of::Integers(IntegerValues { shards, .. })
                | Of::LookedUp(shards, _)
                | Of::Placed(shards, _),
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

/// Bytes of a value. Of the types that are read; others are refused.
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

    /// A checkpoint of one tensor in each type that is read, of values that all of them hold.
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
    fn values_of_every_type_come_in_every_type_wherever_they_are_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let mut values: Vec<f32> = (0..5000).map(|i| (i % 255 - 127) as f32 / 4.0).collect();
        let checked = checkpoint(folder.path(), &values);
        check::<f32>(&checked, &values);
        let rounded: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
        check::<bf16>(&checked, &rounded);
        let counted = checked.bytes_read().load(Ordering::Relaxed);
        assert_eq!(counted, 2 * 2 * (4 + 2 + 2) * (5000 + 2000 + 1), "bytes of the files");
        // A value that is none is found in whatever run it lies, and named by its place.
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
