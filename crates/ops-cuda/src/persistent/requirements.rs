//! Requirements of stages on the kernel that runs them.

use super::experts::Experts;
use super::form::{ANY, FORMS_OF_X, Weights, form_of_x, warps_of_stream};

/// The requirements of a stage, or of several that run in one kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct KernelRequirements {
    /// Number of warps that multiply.
    working: Option<usize>,
    /// Storage of the weights, for any experts.
    stored: Option<Weights>,
    experts: Option<Experts>,
    /// Columns of the residual stream.
    stream: Option<usize>,
    /// Forms of x, a bit each: see [`FORMS_OF_X`].
    forms: u8,
}

/// Merges two optional requirements; `None` if they differ.
fn both<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<Option<T>> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => None,
        (one, other) => Some(one.or(other)),
    }
}

impl KernelRequirements {
    /// A residual stream of `columns` columns.
    pub(super) fn of_stream(columns: usize) -> Self {
        Self { working: warps_of_stream(columns), stream: Some(columns), ..Self::default() }
    }

    /// Such weights, and their experts.
    pub(super) fn of_weights(weights: Weights) -> Self {
        let stored = Some(Weights { experts: None, ..weights });
        let stream = weights.experts.map(|experts| experts.hidden);
        let working = Some(weights.working);
        Self { working, stored, experts: weights.experts, stream, ..Self::default() }
    }

    /// Adds a form of x.
    pub(super) fn with_form(self, form: usize) -> Self {
        let place = FORMS_OF_X.into_iter().position(|of| form_of_x(of) == form);
        Self { forms: self.forms | place.map_or(0, |place| 1 << place), ..self }
    }

    /// The requirements of both; `None` if no kernel satisfies them.
    pub(super) fn and(self, other: Self) -> Option<Self> {
        let all = Self {
            working: both(self.working, other.working)?,
            stored: both(self.stored, other.stored)?,
            experts: both(self.experts, other.experts)?,
            stream: both(self.stream, other.stream)?,
            forms: self.forms | other.forms,
        };
        let kernel = all.kernel();
        // Experts have one type of weights, and only kernels with experts have norms.
        if kernel.experts.is_some_and(|experts| kernel != Weights::of_experts(experts)) {
            return None;
        }
        let forms = FORMS_OF_X.into_iter().enumerate();
        let mut wanted = forms.filter(|(place, _)| all.forms & 1 << place != 0);
        wanted.all(|(_, form)| kernel.has_form(form_of_x(form))).then_some(all)
    }

    /// The requirements of all; `None` if no kernel satisfies them.
    pub(super) fn of_all(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().try_fold(Self::default(), Self::and)
    }

    /// The kernel.
    pub(super) fn kernel(self) -> Weights {
        let any = Weights { working: self.working.unwrap_or(ANY.working), ..ANY };
        let experts = self.experts.or_else(|| self.stream.map(Experts::of_stream));
        Weights { experts, ..self.stored.unwrap_or(any) }
    }

    /// The kernel if weights are required; the kernels of other stages are bundled.
    pub(super) fn kernel_of_weights(self) -> Option<Weights> {
        self.stored.map(|_| self.kernel())
    }
}
