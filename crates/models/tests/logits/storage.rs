//! bfloat16 weights and caches: the error of logits due to rounding.

use crate::subject::{SUBJECTS, Subject, advance, tokens};
use device::Isa;
use facts::BackendKind;
use models::Storage;

#[test]
fn bfloat16_keeps_logits_within_two_percent() {
    for (name, changes) in SUBJECTS {
        // With nearly equal scores, rounding decides which expert a token is routed to: here it is routed to all.
        let every: &[_] = match *name {
            "qwen3-moe-mini" | "qwen3-next-mini" | "qwen3.5-moe-mini" | "nemotron-mini"
            | "lfm2-moe-mini" | "gpt-oss-mini" | "jamba-mini" => &[("num_experts_per_tok", "8")],
            "kimi-linear-mini" => &[("num_experts_per_token", "8")],
            _ => &[],
        };
        let subject = Subject::draw((name, &[changes, every].concat()));
        let tokens = tokens(4, 100);
        let want = subject.oracle().logits(&tokens);
        let device = backends::open(BackendKind::Cpu).unwrap();
        // Other CPUs multiply bfloat16 weights, which random models store exactly, in float32.
        let rounds = device.capabilities().isas.contains(&Isa::Avx512Bf16);
        let mut engine = subject.engine_on(device, Storage::Bf16, 1);
        let mut got = advance(&mut *engine, 0, &tokens[..90], 90);
        got.extend(advance(&mut *engine, 0, &tokens[90..], 1));
        let off = got.iter().zip(&want).map(|(got, want)| (f64::from(*got) - want).powi(2));
        let error = (off.sum::<f64>() / want.iter().map(|want| want * want).sum::<f64>()).sqrt();
        assert!(error < 2e-2, "{}: relative error {error:.2e}", subject.name);
        // A smaller error would mean that nothing was rounded to bfloat16.
        assert!(!rounds || error > 1e-5, "{}: relative error {error:.2e}", subject.name);
    }
}
