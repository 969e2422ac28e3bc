//! Verifies an engine against float32 on the CPU: the same model with one layer of each kind, prefilled whole and in
//! chunks, decoded token by token, generated with, and at the exact lengths that are timed.

mod agreement;
mod families;

pub use agreement::relative_error;
use facts::CompactCollect;
pub use families::verify_families;

use crate::engine::launches_of;
use crate::random::mix;
use crate::speed::read;
use crate::{
    Batch, Capacity, Choice, Engine, GenerationControl, LargestStep, LogitsOf, LogitsSelection,
    ModelError, ModelSource, OpenRequest, Ranks, Request, Sampling, StateType, StepBudget, Storage,
    generate, open,
};
use agreement::{Agreement, LogitsComparer, likeliest};
use facts::{BackendKind, ParityRow, Status};
use ops::Op;
use ops::sampling::SamplingOp;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The op name of a model's rows in a parity matrix.
const OP: &str = "model";

/// Maximum length for the reference; longer ones, which would take hours, compare an engine with itself.
const REFERENCE_TOKENS: usize = 8192;

/// Tokens decoded after each prompt.
const DECODED: usize = 8;

/// Minimum slots of the engine, so that a step of three sequences is padded to four on devices that capture graphs.
const FEWEST_SLOTS: usize = 4;

/// Two prompts of different lengths, neither a multiple of a block of 16.
const PROMPTS: [usize; 2] = [37, 21];

/// The result of verifying an engine.
#[derive(Debug)]
pub struct Verification {
    /// One row per check.
    pub rows: Vec<ParityRow>,
    /// Launch counts by kernel.
    pub launches: BTreeMap<String, u64>,
}

/// Proof that an engine passed every check. Only [`Verification::passed`] constructs it, and timing requires it.
#[derive(Debug, Clone, Copy)]
pub struct VerifiedEngine<'a> {
    pub(crate) launches: &'a BTreeMap<String, u64>,
}

impl Verification {
    /// The proof; `None` if a check failed or nothing was checked.
    pub fn passed(&self) -> Option<VerifiedEngine<'_>> {
        let all = self.rows.iter().all(|row| row.status == Status::Pass);
        (all && !self.rows.is_empty()).then_some(VerifiedEngine { launches: &self.launches })
    }
}

/// Verifies a backend's engine against the reference, on a model's own weights with one layer of each kind, with
/// `sequences` sequences at once, at each of the lengths, with the given state type; with ranks, a split engine against
/// one that is not split.
///
/// # Errors
/// [`ModelError`] when the model cannot be read or an engine cannot be opened. Wrong results are failed rows, not
/// errors.
pub fn verify(
    name: &str,
    source: &ModelSource,
    backend: BackendKind,
    (storage, states): (Storage, StateType),
    sequences: usize,
    lengths: &[usize],
    ranks: Option<&Ranks>,
) -> Result<Verification, ModelError> {
    let longest = lengths.iter().copied().max().unwrap_or(0).max(PROMPTS[0]) + 2 * DECODED;
    let capacity = Capacity { sequences: sequences.max(FEWEST_SLOTS), tokens: longest };
    let opened = |backend, (storage, states), capacity, ranks: Option<&Ranks>| {
        let mut model = source.open()?.with_scan_states(states)?;
        model.architecture = model.architecture.one_layer_of_each_kind();
        let device = backends::open(backend).map_err(|why| ModelError::Device(why.to_string()))?;
        let Some(ranks) = ranks else { return open(model, device, storage, capacity) };
        let step = LargestStep { tokens: longest, logits: longest };
        let opening = OpenRequest::new(source, backend, storage, (capacity, step));
        let opening = opening.one_layer_of_each_kind();
        ranks.open(model.part(ranks.place())?, device, &opening)
    };
    let mut engine = opened(backend, (storage, states), capacity, ranks)?;
    let read_along = longest.min(REFERENCE_TOKENS + 2 * DECODED);
    let capacity = Capacity { sequences: 1, tokens: read_along };
    let exact = (Storage::F32, StateType::F32);
    let mut reference = opened(BackendKind::Cpu, exact, capacity, None)?;
    Ok(hold(name, &mut *engine, storage, &mut *reference, sequences, lengths))
}

/// Verifies an engine against a trusted engine of the same model that has one slot.
pub fn hold(
    name: &str,
    engine: &mut dyn Engine,
    storage: Storage,
    reference: &mut dyn Engine,
    sequences: usize,
    lengths: &[usize],
) -> Verification {
    let judge = LogitsComparer::new(engine.architecture(), storage);
    let mut held = EngineComparison { name, engine, reference, storage, judge, rows: Vec::new() };
    held.check("prefill", EngineComparison::prefill);
    held.check("chunks", |held| held.pieces(7));
    held.check("token-by-token", |held| held.pieces(1));
    held.check("generation", EngineComparison::generation);
    held.check("greedy", EngineComparison::greedy);
    for length in lengths {
        held.check(&format!("{length}-and-{DECODED}-x{sequences}"), |held| {
            held.long(*length, sequences)
        });
    }
    let launches = counts(held.engine);
    Verification { rows: held.rows, launches }
}

/// Launch counts of an engine's device by kernel.
pub(crate) fn counts(engine: &dyn Engine) -> BTreeMap<String, u64> {
    launches_of(engine.device())
}

/// Launches between two counts.
pub(crate) fn since(
    before: &BTreeMap<String, u64>,
    after: BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let more = |(kernel, count): (String, u64)| {
        let more = count - before.get(&kernel).copied().unwrap_or(0);
        (more > 0).then_some((kernel, more))
    };
    after.into_iter().filter_map(more).compact_map()
}

/// Pseudorandom token ids, so that no layer benefits from a pattern.
pub(crate) fn tokens(seed: usize, count: usize, vocabulary: usize) -> Vec<u32> {
    let token = |at: usize| mix((seed as u64) << 32 | at as u64) % vocabulary as u64;
    (0..count).map(|at| token(at) as u32).collect()
}

/// A row of the parity matrix; it passes if logits agree and kernels ran.
fn row(
    name: &str,
    what: &str,
    backend: BackendKind,
    storage: Storage,
    found: Result<Agreement, ModelError>,
    launches: &BTreeMap<String, u64>,
    millis: f64,
) -> ParityRow {
    let kernels: Vec<String> =
        launches.iter().map(|(kernel, count)| format!("{kernel} x{count}")).collect();
    let launched = launches.values().sum();
    // Sampling kernels alone are no evidence of who computed the logits.
    let chooses = |kernel: &str| kernel.split('.').next() == Some(SamplingOp.spec().name);
    let ran = launches.iter().any(|(kernel, count)| *count > 0 && !chooses(kernel));
    let (agreement, wrong) = match found {
        Ok(agreement) => (Some((agreement.rel_err, agreement.max_err)), agreement.wrong),
        Err(error) => (None, Some(error.to_string())),
    };
    let wrong = wrong.or_else(|| (!ran).then(|| "no launch was counted".to_owned()));
    ParityRow {
        op: OP.to_owned(),
        case: format!("{name}/{what}"),
        backend,
        variant: "engine".to_owned(),
        dtype: storage.as_str().to_owned(),
        status: if wrong.is_none() { Status::Pass } else { Status::Fail },
        reason: wrong.unwrap_or_default(),
        rel_err: agreement.map(|(rel_err, _)| rel_err),
        max_err: agreement.map(|(_, max_err)| max_err),
        tolerance: storage.tolerance(),
        launches: launched,
        millis,
        peer: None,
        evidence: kernels.join(", "),
        bits: None,
    }
}

struct EngineComparison<'a> {
    name: &'a str,
    engine: &'a mut dyn Engine,
    reference: &'a mut dyn Engine,
    storage: Storage,
    judge: LogitsComparer,
    rows: Vec<ParityRow>,
}

impl EngineComparison<'_> {
    /// Runs a check with its engine's launches as evidence.
    fn check(&mut self, what: &str, run: impl FnOnce(&mut Self) -> Result<Agreement, ModelError>) {
        let before = counts(self.engine);
        let start = Instant::now();
        let found = run(self);
        let millis = start.elapsed().as_secs_f64() * 1e3;
        let launches = since(&before, counts(self.engine));
        let backend = self.engine.device().capabilities().backend;
        self.rows.push(row(self.name, what, backend, self.storage, found, &launches, millis));
    }

    fn prompt(&self, seed: usize, count: usize) -> Vec<u32> {
        tokens(seed, count, self.engine.architecture().vocabulary)
    }

    fn reset(&mut self, sequences: usize) {
        (0..sequences).for_each(|place| self.engine.reset(place));
    }

    /// The reference's logits of the last tokens, after `before`.
    fn referred(&mut self, before: &[u32], last: &[u32]) -> Result<Vec<f32>, ModelError> {
        self.reference.reset(0);
        read(self.reference, &[before.to_vec()], 0..before.len())?;
        self.reference.step(&Batch::new().with(0, last), LogitsSelection::Every)
    }

    /// Prefills two prompts in one batch.
    fn prefill(&mut self) -> Result<Agreement, ModelError> {
        let [first, second] = PROMPTS.map(|count| self.prompt(count, count));
        self.reset(2);
        let batch = Batch::new().with(1, &first).with(0, &second);
        let got = self.engine.step(&batch, LogitsSelection::Every)?;
        let mut want = self.referred(&[], &first)?;
        want.extend(self.referred(&[], &second)?);
        Ok(self.judge.judge(&got, &want))
    }

    /// Prefills a prompt in chunks.
    fn pieces(&mut self, piece: usize) -> Result<Agreement, ModelError> {
        let prompt = self.prompt(PROMPTS[0], PROMPTS[0]);
        self.reset(2);
        let mut got = Vec::new();
        for piece in prompt.chunks(piece) {
            got.extend(self.engine.step(&Batch::new().with(1, piece), LogitsSelection::Every)?);
        }
        let want = self.referred(&[], &prompt)?;
        Ok(self.judge.judge(&got, &want))
    }

    /// Generates two requests, the longer prompt prefilled in chunks while the other decodes.
    fn generation(&mut self) -> Result<Agreement, ModelError> {
        let request = |prompt: Vec<u32>| Request {
            prompt,
            limit: DECODED,
            sampling: Sampling::default(),
            stop_ids: Vec::new(),
            keep: false,
            shared: 0,
            turn: false,
            bypass_cache: false,
            logits: LogitsOf::All,
        };
        let requests = PROMPTS.map(|count| request(self.prompt(count + 1, count)));
        self.reset(2);
        let mut got = [Vec::new(), Vec::new()];
        let budget = StepBudget {
            tokens: 16,
            max_mixed_tokens: 16,
            max_mixed_step: Duration::MAX,
            decode_steps_in_flight: 1,
        };
        let generated = generate(self.engine, &requests, budget, |chosen| {
            got[chosen.request].extend(chosen.logits.unwrap_or_default());
            GenerationControl::More
        })?;
        let mut want = Vec::new();
        for (request, generated) in requests.iter().zip(&generated) {
            // The first token is sampled from the prompt's last logits, and the last one is not fed back.
            let (last, before) = request.prompt.split_last().unwrap_or((&0, &[]));
            let fed = generated.tokens.split_last().map_or(&[][..], |(_, fed)| fed);
            want.extend(self.referred(before, &[&[*last], fed].concat())?);
        }
        Ok(self.judge.judge(&got.concat(), &want))
    }

    /// Greedy decoding on the device: each chosen token has to be as good as the reference's, and further tokens check
    /// the states.
    fn greedy(&mut self) -> Result<Agreement, ModelError> {
        let prompts = [1, 2].map(|seed| self.prompt(seed, PROMPTS[1]));
        let further = [3, 4].map(|seed| self.prompt(seed, DECODED));
        self.reset(2);
        let logits = read(self.engine, &prompts, 0..PROMPTS[1])?;
        let vocabulary = self.engine.architecture().vocabulary;
        let begun: Vec<u32> = logits.chunks_exact(vocabulary).map(likeliest).collect();
        let batch = Batch::new().with(0, &begun[..1]).with(1, &begun[1..]);
        let greedy = Sampling::default();
        let drawn = self.engine.choose(&batch, &[Some(Choice::by(&greedy)); 2], DECODED)?;
        let chosen: Vec<Vec<u32>> =
            drawn.into_iter().map(|drawn| drawn.tokens.into_iter().flatten().collect()).collect();
        if chosen.len() != 2 || chosen.iter().any(|chosen| chosen.len() != DECODED) {
            let what =
                format!("{chosen:?} were chosen, expected {DECODED} of each of two sequences");
            return Err(ModelError::fault(what));
        }
        let (mut got, mut want) = ([Vec::new(), Vec::new()], Vec::new());
        for at in 0..DECODED {
            let logits = read(self.engine, &further, at..at + 1)?;
            let of_places = logits.chunks_exact(vocabulary);
            got.iter_mut().zip(of_places).for_each(|(got, logits)| got.extend(logits));
        }
        let mut poor = Vec::new();
        for place in 0..2 {
            // The last chosen token does not advance the sequence.
            let fed = &chosen[place][..DECODED - 1];
            let decoded = [&begun[place..=place], fed].concat();
            let logits = self.referred(&prompts[place], &decoded)?;
            let choices = chosen[place].iter().zip(logits.chunks_exact(vocabulary));
            poor.extend(choices.map(|(token, logits)| self.judge.poor_choice(*token, logits)));
            let before = [&prompts[place][..], &decoded].concat();
            want.extend(self.referred(&before, &further[place])?);
        }
        let mut agreement = self.judge.judge(&got.concat(), &want);
        agreement.wrong = self.judge.too_many(poor).or(agreement.wrong);
        Ok(agreement)
    }

    /// A long prompt for every sequence, then tokens one by one, as in timing. Adjacent sequences have different
    /// prompts, two in all, so that the reference prefills only two.
    fn long(&mut self, length: usize, sequences: usize) -> Result<Agreement, ModelError> {
        let prompts = [1, 2].map(|seed| self.prompt(seed + length, length + DECODED));
        let all: Vec<Vec<u32>> = (0..sequences).map(|place| prompts[place % 2].clone()).collect();
        self.reset(sequences.max(2));
        let mut rows = vec![Vec::new(); sequences];
        let decoded = (length..length + DECODED).map(|at| at..at + 1);
        let ranges = std::iter::once(0..length).chain(decoded);
        for range in ranges.filter(|range| !range.is_empty()) {
            let logits = read(self.engine, &all, range)?;
            let of_places = logits.chunks_exact(logits.len() / sequences);
            rows.iter_mut().zip(of_places).for_each(|(rows, logits)| rows.extend(logits));
        }
        let mut want: Vec<Vec<f32>> = Vec::new();
        for prompt in prompts.iter().take(sequences) {
            // The first logits are those after the whole prompt.
            let (before, last) = prompt.split_at(length.saturating_sub(1));
            want.push(if length <= REFERENCE_TOKENS {
                self.referred(before, last)?
            } else {
                self.reset(sequences.max(2));
                read(self.engine, &[before.to_vec()], 0..before.len())?;
                self.engine.step(&Batch::new().with(0, last), LogitsSelection::Every)?
            });
        }
        let want: Vec<f32> = (0..sequences).flat_map(|place| want[place % 2].clone()).collect();
        Ok(self.judge.judge(&rows.concat(), &want))
    }
}
