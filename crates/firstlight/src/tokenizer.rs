//! Checks that a tokenizer belongs to a model.

use crate::failure::Failure;
use models::Tokenizer;

/// Refuses a tokenizer with ids outside the model's vocabulary.
pub(crate) fn check(tokenizer: &Tokenizer, vocabulary: usize) -> anyhow::Result<()> {
    let known = tokenizer.vocabulary();
    if known > vocabulary {
        let what = format!(
            "the tokenizer has ids up to {}, the model a vocabulary of {vocabulary}",
            known - 1
        );
        let hint = "use the tokenizer published with the weights";
        return Err(Failure::hinted(what, hint));
    }
    Ok(())
}
