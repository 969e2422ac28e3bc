//! Peers that cheat or break, each as a small Python module: none of their rows may pass, and none may end the run.

mod loading;
mod tuning;

use facts::{BackendKind, ParityRow, Status};
use ops::{DType, Settings, Tensor, TensorMap};
use std::path::{Path, PathBuf};
use std::time::Duration;
use verify::{
    Case, GenerationCase, MatrixPlan, ModelCase, Peer, Peers, ProcessLimits, Python, SampledCall,
    Session, TensorRng, Tier, admit_generation, admit_peer, cases, judge_model, load_peer_case,
    matrix, run_case,
};

fn fakes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/fakes")
}

fn session(time: Duration) -> Session {
    session_over(&[], time)
}

/// A session that searches these folders for packages first.
fn session_over(folders: &[PathBuf], time: Duration) -> Session {
    let limits = ProcessLimits { time, memory_bytes: 600 << 20 };
    let paths = folders.iter().cloned().chain([fakes()]).collect();
    let python = Python { interpreter: PathBuf::from("python3"), paths, limits };
    Session::start(python).expect("the tests of peers need python3 on PATH")
}

/// A call of attention with more keys than queries, which distinguishes causal alignments.
fn draw(queries: usize, keys: usize) -> (TensorMap, Settings) {
    let mut draw = TensorRng::named("peers");
    let mut tensor = |tokens, heads| draw.normals(&[1, tokens, heads, 8], DType::F32, 1.0);
    let tensors = [("q", tensor(queries, 2)), ("k", tensor(keys, 1)), ("v", tensor(keys, 1))];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));
    (TensorMap::from(tensors), Settings::new().with("causal", true))
}

fn case(queries: usize, keys: usize) -> Case {
    Case {
        op: "attention",
        name: format!("fake/tq{queries}-tk{keys}"),
        dtype: DType::F32,
        tier: Tier::Quick,
        property: None,
        build: Box::new(move || draw(queries, keys)),
    }
}

/// The rows of these functions, in one session and in order.
fn rows(session: &mut Session, case: &Case, functions: &[&str]) -> Vec<ParityRow> {
    let named =
        |function: &&str| Peer::function(&format!("attention={function}")).expect("a function");
    let peers: Vec<Peer> = functions.iter().map(named).collect();
    let device = backends::open(BackendKind::Cpu).expect("the processor is always here");
    let mut rows = Vec::new();
    let mut peers = Peers { session, peers: &peers, backend: BackendKind::Cpu, budget: None };
    run_case(case, &device, false, Some(&mut peers), &mut |row| rows.push(row));
    let native = rows.remove(0);
    assert_eq!((native.status, native.peer), (Status::Pass, None));
    rows
}

/// Each function with its expected status and the beginning of its reason.
fn check(session: &mut Session, case: &Case, expect: &[(&str, Status, &str)]) {
    let functions: Vec<&str> = expect.iter().map(|(function, ..)| *function).collect();
    let rows = rows(session, case, &functions);
    assert_eq!(rows.len(), expect.len());
    for (row, (function, status, reason)) in rows.iter().zip(expect) {
        assert_eq!(row.status, *status, "{function}: {row:?}");
        assert!(row.reason.starts_with(reason), "{function}: {row:?}");
        assert!(row.peer.is_some(), "{function}");
        if *status == Status::Pass {
            assert!(
                row.launches > 0 && row.rel_err.is_some() && !row.evidence.is_empty(),
                "{row:?}"
            );
            assert_eq!(row.reason, "");
        } else {
            assert!(!row.reason.is_empty(), "{function}: {row:?}");
        }
    }
}

#[test]
fn wrong_results_fail_and_correct_ones_pass() {
    use Status::{Fail, Pass};
    let mut session = session(Duration::from_secs(60));
    check(
        &mut session,
        &case(5, 9),
        &[
            ("right:attention", Pass, ""),
            ("right:named_and_wrapped", Pass, ""),
            ("cheats:cached", Fail, "relative error"),
            ("cheats:for_seed_0", Fail, "relative error"),
            ("cheats:unvisited_tiles", Fail, "relative error"),
            ("cheats:top_left", Fail, "relative error"),
            ("cheats:says_pass", Fail, "relative error"),
            ("cheats:noisy", Pass, ""),
            ("cheats:vandal", Pass, ""),
            // The inputs are unchanged after a peer that overwrites them.
            ("right:attention", Pass, ""),
            ("cheats:raises", Fail, "ValueError: head dim 8 is not supported"),
            ("cheats:exits", Fail, "SystemExit: 0"),
            ("cheats:no_output", Fail, "output `o` is missing"),
            ("cheats:nothing", Fail, "output `o` is missing"),
            ("cheats:wrong_shape", Fail, "output `o` has shape [80], expected [1, 5, 2, 8]"),
            ("cheats:wrong_type", Fail, "TypeError: output `o` has format i, expected f"),
            ("cheats:impossible_clock", Pass, ""),
        ],
    );
    // A decoding step with a top-left mask, and rows without a visible key.
    check(&mut session, &case(1, 7), &[("cheats:top_left", Fail, "relative error")]);
    check(
        &mut session,
        &case(6, 3),
        &[
            (
                "cheats:nan_rows",
                Fail,
                "output `o` is NaN (not written, or computed as NaN) at element 0",
            ),
            ("right:attention", Pass, ""),
        ],
    );
}

#[test]
fn r4_11_a_flash_kernel_must_have_run_and_not_only_been_called_flash() {
    use Status::{Fail, Fallback, Pass};
    let mut session = session(Duration::from_secs(60));
    check(
        &mut session,
        &case(3, 3),
        &[
            ("right:attention@right.attention", Pass, ""),
            (
                "fake_flash_attn:flash_attn_func@flash_fwd",
                Fallback,
                "none of its kernels ran (expected flash_fwd), but fake_flash_attn.flash_attn_func x1, right.attention x1",
            ),
            ("fake_flash_attn:flash_fwd_kernel@flash_fwd", Pass, ""),
            // Last, because the profiler sees nothing in this process afterwards.
            ("blind:attention", Fail, "nothing was seen to run"),
        ],
    );
    let rows = rows(&mut session, &case(3, 3), &["fake_flash_attn:flash_attn_func@flash_fwd"]);
    assert!(rows[0].rel_err.is_some_and(|error| error < 1e-6), "right, and no pass: {:?}", rows[0]);
    assert_eq!(rows[0].launches, 0);
}

#[test]
fn r4_10_a_path_that_falls_back_below_a_length_passes_above_it_alone() {
    let mut session = session(Duration::from_secs(60));
    let function = "fake_flash_attn:falls_back_below_512@flash_fwd";
    let reason = "none of its kernels ran (expected flash_fwd), but";
    check(&mut session, &case(96, 2), &[(function, Status::Fallback, reason)]);
    check(&mut session, &case(512, 2), &[(function, Status::Pass, "")]);
}

#[test]
fn r4_12_a_named_function_that_cannot_be_loaded_fails_and_one_that_skips_is_skipped() {
    let mut session = session(Duration::from_secs(60));
    let missing = "ModuleNotFoundError: No module named 'not_installed'";
    let no_function = "module `cheats` has no `not_there`";
    let skipped = "the peer skipped itself: needs a Hopper GPU";
    check(
        &mut session,
        &case(2, 2),
        &[
            ("not_installed:f", Status::Fail, missing),
            ("cheats:not_there", Status::Fail, no_function),
            ("cheats:skips", Status::Skip, skipped),
        ],
    );
}

#[test]
fn broken_process_is_a_result_and_the_next_peer_gets_a_new_one() {
    use Status::{Fail, Pass};
    // Long limits where none is tested: a busy machine takes seconds to start an interpreter.
    let mut patient = session(Duration::from_secs(120));
    check(
        &mut patient,
        &case(2, 3),
        &[
            (
                "cheats:crashes",
                Fail,
                "the Python process was killed by signal 11: about to touch address 0",
            ),
            ("right:attention", Pass, ""),
            ("cheats:ends", Fail, "the Python process ended with status 0"),
            ("right:attention", Pass, ""),
            ("cheats:eats_memory", Fail, "took 0."),
            ("right:attention", Pass, ""),
            ("cheats:garbage_everywhere", Fail, "answered `PASS`, which is no answer"),
            ("right:attention", Pass, ""),
        ],
    );
    let mut impatient = session(Duration::from_secs(10));
    check(
        &mut impatient,
        &case(2, 3),
        &[
            ("cheats:hangs", Fail, "no answer within 10 s; the process was killed"),
            ("right:attention", Pass, ""),
        ],
    );
}

#[test]
fn only_passed_and_unchanged_kernels_are_timed() {
    let mut session = session(Duration::from_secs(60));
    let (inputs, settings) = draw(4, 4);
    let op = ops::op("attention").unwrap();
    let call = op.bind(&inputs, &settings).unwrap();
    let given = (&inputs, &settings);
    load_peer_case(&mut session, &call, given, BackendKind::Cpu).unwrap();
    let admit = |session: &mut Session, function: &str| {
        let peer = Peer::function(&format!("attention={function}")).expect("a function");
        let backend = BackendKind::Cpu;
        admit_peer(session, &peer, &call, &mut SampledCall::of(op, given, 7), backend)
    };
    for (function, status) in [
        ("cheats:cached", Status::Fail),
        ("cheats:skips", Status::Skip),
        ("fake_flash_attn:flash_attn_func@flash_fwd", Status::Fallback),
        ("not_installed:f", Status::Fail),
    ] {
        let refused = admit(&mut session, function).unwrap_err();
        assert_eq!(refused.status, status, "{function}: {refused:?}");
    }
    let right = admit(&mut session, "right:attention@right.attention").unwrap();
    let (samples, replays) = right.time(&mut session, Duration::from_millis(5), 3, 20).unwrap();
    assert!(samples.len() >= 3 && samples.iter().all(|millis| *millis > 0.0), "{samples:?}");
    assert_eq!(replays, 1, "nothing is recorded on the processor");
    right.confirm(&mut session).unwrap();

    let tiring = admit(&mut session, "cheats:tires@own_work").unwrap();
    tiring.time(&mut session, Duration::from_millis(5), 5, 0).unwrap();
    let lost = tiring.confirm(&mut session).unwrap_err();
    assert!(
        lost.reason.starts_with("after its timing none of its kernels ran (expected own_work)"),
        "{lost:?}"
    );

    // A clock that jumps, even the harness's own, is not accepted.
    let jumping = admit(&mut session, "cheats:jumping_clock").unwrap();
    let untrue = jumping.time(&mut session, Duration::from_millis(5), 3, 0).unwrap_err();
    assert!(untrue.reason.starts_with("its clock says "), "{untrue:?}");

    // A peer that ends the process also ends the others' measurements.
    assert_eq!(admit(&mut session, "cheats:ends").unwrap_err().status, Status::Fail);
    let again = admit(&mut session, "right:attention").unwrap();
    let gone = right.time(&mut session, Duration::from_millis(5), 3, 0).unwrap_err();
    let why = "the process that held it is gone";
    assert_eq!((gone.status, gone.reason.as_str()), (Status::NotRun, why));
    assert!(again.time(&mut session, Duration::from_millis(5), 3, 0).is_ok());
}

#[test]
fn r2_08_a_model_passes_by_its_own_kernels_and_the_given_logits() {
    use Status::{Fail, Fallback, NotApplicable, Pass};
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("weights"), "0.5").unwrap();
    let ids = [3, 1, 4, 1, 5, 9, 2, 6];
    let mut total = 0;
    let mut values = Vec::new();
    for id in ids {
        total += id;
        values.extend((0..8).map(|word| 0.5 + ((total * (word + 3)) % 11) as f32));
    }
    let logits = Tensor::new(&[ids.len(), 8], values);
    let case = ModelCase {
        name: "fake/t8",
        model_type: "granitemoehybrid",
        folder: folder.path(),
        dtype: DType::F32,
        ids: &ids,
        logits: &logits,
        tolerance: 1e-4,
    };
    let mut session = session(Duration::from_secs(60));
    let expect = [
        ("language_models:right", Pass, ""),
        ("language_models:cached", Fail, "relative error"),
        ("language_models:forgets", Fail, "relative error"),
        ("language_models:slow_path@fast_path", Fallback, "none of its kernels ran"),
        ("language_models:last_only", Fail, "output `logits` has shape [1, 8], expected [8, 8]"),
        ("not_installed:f", Fail, "ModuleNotFoundError"),
        // Without a driver, peers that need a GPU do not apply.
        ("language_models:without_driver", NotApplicable, "it needs a GPU: "),
        ("language_models:raises", Fail, "RuntimeError: the scan is out of range"),
    ];
    let mut peers: Vec<Peer> = expect
        .iter()
        .map(|(function, ..)| Peer::function(&format!("model={function}")).expect("a function"))
        .collect();
    // Only the listed peer of this model type runs.
    peers.extend(Peer::listed(&["transformers".to_owned()]));
    let backend = BackendKind::Cpu;
    let mut peers = Peers { session: &mut session, peers: &peers, backend, budget: None };
    let rows = judge_model(&mut peers, &case);
    for (row, (function, status, reason)) in rows.iter().zip(&expect) {
        assert_eq!(row.status, *status, "{function}: {row:?}");
        assert!(row.reason.starts_with(reason), "{function}: {row:?}");
        assert_eq!((row.op.as_str(), row.case.as_str(), row.tolerance), ("model", "fake/t8", 1e-4));
    }
    assert_eq!(rows.len(), expect.len() + 1);
    let listed = &rows[expect.len()];
    assert_eq!(listed.variant, "transformers.granitemoehybrid");
    let why = "transformers is not installed in this environment";
    assert_eq!((listed.status, listed.reason.as_str()), (Fail, why));
}

/// Logits by the stand-ins' formula, after each generated token of each prompt.
fn logits_after(prompts: &[Vec<i32>], chosen: &[i32], tokens: usize) -> Tensor {
    let mut values = Vec::new();
    for step in 0..tokens {
        for (place, prompt) in prompts.iter().enumerate() {
            let added = (0..step).map(|step| chosen[step * prompts.len() + place]);
            let sum: i32 = prompt.iter().copied().chain(added).sum();
            values.extend((0..8).map(|word| ((sum * (word + 3)) % 11) as f32 + word as f32 / 16.0));
        }
    }
    Tensor::new(&[tokens, prompts.len(), 8], values)
}

#[test]
fn r2_09_generation_is_timed_by_its_ids_after_its_logits_passed() {
    use Status::{Fail, Fallback, Pass};
    let prompts = [vec![3, 1, 4, 1, 5], vec![2, 7, 1, 8, 2]];
    let ids = Tensor::new(&[2, 5], prompts.concat());
    let nowhere = tempfile::tempdir().unwrap();
    let case = GenerationCase {
        name: "fake/tg6",
        folder: nowhere.path(),
        backend: BackendKind::Cpu,
        dtype: DType::F32,
        ids: &ids,
        new_tokens: 3,
        vocabulary: 8,
        tolerance: 1e-4,
    };
    let mut session = session(Duration::from_secs(60));
    let mut check = |function: &str, (status, reason): (Status, &str), timed: Result<(), &str>| {
        let peer = Peer::function(&format!("model={function}")).expect("a function");
        let mut expected = |chosen: &[i32]| Ok(logits_after(&prompts, chosen, 3));
        let (row, verified) = admit_generation(&mut session, &peer, &case, &mut expected);
        assert_eq!(row.status, status, "{function}: {row:?}");
        assert!(row.reason.starts_with(reason), "{function}: {row:?}");
        let Some(verified) = verified else {
            assert_eq!(timed, Err("never"), "{function} may not be timed");
            return;
        };
        assert_eq!(verified.status(), status);
        assert!(verified.first_millis() > 0.0);
        match (verified.time(&mut session, 6, 2), timed) {
            (Ok(times), Ok(())) => {
                assert!(times.len() == 2 && times.iter().all(|run| 0.0 < run.first), "{times:?}");
                assert!(times.iter().all(|run| run.first < run.last), "{times:?}");
            }
            (got, want) => {
                let got = got.map(|_| ());
                assert_eq!(got, want.map_err(str::to_owned), "{function}");
            }
        }
    };
    check("generators:greedy@generators.greedy", (Pass, ""), Ok(()));
    // Correct by other code than named: its time is shown under this name only.
    check("generators:slow_path@fast_path", (Fallback, "none of its kernels ran"), Ok(()));
    check("generators:samples", (Fail, "token 0 is "), Err("never"));
    check("generators:other_prompt", (Fail, "relative error"), Err("never"));
    check("generators:not_there", (Fail, "module `generators` has no"), Err("never"));
    // Ids are counted, not pieces of text.
    let pieces = "12 ids came in 3 steps, expected 2 in each of 6";
    check("generators:text_chunks", (Pass, ""), Err(pieces));
    check("generators:stops", (Pass, ""), Err("6 ids came in 3 steps, expected 2 in each of 6"));
    check("generators:silent", (Pass, ""), Err("0 ids came in 0 steps, expected 2 in each of 6"));

    // Times of an ended process are not accepted.
    let peer = Peer::function("model=generators:greedy").unwrap();
    let mut expected = |chosen: &[i32]| Ok(logits_after(&prompts, chosen, 3));
    let (_, verified) = admit_generation(&mut session, &peer, &case, &mut expected);
    session.restart();
    assert!(admit_generation(&mut session, &peer, &case, &mut expected).1.is_some());
    let gone = verified.unwrap().time(&mut session, 6, 1).unwrap_err();
    assert_eq!(gone, "the process that held it is gone");
}

#[test]
fn slow_and_hanging_peers_delay_neither_others_nor_the_row_order() {
    let functions = [
        "rmsnorm=cheats:slow",
        "rmsnorm=cheats:raises",
        "linear=cheats:hangs",
        "linear=cheats:raises",
    ];
    let named = |function: &&str| Peer::function(function).expect("a function");
    let mut peers: Vec<Peer> = functions.iter().map(named).collect();
    peers.extend(Peer::listed(&["fla.rms_norm_gated".to_owned()]));
    let (backend, budget) = (BackendKind::Cpu, Some(Duration::from_secs(3)));
    let mut session = session(Duration::from_secs(10));
    let plan = MatrixPlan {
        ops: vec!["rmsnorm".to_owned(), "linear".to_owned()],
        backends: vec![backend],
        tier: Tier::Quick,
        all_variants: false,
        until: None,
    };
    let (alone, _) = matrix(&plan, None, |_| ());
    let peers = Peers { session: &mut session, peers: &peers, backend, budget };
    let mut seen = 0;
    let (report, _) = matrix(&plan, Some(&peers), |_| seen += 1);
    assert_eq!(seen, report.rows.len());
    let key = |row: &ParityRow| {
        (row.op.clone(), row.case.clone(), row.dtype.clone(), row.variant.clone())
    };
    let native: Vec<_> = report.rows.iter().filter(|row| row.peer.is_none()).map(key).collect();
    assert_eq!(native, alone.rows.iter().map(key).collect::<Vec<_>>());
    // Rows of an op's peers follow the native ones of each case, in the order of the peers. Properties of several runs
    // are only tested for native kernels.
    let of_peers = |case: &Case| case.tier == Tier::Quick && case.property.is_none();
    let listed: Vec<_> = cases("rmsnorm").into_iter().filter(of_peers).collect();
    let of = |variant: &str| -> Vec<&ParityRow> {
        report.rows.iter().filter(|row| row.variant == variant).collect()
    };
    let slow = of("cheats:slow");
    let names = |rows: &[&ParityRow]| -> Vec<_> {
        rows.iter().map(|row| (row.case.clone(), row.dtype.clone())).collect()
    };
    let wanted: Vec<_> =
        listed.iter().map(|case| (case.name.clone(), case.dtype.to_string())).collect();
    assert_eq!(names(&slow), wanted);
    for case in &listed {
        let of_case = report.rows.iter().filter(|row| {
            row.op == "rmsnorm" && (&row.case, &row.dtype) == (&case.name, &case.dtype.to_string())
        });
        let variants: Vec<&str> = of_case.skip(1).map(|row| row.variant.as_str()).collect();
        assert_eq!(variants, ["cheats:slow", "cheats:raises", "fla.rms_norm_gated"], "{case:?}");
    }
    // It runs until its time limit; the remaining cases are not run and do not pass.
    let (left, asked): (Vec<&ParityRow>, Vec<&ParityRow>) =
        slow.iter().partition(|row| row.status == Status::NotRun);
    assert!(!asked.is_empty() && left.len() > asked.len(), "{} asked", asked.len());
    assert!(asked.iter().all(|row| row.status == Status::Fail), "{asked:?}");
    let checks = if asked.len() == 1 { "check" } else { "checks" };
    let after = format!("{} {checks}", asked.len());
    let spent = format!("the 3 s for this peer were spent after {after}");
    for row in left {
        assert_eq!((row.status, &row.reason), (Status::NotRun, &spent), "{row:?}");
    }
    // The one that hangs is killed on its first call, and the next peer runs every case.
    let hangs = of("cheats:hangs");
    let killed = hangs.iter().filter(|row| row.reason.starts_with("no answer within 10 s"));
    assert_eq!(killed.count(), 1);
    let rest: Vec<_> = hangs.iter().filter(|row| row.status != Status::NotRun).collect();
    assert!(rest.len() == 1, "{rest:?}");
    let neighbours = of("cheats:raises");
    assert!(
        neighbours.len() > listed.len()
            && neighbours.iter().all(|row| {
                row.status == Status::Fail && row.reason.starts_with("ValueError: head dim 8")
            })
    );
    // It was named but is not installed.
    for row in of("fla.rms_norm_gated") {
        let why = "fla is not installed in this environment";
        assert_eq!((row.status, row.reason.as_str()), (Status::Fail, why));
    }
}
