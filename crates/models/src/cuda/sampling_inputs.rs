//! Sampling on the GPU: inputs of the op `sampling` and token counts.

use super::decode::values;
use super::pass::{Packed, device_error};
use crate::choice::{Choice, Lists, MAX_STOPS, mask_words, masks};
use device::Device;
use device::cuda::{Buffer, Stream};
use ops::sampling::{CONTROLS, SamplingCall, SamplingOptions};
use ops::{DType, OpError, Tensor};
use ops_cuda::decoder;

/// Inputs with a few values per row, in device memory.
#[derive(Debug)]
pub(super) struct SamplingInputs {
    controls: Tensor,
    top_k: Tensor,
    seed: Tensor,
    draw: Tensor,
    mask: Option<Tensor>,
    /// The slot of each row, -1 for none.
    slots: Tensor,
    /// Stop tokens of each row's sequence `[rows, MAX_STOPS]`.
    pub(super) stops: Tensor,
}

impl SamplingInputs {
    /// Sizes per row of the lists that [`SamplingInputs::push`] appends to a step's lists.
    pub(super) const ROWS: [usize; 4] = [CONTROLS, 1, 2, MAX_STOPS];

    /// Appends the lists of the rows, then of `padding` padding rows.
    pub(super) fn push(packed: &mut Packed, how: &[Option<Choice<'_>>], padding: usize) -> Lists {
        let rows = how.iter().map(Option::as_ref).chain(std::iter::repeat_n(None, padding));
        let mut lists = Lists::of(rows);
        let bits = std::mem::take(&mut lists.controls);
        packed.push(bits.into_iter().map(|number| number.to_bits().cast_signed()));
        packed.push(lists.top_k.drain(..));
        packed.push(lists.seed.drain(..));
        packed.push(lists.stops.drain(..));
        lists
    }

    /// The lists in the uploaded buffer, starting at list `first`, with the tensors of draws and slots.
    pub(super) fn over(
        (packed, whole): (&Packed, &Buffer),
        first: usize,
        rows: usize,
        draw: Tensor,
        slots: Tensor,
    ) -> Result<Self, OpError> {
        let list = |at: usize, shape: &[usize], dtype| {
            Tensor::on_gpu(packed.list(whole, first + at)?, shape, dtype)
        };
        Ok(Self {
            controls: list(0, &[rows, CONTROLS], DType::F32)?,
            top_k: list(1, &[rows], DType::I32)?,
            seed: list(2, &[rows, 2], DType::I32)?,
            stops: list(3, &[rows, MAX_STOPS], DType::I32)?,
            draw,
            mask: None,
            slots,
        })
    }

    /// Uploads the lists of rows that are sampled immediately.
    pub(super) fn now(
        how: &[Option<Choice<'_>>],
        slots: &[usize],
        vocabulary: usize,
        stream: &Stream,
    ) -> Result<Self, OpError> {
        let rows = how.len();
        let mut packed = Packed::default();
        let lists = Self::push(&mut packed, how, 0);
        packed.push(lists.draw);
        packed.push(slots.iter().map(|slot| *slot as i32));
        let masks = masks(how.iter().map(Option::as_ref), vocabulary);
        packed.push(masks.iter().flatten().copied());
        let whole = stream.upload_transient(packed.whole().bytes()).map_err(device_error)?;
        let list =
            |at, shape: &[usize]| Tensor::on_gpu(packed.list(&whole, at)?, shape, DType::I32);
        let (draw, slots) = (list(4, &[rows])?, list(5, &[rows])?);
        let mask = masks.map(|_| list(6, &[rows, mask_words(vocabulary)])).transpose()?;
        Ok(Self { mask, ..Self::over((&packed, &whole), 0, rows, draw, slots)? })
    }

    /// The call of the op.
    pub(super) fn call<'a>(
        &'a self,
        logits: &'a Tensor,
        counts: Option<&'a Tensor>,
        token: &'a Tensor,
    ) -> SamplingCall<'a> {
        SamplingCall {
            logits,
            controls: &self.controls,
            top_k: &self.top_k,
            seed: &self.seed,
            draw: &self.draw,
            mask: self.mask.as_ref(),
            counts,
            slots: counts.map(|_| &self.slots),
            options: SamplingOptions::default(),
            token: Some(token),
            logprob: None,
            top_tokens: None,
            top_logprobs: None,
        }
    }
}

/// Copies the rows of logits that choices request to the host.
pub(super) fn wanted_logits(
    how: &[Option<Choice<'_>>],
    logits: &Tensor,
    stream: &Stream,
) -> Result<Vec<Option<Vec<f32>>>, OpError> {
    let wanted = |(row, how): (usize, &Option<Choice<'_>>)| {
        let wants = how.as_ref().is_some_and(|how| how.logits);
        wants.then(|| values(&logits.rows(row, 1)?, stream)).transpose()
    };
    how.iter().enumerate().map(wanted).collect()
}

/// Adds the biases of choices to the logits `[rows, vocabulary]`.
pub(super) fn add_biases(
    how: &[Option<Choice<'_>>],
    logits: &Tensor,
    (device, stream): (&Device, &Stream),
) -> Result<(), OpError> {
    let vocabulary = logits.shape()[1];
    let of_row = |(row, how): (usize, &Option<Choice<'_>>)| {
        let biases = how.map_or(&[][..], |how| &how.sampling.logit_bias[..]);
        let known = biases.iter().filter(|(token, _)| (*token as usize) < vocabulary);
        let place =
            |(token, bias): &(u32, f32)| ((row * vocabulary + *token as usize) as i32, *bias);
        known.map(place).collect::<Vec<_>>()
    };
    let biases: Vec<(i32, f32)> = how.iter().enumerate().flat_map(of_row).collect();
    if biases.is_empty() {
        return Ok(());
    }
    let mut packed = Packed::default();
    packed.push(biases.iter().map(|(place, _)| *place));
    packed.push(biases.iter().map(|(_, bias)| bias.to_bits().cast_signed()));
    let whole = stream.upload_transient(packed.whole().bytes()).map_err(device_error)?;
    let [places, values] = [packed.list(&whole, 0)?, packed.list(&whole, 1)?];
    let buffers = [logits.on()?, &places, &values];
    decoder::bias(device, buffers, biases.len())?.enqueue(stream)
}

/// Occurrences of each token, for the sequences whose sampling parameters need them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// `[slots, vocabulary]`, allocated on first use.
    pool: Option<Tensor>,
    /// Tokens counted for each slot's sequence; 0 if its row is stale.
    counted: Vec<usize>,
}

impl Counts {
    /// Counts the tokens that are not counted yet, for sequences that need it; returns the pool if one does.
    pub(super) fn prepare(
        &mut self,
        how: &[Option<Choice<'_>>],
        slots: &[usize],
        [all, vocabulary]: [usize; 2],
        stream: &Stream,
    ) -> Result<Option<Tensor>, OpError> {
        let penalised = |choice: &&Choice<'_>| choice.sampling.penalises();
        if !how.iter().flatten().any(|choice| penalised(&choice)) {
            return Ok(None);
        }
        let pool = match &self.pool {
            Some(pool) => pool.clone(),
            None => Tensor::zeros(stream, &[all, vocabulary], DType::I32)?,
        };
        self.pool = Some(pool.clone());
        self.counted.resize(all, 0);
        for (choice, slot) in how.iter().zip(slots) {
            let Some(choice) = choice.as_ref().filter(penalised) else { continue };
            let known = choice.prompt.len() + choice.added.len();
            if self.counted[*slot] != known {
                let mut counts = vec![0; vocabulary];
                choice.counts(&[], &mut counts);
                let row = pool.rows(*slot, 1)?;
                let counts = Tensor::new(&[vocabulary], counts);
                stream.write(row.on()?, counts.bytes()).map_err(device_error)?;
                self.counted[*slot] = known;
            }
        }
        Ok(Some(pool))
    }

    /// Adds tokens that the GPU chose and counted itself.
    pub(super) fn advance(&mut self, slot: usize, tokens: usize) {
        self.counted[slot] += tokens;
    }

    /// Drops a sequence's counts.
    pub(super) fn reset(&mut self, slot: usize) {
        if let Some(counted) = self.counted.get_mut(slot) {
            *counted = 0;
        }
    }
}
