use kernels::{Call, DType, Tensor, TensorMap};
use std::sync::Arc;

/// The answer in float64, or why the choice that it was asked for is wrong.
pub(crate) type Reference = Result<Arc<TensorMap>, String>;

/// The float64 references of one call, each computed once however many variants are compared with it.
///
/// A reference depends on the inputs and on the choices in the outputs that are judged (see
/// [`kernels::Family::reference_given`]), and choices are integers: outputs with equal integer tensors have the same
/// reference.
pub(crate) struct References<'a> {
    call: &'a dyn Call,
    known: Known,
}

/// References by the choices that they belong to.
pub(crate) type Known = Vec<(Vec<Tensor>, Reference)>;

impl<'a> References<'a> {
    pub(crate) fn of(call: &'a dyn Call) -> Self {
        Self::knowing(call, Vec::new())
    }

    /// Those of a call of which some are known already.
    pub(crate) fn knowing(call: &'a dyn Call, known: Known) -> Self {
        Self { call, known }
    }

    /// What is known by now.
    pub(crate) fn into_known(self) -> Known {
        self.known
    }

    pub(crate) fn call(&self) -> &'a dyn Call {
        self.call
    }

    /// The reference for these outputs.
    ///
    /// # Errors
    /// One sentence, when a choice that the outputs contain is wrong.
    pub(crate) fn given(&mut self, outputs: &TensorMap) -> Reference {
        let choices = || outputs.values().filter(|tensor| tensor.dtype() == DType::I32);
        if let Some((_, known)) = self.known.iter().find(|(known, _)| known.iter().eq(choices())) {
            return known.clone();
        }
        let reference = self.call.reference_for(outputs).map(Arc::new);
        self.known.push((choices().cloned().collect(), reference.clone()));
        reference
    }
}
