//! Variant selection, with the reason for each refused variant.

use super::Problem;
use super::backend::{Backends, Implementations};
use crate::{OpError, Refusal};
use device::Device;

/// A choice table's entry for a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// The variant.
    pub variant: &'static str,
    /// Description of the rule.
    pub rule: String,
}

/// The chosen variant and each refused one with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The variant to run.
    pub chosen: &'static str,
    /// The others, in the op's order.
    pub refused: Vec<Refusal>,
}

/// A variant that was chosen.
pub struct SelectedVariant {
    /// The variants of its backend.
    pub of: &'static dyn Implementations,
    /// Its index among them.
    pub variant: usize,
    reason: Reason,
}

/// Why a variant was chosen.
enum Reason {
    Asked,
    Rule(String),
    First,
}

impl SelectedVariant {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.of.name(self.variant)
    }

    fn reason(&self) -> String {
        let name = self.name();
        match &self.reason {
            Reason::Asked => format!("{name} was asked for"),
            Reason::Rule(rule) => format!("{name} is for {rule}"),
            Reason::First => format!("{name} comes first"),
        }
    }
}

/// Chooses the variant that runs a problem on a device: the `wanted` one, if given; otherwise the first of the choice table that can
/// run; otherwise the first variant that can run.
///
/// # Errors
/// [`OpError::NoVariant`] with each variant of the device's backend, or [`OpError::Refused`] of the wanted one.
pub fn choose(
    op: &'static str,
    problem: &dyn Problem,
    device: &Device,
    wanted: Option<&str>,
) -> Result<SelectedVariant, OpError> {
    let chosen = Backends::own(device, op).and_then(|of| {
        let can_run = |variant: usize| of.why_not(variant, problem, device).is_none();
        let named = |name: &str| {
            (0..of.count()).find(|variant| of.name(*variant) == name).filter(|one| can_run(*one))
        };
        let (variant, reason) = match wanted {
            Some(wanted) => (named(wanted)?, Reason::Asked),
            None => {
                let preferred = of.preferred(problem, device).into_iter();
                let mut preferred =
                    preferred.filter_map(|one| Some((named(one.variant)?, Reason::Rule(one.rule))));
                let first = || Some(((0..of.count()).find(|one| can_run(*one))?, Reason::First));
                preferred.next().or_else(first)?
            }
        };
        Some(SelectedVariant { of, variant, reason })
    });
    chosen.ok_or_else(|| refusal(op, problem, device, wanted))
}

/// As [`choose`], with the reason for each variant that was not chosen, including those of other backends.
pub(super) fn select(
    op: &'static str,
    problem: &dyn Problem,
    device: &Device,
    wanted: Option<&str>,
) -> Result<Selection, OpError> {
    let chosen = choose(op, problem, device, wanted)?;
    let (name, reason) = (chosen.name(), chosen.reason());
    let others = judged(op, problem, device).filter(|(variant, _)| *variant != name);
    let refused = others
        .map(|(variant, own)| Refusal { variant, reason: own.unwrap_or_else(|| reason.clone()) });
    Ok(Selection { chosen: name, refused: refused.collect() })
}

/// Each variant of each backend, and why it cannot run the problem on the device.
fn judged(
    op: &'static str,
    problem: &dyn Problem,
    device: &Device,
) -> impl Iterator<Item = (&'static str, Option<String>)> {
    let here = device.capabilities().backend;
    let own = Backends::own(device, op);
    Backends::of(device).variants(op).into_iter().map(move |(name, backend)| {
        if backend != here {
            return (name, Some(format!("runs on {backend}, this device is {here}")));
        }
        let variant =
            own.and_then(|of| Some((of, (0..of.count()).find(|at| of.name(*at) == name)?)));
        (name, variant.and_then(|(of, variant)| of.why_not(variant, problem, device)))
    })
}

/// Why no variant was chosen.
fn refusal(
    op: &'static str,
    problem: &dyn Problem,
    device: &Device,
    wanted: Option<&str>,
) -> OpError {
    let mut all = judged(op, problem, device);
    let Some(wanted) = wanted else {
        // Reasons of other backends' variants say nothing about this device.
        let own = Backends::own(device, op);
        let is_own =
            |name: &str| own.is_some_and(|of| (0..of.count()).any(|at| of.name(at) == name));
        let refused = all
            .filter(|(variant, _)| is_own(variant))
            .map(|(variant, reason)| Refusal { variant, reason: reason.unwrap_or_default() });
        return OpError::NoVariant { op, refused: refused.collect() };
    };
    let reason = match all.find(|(name, _)| *name == wanted) {
        Some((_, reason)) => reason.unwrap_or_default(),
        None => {
            let names: Vec<&str> = judged(op, problem, device).map(|(name, _)| name).collect();
            format!("there is no such variant, the op has {}", names.join(", "))
        }
    };
    OpError::Refused { op, variant: wanted.to_owned(), reason }
}
