//! Calls in an op's own words: a struct with a field for each tensor and option, from which shapes are checked without a
//! string or a map.

use super::{Family, call};
use crate::inputs::Slots;
use crate::{DType, Inputs, OpError, Settings, Tensor, TensorMap};
use crate::{OpSpec, TensorSpec};
use device::{Device, Queue};
use std::any::Any;
use std::ops::Range;

/// What a call says beside its tensors.
pub trait Options: Any + Send + Sync + std::fmt::Debug {
    /// Reads settings by name, whose names are known.
    ///
    /// # Errors
    /// [`OpError::Setting`] naming the setting.
    fn read(settings: &Settings) -> Result<Self, OpError>
    where
        Self: Sized;
    /// Everything that a plan may depend on.
    fn key(&self, key: &mut Key);
}

/// A call of an op in the op's own words.
pub trait Typed {
    /// The op.
    type Family: Family;
    /// The tensors and options of the call.
    fn given(&self) -> Given<'_, Self::Family>;

    /// Runs the call once over host memory, by the variant that the op chooses, into tensors that the caller keeps: those that
    /// are there with the shape and type of an output are overwritten, the others made.
    ///
    /// # Errors
    /// [`OpError`] naming what is wrong with the call, or why no variant takes it.
    fn run(&self, device: &Device, outputs: &mut TensorMap) -> Result<(), OpError>
    where
        Self: Sized,
    {
        let given = self.given();
        let problem = Self::Family::parse(given.inputs, &given.options)?;
        call::run(Self::Family::SPEC.name, &problem, given.inputs, device, outputs)
    }
}

/// The tensors and options of a call.
pub struct Given<'a, F: Family> {
    /// Tensors it takes.
    pub inputs: Inputs<'a>,
    /// Tensors on a GPU that outputs are written to; what is not named goes nowhere.
    pub outputs: Slots<'a>,
    /// What it says beside them.
    pub options: F::Options,
}

impl<'a, F: Family> Given<'a, F> {
    /// A call without tensors yet.
    pub fn new(options: F::Options) -> Self {
        let (inputs, outputs) = (Slots::new(F::SPEC.inputs), Slots::new(F::SPEC.outputs));
        Self { inputs: Inputs::new(F::SPEC.name, inputs), outputs, options }
    }

    /// Lays an input at its place.
    pub fn input(&mut self, place: usize, tensor: Option<&'a Tensor>) {
        self.inputs.lay(place, tensor);
    }

    /// Lays the tensor that an output goes to at its place.
    pub fn output(&mut self, place: usize, tensor: Option<&'a Tensor>) {
        self.outputs.lay(place, tensor);
    }

    /// Lays a call's states.
    pub fn states(&mut self, states: &States<'a>) {
        self.input(const { place(F::SPEC.inputs, "initial_state") }, states.before);
        self.input(const { place(F::SPEC.inputs, "state_indices") }, states.slots);
        self.output(const { place(F::SPEC.outputs, "final_state") }, states.after);
    }
}

/// The place of a tensor in an op's table.
///
/// # Panics
/// When the table has no such name: where the compiler evaluates it, that is an error of compilation.
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

/// A call's [`Given`]: its options, and each tensor at the place that its name has in the op's table, which the compiler finds.
macro_rules! given {
    ($op:ty, $options:expr, { $($name:literal: $tensor:expr),* $(,)? } -> { $($to:literal: $output:expr),* $(,)? }) => {{
        let mut given = $crate::Given::<$op>::new($options);
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
pub(crate) use given;

/// Recurrent states of a call's sequences.
#[derive(Debug, Clone, Copy, Default)]
pub struct States<'a> {
    /// Those before the first token; zero without them.
    pub before: Option<&'a Tensor>,
    /// Which slot of `before` and `after`, which are then pools, each sequence has.
    pub slots: Option<&'a Tensor>,
    /// Where those after the last token go on a GPU.
    pub after: Option<&'a Tensor>,
}

/// A call of a recurrent op over sequences, states and an output that somebody else knows: what the call itself says of them
/// does not count.
#[derive(Debug, Clone, Copy)]
pub struct Over<'a, C> {
    /// The call.
    pub call: &'a C,
    /// Where each packed sequence begins `[sequences + 1]`; none where tokens are dense.
    pub offsets: Option<&'a Tensor>,
    /// The states of its sequences.
    pub states: States<'a>,
    /// Where the output goes on a GPU.
    pub o: Option<&'a Tensor>,
}

impl<C: Typed> Typed for Over<'_, C> {
    type Family = C::Family;

    fn given(&self) -> Given<'_, C::Family> {
        let mut given = self.call.given();
        let offsets = const { place(<C::Family as Family>::SPEC.inputs, "cu_seqlens") };
        given.input(offsets, self.offsets);
        given.states(&self.states);
        given.output(const { place(<C::Family as Family>::SPEC.outputs, "o") }, self.o);
        given
    }
}

/// A call of some of the tokens of another one, which are packed one behind the other.
#[derive(Debug, Clone)]
pub struct PartOf<'a, C> {
    call: &'a C,
    /// The tensors that have a row for each token, by their places.
    rows: Vec<(usize, Tensor)>,
}

impl<'a, C: Typed> PartOf<'a, C> {
    /// `rows` of the tokens, whose dimensions are then `leading`: one or two, as of a call of its own. Rows that no kernel would take
    /// where they lie, at no multiple of 16 bytes, are copied.
    ///
    /// # Errors
    /// [`OpError::Device`] when they leave a tensor, or lie elsewhere than on a GPU.
    pub fn new(
        call: &'a C,
        rows: &Range<usize>,
        leading: &[usize],
        queue: &impl Queue,
    ) -> Result<Self, OpError> {
        let given = call.given();
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

impl<C: Typed> Typed for PartOf<'_, C> {
    type Family = C::Family;

    fn given(&self) -> Given<'_, C::Family> {
        let mut given = self.call.given();
        for (place, tensor) in &self.rows {
            given.input(*place, Some(tensor));
        }
        given
    }
}

/// What calls have in common that one plan serves: op, options, and of each tensor its shape, strides, type and alignment.
#[derive(Debug, Clone, Default)]
pub struct Key {
    words: Vec<u64>,
}

impl Key {
    /// Replaces the key by that of a call: everything that its plan may depend on, but for addresses.
    pub fn set(
        &mut self,
        spec: &OpSpec,
        options: &dyn Options,
        [inputs, outputs]: [&Slots<'_>; 2],
    ) {
        self.words.clear();
        // No two ops begin alike.
        self.word(spec.name.bytes().take(8).fold(0, |word, byte| word << 8 | u64::from(byte)));
        options.key(self);
        for (place, _, tensor) in inputs.iter() {
            self.word(place as u64);
            self.tensor(tensor);
        }
        for (place, _, tensor) in outputs.iter() {
            self.word(!place as u64);
            self.tensor(tensor);
            // Where an input is written over, a variant may plan otherwise.
            let own = tensor.buffer().map(|buffer| buffer.address());
            let over = inputs.iter().find(|(_, _, input)| {
                own.is_some() && input.buffer().map(|buffer| buffer.address()) == own
            });
            self.word(over.map_or(0, |(place, _, _)| place as u64 + 1));
        }
    }

    /// A whole number, or a choice.
    pub fn word(&mut self, word: u64) {
        self.words.push(word);
    }

    /// A number that may be absent.
    pub fn maybe(&mut self, number: Option<f64>) {
        self.word(u64::from(number.is_some()));
        self.number(number.unwrap_or(0.0));
    }

    /// A count that may be absent.
    pub fn count(&mut self, count: Option<usize>) {
        self.word(count.map_or(0, |count| count as u64 + 1));
    }

    /// A number.
    pub fn number(&mut self, number: f64) {
        self.word(number.to_bits());
    }

    /// A type that may be absent.
    pub fn dtype(&mut self, dtype: Option<DType>) {
        self.word(dtype.map_or(0, |dtype| dtype as u64 + 1));
    }

    /// All of a tensor but its address.
    fn tensor(&mut self, tensor: &Tensor) {
        // Tensor maps and vectors want no more than 128 bytes.
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
    use crate::conv1d::Conv1dOp;
    use crate::gated_delta::GatedDeltaOp;
    use crate::kda::KdaOp;
    use crate::selective_scan::SelectiveScanOp;
    use crate::ssd::SsdOp;

    fn of_tokens<F: Family>() -> String {
        let inputs = F::SPEC.inputs.iter().filter(|spec| spec.is_of_tokens());
        inputs.map(|spec| spec.name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn tensors_that_have_a_row_for_each_token_are_known_by_their_shapes() {
        assert_eq!(of_tokens::<SsdOp>(), "x dt B C z");
        assert_eq!(of_tokens::<SelectiveScanOp>(), "u delta B C z");
        assert_eq!(of_tokens::<KdaOp>(), "q k v g beta");
        assert_eq!(of_tokens::<GatedDeltaOp>(), "q k v g beta");
        assert_eq!(of_tokens::<Conv1dOp>(), "x");
    }
}
