//! Hashes of outputs, by which GPUs of one kind are compared bit by bit.
//!
//! Which kernels may be compared is measured and not believed: each runs twice, and one that breaks or gives other bits the
//! second time has no hash. None of those here does: what they add by atomics are whole numbers, and what they sum in floating point they sum
//! in one order. On another GPU of the same kind the same binary then gives the same bits, or one of the two is broken.

use device::Device;
use facts::{BackendKind, ParityRow};
use kernels::{Call, Execution, TensorMap};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Whether there may be another device with the same binaries to compare with.
pub(crate) fn worth(device: &Device) -> bool {
    device.capabilities().backend == BackendKind::Cuda
}

/// The hash of what an execution gave, if another one of the same call gives it too; [`ParityRow::VARIES`] if not.
pub(crate) fn of_two_runs(
    call: &dyn Call,
    device: &Device,
    variant: &str,
    first: &mut dyn Execution,
) -> Option<String> {
    if !worth(device) {
        return None;
    }
    let first = hash(first.outputs().ok()?);
    // From its own inputs: what a run advances where it lies must not be advanced twice.
    let mut again = call.prepare(device, variant).ok()?;
    let ran = crate::judge::run(again.as_mut(), device);
    if ran.broke.is_some() {
        // It passed once: that it does not every time is no reason to say nothing.
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
    use kernels::Tensor;

    #[test]
    fn one_bit_a_name_and_a_shape_change_the_hash() {
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
