//! `firstlight verify`: the parity matrix.

mod models;

use crate::Outcome;
use crate::cli::{Extent, Verify};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::python;
use facts::{BackendKind, ParityReport, ParityRow, Status};
use report::terminal;
use verify::{MODEL, Peers, Plan, Tier, matrix};

pub(super) fn run(arguments: &Verify, output: &Output) -> anyhow::Result<Outcome> {
    if let Some(backend) = arguments.backend {
        // Asked for by name, an absent backend is an error of the call; otherwise it is a fact with a row.
        device::open(backend.into())?;
    }
    let plan = Plan {
        ops: known(&arguments.ops)?,
        backends: arguments.backend.map_or_else(available, |backend| vec![backend.into()]),
        tier: arguments.extent.into(),
        all_variants: arguments.all_variants,
    };
    let mut python = python::start(
        arguments.peers.venv.as_deref(),
        &arguments.peers.choice,
        arguments.backend.map(BackendKind::from),
    )?;
    let peers = python.as_mut().map(python::Environment::peers);
    if peers.is_none() && plan.ops.iter().any(|op| op == MODEL) {
        let hint = "name the environment with --venv DIR, or its interpreter with --python EXE";
        return Err(Failure::hinted("models are run here by installed packages alone", hint));
    }
    let report = measure(&plan, peers, |_| ())?;
    output.either(&report, |style| terminal::parity(&report, style))?;
    Ok(outcome(&report))
}

/// Runs a matrix with progress, and beside it the models of installed packages; `each` sees the rows of kernels as they come.
pub(super) fn measure(
    plan: &Plan,
    peers: Option<Peers<'_>>,
    mut each: impl FnMut(&ParityRow),
) -> anyhow::Result<ParityReport> {
    let progress = Progress::start("verify");
    let wanted = plan.ops.is_empty() || plan.ops.iter().any(|op| op == MODEL);
    let mut session = match &peers {
        Some(peers) if wanted => Some(peers.session.beside()?),
        _ => None,
    };
    let mut of_models = peers.as_ref().zip(session.as_mut()).map(|(peers, session)| Peers {
        session,
        peers: peers.peers,
        backend: peers.backend,
        budget: peers.budget,
    });
    std::thread::scope(|scope| {
        let models = of_models.as_mut().map(|peers| scope.spawn(|| models::rows(peers)));
        let mut report = matrix(plan, peers.as_ref(), |row| {
            let by = row.peer.as_ref().map_or("", |_| row.variant.as_str());
            progress.step(format!("{} {} {} {by}", row.op, row.case, row.dtype));
            each(row);
        });
        if let Some(models) = models {
            match models.join() {
                Ok(rows) => report.rows.extend(rows?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(report)
    })
}

/// A matrix in which nothing passed is no good matrix, even when nothing failed.
pub(super) fn outcome(report: &ParityReport) -> Outcome {
    let good = report.failures() == 0 && report.count(Status::Pass) > 0;
    if good { Outcome::Good } else { Outcome::Bad }
}

/// Every backend that can be used here.
pub(super) fn available() -> Vec<BackendKind> {
    device::BACKENDS
        .iter()
        .filter(|backend| backend.open().is_ok())
        .map(|backend| backend.kind())
        .collect()
}

fn known(ops: &[String]) -> anyhow::Result<Vec<String>> {
    for op in ops.iter().filter(|op| *op != MODEL) {
        if let Err(error) = kernels::op(op) {
            let hint = error.hint().unwrap_or_default();
            return Err(Failure::hinted(error.to_string(), hint));
        }
    }
    Ok(ops.to_vec())
}

impl From<Extent> for Tier {
    fn from(extent: Extent) -> Self {
        match extent {
            Extent::Quick => Self::Quick,
            Extent::Standard => Self::Standard,
            Extent::Full => Self::Full,
        }
    }
}
