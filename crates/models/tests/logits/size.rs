//! Logits of the magnitude of trained models: a random head gives small ones, whose errors are small too.

use crate::subject::{Subject, advance, check, tokens};
use device::Isa;
use models::{Engine, Storage};

/// Compares logits with the oracle's, both divided by the oracle's root mean square.
fn check_at_unit_size(name: &str, got: &[f32], want: &[f64]) {
    let size = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
    let got: Vec<f32> = got.iter().map(|x| (f64::from(*x) / size) as f32).collect();
    let want: Vec<f64> = want.iter().map(|x| x / size).collect();
    check(name, &got, &want);
}

/// KDA's norm divides each head by its magnitude, however small: errors of its inputs grow by the same factor.
#[test]
fn kimi_logits_of_unit_size_are_within_tolerance() {
    let subject = Subject::draw(("kimi-linear-mini", &[]));
    let oracle = subject.oracle();
    for seed in 1..=3 {
        let tokens = tokens(seed, 257);
        let want = oracle.logits(&tokens);
        let check_on = |engine: &mut dyn Engine, pieces: &[usize], name: &str| {
            for piece in pieces {
                engine.reset(0);
                let got = advance(engine, 0, &tokens, *piece);
                check_at_unit_size(&format!("seed {seed} by {piece}{name}"), &got, &want);
            }
        };
        check_on(&mut *subject.engine(1), &[257, 100, 1], "");
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let device = backends::open(facts::BackendKind::Cpu).unwrap().limited_to(isa);
            let mut engine = subject.engine_on(device, Storage::F32, 1);
            check_on(&mut *engine, &[257], &format!(", {isa}"));
        }
    }
}
