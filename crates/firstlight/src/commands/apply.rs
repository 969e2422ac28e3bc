//! `firstlight apply`: installs a plan into a Python environment, completely or not at all.

mod inspect;
mod progress;

use super::ask_nvml::live;
use super::doctor::{cache_folder, find_uv, native_cache};
use crate::Outcome;
use crate::cli::Apply;
use crate::confirm;
use crate::failure::Failure;
use crate::output::Output;
use anyhow::Context;
use facts::{InstallPlan, SCHEMA};
use inspect::Binaries;
use probe::ProbeOptions;
use progress::Bar;
use report::terminal;
use setup::apply::ApplyOptions;
use setup::emit::read_plan;
use std::path::Path;
use std::thread;

pub(super) fn run(arguments: &Apply, output: &Output) -> anyhow::Result<Outcome> {
    let plan = read(&arguments.plan)?;
    let cache = match (&arguments.cache, cache_folder()) {
        (Some(folder), _) => folder.clone(),
        (None, Some(folder)) => folder.join("files"),
        (None, None) => {
            let hint = "name one with --cache DIR, or set XDG_CACHE_HOME";
            return Err(Failure::hinted("there is no folder for downloads: HOME is not set", hint));
        }
    };
    // uv runs in other folders, where a relative path would be resolved differently.
    let cache = std::path::absolute(&cache).with_context(|| cache.display().to_string())?;
    let source = live(&arguments.waiting);
    // Both wait for programs: uv's version and the driver's answers.
    let (uv, machine) = thread::scope(|scope| {
        let tools = cache.with_file_name("tools");
        let uv = scope.spawn(move || find_uv(&tools));
        let machine =
            probe::machine(&ProbeOptions { source: source.clone(), site_packages: Vec::new() });
        (uv.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), machine)
    });
    let uv = uv?;
    let options = ApplyOptions {
        venv: &arguments.venv,
        uv: &uv,
        cache: &cache,
        machine: &machine,
        discard_old: arguments.discard_old,
        repair: arguments.repair,
    };
    if arguments.dry_run {
        let would = setup::apply::preview(&plan, &options)?;
        let document = serde_json::json!({ "schema": SCHEMA, "would": would });
        output.either(&document, |_| format!("all preconditions hold: {would}\n"))?;
        return Ok(Outcome::Good);
    }
    // A plan that is already installed replaces nothing, so no confirmation is needed.
    let replaces = arguments.venv.join("pyvenv.cfg").exists();
    if replaces && !setup::apply::is_applied(&plan, &arguments.venv) {
        let venv = arguments.venv.display();
        let (question, hint) = match arguments.repair {
            true => (
                format!("reinstall the damaged files of {venv}?"),
                "add --yes to repair the environment",
            ),
            false => (
                format!("replace {venv} once the new environment is tested?"),
                "add --yes to replace the environment",
            ),
        };
        if !confirm::agreed(arguments.yes, &question, hint)? {
            return Ok(Outcome::Bad);
        }
    }
    let inspect = Binaries::new(source, machine.clone(), native_cache());
    let report = setup::apply::apply(&plan, &options, &inspect, &mut Bar::default())?;
    output.either(&report, |style| terminal::apply(&report, style))?;
    Ok(Outcome::Good)
}

/// Reads a plan file.
pub(super) fn read(path: &Path) -> anyhow::Result<InstallPlan> {
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let hint = "make one: firstlight plan --lock --emit plan.toml -o plan.toml";
        Failure::hinted(format!("the plan {} cannot be read: {error}", name()), hint)
    })?;
    read_plan(&text).with_context(name)
}
