//! Correct engines pass every check, and each planted fault fails its check.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use device::Device;
use facts::{BackendKind, Status};
use models::{
    Architecture, Batch, Capacity, Choice, Engine, LogitsSelection, ModelError, ModelSource, Pages,
    SHAPES, SampledTokens, Sampling, SavedSequence, SpeedTest, StateType, Storage, Verification,
    choose_by_steps, hold, measure, open, shape, verify, verify_families,
};

const CPU: BackendKind = BackendKind::Cpu;
/// The type of recurrent states.
const F32: StateType = StateType::F32;
const PLACES: Capacity = Capacity { sequences: 3, tokens: 128 };

fn source(name: &str) -> ModelSource {
    drawn(name, 5)
}

fn drawn(name: &str, seed: u64) -> ModelSource {
    ModelSource::Random { config: shape(name).unwrap(), seed }
}

fn engine(name: &str, storage: Storage) -> Box<dyn Engine> {
    open(source(name).open().unwrap(), backends::open(CPU).unwrap(), storage, PLACES).unwrap()
}

/// The failed checks, by the last part of their names.
fn failed(found: &Verification) -> Vec<&str> {
    let rows = found.rows.iter().filter(|row| row.status != Status::Pass);
    rows.map(|row| row.case.rsplit('/').next().unwrap()).collect()
}

#[test]
fn engines_of_every_family_pass_with_launches_as_evidence() {
    for name in SHAPES.iter().map(|shape| shape.name).filter(|name| name.ends_with("-mini")) {
        for storage in [Storage::F32, Storage::Bf16] {
            let found =
                verify(name, &source(name), CPU, (storage, F32), 3, &[70, 0], None).unwrap();
            assert!(found.passed().is_some(), "{:?}", found.rows);
            assert_eq!(found.rows.len(), 7);
            for row in &found.rows {
                assert!(row.launches > 0 && !row.evidence.is_empty(), "{row:?}");
            }
        }
    }
}

/// In some models rounding decides which expert a token is routed to; that is not a fault of the engine.
#[test]
fn near_ties_of_experts_pass() {
    for name in ["granite-moe-mini", "kimi-linear-mini"] {
        for seed in 0..6 {
            let found = verify(name, &drawn(name, seed), CPU, (Storage::Bf16, F32), 3, &[70], None)
                .unwrap();
            assert!(found.passed().is_some(), "seed {seed}: {:?} {:?}", failed(&found), found.rows);
        }
    }
}

#[test]
fn check_runs_a_model_of_every_family_where_there_is_an_engine() {
    let rows = verify_families(CPU, |_, _, _| ());
    for name in [
        "granite-hybrid-mini/",
        "granite-moe-mini/",
        "kimi-linear-mini/",
        "qwen3-next-mini/",
        "bamba-mini/",
        "jamba-mini/",
        "qwen2-mini/",
    ] {
        assert_eq!(rows.iter().filter(|row| row.case.starts_with(name)).count(), 6, "{name}");
    }
    assert!(rows.iter().all(|row| row.status == Status::Pass), "{rows:?}");
    assert!(verify_families(BackendKind::Metal, |_, _, _| ()).is_empty());
}

/// An engine with a planted fault.
struct Planted {
    engine: Box<dyn Engine>,
    fault: Fault,
    idle: Device,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Each sequence gets the other's logits.
    Swaps,
    /// One logit of a long prompt is wrong.
    Prefill,
    /// A single token sees an empty state.
    Forgets,
    /// The second-best token is chosen.
    Greedy,
    /// Nothing is launched on the device it claims to use.
    Idle,
    /// A value overflows.
    Infinite,
}

impl Engine for Planted {
    fn architecture(&self) -> &Architecture {
        self.engine.architecture()
    }
    fn device(&self) -> &Device {
        if self.fault == Fault::Idle { &self.idle } else { self.engine.device() }
    }
    fn read_bandwidth(&self) -> f64 {
        self.engine.read_bandwidth()
    }
    fn step(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Vec<f32>, ModelError> {
        let vocabulary = self.architecture().vocabulary;
        let alone = *batch == Batch::new().with(1, batch.tokens()) && batch.tokens().len() == 1;
        if self.fault == Fault::Forgets && alone {
            self.engine.reset(1);
        }
        let mut logits = self.engine.step(batch, wanted)?;
        match self.fault {
            Fault::Swaps if logits.len() == 2 * vocabulary => logits.rotate_left(vocabulary),
            Fault::Prefill if batch.tokens().len() > 60 => logits[7] += 3.0,
            Fault::Infinite => logits[3] = f32::INFINITY,
            _ => {}
        }
        Ok(logits)
    }
    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<SampledTokens>, ModelError> {
        // Uses the faulty steps above.
        let mut drawn = choose_by_steps(self, batch, how, count)?;
        if self.fault == Fault::Greedy
            && let Some(Some(token)) = drawn[0].tokens.get_mut(1)
        {
            *token = (*token + 1) % self.architecture().vocabulary as u32;
        }
        Ok(drawn)
    }
    fn pages(&self) -> &Pages {
        self.engine.pages()
    }
    fn bytes_of(&self, tokens: usize) -> u64 {
        self.engine.bytes_of(tokens)
    }
    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError> {
        self.engine.save(sequence)
    }
    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError> {
        self.engine.restore(saved, to)
    }
    fn reset(&mut self, sequence: usize) {
        self.engine.reset(sequence);
    }
    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        self.engine.fork(from, to, keep)
    }
}

fn planted(fault: Fault) -> Planted {
    let idle = backends::open(CPU).unwrap();
    Planted { engine: engine("granite-hybrid-mini", Storage::F32), fault, idle }
}

#[test]
fn planted_faults_fail_their_checks() {
    let check = |fault, expect: &[&str], words: &str| {
        let mut reference = engine("granite-hybrid-mini", Storage::F32);
        let found = hold("mini", &mut planted(fault), Storage::F32, &mut *reference, 2, &[70]);
        assert_eq!(failed(&found), expect);
        assert_eq!(found.passed().is_some(), expect.is_empty());
        let reasons: Vec<&str> = found.rows.iter().map(|row| row.reason.as_str()).collect();
        assert!(reasons.iter().any(|reason| reason.contains(words)), "{reasons:?}");
    };
    check(Fault::None, &[], "");
    let all = ["prefill", "chunks", "token-by-token", "generation", "greedy", "70-and-8-x2"];
    // The last chunk has two tokens, whose logits are swapped as well.
    check(Fault::Swaps, &["chunks", "generation", "greedy", "70-and-8-x2"], "relative error");
    check(Fault::Prefill, &["70-and-8-x2"], "relative error");
    // This also affects a sequence that still decodes when the other one has ended.
    check(Fault::Forgets, &["token-by-token", "generation"], "relative error");
    check(Fault::Greedy, &["greedy"], "was chosen with a logit");
    check(Fault::Idle, &all, "no launch was counted");
    check(Fault::Infinite, &all, "is inf");
}

#[test]
fn speed_requires_verified_kernels() {
    let name = "granite-hybrid-mini";
    let found = verify(name, &source(name), CPU, (Storage::Bf16, F32), 1, &[40], None).unwrap();
    let verified = found.passed().unwrap();
    let mut engine = engine(name, Storage::Bf16);
    let mut time = |verified, test: &str, sequences| {
        measure(
            &mut *engine,
            verified,
            Storage::Bf16,
            test.parse::<SpeedTest>().unwrap(),
            sequences,
            3,
            &Sampling::default(),
        )
    };
    let speed = time(verified, "pp40", 1).unwrap();
    assert_eq!((speed.samples_tokens_per_second.len(), speed.limit), (3, None));
    let first = speed.first_token.unwrap();
    assert!(first.cold_ms > 0.0 && first.warm_ms > 0.0, "{first:?}");
    assert!(speed.launches.values().all(|count| count % 4 == 0), "{:?}", speed.launches);

    let speed = time(verified, "tg8@40", 3).unwrap();
    assert_eq!((speed.first_token, speed.sequences), (None, 3));
    let limit = speed.limit.unwrap();
    assert!(limit.percent > 0.0 && limit.read_gbps > 0.0, "{limit:?}");
    let percent = 100.0 * speed.mean_tokens_per_second / limit.tokens_per_second;
    assert!((percent - limit.percent).abs() < 1e-9);

    let mut poorer = Verification { rows: found.rows.clone(), launches: found.launches.clone() };
    let (kernel, _) = poorer.launches.pop_first().unwrap();
    let error = time(poorer.passed().unwrap(), "pp40", 1).unwrap_err().to_string();
    assert_eq!(error, format!("pp40: {kernel} ran that was not verified"));
    poorer.rows[0].status = Status::Fail;
    assert!(poorer.passed().is_none());
}
