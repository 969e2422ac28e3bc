//! A split model gives the same results as an unsplit one. The ranks are threads here, each with its own thread pool:
//! one that waits must not block the others.

use crate::subject::{
    FALCON_NORMED, LFM2_BIASED, NEMOTRON_SUPER, SampledTokens, Subject, VOCABULARY, advance, check,
    tokens,
};
use device::Device;
use facts::BackendKind;
use models::{
    Batch, Capacity, Engine, GeneratedToken, GenerationControl, LargestStep, LogitsOf,
    LogitsSelection, ModelError, ModelSource, OpenRequest, Ranks, Request, Sampling, ShardRank,
    StepBudget, Storage, follow, generate,
};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Families with tensor parallelism, and the numbers of ranks.
const SPLIT: &[(SampledTokens<'static>, &[usize])] = &[
    (("granite-hybrid-mini", &[]), &[2, 4]),
    (("granite-moe-mini", &[("mamba_n_groups", "1")]), &[4]),
    (("granite-moe-mini", &[]), &[2]),
    (("kimi-linear-mini", &[]), &[2, 4]),
    (("qwen2-mini", &[]), &[2]),
    (("qwen3-moe-mini", &[]), &[2]),
    (("gpt-oss-mini", &[]), &[2]),
    (("falcon-h1-mini", &[]), &[2]),
    (("falcon-h1-mini", &[("mamba_n_heads", "8"), ("mamba_d_ssm", "128")]), &[4]),
    (("falcon-h1-mini", FALCON_NORMED), &[2]),
    (("lfm2-mini", &[]), &[2, 4]),
    (("lfm2-mini", LFM2_BIASED), &[4]),
    (("lfm2-moe-mini", &[]), &[2, 4]),
    (("nemotron-mini", NEMOTRON_SUPER), &[2]),
    (("bamba-mini", &[]), &[2]),
    (("mamba2-mini", &[]), &[2]),
    (("mamba-mini", &[]), &[2, 4]),
    (("falcon-mamba-mini", &[]), &[2]),
    (("jamba-mini", &[]), &[4]),
    (("qwen3-next-mini", &[]), &[2]),
    (("qwen3.5-moe-mini", &[]), &[2]),
];

fn cpu() -> Device {
    backends::open(BackendKind::Cpu).unwrap()
}

/// Families with pipeline parallelism, and the numbers of processes.
const STAGED: &[(SampledTokens<'static>, usize)] = &[
    (("granite-hybrid-mini", &[]), 2),
    (("kimi-linear-mini", &[]), 3),
    (("jamba-mini", &[]), 2),
    (("qwen3-next-mini", &[]), 2),
];

/// Runs `work` with a model split over this many ranks, by heads or by layers.
fn split(
    subject: &Subject,
    (count, layers): (usize, bool),
    work: impl FnOnce(&mut dyn Engine) + Send,
) {
    let (folder, name) = (subject.folder(), &subject.name);
    split_stored((folder, Storage::F32), (count, layers), |engine, [read, own, all]| {
        // A rank reads only its part; embeddings are read on demand.
        assert_eq!(read, own, "{name}");
        assert!(own < all * 3 / 4, "{name} reads {own} of {all}");
        work(engine);
    });
}

/// [`split`] for a folder or a file in a storage type; `work` gets the bytes that rank 0 has read, the predicted bytes,
/// and the bytes of all.
pub(crate) fn split_stored(
    (path, storage): (&Path, Storage),
    (count, layers): (usize, bool),
    work: impl FnOnce(&mut dyn Engine, [u64; 3]) + Send,
) {
    let pool = || rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        for rank in 1..count {
            scope.spawn(move || {
                let ranks = Ranks::join(at, ShardRank { rank, ranks: count }, b"word").unwrap();
                let end = pool().install(|| follow(&ranks, |_, _| Ok::<_, ModelError>(cpu())));
                end.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
            });
        }
        let within = Duration::from_secs(60);
        let ranks = Ranks::lead(&listener, count, b"word", within, Box::new(|_, _| None)).unwrap();
        pool().install(|| {
            let source = ModelSource::Folder(path.to_owned());
            let capacity = Capacity { sequences: 4, tokens: 300 };
            let step = LargestStep { tokens: 300, logits: 300 };
            let opening = OpenRequest::new(&source, BackendKind::Cpu, storage, (capacity, step));
            let whole = source.open().unwrap();
            let (opening, part) = match layers {
                true => (opening.by_layers(), whole.stage(ranks.place())),
                false => (opening, whole.part(ranks.place())),
            };
            let part = part.unwrap();
            let (all, read) = (part.checkpoint.bytes(), part.checkpoint.bytes_read());
            let own = part.bytes_to_load(&cpu());
            let mut engine = ranks.open(part, cpu(), &opening).unwrap();
            work(&mut *engine, [read.load(Ordering::Relaxed), own, all]);
        });
    });
}

/// Greedy token ids, chosen one by one.
fn greedy(engine: &mut dyn Engine) -> Vec<Vec<u32>> {
    let request = |seed, count| Request {
        prompt: tokens(seed, count),
        limit: 9,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        bypass_cache: false,
        turn: false,
        logits: LogitsOf::None,
    };
    let budget = StepBudget {
        tokens: 16,
        max_mixed_tokens: 16,
        max_mixed_step: Duration::MAX,
        decode_steps_in_flight: 4,
    };
    let requests = [request(5, 20), request(6, 3)];
    let generated =
        generate(engine, &requests, budget, |_: GeneratedToken<'_>| GenerationControl::More)
            .unwrap();
    generated.into_iter().map(|one| one.tokens).collect()
}

#[test]
fn tensor_parallel_logits_match() {
    for (drawn, counts) in SPLIT {
        let subject = Subject::draw(*drawn);
        let tokens = tokens(1, 140);
        let mut whole = subject.engine(4);
        let wide = |logits: Vec<f32>| -> Vec<f64> { logits.into_iter().map(f64::from).collect() };
        let want = wide(advance(&mut *whole, 0, &tokens, 140));
        let ids = greedy(&mut *subject.engine(4));
        for count in *counts {
            split(&subject, (*count, false), |engine| {
                let name = format!("{} over {count}", subject.name);
                for piece in [140, 33, 1] {
                    engine.reset(0);
                    let len = if piece == 1 { 21 } else { 140 };
                    let got = advance(engine, 0, &tokens[..len], piece);
                    check(&format!("{name}, pieces of {piece}"), &got, &want[..len * VOCABULARY]);
                }
                // With other sequences, one of which starts where it ended.
                engine.reset(0);
                advance(engine, 0, &tokens[..64], 64);
                engine.fork(0, 2, false).unwrap();
                let batch = Batch::new().with(2, &tokens[64..70]).with(1, &tokens[..5]);
                let got =
                    engine.step(&batch.with(0, &tokens[64..65]), LogitsSelection::Last).unwrap();
                let ends = [69, 4, 64].map(|at| &want[at * VOCABULARY..][..VOCABULARY]).concat();
                check(&format!("{name}, in a batch"), &got, &ends);
                // A sequence restored from the host, whose copy must not be overwritten.
                let saved = engine.save(2).unwrap();
                assert_eq!((saved.tokens(), saved.bytes()), (70, engine.bytes_to_save(70)));
                engine.reset(2);
                advance(engine, 2, &tokens[..30], 30);
                let refused = engine.restore(&saved, 2).unwrap_err().to_string();
                assert_eq!(refused, "slot 2 is not empty");
                engine.reset(2);
                engine.restore(&saved, 2).unwrap();
                drop(saved);
                let got =
                    engine.step(&Batch::new().with(2, &tokens[70..75]), LogitsSelection::Last);
                check(
                    &format!("{name}, restored"),
                    &got.unwrap(),
                    &want[74 * VOCABULARY..][..VOCABULARY],
                );
                // An error that all ranks return blocks none of them.
                let error = engine.step(&Batch::new().with(3, &[1; 2000]), LogitsSelection::Last);
                assert!(error.unwrap_err().to_string().starts_with("the cache has"));
                (0..3).for_each(|slot| engine.reset(slot));
                assert_eq!(greedy(engine), ids, "{name}");
            });
        }
    }
}

#[test]
fn pipeline_parallel_logits_match() {
    for (drawn, count) in STAGED {
        let subject = Subject::draw(*drawn);
        let tokens = tokens(1, 140);
        let mut whole = subject.engine(4);
        let want = advance(&mut *whole, 0, &tokens, 140);
        let ids = greedy(&mut *subject.engine(4));
        split(&subject, (*count, true), |engine| {
            let name = format!("{} in {count} stages", subject.name);
            // The same arithmetic in other processes gives the same bits.
            assert!(advance(engine, 0, &tokens, 140) == want, "{name}");
            engine.reset(0);
            let wide: Vec<f64> = want.iter().copied().map(f64::from).collect();
            check(&format!("{name}, in pieces"), &advance(engine, 0, &tokens, 33), &wide);
            let batch = Batch::new().with(1, &tokens[..5]).with(2, &tokens[..9]);
            let got = engine.step(&batch, LogitsSelection::Last).unwrap();
            let ends = [4, 8].map(|at| &wide[at * VOCABULARY..][..VOCABULARY]).concat();
            check(&format!("{name}, in a batch"), &got, &ends);
            let error = engine.step(&Batch::new().with(3, &[1; 2000]), LogitsSelection::Last);
            assert!(error.unwrap_err().to_string().starts_with("the cache has"));
            (0..3).for_each(|slot| engine.reset(slot));
            assert_eq!(greedy(engine), ids, "{name}");
        });
    }
}
