//! The CUDA engine plans, captures and launches every kind of layer on a stand-in for the driver, which computes
//! nothing and refuses what a GPU would refuse. Checks shapes, parameters and launches, not values.
#![cfg(target_os = "linux")] // The stand-in is found by the loader's path and built by the C compiler.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

#[path = "../logits/gguf/writer.rs"]
mod gguf;
#[path = "../../../verify/tests/stand_in/machine.rs"]
mod machine;
mod memory;
mod parts;

use architectures::Mixer;
use device::cuda::Cuda;
use facts::BackendKind;
use models::{
    Batch, Capacity, Choice, Config, Engine, LargestStep, LogitsOf, LogitsSelection, Model,
    ModelError, ModelSource, OpenRequest, QuantizedFormat, Ranks, Request, SHAPES, Sampling,
    Scheduler, SchedulerEvent, ShardRank, StateType, StepBudget, Storage, SynthOptions,
    engine_kind, follow, holding, open, shape, synth,
};
use std::net::TcpListener;
use std::time::Duration;

#[test]
fn layers_are_planned_and_launched() {
    let Some(launched) = machine::launched("layers_are_planned_and_launched", run_all) else {
        return;
    };
    let sources = ops_cuda::decoder::bundled();
    for source in &sources {
        assert!(launched.contains(source.name()), "no model launches {}", source.name());
    }
    let ops = "linear ssd selective_scan conv1d kda gated_delta attention moe rmsnorm sampling";
    for op in ops.split(' ') {
        assert!(launched.iter().any(|name| name.starts_with(op)), "no model launches {op}");
    }
}

fn run_all() {
    for name in [
        "granite-hybrid-mini",
        "llama-mini",
        "granite-moe-mini",
        "kimi-linear-mini",
        "gpt-oss-mini",
        "falcon-h1-mini",
        "lfm2-mini",
        "lfm2-moe-mini",
        "qwen3-next-mini",
        "mamba-mini",
        "falcon-mamba-mini",
        "jamba-mini",
    ] {
        split_in_two(name, shape(name).unwrap(), StateType::F32);
    }
    split_in_two(
        "granite-hybrid-mini, narrow states",
        shape("granite-hybrid-mini").unwrap(),
        StateType::Bf16,
    );
    // Integers of half of the columns, in whole groups.
    for (name, narrow, more) in [
        ("llama-mini", QuantizedFormat::Int4, &[][..]),
        ("granite-moe-mini", QuantizedFormat::Int8, &[]),
        ("granite-hybrid-mini", QuantizedFormat::Fp8, &[]),
        ("falcon-h1-mini", QuantizedFormat::Fp8, &[("mamba_n_heads", 8), ("mamba_d_ssm", 512)]),
        ("lfm2-moe-mini", QuantizedFormat::Fp8, &[]),
    ] {
        let widths = ["hidden_size", "intermediate_size", "shared_intermediate_size"];
        let wide = shape(name).unwrap().with("mamba_d_head", 64.into());
        let wide = widths.iter().fold(wide, |config, key| config.with(key, 256.into()));
        let wide = more.iter().fold(wide, |config, (key, count)| config.with(key, (*count).into()));
        let wide = narrow.of(wide).unwrap();
        split_in_two(&format!("{name} in {narrow:?}"), wide, StateType::F32);
    }
    let narrower = shape("nemotron-mini").unwrap().with("moe_latent_size", 32.into());
    split_in_two("nemotron-mini, experts on a narrower vector", narrower, StateType::F32);
    states_in_bfloat16();
    for name in SHAPES.iter().map(|shape| shape.name).filter(|name| name.ends_with("-mini")) {
        let model = Model::random(&shape(name).unwrap(), 1).unwrap();
        let device = backends::open(BackendKind::Cuda).unwrap();
        let capacity = Capacity { sequences: 10, tokens: 300 };
        let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
        run(&mut *engine).unwrap_or_else(|error| panic!("{name}: {error}"));
        come_and_go(&mut *engine).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // Integers in the layout of kernels, experts in bfloat16.
    for (name, weights) in
        [("granite-moe-mini", QuantizedFormat::Int4), ("llama-mini", QuantizedFormat::Int8)]
    {
        let model = Model::random(&weights.of(shape(name).unwrap()).unwrap(), 1).unwrap();
        let device = backends::open(BackendKind::Cuda).unwrap();
        let capacity = Capacity { sequences: 1, tokens: 64 };
        open(model, device, Storage::Bf16, capacity).unwrap();
    }
    // MXFP4 to float8.
    let quantised = serde_json::json!({ "quant_method": "mxfp4" });
    let config = shape("gpt-oss-mini").unwrap().with("quantization_config", quantised);
    let model = Model::random(&config, 1).unwrap();
    let device = backends::open(BackendKind::Cuda).unwrap();
    let capacity = Capacity { sequences: 10, tokens: 300 };
    let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
    run(&mut *engine).unwrap();
    run_files();
}

/// Integers of GGUF files in the layout of kernels; Q5_K and other layouts in bfloat16.
fn run_files() {
    use gguf::Kind;
    let keys = ["hidden_size", "shared_intermediate_size", "moe_intermediate_size"];
    let all = [&[Kind::F32], &Kind::BLOCKS[..]].concat();
    for (name, kinds) in [
        ("granite-hybrid-mini", &all[..]),
        ("granite-moe-mini", &[Kind::Q8_0]),
        ("kimi-linear-mini", &[Kind::Q8_0]),
        ("gpt-oss-mini", &[Kind::Mxfp4]),
    ] {
        for kind in kinds.iter().copied() {
            let config = shape(name).unwrap().with("mamba_d_head", 64.into());
            let config = keys.iter().fold(config, |config, key| config.with(key, 256.into()));
            let folder = tempfile::tempdir().unwrap();
            synth(config, folder.path(), &SynthOptions::default()).unwrap();
            let path = folder.path().join("model.gguf");
            gguf::write(folder.path(), &path, |_| kind);
            let device = backends::open(BackendKind::Cuda).unwrap();
            let capacity = Capacity { sequences: 1, tokens: 64 };
            let model = Model::read(&path).unwrap();
            let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
            for tokens in [&[1][..], &[1; 40]] {
                engine.step(&Batch::new().with(0, tokens), LogitsSelection::Last).unwrap();
            }
        }
    }
}

/// Runs ranks, one thread each, and calls a function with the first one's engine.
fn split(
    (config, held): (&Config, StateType),
    ranks: usize,
    (capacity, step): (Capacity, LargestStep),
    work: impl FnOnce(&mut dyn Engine),
) {
    let source = ModelSource::Random { config: config.clone(), seed: 1 };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let gpu = || backends::open(BackendKind::Cuda).unwrap();
    let place = |rank| ShardRank { rank, ranks };
    std::thread::scope(|scope| {
        let others = (1..ranks).map(|rank| {
            scope.spawn(move || {
                let ranks = Ranks::join(at, place(rank), b"word").unwrap();
                follow(&ranks, |_, _| Ok::<_, ModelError>(gpu())).map_err(|why| why.to_string())
            })
        });
        let others: Vec<_> = others.collect();
        let ended = Box::new(|_, _| None);
        let ranks = Ranks::lead(&listener, ranks, b"word", Duration::from_secs(60), ended).unwrap();
        let opening = OpenRequest::new(&source, BackendKind::Cuda, Storage::Bf16, (capacity, step));
        let part = source.open().unwrap().with_scan_states(held).unwrap();
        let part = part.part(place(0)).unwrap();
        let mut engine = ranks.open(part, gpu(), &opening).unwrap();
        work(&mut *engine);
        drop((engine, ranks));
        assert!(others.into_iter().all(|other| other.join().unwrap() == Ok(())));
    });
}

/// Scans with bfloat16 states: a sequence has half the memory, except for its convolutions' states.
fn states_in_bfloat16() {
    for name in ["granite-hybrid-mini", "bamba-mini", "nemotron-mini", "falcon-h1-mini"] {
        let [wide, narrow] = [StateType::F32, StateType::Bf16].map(|held| {
            let model = Model::random(&shape(name).unwrap(), 1).unwrap();
            let model = model.with_scan_states(held).unwrap();
            let states = model.architecture.layers.iter().map(|layer| layer.mixer.states());
            let values: u64 = states.map(|states| states.recurrent).sum();
            let device = backends::open(BackendKind::Cuda).unwrap();
            let capacity = Capacity { sequences: 10, tokens: 300 };
            let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
            run(&mut *engine).unwrap_or_else(|error| panic!("{name}: {error}"));
            come_and_go(&mut *engine).unwrap_or_else(|error| panic!("{name}: {error}"));
            (engine.bytes_of(0), values)
        });
        assert_eq!(wide.0 - narrow.0, 2 * narrow.1, "{name}");
    }
    let model = Model::random(&shape("granite-hybrid-mini").unwrap(), 1).unwrap();
    let model = model.with_scan_states(StateType::Bf16).unwrap();
    let capacity = Capacity { sequences: 1, tokens: 64 };
    let refused = open(model, backends::open(BackendKind::Cpu).unwrap(), Storage::Bf16, capacity);
    let words = "no engine holds recurrent states in bfloat16 on cpu";
    assert_eq!(refused.err().unwrap().to_string(), words);
}

/// Two ranks make the same calls together, with the required sizes.
fn split_in_two(name: &str, config: Config, held: StateType) {
    let whole = Model::random(&config, 1).unwrap().architecture;
    let capacity = Capacity { sequences: 10, tokens: 300 };
    split((&config, held), 2, (capacity, LargestStep { tokens: 400, logits: 10 }), |engine| {
        // If GPUs cannot share memory, their inboxes are freed.
        if std::env::var_os("FAKE_CUDA_SHARED").is_some() {
            check_predicted_memory(engine, capacity).unwrap();
        }
        run(engine).unwrap_or_else(|error| panic!("{name}: {error}"));
        come_and_go(engine).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Several contributions to a prompt's sum are float32 until it is complete; a single projection is bfloat16.
        if std::env::var_os("FAKE_CUDA_SHARED").is_some() {
            let narrowed = engine.device().launches().of("decoder.narrow").count > 0;
            let several = |layer: &architectures::Layer| {
                layer.experts.is_some()
                    || matches!(layer.mixer, Mixer::Parallel(_) | Mixer::Mamba1(_))
            };
            assert_eq!(narrowed, whole.layers.iter().any(several), "{name}");
        }
    });
    let path = std::env::var_os("FAKE_NCCL_CALLS").unwrap();
    let told = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let of = |rank: &str| -> Vec<&str> {
        told.lines().filter_map(|line| line.strip_prefix(rank)).collect()
    };
    let (calls, others) = (of("0 "), of("1 "));
    assert_eq!(calls, others, "{name}");
    // NCCL's warm-up, then one token of one sequence: an all-reduce after each mixer, whatever runs in parallel within
    // it, and after each feed-forward part, including the sum of squares of each split norm. With peer access a kernel
    // does sums this small.
    let by_kernel = std::env::var_os("FAKE_CUDA_SHARED").is_some();
    let sums = whole.layers.iter().flat_map(|layer| {
        // Mamba's low-rank step sizes, B and C are a separate all-reduce, always by NCCL.
        let within = match &layer.mixer {
            Mixer::Mamba1(of) => {
                let parts = [of.shape.rank, of.shape.state, of.shape.state];
                let count: usize = parts.iter().map(|width| width.next_multiple_of(8)).sum();
                Some(format!("all-reduce {count}"))
            }
            _ => None,
        };
        let spread = matches!(&layer.mixer, Mixer::Mamba2(of) if of.shape.groups == 1);
        let mixed = !matches!(layer.mixer, Mixer::None);
        let forward = layer.experts.is_some() || layer.mlp.is_some();
        let sums = [mixed.then_some(usize::from(spread)), forward.then_some(0)].into_iter();
        let sums = sums.flatten().filter(|_| !by_kernel);
        within.into_iter().chain(sums.map(|more| format!("all-reduce {}", whole.hidden + more)))
    });
    let first =
        ["init 2".to_owned(), "all-reduce 1024".to_owned(), "all-reduce 1048576".to_owned()];
    let expect: Vec<String> =
        first.into_iter().chain(sums).chain(["all-gather 256".to_owned()]).collect();
    assert_eq!(calls[..expect.len()], expect, "{name}");
    assert_eq!(calls.last(), Some(&"destroy 2"), "{name}");
}

/// The memory of a rank before its first step is the predicted one, with the ranks' exchange buffers.
fn check_predicted_memory(engine: &dyn Engine, capacity: Capacity) -> Result<(), ModelError> {
    let device = engine.device();
    let (kind, holding) = (engine_kind(device)?, holding(device, Storage::Bf16));
    let step = LargestStep { tokens: 0, logits: 0 };
    let predicted = kind.footprint(engine.architecture(), holding, capacity, step);
    let predicted = (predicted.peak() - predicted.graphs) as f64;
    let held = Cuda::of(device).unwrap().memory_use().live as f64;
    // Shared memory is one block, and blocks are multiples of 2 MiB.
    let most = 0.05 * held + f64::from(2 << 20);
    assert!((held - predicted).abs() <= most, "{predicted} of {held}");
    Ok(())
}

/// Whole prompts, chunks, batches of different lengths, single tokens, and tokens that the device chooses.
fn run(engine: &mut dyn Engine) -> Result<(), models::ModelError> {
    let vocabulary = engine.architecture().vocabulary;
    let ids: Vec<u32> = (0..200).map(|i| i * 7 % 512).collect();
    let step = |engine: &mut dyn Engine, batch: &Batch, wanted, rows: usize| {
        let logits = engine.step(batch, wanted)?;
        assert_eq!(logits.len(), rows * vocabulary);
        Ok::<(), models::ModelError>(())
    };
    step(engine, &Batch::new().with(0, &ids[..1]), LogitsSelection::Last, 1)?;
    step(engine, &Batch::new().with(1, &ids), LogitsSelection::Last, 1)?;
    step(engine, &Batch::new().with(1, &ids[..5]), LogitsSelection::Every, 5)?;
    assert_eq!(engine.score(&Batch::new().with(3, &ids[..5]), &ids[1..6], 3)?.len(), 5);
    engine.reset(3);
    let unequal = Batch::new().with(2, &ids[..37]).with(0, &ids[..3]).with(1, &ids[..1]);
    step(engine, &unequal, LogitsSelection::Last, 3)?;
    let single = Batch::new().with(2, &ids[..1]).with(1, &ids[1..2]);
    step(engine, &single, LogitsSelection::Last, 2)?;
    let plain = Sampling::default();
    let chosen = engine.choose(&single, &[Some(Choice::by(&plain)); 2], 11)?;
    assert_eq!(chosen.iter().map(|drawn| drawn.tokens.len()).collect::<Vec<_>>(), [11, 11]);
    assert_eq!([engine.len(0), engine.len(1), engine.len(2)], [4, 218, 49]);
    // One token of an unfinished prompt, with a sequence that has a token chosen.
    let chosen = engine.choose(&single, &[Some(Choice::by(&plain)), None], 1)?;
    assert_eq!(chosen.iter().map(|drawn| drawn.tokens.len()).collect::<Vec<_>>(), [1, 0]);
    assert_eq!([engine.len(0), engine.len(1), engine.len(2)], [4, 219, 50]);
    let biased = Sampling { logit_bias: vec![(1, 2.5), (5, -1.0)], ..plain.clone() };
    let chosen = engine.choose(&single, &[Some(Choice::by(&biased)), None], 1)?;
    assert_eq!(chosen.iter().map(|drawn| drawn.tokens.len()).collect::<Vec<_>>(), [1, 0]);
    // Starts where another one ends, without sharing its partly filled block.
    let free = engine.pages().free_blocks();
    engine.fork(2, 3, false)?;
    assert_eq!([engine.len(3), free - engine.pages().free_blocks()], [51, 1]);
    assert!(engine.keep(3));
    engine.reset(3);
    engine.reset(1);
    step(engine, &Batch::new().with(1, &ids[..64]), LogitsSelection::Last, 1)?;
    // Enough sequences that states are advanced in place, some with earlier tokens and some without.
    let many = (0..9).fold(Batch::new(), |batch, slot| batch.with(slot, &ids[..40]));
    step(engine, &many, LogitsSelection::Last, 9)?;
    // A captured size that is larger than the batch: the rest is padding, which has no output.
    for count in [3, 5, 9, 10] {
        let batch = (0..count).fold(Batch::new(), |batch, slot| batch.with(slot, &ids[..1]));
        step(engine, &batch, LogitsSelection::Last, count)?;
        assert_eq!(engine.choose(&batch, &vec![Some(Choice::by(&plain)); count], 9)?.len(), count);
    }
    (0..10).for_each(|slot| engine.reset(slot));
    // Hidden states of every token: of prompts, of single tokens, which are not captured then, and of both.
    let hidden = engine.architecture().hidden;
    let prompts = Batch::new().with(0, &ids[..37]).with(1, &ids[..3]);
    let tokens = Batch::new().with(0, &ids[..1]).with(1, &ids[..1]);
    let both = Batch::new().with(0, &ids[..1]).with(1, &ids[..5]);
    for batch in [prompts, tokens, both] {
        assert_eq!(
            engine.step(&batch, LogitsSelection::Hidden)?.len(),
            batch.tokens().len() * hidden
        );
    }
    (0..2).for_each(|slot| engine.reset(slot));
    Ok(())
}

/// Rows that kernels cannot read in some storage format: the model is refused when opened, not at its first step.
#[test]
fn unsupported_row_widths_are_refused_when_a_model_is_opened() {
    machine::launched("inputs_that_no_kernel_reads_are_refused_when_a_model_is_opened", || {
        let down = "model.layers.0.mlp.down_proj.weight";
        let of_experts = "model.layers.0.block_sparse_moe.output_linear.weight";
        for (name, inputs, narrow, expect) in [
            ("llama-mini", 254, None, None),
            ("llama-mini", 255, None, Some((down, 2))),
            ("llama-mini", 255, Some(QuantizedFormat::Int4), Some((down, 2))),
            ("granite-moe-mini", 260, None, Some((of_experts, 8))),
        ] {
            let config = shape(name).unwrap().with("intermediate_size", inputs.into());
            let config = narrow.map_or(Ok(config.clone()), |narrow| narrow.of(config)).unwrap();
            let device = backends::open(BackendKind::Cuda).unwrap();
            let capacity = Capacity { sequences: 1, tokens: 64 };
            let opened = open(Model::random(&config, 1).unwrap(), device, Storage::Bf16, capacity);
            let words = |(name, read)| {
                format!(
                    "tensor `{name}` has {inputs} inputs, expected a multiple of {read} on a GPU"
                )
            };
            let refused = match opened {
                Ok(mut engine) => {
                    engine.step(&Batch::new().with(0, &[1, 2]), LogitsSelection::Last).unwrap();
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            assert_eq!(refused, expect.map(words), "{name}");
        }
    });
}

#[test]
fn steps_are_captured_while_idle() {
    machine::launched("steps_are_recorded_before_somebody_waits", || {
        let model = Model::random(&shape("granite-hybrid-mini").unwrap(), 1).unwrap();
        let device = backends::open(BackendKind::Cuda).unwrap();
        let capacity = Capacity { sequences: 10, tokens: 300 };
        let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
        prepare_ahead(&mut *engine).unwrap();
    });
}

/// A request that joins a decoding sequence finds its step captured, and so does every request after idle time.
fn prepare_ahead(engine: &mut dyn Engine) -> Result<(), models::ModelError> {
    let budget = StepBudget {
        tokens: 400,
        max_mixed_tokens: 50,
        max_mixed_step: Duration::MAX,
        decode_steps_in_flight: 7,
    };
    let ids: Vec<u32> = (0..1200).map(|id| id % 512).collect();
    let mut scheduler = Scheduler::new(engine, budget);
    // The first one decodes immediately. The other's step has longer sequences, so its capture does not replace a
    // prefill step.
    scheduler.submit(request(&ids[..1]))?;
    scheduler.submit(request(&ids))?;
    for made in ["plan", "recording"] {
        scheduler.step()?;
        assert_eq!(scheduler.stepped(), 1, "a prompt was read during a {made}");
    }
    scheduler.step()?;
    assert!(scheduler.stepped() > 1);
    while !scheduler.is_idle() {
        scheduler.step()?;
    }
    // 1, 2, 4, 8 and 10 sequences of up to 1024 and 2048 tokens, each planned and captured, except for three of both
    // that exist already: each sequence alone, and both together.
    assert_eq!((0..).take_while(|_| scheduler.prepare()).count(), 2 * 2 * 5 - 6);
    drop(scheduler);
    for (sequences, tokens, new) in [(2, 1201, 0), (9, 64, 0), (10, 2048, 0), (5, 2049, 2)] {
        let made = (0..4).filter(|_| engine.prepare(sequences, tokens).unwrap()).count();
        assert_eq!(made, new, "{sequences} of {tokens}");
    }
    Ok(())
}

fn request(prompt: &[u32]) -> Request {
    Request {
        prompt: prompt.to_vec(),
        limit: 10,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        turn: false,
        bypass_cache: false,
        logits: LogitsOf::None,
    }
}

/// Requests that join, are swapped out and in, are cancelled and end.
fn come_and_go(engine: &mut dyn Engine) -> Result<(), models::ModelError> {
    let free = engine.pages().free_blocks();
    // The stand-in only ever chooses the first token.
    let budget = StepBudget {
        tokens: 4000,
        max_mixed_tokens: 500,
        max_mixed_step: Duration::MAX,
        decode_steps_in_flight: 1,
    };
    let mut scheduler = Scheduler::new(engine, budget);
    scheduler.set_swap_space(256 << 20)?;
    // Eight sequences of 380 tokens use nearly all blocks and soon need more.
    let ids: Vec<u32> = (0..380).collect();
    let request = |at: usize| request(&ids[..if at.is_multiple_of(5) { 1 } else { 380 }]);
    let submitted = (0..14).map(|at| scheduler.submit(request(at)));
    let submitted = submitted.collect::<Result<Vec<_>, _>>()?;
    let (mut steps, mut preempted, mut back, mut finished) = (0, 0, 0, 0);
    while !scheduler.is_idle() {
        for event in scheduler.step()? {
            preempted +=
                usize::from(matches!(event, SchedulerEvent::Preempted { saved: true, .. }));
            back += usize::from(matches!(event, SchedulerEvent::Begun { from_host: true, .. }));
            finished += usize::from(matches!(event, SchedulerEvent::Finished { .. }));
        }
        steps += 1;
        if steps == 3 {
            assert!(scheduler.cancel(submitted[5]));
        }
    }
    drop(scheduler);
    assert_eq!((finished, engine.pages().free_blocks()), (13, free));
    assert!(preempted > 0 && back > 0, "there were pages for all");
    Ok(())
}
