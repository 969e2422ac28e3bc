//! Whether a tokenizer is that of a model.

use crate::failure::Failure;
use models::Tokenizer;

/// Refuses a tokenizer with ids that the model's vocabulary has not.
pub(crate) fn check(tokenizer: &Tokenizer, vocabulary: usize) -> anyhow::Result<()> {
    let known = tokenizer.vocabulary();
    if known > vocabulary {
        let what = format!(
            "the tokenizer has ids up to {}, the model a vocabulary of {vocabulary}",
            known - 1
        );
        let hint = "take the tokenizer that was published with the weights";
        return Err(Failure::hinted(what, hint));
    }
    Ok(())
}
