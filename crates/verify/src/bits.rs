//! Hashes of outputs, by which GPUs of one model are compared bit by bit.
//!
//! Which kernels are deterministic is measured: each runs twice, and one that fails or gives other bits the second time
//! has no hash. All kernels here are deterministic: they use atomics for integers only, and sum floating point in a
//! fixed order. On another GPU of the same model the same binary must give the same bits, or one of the two is broken.

use device::Device;
use facts::{BackendKind, ParityRow};
use ops::{Call, Execution, TensorMap};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Whether another device with the same binaries may exist to compare with.
pub(crate) fn can_compare(device: &Device) -> bool {
    device.capabilities().backend == BackendKind::Cuda
}

/// The hash of an execution's outputs if a second execution of the same call gives it too; otherwise
/// [`ParityRow::VARIES`].
pub(crate) fn of_two_runs(
    call: &Call<'_>,
    device: &Device,
    variant: &str,
    first: &mut dyn Execution,
) -> Option<String> {
    if !can_compare(device) {
        return None;
    }
    let first = hash(first.outputs().ok()?);
    // Prepared again from the inputs: a run that updates its inputs in place must not update them twice.
    let mut again = call.prepare(device, variant).ok()?;
    let ran = crate::judge::run(again.as_mut(), device);
    if ran.broke.is_some() {
        // It passed once; failing the second time is a result too.
        return Some(ParityRow::VARIES.to_owned());
    }
    if ran.launches == 0 {
        return None;
    }
    let again = hash(again.outputs().ok()?);
    Some(if first == again { first } else { ParityRow::VARIES.to_owned() })
}

/// SHA-256 in lower-case hexadecimal over each output's name, type, shape and bytes.
pub(crate) fn hash(outputs: &TensorMap) -> String {
    let mut hasher = Sha256::new();
    for (name, tensor) in outputs {
        hasher.update(format!("{name} {} {:?} ", tensor.dtype(), tensor.shape()));
        hasher.update(tensor.bytes());
    }
    hasher.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::Tensor;

    #[test]
    fn hash_depends_on_each_bit_name_and_shape() {
        let of = |name: &str, shape: &[usize], value: f32| {
            hash(&TensorMap::from([(name.to_owned(), Tensor::new(shape, vec![1.0, value]))]))
        };
        let first = of("o", &[2], 0.1);
        assert_eq!(first, of("o", &[2], 0.1));
        assert_eq!(first.len(), 64);
        for other in [of("o", &[2], 0.1f32.next_up()), of("p", &[2], 0.1), of("o", &[1, 2], 0.1)] {
            assert_ne!(first, other);
        }
        assert_ne!(of("o", &[2], 0.0), of("o", &[2], -0.0));
    }
}
