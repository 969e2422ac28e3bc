//! Every variant of selective_scan against the float64 recurrence.
#![allow(clippy::unwrap_used)] // In the helpers too: what cannot be unwrapped is the failure.

mod contract;
#[path = "../scan_support/mod.rs"]
mod scan_support;

use facts::BackendKind;
use kernels::selective_scan::SelectiveScanOp;
use kernels::{DType, Op, Settings, Tensor, TensorMap};
use scan_support::{Random, check, cpu, ints, launch, launch_all, limits, relative};

const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// A case in sizes; D and the bias are there always, what else is optional is off.
#[derive(Clone)]
struct Case {
    name: &'static str,
    /// Tokens of each sequence; packed when they differ.
    tokens: Vec<usize>,
    channels: usize,
    groups: usize,
    n: usize,
    gate: bool,
    initial: bool,
    /// Slots of the pool, and the slot of each sequence.
    pool: Option<(usize, Vec<i32>)>,
    /// Range of the rates A.
    rate: (f64, f64),
    /// Range of the raw step sizes.
    delta: (f64, f64),
    settings: Settings,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "plain",
            tokens: vec![40],
            channels: 24,
            groups: 1,
            n: 16,
            gate: false,
            initial: false,
            pool: None,
            rate: (-16.0, -0.5),
            delta: (-4.0, 1.0),
            settings: Settings::new(),
        }
    }
}

impl Case {
    fn tensors(&self, dtype: DType) -> TensorMap {
        let mut random = Random(self.tokens.len() as u64 * 1000 + self.n as u64);
        let lead = match self.tokens.iter().all(|tokens| *tokens == self.tokens[0]) {
            true => vec![self.tokens.len(), self.tokens[0]],
            false => vec![self.tokens.iter().sum()],
        };
        let shape = |rest: &[usize]| [&lead[..], rest].concat();
        let (e, g, n) = (self.channels, self.groups, self.n);
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor: Tensor| drop(tensors.insert(name.to_owned(), tensor));
        put("u", random.tensor(&shape(&[e]), dtype));
        put("delta", random.range(&shape(&[e]), dtype, self.delta.0, self.delta.1));
        put("A", random.range(&[e, n], DType::F32, self.rate.0, self.rate.1));
        put("B", random.tensor(&shape(&[g, n]), dtype));
        put("C", random.tensor(&shape(&[g, n]), dtype));
        put("D", random.tensor(&[e], DType::F32));
        put("delta_bias", random.range(&[e], DType::F32, -2.0, 1.0));
        if self.gate {
            put("z", random.tensor(&shape(&[e]), dtype));
        }
        let slots = self.pool.as_ref().map_or(self.tokens.len(), |(slots, _)| *slots);
        if self.initial || self.pool.is_some() {
            let mut pool = random.tensor(&[slots, e, n], DType::F32);
            if let Some((_, indices)) = &self.pool {
                // Slots that nobody uses hold a value that shows when it is touched.
                let states = pool.view_mut::<f32>().unwrap().chunks_mut(e * n).enumerate();
                let unused = states.filter(|(slot, _)| !indices.contains(&(*slot as i32)));
                unused.for_each(|(_, state)| state.fill(1e30));
                put("state_indices", ints(indices));
            }
            put("initial_state", pool);
        }
        if lead.len() == 1 {
            let mut offsets = vec![0i32];
            for tokens in &self.tokens {
                offsets.push(offsets[offsets.len() - 1] + *tokens as i32);
            }
            put("cu_seqlens", ints(&offsets));
        }
        tensors
    }

    fn check(&self, dtypes: &[DType]) {
        for dtype in dtypes {
            check(self.name, &SelectiveScanOp, &self.tensors(*dtype), &self.settings);
        }
    }
}

#[test]
fn channels_and_states_of_any_number() {
    for (channels, n, groups) in
        [(1, 1, 1), (7, 1, 7), (16, 16, 1), (33, 17, 1), (48, 16, 3), (130, 5, 2), (20, 256, 1)]
    {
        for tokens in [vec![1; 3], vec![9; 2]] {
            let case = Case { name: "sizes", tokens, channels, n, groups, ..Case::default() };
            case.check(&ALL);
            Case { name: "every part", gate: true, initial: true, ..case }.check(&ALL);
        }
    }
}

#[test]
fn packed_batches_with_empty_sequences_and_pools() {
    let case = Case {
        name: "packed",
        tokens: vec![0, 30, 1, 0, 65, 3, 0],
        channels: 40,
        groups: 2,
        gate: true,
        ..Case::default()
    };
    case.check(&ALL);
    Case { initial: true, ..case.clone() }.check(&ALL);
    let case = Case { name: "pool", pool: Some((9, vec![8, 2, -1, 4, -1, 0, 7])), ..case };
    case.check(&ALL);
    for (variant, outputs) in
        launch_all(&SelectiveScanOp, &case.tensors(DType::F32), &case.settings)
    {
        let padding = &outputs["o"].to_f64()[30 * 40..31 * 40];
        assert!(padding.iter().all(|x| *x == 0.0), "{variant}");
    }
    for tokens in [vec![0; 2], vec![]] {
        let lead = [tokens.len(), 0];
        let mut tensors = Case { tokens: vec![1; 2], ..Case::default() }.tensors(DType::F32);
        for (name, rest) in [("u", &[24][..]), ("delta", &[24]), ("B", &[1, 16]), ("C", &[1, 16])] {
            tensors
                .insert(name.to_owned(), Tensor::new(&[&lead, rest].concat(), Vec::<f32>::new()));
        }
        check("empty", &SelectiveScanOp, &tensors, &Settings::new());
    }
}

#[test]
fn slow_and_fast_decays_stay_exact() {
    for (name, rate) in [
        ("very fast", (-400.0, -100.0)),
        ("very slow", (-1e-6, 0.0)),
        ("none", (0.0, 0.0)),
        ("mixed", (-40.0, 0.0)),
    ] {
        Case { name, tokens: vec![200, 300], rate, initial: true, ..Case::default() }.check(&ALL);
    }
}

#[test]
fn step_sizes_follow_softplus_and_bias() {
    let base = Case { tokens: vec![60], ..Case::default() };
    Case { name: "above 20", delta: (15.0, 30.0), rate: (-0.05, -0.01), ..base.clone() }
        .check(&ALL);
    Case { name: "far below 0", delta: (-30.0, -10.0), ..base.clone() }.check(&ALL);
    let raw = Settings::new().with("delta_softplus", false);
    // With the bias from 0 on.
    Case { name: "as given", delta: (2.0, 2.9), settings: raw.clone(), ..base.clone() }.check(&ALL);
    // A step below 0 lets the state grow.
    let grows = Case { tokens: vec![12], rate: (-0.2, 0.0), delta: (-0.5, 0.5), ..base };
    Case { name: "below 0", settings: raw, ..grows }.check(&ALL);
}

/// Decode steps must not be given to the form that transposes, nor prompts to the other one.
#[test]
fn selection_follows_the_number_of_tokens() {
    for (tokens, scheme) in [(1, "states."), (7, "states."), (8, "channels."), (100, "channels.")] {
        let case = Case { tokens: vec![tokens, 1], ..Case::default() };
        let tensors = case.tensors(DType::F32);
        let call = SelectiveScanOp.bind(&tensors, &case.settings).unwrap();
        let chosen = call.select(&cpu(), None).unwrap();
        assert!(chosen.chosen.starts_with(scheme), "{tokens} tokens: {chosen:?}");
    }
}

/// What has kernels of GPUs is asked for by others: models with such layers run on the processor as long as this is so.
#[test]
fn there_are_no_kernels_of_gpus_yet() {
    let backends: Vec<BackendKind> =
        SelectiveScanOp.variants().into_iter().map(|(_, backend)| backend).collect();
    assert!(!backends.is_empty() && backends.iter().all(|backend| *backend == BackendKind::Cpu));
}

#[test]
fn calls_that_carry_the_state_equal_one_long_call() {
    let case = Case {
        tokens: vec![103],
        channels: 36,
        groups: 2,
        n: 11,
        initial: true,
        ..Case::default()
    };
    let whole = case.tensors(DType::F32);
    let want = SelectiveScanOp.bind(&whole, &case.settings).unwrap().reference();
    for (variant, _) in launch_all(&SelectiveScanOp, &whole, &case.settings) {
        let (device, mut state) = (cpu(), whole["initial_state"].clone());
        let mut o = Vec::new();
        for (from, to) in [(0, 64), (64, 73), (73, 103)] {
            let mut part = whole.clone();
            for name in ["u", "delta", "B", "C"] {
                let tensor = &whole[name];
                let row: usize = tensor.shape()[2..].iter().product();
                let values = tensor.view::<f32>().unwrap()[from * row..to * row].to_vec();
                let shape = [&[1, to - from], &tensor.shape()[2..]].concat();
                part.insert(name.to_owned(), Tensor::new(&shape, values));
            }
            part.insert("initial_state".to_owned(), state);
            let got = launch(&SelectiveScanOp, &part, &case.settings, &device, variant);
            o.extend(got["o"].to_f64());
            state = got["final_state"].clone();
        }
        let limits = limits(DType::F32);
        assert!(relative(&o, &want["o"].to_f64()) <= limits.o, "{variant}");
        let state = relative(&state.to_f64(), &want["final_state"].to_f64());
        assert!(state <= limits.state, "{variant}");
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for tokens in [vec![1; 3], vec![50; 2], vec![70, 1, 14, 0]] {
        let case = Case { tokens, channels: 200, gate: true, ..Case::default() };
        let tensors = case.tensors(DType::Bf16);
        for (variant, want) in launch_all(&SelectiveScanOp, &tensors, &case.settings) {
            for threads in [1, 2, 5] {
                let device = cpu().with_threads(threads);
                let got = launch(&SelectiveScanOp, &tensors, &case.settings, &device, variant);
                assert!(got == want, "{variant} on {threads} threads");
            }
        }
    }
}
