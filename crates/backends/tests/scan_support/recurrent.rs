//! Test cases shared by the ops with a state per sequence.

use super::{Random, STATE_LIMIT, check, cpu, ints, launch, launch_all, limit, relative};
use ops::{DType, Op, Settings, Tensor, TensorMap};

pub(crate) const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// A case: sequences, states and settings, and the op's own parameters `T`.
#[derive(Clone)]
pub(crate) struct Case<T> {
    pub(crate) name: &'static str,
    /// Tokens of each sequence.
    pub(crate) tokens: Vec<usize>,
    /// Whether sequences of equal length are packed; those of different lengths always are.
    pub(crate) packed: bool,
    pub(crate) initial: bool,
    /// Slots of the pool, and the slot of each sequence.
    pub(crate) pool: Option<(usize, Vec<i32>)>,
    pub(crate) settings: Settings,
    /// The op's own parameters.
    pub(crate) params: T,
}

/// An op's own parameters of a case.
pub(crate) trait Recurrence: Sized + Default {
    const OP: &'static dyn Op;
    /// Tensors with a row for each token.
    const PER_TOKEN_TENSORS: &'static [&'static str];
    /// Tokens of a plain case.
    const TOKENS: usize;
    /// Whether every second sequence has a zero initial state, in cases without a pool.
    const ALTERNATE_STATES_ARE_ZERO: bool = false;

    /// Draws all inputs except states and offsets.
    fn generate(&self, case: &Case<Self>, random: &mut Random, dtype: DType) -> TensorMap;
    /// The shape of a sequence's state.
    fn state(&self) -> Vec<usize>;
}

impl<T: Recurrence> Default for Case<T> {
    fn default() -> Self {
        Self::with(T::default())
    }
}

impl<T: Recurrence> Case<T> {
    /// One sequence without a state.
    pub(crate) fn with(params: T) -> Self {
        let (tokens, settings) = (vec![T::TOKENS], Settings::new());
        Self { name: "plain", tokens, packed: false, initial: false, pool: None, settings, params }
    }

    pub(crate) fn is_packed(&self) -> bool {
        self.packed || self.tokens.iter().any(|tokens| *tokens != self.tokens[0])
    }

    /// The shape of a tensor over tokens. Without sequences, T is 5.
    pub(crate) fn shape(&self, rest: &[usize]) -> Vec<usize> {
        match self.is_packed() {
            true => [&[self.tokens.iter().sum()], rest].concat(),
            false => {
                [&[self.tokens.len(), self.tokens.first().copied().unwrap_or(5)], rest].concat()
            }
        }
    }

    pub(crate) fn tensors(&self, dtype: DType) -> TensorMap {
        let state = self.params.state();
        let seed = self.tokens.len() * 1000 + state.last().copied().unwrap_or(0);
        let random = &mut Random(seed as u64);
        let mut tensors = self.params.generate(self, random, dtype);
        let mut put = |name: &str, tensor: Tensor| drop(tensors.insert(name.to_owned(), tensor));
        if self.initial || self.pool.is_some() {
            let slots = self.pool.as_ref().map_or(self.tokens.len(), |(slots, _)| *slots);
            let mut states = random.tensor(&[&[slots], &state[..]].concat(), DType::F32);
            let len = state.iter().product::<usize>().max(1);
            let each = states.view_mut::<f32>().unwrap().chunks_mut(len);
            match &self.pool {
                // Unused slots hold a value that reveals any access.
                Some((_, indices)) => each
                    .zip(0..)
                    .filter(|(_, slot)| !indices.contains(slot))
                    .for_each(|(state, _)| state.fill(1e30)),
                None if T::ALTERNATE_STATES_ARE_ZERO => {
                    each.skip(1).step_by(2).for_each(|state| state.fill(0.0))
                }
                None => {}
            }
            put("initial_state", states);
        }
        if let Some((_, indices)) = &self.pool {
            put("state_indices", ints(indices));
        }
        if self.is_packed() {
            let mut offsets = vec![0i32];
            for tokens in &self.tokens {
                offsets.push(offsets[offsets.len() - 1] + *tokens as i32);
            }
            put("cu_seqlens", ints(&offsets));
        }
        tensors
    }

    /// Every variant against the reference.
    pub(crate) fn check(&self, dtypes: &[DType]) {
        for dtype in dtypes {
            check(self.name, T::OP, &self.tensors(*dtype), &self.settings);
        }
    }

    /// Every variant gives rows of zeros for padding.
    pub(crate) fn check_padding(&self) {
        let (_, indices) = self.pool.as_ref().unwrap();
        assert!(indices.iter().any(|slot| *slot < 0), "no sequence is padding");
        let rows = self.tokens.iter().zip(indices);
        let padding: Vec<bool> = rows.flat_map(|(tokens, slot)| vec![*slot < 0; *tokens]).collect();
        for (variant, outputs) in launch_all(T::OP, &self.tensors(DType::F32), &self.settings) {
            let o = outputs["o"].to_f64();
            let row = (o.len() / padding.len().max(1)).max(1);
            for (token, row) in o.chunks_exact(row).enumerate().filter(|(token, _)| padding[*token])
            {
                assert!(row.iter().all(|x| *x == 0.0), "{variant}: token {token}");
            }
        }
    }

    /// Checks that selection chooses a variant of this scheme.
    pub(crate) fn check_selection(&self, scheme: &str) {
        let tensors = self.tensors(DType::F32);
        let call = T::OP.bind(&tensors, &self.settings).unwrap();
        let chosen = call.select(&cpu(), None).unwrap();
        assert!(chosen.chosen.starts_with(scheme), "{:?} tokens: {chosen:?}", self.tokens);
    }

    /// Calls over consecutive parts of a sequence, each starting from the previous final state, equal one call over all of it.
    pub(crate) fn check_parts(&self, parts: &[usize]) {
        let (whole, settings) = (self.tensors(DType::F32), &self.settings);
        let want = T::OP.bind(&whole, settings).unwrap().reference();
        let device = cpu();
        for (variant, _) in launch_all(T::OP, &whole, settings) {
            let (mut part, mut o, mut from) = (whole.clone(), Vec::new(), 0);
            for tokens in parts {
                for name in T::PER_TOKEN_TENSORS {
                    let tensor = &whole[*name];
                    let row: usize = tensor.shape()[2..].iter().product();
                    let values = &tensor.view::<f32>().unwrap()[from * row..][..tokens * row];
                    let shape = [&[1, *tokens], &tensor.shape()[2..]].concat();
                    part.insert((*name).to_owned(), Tensor::new(&shape, values.to_vec()));
                }
                // A later part may be too short for the scheme of the first one.
                let chosen = {
                    let call = T::OP.bind(&part, settings).unwrap();
                    let other = || call.select(&device, None).unwrap().chosen;
                    let able = from == 0 || call.select(&device, Some(variant)).is_ok();
                    if able { variant } else { other() }
                };
                let got = launch(T::OP, &part, settings, &device, chosen);
                o.extend(got["o"].to_f64());
                part.insert("initial_state".to_owned(), got["final_state"].clone());
                from += tokens;
            }
            let state = part["initial_state"].to_f64();
            assert!(relative(&o, &want["o"].to_f64()) <= limit(DType::F32), "{variant}");
            let error = relative(&state, &want["final_state"].to_f64());
            assert!(error <= STATE_LIMIT, "{variant}");
        }
    }

    /// Every variant gives the same bits on any number of threads.
    pub(crate) fn check_threads(&self, dtypes: &[DType]) {
        for dtype in dtypes {
            let tensors = self.tensors(*dtype);
            for (variant, want) in launch_all(T::OP, &tensors, &self.settings) {
                for threads in [1, 2, 3, 5, 16] {
                    let device = cpu().with_threads(threads);
                    let got = launch(T::OP, &tensors, &self.settings, &device, variant);
                    assert!(got == want, "{dtype} {variant} on {threads} threads");
                }
            }
        }
    }
}
