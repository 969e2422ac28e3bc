//! One sequence, with lengths around the block sizes of kernels, whole and in pieces.

use crate::subject::{Subject, VOCABULARY, advance, check, tokens};
use device::Isa;
use models::Storage;

const LENGTHS: [usize; 9] = [1, 5, 21, 63, 64, 65, 255, 256, 257];

#[test]
fn whole_prompts_of_every_length() {
    for subject in Subject::all() {
        let tokens = tokens(1, 257);
        // Attention is causal, so the longest sequence has the expected logits of all lengths.
        let want = subject.oracle().logits(&tokens);
        let mut engine = subject.engine(1);
        for length in LENGTHS {
            engine.reset(0);
            let got = advance(&mut *engine, 0, &tokens[..length], length);
            check(&format!("{} whole {length}", subject.name), &got, &want[..length * VOCABULARY]);
        }
        let launches = engine.device().launches().snapshot();
        assert!(launches.keys().any(|kernel| kernel.starts_with("linear.")), "{launches:?}");
        let mixing = match &*subject.name {
            name if name.contains("mamba-mini") => "selective_scan.",
            name if name.starts_with("mamba2") => "ssd.",
            _ => "attention.",
        };
        assert!(launches.keys().any(|kernel| kernel.starts_with(mixing)), "{launches:?}");
    }
}

#[test]
fn prompts_in_pieces_and_token_by_token() {
    for subject in Subject::all() {
        let tokens = tokens(2, 257);
        let want = subject.oracle().logits(&tokens);
        let mut engine = subject.engine(1);
        for piece in [1, 2, 3, 64, 100] {
            engine.reset(0);
            let got = advance(&mut *engine, 0, &tokens, piece);
            check(&format!("{} in pieces of {piece}", subject.name), &got, &want);
        }
        // A prompt, then one token at a time, as in generation.
        for length in LENGTHS {
            engine.reset(0);
            let more = (length + 6).min(tokens.len());
            let mut got = advance(&mut *engine, 0, &tokens[..length], length);
            got.extend(advance(&mut *engine, 0, &tokens[length..more], 1));
            let name = format!("{} {length} then one by one", subject.name);
            check(&name, &got, &want[..more * VOCABULARY]);
        }
    }
}

#[test]
fn latent_norm_uses_its_own_epsilon() {
    // The epsilon of the latent vector's norm differs from the model's, which matters only where mean squares are as
    // small as the two.
    let subject = Subject::draw(("kimi-linear-mini", &[]));
    subject.shrink("kv_a_proj_with_mqa", 7);
    let tokens = tokens(8, 21);
    let got = advance(&mut *subject.engine(1), 0, &tokens, 21);
    check("a small latent vector", &got, &subject.oracle().logits(&tokens));
}

#[test]
fn every_instruction_set() {
    for subject in Subject::all() {
        let tokens = tokens(3, 65);
        let want = subject.oracle().logits(&tokens);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let device = backends::open(facts::BackendKind::Cpu).unwrap().limited_to(isa);
            let mut engine = subject.engine_on(device, Storage::F32, 1);
            let mut got = advance(&mut *engine, 0, &tokens[..64], 64);
            got.extend(advance(&mut *engine, 0, &tokens[64..], 1));
            check(&format!("{} {isa}", subject.name), &got, &want);
        }
    }
}
