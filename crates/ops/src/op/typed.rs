//! Typed calls: a struct with a field for each tensor and option. Checking one needs no strings and no map.

use super::{Family, call};
use crate::inputs::Slots;
use crate::{DType, Inputs, OpError, Settings, Tensor, TensorMap};
use crate::{OpSpec, TensorSpec};
use device::{Device, Queue};
use std::any::Any;
use std::ops::Range;

/// Options of a call.
pub trait Options: Any + Send + Sync + std::fmt::Debug {
    /// Parses settings, whose names the caller has checked.
    ///
    /// # Errors
    /// [`OpError::Setting`] naming the setting.
    fn read(settings: &Settings) -> Result<Self, OpError>
    where
        Self: Sized;
    /// Adds everything that a plan may depend on to a key.
    fn key(&self, key: &mut Key);
}

/// A typed call of an op.
pub trait Typed {
    /// The op.
    type Family: Family;
    /// The tensors and options of the call.
    fn call_tensors(&self) -> CallTensors<'_, Self::Family>;

    /// Runs the call once over host memory with the variant that selection chooses. Tensors in `outputs` that have the shape
    /// and type of an output are overwritten; the others are allocated.
    ///
    /// # Errors
    /// [`OpError`] naming the wrong tensor or option, or why no variant can run the call.
    fn run(&self, device: &Device, outputs: &mut TensorMap) -> Result<(), OpError>
    where
        Self: Sized,
    {
        let given = self.call_tensors();
        let problem = Self::Family::parse(given.inputs, &given.options)?;
        call::run(Self::Family::SPEC.name, &problem, given.inputs, device, outputs)
    }
}

/// The tensors and options of a call.
pub struct CallTensors<'a, F: Family> {
    /// Input tensors.
    pub inputs: Inputs<'a>,
    /// GPU tensors that receive outputs; an output without one is not written.
    pub outputs: Slots<'a>,
    /// Options.
    pub options: F::Options,
}

impl<'a, F: Family> CallTensors<'a, F> {
    /// A call without tensors.
    pub fn new(options: F::Options) -> Self {
        let (inputs, outputs) = (Slots::new(F::SPEC.inputs), Slots::new(F::SPEC.outputs));
        Self { inputs: Inputs::new(F::SPEC.name, inputs), outputs, options }
    }

    /// Sets an input by its index in the op's table.
    pub fn input(&mut self, place: usize, tensor: Option<&'a Tensor>) {
        self.inputs.set_tensor(place, tensor);
    }

    /// Sets the tensor that receives an output, by its index in the op's table.
    pub fn output(&mut self, place: usize, tensor: Option<&'a Tensor>) {
        self.outputs.set_tensor(place, tensor);
    }

    /// Sets a call's states.
    pub fn states(&mut self, states: &States<'a>) {
        self.input(const { place(F::SPEC.inputs, "initial_state") }, states.before);
        self.input(const { place(F::SPEC.inputs, "state_indices") }, states.slots);
        self.output(const { place(F::SPEC.outputs, "final_state") }, states.after);
    }
}

/// The index of a tensor in an op's table.
///
/// # Panics
/// If the table has no such name; in a const context that is a compile error.
pub(crate) const fn place(table: &[TensorSpec], name: &str) -> usize {
    let mut place = 0;
    while place < table.len() {
        let (one, wanted) = (table[place].name.as_bytes(), name.as_bytes());
        let mut same = 0;
        while same < one.len() && same < wanted.len() && one[same] == wanted[same] {
            same += 1;
        }
        if same == one.len() && same == wanted.len() {
            return place;
        }
        place += 1;
    }
    panic!("the op's table has no tensor of this name")
}

/// A call's [`CallTensors`]: its options, and each tensor at the index of its name in the op's table, found at compile time.
macro_rules! call_tensors {
    ($op:ty, $options:expr, { $($name:literal: $tensor:expr),* $(,)? } -> { $($to:literal: $output:expr),* $(,)? }) => {{
        let mut given = $crate::CallTensors::<$op>::new($options);
        $(given.input(
            const { $crate::op::place(<$op as $crate::Family>::SPEC.inputs, $name) },
            $tensor.into(),
        );)*
        $(given.output(
            const { $crate::op::place(<$op as $crate::Family>::SPEC.outputs, $to) },
            $output.into(),
        );)*
        given
    }};
}
pub(crate) use call_tensors;

/// Recurrent states of a call's sequences. Without `slots` the tensors have one state per sequence; with `slots` they are pools.
#[derive(Debug, Clone, Copy, Default)]
pub struct States<'a> {
    /// States before the first token; zero if `None`.
    pub before: Option<&'a Tensor>,
    /// Pool slot of each sequence `[sequences]`, i32.
    pub slots: Option<&'a Tensor>,
    /// States after the last token, on a GPU.
    pub after: Option<&'a Tensor>,
}

/// A call of a recurrent op whose offsets, states and output are replaced by the ones given here.
#[derive(Debug, Clone, Copy)]
pub struct RecurrentCall<'a, C> {
    /// The call.
    pub call: &'a C,
    /// Offsets of packed sequences `[sequences + 1]`, i32; `None` for dense tokens.
    pub offsets: Option<&'a Tensor>,
    /// The states of its sequences.
    pub states: States<'a>,
    /// Output on a GPU.
    pub o: Option<&'a Tensor>,
}

impl<C: Typed> Typed for RecurrentCall<'_, C> {
    type Family = C::Family;

    fn call_tensors(&self) -> CallTensors<'_, C::Family> {
        let mut given = self.call.call_tensors();
        let offsets = const { place(<C::Family as Family>::SPEC.inputs, "cu_seqlens") };
        given.input(offsets, self.offsets);
        given.states(&self.states);
        given.output(const { place(<C::Family as Family>::SPEC.outputs, "o") }, self.o);
        given
    }
}

/// A call over a contiguous range of the tokens of another call, whose tokens are packed.
#[derive(Debug, Clone)]
pub struct TokenRangeCall<'a, C> {
    call: &'a C,
    /// The tensors that have a row for each token, with their indices in the op's table.
    rows: Vec<(usize, Tensor)>,
}

impl<'a, C: Typed> TokenRangeCall<'a, C> {
    /// Takes the tokens `rows`. `leading` are the token dimensions of the new call: `[tokens]` or `[batch, tokens]`. Rows that
    /// do not start at a multiple of 16 bytes, as kernels require, are copied.
    ///
    /// # Errors
    /// [`OpError::Device`] if the rows are out of bounds or not on a GPU.
    pub fn new(
        call: &'a C,
        rows: &Range<usize>,
        leading: &[usize],
        queue: &impl Queue,
    ) -> Result<Self, OpError> {
        let given = call.call_tensors();
        let of_tokens = given.inputs.slots().iter().filter(|(_, spec, _)| spec.is_of_tokens());
        let part = |(place, _, tensor): (usize, _, &Tensor)| {
            let mut part = tensor.rows(rows.start, rows.len())?;
            if !part.on()?.address().is_multiple_of(16) {
                let copy = Tensor::allocate(queue, part.shape(), part.dtype())?;
                copy.copy_from(&part, queue)?;
                part = copy;
            }
            Ok((place, part.shaped(&[leading, &tensor.shape()[1..]].concat())?))
        };
        Ok(Self { call, rows: of_tokens.map(part).collect::<Result<_, OpError>>()? })
    }
}

impl<C: Typed> Typed for TokenRangeCall<'_, C> {
    type Family = C::Family;

    fn call_tensors(&self) -> CallTensors<'_, C::Family> {
        let mut given = self.call.call_tensors();
        for (place, tensor) in &self.rows {
            given.input(*place, Some(tensor));
        }
        given
    }
}

/// Key of a cached plan: op, options, and the shape, strides, type and alignment of each tensor.
#[derive(Debug, Clone, Default)]
pub struct Key {
    words: Vec<u64>,
}

/// FNV-1a of an op's name.
fn hash(name: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

impl Key {
    /// Replaces the key by that of a call: everything that its plan may depend on, except addresses.
    pub fn set(
        &mut self,
        spec: &OpSpec,
        options: &dyn Options,
        [inputs, outputs]: [&Slots<'_>; 2],
    ) {
        self.words.clear();
        self.word(hash(spec.name));
        options.key(self);
        for (place, _, tensor) in inputs.iter() {
            self.word(place as u64);
            self.tensor(tensor);
        }
        for (place, _, tensor) in outputs.iter() {
            self.word(!place as u64);
            self.tensor(tensor);
            // The plan may depend on which input an output overwrites.
            let own = tensor.buffer().map(|buffer| buffer.address());
            let over = inputs.iter().find(|(_, _, input)| {
                own.is_some() && input.buffer().map(|buffer| buffer.address()) == own
            });
            self.word(over.map_or(0, |(place, _, _)| place as u64 + 1));
        }
    }

    /// Adds an integer or an enum value.
    pub fn word(&mut self, word: u64) {
        self.words.push(word);
    }

    /// Adds an optional number.
    pub fn maybe(&mut self, number: Option<f64>) {
        self.word(u64::from(number.is_some()));
        self.number(number.unwrap_or(0.0));
    }

    /// Adds an optional count.
    pub fn count(&mut self, count: Option<usize>) {
        self.word(count.map_or(0, |count| count as u64 + 1));
    }

    /// Adds a number.
    pub fn number(&mut self, number: f64) {
        self.word(number.to_bits());
    }

    /// Adds an optional element type.
    pub fn dtype(&mut self, dtype: Option<DType>) {
        self.word(dtype.map_or(0, |dtype| dtype as u64 + 1));
    }

    /// Adds everything of a tensor except its address.
    fn tensor(&mut self, tensor: &Tensor) {
        // Tensor maps and vector loads need at most 128-byte alignment.
        let aligned = tensor.buffer().map_or(0, |buffer| buffer.address().trailing_zeros().min(7));
        let rank = tensor.shape().len() as u64;
        self.word(rank << 16 | u64::from(aligned) << 8 | tensor.dtype() as u64);
        self.words.extend(tensor.shape().iter().map(|size| *size as u64));
        self.words.extend(tensor.strides().iter().map(|stride| *stride as u64));
        if let Some(planned) = tensor.view::<i32>() {
            let pairs = planned.chunks(2).map(|pair| {
                let high = pair.get(1).map_or(0, |high| high.cast_unsigned());
                u64::from(pair[0].cast_unsigned()) | u64::from(high) << 32
            });
            self.words.extend(pairs);
        }
    }

    /// The key as words; two calls with equal words can use one plan.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OPS;
    use crate::conv1d::Conv1dOp;
    use crate::gated_delta::GatedDeltaOp;
    use crate::kda::KdaOp;
    use crate::selective_scan::SelectiveScanOp;
    use crate::ssd::SsdOp;
    use std::collections::BTreeSet;

    fn of_tokens<F: Family>() -> String {
        let inputs = F::SPEC.inputs.iter().filter(|spec| spec.is_of_tokens());
        inputs.map(|spec| spec.name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ops_have_different_keys() {
        let hashes: BTreeSet<u64> = OPS.iter().map(|op| hash(op.spec().name)).collect();
        assert_eq!(hashes.len(), OPS.len());
    }

    #[test]
    fn shapes_identify_tensors_with_a_row_for_each_token() {
        assert_eq!(of_tokens::<SsdOp>(), "x dt B C z");
        assert_eq!(of_tokens::<SelectiveScanOp>(), "u delta B C z");
        assert_eq!(of_tokens::<KdaOp>(), "q k v g beta");
        assert_eq!(of_tokens::<GatedDeltaOp>(), "q k v g beta");
        assert_eq!(of_tokens::<Conv1dOp>(), "x");
    }
}
