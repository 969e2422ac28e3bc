//! The engine on GPUs plans, records and launches every kind of layer on a stand-in for the driver, which computes nothing
//! and refuses what a GPU would refuse: shapes, parameters and launches, not values.
#![cfg(target_os = "linux")] // The stand-in is found by the loader's path and built by the C compiler.
#![allow(clippy::unwrap_used)] // Helpers of tests may panic like tests.

#[path = "../../verify/tests/stand_in/machine.rs"]
mod machine;

use facts::BackendKind;
use models::{
    Batch, Capacity, Choice, Engine, Event, LogitsOf, Model, Narrow, Request, SHAPES, Sampling,
    Scheduler, StepBudget, Storage, Wanted, open, shape,
};
use std::time::Duration;

#[test]
fn layers_are_planned_and_launched() {
    let Some(launched) = machine::launched("layers_are_planned_and_launched", run_all) else {
        return;
    };
    let sources = kernels::decoder::bundled();
    for source in &sources {
        assert!(launched.contains(source.name()), "no model launches {}", source.name());
    }
    for op in
        ["linear", "ssd", "conv1d", "kda", "gated_delta", "attention", "moe", "rmsnorm", "sampling"]
    {
        assert!(launched.iter().any(|name| name.starts_with(op)), "no model launches {op}");
    }
}

fn run_all() {
    for name in SHAPES.iter().map(|shape| shape.name).filter(|name| name.ends_with("-mini")) {
        let model = Model::random(&shape(name).unwrap(), 1).unwrap();
        let device = device::open(BackendKind::Cuda).unwrap();
        let capacity = Capacity { sequences: 10, tokens: 300 };
        let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
        run(&mut *engine).unwrap_or_else(|error| panic!("{name}: {error}"));
        come_and_go(&mut *engine).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // Integers go to where kernels want them, experts to bfloat16.
    for (name, weights) in [("granite-moe-mini", Narrow::Int4), ("llama-mini", Narrow::Int8)] {
        let model = Model::random(&weights.of(shape(name).unwrap()).unwrap(), 1).unwrap();
        let device = device::open(BackendKind::Cuda).unwrap();
        let capacity = Capacity { sequences: 1, tokens: 64 };
        open(model, device, Storage::Bf16, capacity).unwrap();
    }
}

/// Whole prompts, pieces of them, unequal ones at once, single tokens, and tokens that the device chooses.
fn run(engine: &mut dyn Engine) -> Result<(), models::ModelError> {
    let vocabulary = engine.architecture().vocabulary;
    let ids: Vec<u32> = (0..200).map(|i| i * 7 % 512).collect();
    let step = |engine: &mut dyn Engine, batch: &Batch, wanted, rows: usize| {
        let logits = engine.step(batch, wanted)?;
        assert_eq!(logits.len(), rows * vocabulary);
        Ok::<(), models::ModelError>(())
    };
    step(engine, &Batch::new().with(0, &ids[..1]), Wanted::Last, 1)?;
    step(engine, &Batch::new().with(1, &ids), Wanted::Last, 1)?;
    step(engine, &Batch::new().with(1, &ids[..5]), Wanted::Every, 5)?;
    let unequal = Batch::new().with(2, &ids[..37]).with(0, &ids[..3]).with(1, &ids[..1]);
    step(engine, &unequal, Wanted::Last, 3)?;
    let single = Batch::new().with(2, &ids[..1]).with(1, &ids[1..2]);
    step(engine, &single, Wanted::Last, 2)?;
    let plain = Sampling::default();
    let chosen = engine.choose(&single, &[Some(Choice::by(&plain)); 2], 11)?;
    assert_eq!(chosen.iter().map(|drawn| drawn.tokens.len()).collect::<Vec<_>>(), [11, 11]);
    assert_eq!([engine.len(0), engine.len(1), engine.len(2)], [4, 218, 49]);
    engine.reset(1);
    step(engine, &Batch::new().with(1, &ids[..64]), Wanted::Last, 1)?;
    // So many that states are advanced where they lie, some with tokens before and some without.
    let many = (0..9).fold(Batch::new(), |batch, slot| batch.with(slot, &ids[..40]));
    step(engine, &many, Wanted::Last, 9)?;
    // A recorded size has room for more: what is over is padding, of which nothing comes out.
    for count in [3, 5, 9, 10] {
        let batch = (0..count).fold(Batch::new(), |batch, slot| batch.with(slot, &ids[..1]));
        step(engine, &batch, Wanted::Last, count)?;
        assert_eq!(engine.choose(&batch, &vec![Some(Choice::by(&plain)); count], 9)?.len(), count);
    }
    (0..10).for_each(|slot| engine.reset(slot));
    Ok(())
}

/// Requests that join, go to the host and come back, are cancelled and end.
fn come_and_go(engine: &mut dyn Engine) -> Result<(), models::ModelError> {
    let free = engine.pages().free_blocks();
    // What a stand-in chooses is no token.
    let budget = StepBudget { tokens: 4000, beside: 500, patience: Duration::MAX, ahead: 1 };
    let mut scheduler = Scheduler::new(engine, budget);
    scheduler.set_swap_space(256 << 20)?;
    // Eight of 380 tokens have nearly all blocks, and want more of them soon.
    let ids: Vec<u32> = (0..380).collect();
    let request = |at: usize| Request {
        prompt: ids[..if at.is_multiple_of(5) { 1 } else { 380 }].to_vec(),
        limit: 10,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        anew: false,
        logits: LogitsOf::None,
    };
    let submitted = (0..14).map(|at| scheduler.submit(request(at)));
    let submitted = submitted.collect::<Result<Vec<_>, _>>()?;
    let (mut steps, mut preempted, mut back, mut finished) = (0, 0, 0, 0);
    while !scheduler.is_idle() {
        for event in scheduler.step()? {
            preempted += usize::from(matches!(event, Event::Preempted { saved: true, .. }));
            back += usize::from(matches!(event, Event::Begun { from_host: true, .. }));
            finished += usize::from(matches!(event, Event::Finished { .. }));
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
