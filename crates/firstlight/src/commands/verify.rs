//! `firstlight verify`: the parity matrix.

mod models;

use crate::Outcome;
use crate::backend::{self, DeviceNotice};
use crate::cli::{Extent, Verify};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::{Progress, SlowNotice};
use crate::python;
use facts::{ParityReport, ParityRow, Status};
use report::terminal;
use serde::Serialize;
use std::collections::HashSet;
use verify::{MODEL, MatrixPlan, MatrixResults, Peers, Tier, matrix};

pub(super) fn run(arguments: &Verify, output: &Output) -> anyhow::Result<Outcome> {
    let ops = known(&arguments.ops)?;
    let devices = backend::every(arguments.backend)?;
    let plan = MatrixPlan {
        ops,
        backends: devices.iter().map(DeviceNotice::backend).collect(),
        tier: arguments.extent().into(),
        all_variants: arguments.all_variants,
        until: None,
    };
    let mut python = python::start(
        arguments.peers.venv.as_deref(),
        &arguments.peers.choice,
        &with_models(&plan.ops),
        arguments.backend.by_name(),
    )?;
    if let Some(python) = &python
        && !python.has_kernels_of(&with_models(&plan.ops))
    {
        return Err(no_kernels(&plan.ops));
    }
    if python.is_none() && plan.ops.iter().any(|op| op == MODEL) {
        let hint = "name the environment with --venv DIR, or its interpreter with --python EXE";
        return Err(Failure::hinted("only installed packages run models here", hint));
    }
    if !output.json {
        output.text(&backend::lines(&devices, output))?;
    }
    let peers = python.as_mut().map(python::Environment::peers);
    let (mut report, _) = measure(&plan, peers, None, |_| ())?;
    if let Some(python) = &python {
        report.rows.extend(unmet(python, &plan.ops, &report));
    }
    output.either(&JsonReport { report: &report, devices: &devices }, |style| {
        terminal::parity(&report, style)
    })?;
    Ok(outcome(&report))
}

/// The ops of a matrix with these names, including whole models; all of them for none.
pub(super) fn with_models(names: &[String]) -> Vec<&str> {
    match names {
        [] => ops::OPS.iter().map(|op| op.spec().name).chain([MODEL]).collect(),
        names => names.iter().map(String::as_str).collect(),
    }
}

/// Failed rows for kernels on the command line that did not run.
pub(super) fn unmet(
    python: &python::Environment,
    ops: &[String],
    report: &ParityReport,
) -> Vec<ParityRow> {
    let op = with_models(ops)[0];
    let unmet = python.unmet(python::seen(&report.rows));
    let row = |(option, why)| python::failed_row(op, python.backend(), option, why);
    unmet.into_iter().map(row).collect()
}

/// The error if an environment is given for ops without a known installed kernel.
pub(super) fn no_kernels(ops: &[String]) -> anyhow::Error {
    Failure::hinted(
        format!("no installed kernel of {} is known to firstlight", ops.join(", ")),
        "leave --venv out, or name your own kernel with --peer OP=MODULE:FUNCTION",
    )
}

/// The output of `verify --json`.
#[derive(Serialize)]
struct JsonReport<'a> {
    #[serde(flatten)]
    report: &'a ParityReport,
    devices: &'a [DeviceNotice],
}

/// Runs a matrix with progress, and the models of installed packages; `each` gets each row when it is finished.
pub(super) fn measure(
    plan: &MatrixPlan,
    peers: Option<Peers<'_>>,
    slow: Option<SlowNotice>,
    mut each: impl FnMut(&ParityRow),
) -> anyhow::Result<(ParityReport, MatrixResults)> {
    let progress = Progress::counted("verify", ::verify::count(plan)).with_notice(slow);
    // A case has a row for each backend and variant, and is one step.
    let mut seen: HashSet<(String, String, String)> = HashSet::new();
    let wanted = plan.ops.is_empty() || plan.ops.iter().any(|op| op == MODEL);
    let mut session = match &peers {
        Some(peers) if wanted => Some(peers.session.concurrent()?),
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
        let (mut report, standing) = matrix(plan, peers.as_ref(), |row| {
            let by = row.peer.as_ref().map_or("", |_| row.variant.as_str());
            let what = format!("{} {} {} {by}", row.op, row.case, row.dtype);
            let case = (row.op.clone(), row.case.clone(), row.dtype.clone());
            if row.peer.is_none() && row.case != "-" && seen.insert(case) {
                progress.step(what);
            } else {
                progress.set_step(what);
            }
            each(row);
        });
        if let Some(models) = models {
            match models.join() {
                Ok(rows) => report.rows.extend(rows?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok((report, standing))
    })
}

/// A matrix without a pass is bad, even without a failure.
pub(super) fn outcome(report: &ParityReport) -> Outcome {
    let good = report.failures() == 0 && report.count(Status::Pass) > 0;
    if good { Outcome::Good } else { Outcome::Bad }
}

/// The ops of these names, or an error with the existing ones.
pub(super) fn known(ops: &[String]) -> anyhow::Result<Vec<String>> {
    for op in ops.iter().filter(|op| *op != MODEL) {
        if let Err(error) = ops::op(op) {
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
