//! `firstlight plan --matrix`: what works on which platform, each cell with its reason and source; or on one machine.

use super::ask_nvml::live;
use super::plan::named;
use crate::Outcome;
use crate::cli::{DriverTimeout, MachineChoice, Matrix, Plan};
use crate::output::Output;
use facts::{InstallPlan, PlanTarget, Support, SupportCell, SupportMatrix};
use probe::ProbeOptions;
use report::terminal;
use setup::{PlanRequest, RequestedPackage};

/// The command by its former name.
pub(super) fn run(arguments: &Matrix, output: &Output) -> anyhow::Result<Outcome> {
    show(&arguments.machine, &arguments.waiting, arguments.verbose, output)
}

pub(super) fn of_plan(arguments: &Plan, output: &Output) -> anyhow::Result<Outcome> {
    show(&arguments.machine, &arguments.waiting, arguments.explain, output)
}

fn show(
    machine: &MachineChoice,
    waiting: &DriverTimeout,
    sources: bool,
    output: &Output,
) -> anyhow::Result<Outcome> {
    let matrix = match named(machine)? {
        Some(target) => of(&target)?,
        None => {
            let source = live(waiting);
            diagnose::matrix(&probe::machine(&ProbeOptions { source, site_packages: Vec::new() }))
        }
    };
    output.either(&matrix, |style| terminal::matrix(&matrix, sources, style))?;
    Ok(Outcome::Good)
}

/// The matrix of one machine: the plan for it, or why there is none; for rows that are not packages, the cell of its
/// platform.
fn of(target: &PlanTarget) -> anyhow::Result<SupportMatrix> {
    let mut matrix = diagnose::matrix_of(target);
    for row in &mut matrix.rows {
        let Some(package) = diagnose::package_of(&row.component) else { continue };
        let mut request = PlanRequest::default();
        request.wants.push(RequestedPackage::parse(package, "matrix")?);
        let cell = &mut row.cells[0];
        match setup::plan(&request, target) {
            Ok(plan) => chosen(cell, &plan, package),
            Err(refusal) => {
                request.allow_builds(&["all".to_owned()]);
                match setup::plan(&request, target) {
                    Ok(plan) => chosen(cell, &plan, package),
                    Err(_) => {
                        let reasons = refusal.conflict.iter();
                        let reasons: Vec<&str> = reasons.map(|fact| fact.value.as_str()).collect();
                        let source = refusal.conflict.last().map(|fact| fact.source.clone());
                        cell.support = Support::No;
                        cell.reason = reasons.join("; ");
                        cell.source = source.unwrap_or_else(|| target.source.clone());
                    }
                }
            }
        }
    }
    Ok(matrix)
}

fn chosen(cell: &mut SupportCell, plan: &InstallPlan, package: &str) {
    let planned = |name: &str| plan.packages.iter().find(|it| it.name == name);
    let Some(one) = planned(package) else { return };
    let torch = planned("torch").filter(|_| package != "torch");
    let torch = torch.map(|torch| format!(", with torch {}", torch.version)).unwrap_or_default();
    let cuda = plan.cuda.as_ref().map(|cuda| format!(" for CUDA {cuda}")).unwrap_or_default();
    let built = matches!(one.origin, facts::PackageOrigin::Build(_));
    let how = if built { ", built from source" } else { "" };
    cell.support = if built { Support::Partly } else { Support::Yes };
    cell.reason = format!("{} {}{cuda}{torch}{how}", one.name, one.version);
    cell.source.clone_from(&one.source);
}
