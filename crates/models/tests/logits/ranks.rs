//! A model split over ranks gives what one rank gives. The ranks are threads here, each with threads of its own for its rows: one
//! that waits for the others must keep none of them waiting.

use crate::subject::{
    Drawn, FALCON_NORMED, LFM2_BIASED, NEMOTRON_SUPER, Subject, VOCABULARY, advance, check, tokens,
};
use device::Device;
use facts::BackendKind;
use models::{
    Batch, Capacity, Chosen, Engine, LargestStep, LogitsOf, ModelError, ModelSource, Next, Opening,
    Place, Ranks, Request, Sampling, StepBudget, Storage, Wanted, follow, generate,
};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Families with a rule, and over how many ranks.
const SPLIT: &[(Drawn<'static>, &[usize])] = &[
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
    device::open(BackendKind::Cpu).unwrap()
}

/// Families whose layers are shared out, and over how many processes.
const STAGED: &[(Drawn<'static>, usize)] = &[
    (("granite-hybrid-mini", &[]), 2),
    (("kimi-linear-mini", &[]), 3),
    (("jamba-mini", &[]), 2),
    (("qwen3-next-mini", &[]), 2),
];

/// Runs `work` with a model that is split over so many ranks, by its heads or by its layers.
fn split(
    subject: &Subject,
    (count, layers): (usize, bool),
    work: impl FnOnce(&mut dyn Engine) + Send,
) {
    let (folder, name) = (subject.folder(), &subject.name);
    split_stored((folder, Storage::F32), (count, layers), |engine, [read, own, all]| {
        // What this rank has is all that it reads; embeddings come when tokens want them.
        assert_eq!(read, own, "{name}");
        assert!(own < all * 3 / 4, "{name} reads {own} of {all}");
        work(engine);
    });
}

/// The same of a folder or a file in a storage type; `work` is told what rank 0 has read, what was said that it would, and the bytes of all.
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
                let ranks = Ranks::join(at, Place { rank, ranks: count }, b"word").unwrap();
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
            let opening = Opening::new(&source, BackendKind::Cpu, storage, (capacity, step));
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

/// Token ids that are chosen one by one.
fn greedy(engine: &mut dyn Engine) -> Vec<Vec<u32>> {
    let request = |seed, count| Request {
        prompt: tokens(seed, count),
        limit: 9,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        anew: false,
        turn: false,
        logits: LogitsOf::None,
    };
    let budget = StepBudget { tokens: 16, beside: 16, patience: Duration::MAX, ahead: 4 };
    let requests = [request(5, 20), request(6, 3)];
    let generated = generate(engine, &requests, budget, |_: Chosen<'_>| Next::More).unwrap();
    generated.into_iter().map(|one| one.tokens).collect()
}

#[test]
fn a_split_model_gives_the_logits_of_a_whole_one() {
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
                // Beside others, of whom one begins where it ended.
                engine.reset(0);
                advance(engine, 0, &tokens[..64], 64);
                engine.fork(0, 2, false).unwrap();
                let batch = Batch::new().with(2, &tokens[64..70]).with(1, &tokens[..5]);
                let got = engine.step(&batch.with(0, &tokens[64..65]), Wanted::Last).unwrap();
                let ends = [69, 4, 64].map(|at| &want[at * VOCABULARY..][..VOCABULARY]).concat();
                check(&format!("{name}, in a batch"), &got, &ends);
                // And where one goes on that was on the host, on which nobody writes over it.
                let saved = engine.save(2).unwrap();
                assert_eq!((saved.tokens(), saved.bytes()), (70, engine.bytes_to_save(70)));
                engine.reset(2);
                advance(engine, 2, &tokens[..30], 30);
                let refused = engine.restore(&saved, 2).unwrap_err().to_string();
                assert_eq!(refused, "slot 2 is not empty");
                engine.reset(2);
                engine.restore(&saved, 2).unwrap();
                drop(saved);
                let got = engine.step(&Batch::new().with(2, &tokens[70..75]), Wanted::Last);
                check(
                    &format!("{name}, restored"),
                    &got.unwrap(),
                    &want[74 * VOCABULARY..][..VOCABULARY],
                );
                // What all refuse alike keeps nobody.
                let error = engine.step(&Batch::new().with(3, &[1; 2000]), Wanted::Last);
                assert!(error.unwrap_err().to_string().starts_with("the cache has"));
                (0..3).for_each(|slot| engine.reset(slot));
                assert_eq!(greedy(engine), ids, "{name}");
            });
        }
    }
}

#[test]
fn a_model_whose_layers_are_shared_out_gives_the_logits_of_a_whole_one() {
    for (drawn, count) in STAGED {
        let subject = Subject::draw(*drawn);
        let tokens = tokens(1, 140);
        let mut whole = subject.engine(4);
        let want = advance(&mut *whole, 0, &tokens, 140);
        let ids = greedy(&mut *subject.engine(4));
        split(&subject, (*count, true), |engine| {
            let name = format!("{} in {count} stages", subject.name);
            // The same arithmetic in other processes: the same bits.
            assert!(advance(engine, 0, &tokens, 140) == want, "{name}");
            engine.reset(0);
            let wide: Vec<f64> = want.iter().copied().map(f64::from).collect();
            check(&format!("{name}, in pieces"), &advance(engine, 0, &tokens, 33), &wide);
            let batch = Batch::new().with(1, &tokens[..5]).with(2, &tokens[..9]);
            let got = engine.step(&batch, Wanted::Last).unwrap();
            let ends = [4, 8].map(|at| &wide[at * VOCABULARY..][..VOCABULARY]).concat();
            check(&format!("{name}, in a batch"), &got, &ends);
            let error = engine.step(&Batch::new().with(3, &[1; 2000]), Wanted::Last);
            assert!(error.unwrap_err().to_string().starts_with("the cache has"));
            (0..3).for_each(|slot| engine.reset(slot));
            assert_eq!(greedy(engine), ids, "{name}");
        });
    }
}
