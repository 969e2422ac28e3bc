//! `firstlight plan [WANT..]`: a stack that goes together on a machine, or why there is none; and a plan that was written
//! down, looked at again.

use super::ask_nvml::live;
use super::doctor::{cache_folder, model, native_cache};
use crate::Outcome;
use crate::cli::Plan;
use crate::failure::Failure;
use crate::output::Output;
use anyhow::Context;
use facts::{Fact, Machine, PlanTarget, Refusal};
use probe::EnvOptions;
use report::terminal;
use setup::profile_yaml::{Profile, Purpose};
use setup::uv::Uv;
use setup::{Request, Wanted, emit};
use std::path::Path;

pub(super) fn run(arguments: &Plan, output: &Output) -> anyhow::Result<Outcome> {
    // A format that is not there is said before a machine is probed.
    if let Some(format) = &arguments.emit {
        known_format(format)?;
    }
    if let Some(path) = &arguments.from {
        return written(path, arguments, output);
    }
    let request = request(arguments)?;
    let target = target(arguments)?;
    match setup::plan(&request, &target) {
        Ok(mut plan) => {
            plan.warnings.extend(around_conda(arguments)?);
            show(&plan, arguments, output)?;
            Ok(Outcome::Good)
        }
        Err(refusal) => {
            // A file that was to be written is not, and what stands on standard output must not look like it.
            if arguments.emit.is_some() {
                let hint = "without --emit, `firstlight plan` says what would work";
                let what: Vec<&str> =
                    refusal.conflict.iter().map(|fact| fact.value.as_str()).collect();
                let what = format!("there is no plan: {}", what.join("; "));
                return Err(Failure::hinted(what, hint));
            }
            refused(&refusal, arguments, output)
        }
    }
}

/// The plan, locked where that was asked for, in the words that were.
fn show(plan: &facts::Plan, arguments: &Plan, output: &Output) -> anyhow::Result<()> {
    let locked = arguments.lock.then(|| locked(plan)).transpose()?;
    let plan = locked.as_ref().unwrap_or(plan);
    match &arguments.emit {
        Some(format) => write(&emit::emit(plan, format)?, arguments, output),
        None => output
            .either(plan, |style| terminal::plan(plan, arguments.explain, &next(arguments), style)),
    }
}

/// A plan that was written down. What is chosen otherwise today is a finding, but for a file in other words, which says
/// what the plan says.
fn written(path: &Path, arguments: &Plan, output: &Output) -> anyhow::Result<Outcome> {
    let mut plan = super::apply::read(path)?;
    if arguments.emit.is_some() {
        show(&plan, arguments, output)?;
        return Ok(Outcome::Good);
    }
    match setup::differences(&plan) {
        Ok(differences) => {
            let outcome = if differences.is_empty() { Outcome::Good } else { Outcome::Bad };
            plan.warnings.extend(differences);
            show(&plan, arguments, output)?;
            Ok(outcome)
        }
        Err(refusal) => refused(&refusal, arguments, output),
    }
}

fn refused(refusal: &Refusal, arguments: &Plan, output: &Output) -> anyhow::Result<Outcome> {
    output.either(refusal, |style| terminal::refusal(refusal, arguments.explain, style))?;
    Ok(Outcome::Bad)
}

/// What was asked for: a profile or what a model's layers need, then the requirements of the command line.
fn request(arguments: &Plan) -> anyhow::Result<Request> {
    let mut request = match &arguments.purpose {
        Some(purpose) if is_yaml(purpose) => of_yaml(purpose)?,
        Some(purpose) if Path::new(purpose).exists() => of_model(Path::new(purpose))?,
        Some(purpose) => of_profile(purpose)?,
        None => Request::default(),
    };
    for line in &arguments.wants {
        let wanted = Wanted::parse(line, "requirement").map_err(|wrong| {
            Failure::hinted(wrong.to_string(), "write it as pip has it: 'flash-attn>=2.8'")
        })?;
        request.wants.push(wanted);
    }
    request.python = arguments.python.or(request.python);
    request.cuda = arguments.cuda.or(request.cuda);
    request.community |= arguments.community;
    request.allow_builds(&arguments.allow_source);
    Ok(request)
}

fn of_model(path: &Path) -> anyhow::Result<Request> {
    let model = model::read(path)?;
    let kinds = model::layer_kinds(&model)?;
    Ok(Request::of_layers(&kinds))
}

fn is_yaml(purpose: &str) -> bool {
    Path::new(purpose).extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// What a team keeps of its stack: the versions are pinned, and so is CUDA.
fn of_yaml(path: &str) -> anyhow::Result<Request> {
    let text = std::fs::read_to_string(path).with_context(|| path.to_owned())?;
    let profile = Profile::read(&text, Purpose::Use)?;
    Ok(Request::of_versions(&profile, path)?)
}

fn of_profile(name: &str) -> anyhow::Result<Request> {
    let profiles = setup::profiles();
    let Some(profile) = profiles.iter().find(|profile| profile.name == name) else {
        let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        let what = format!("`{name}` is no folder, no config.json and no profile");
        return Err(Failure::hinted(what, did_you_mean(name, &names, "profiles")));
    };
    Ok(Request::of_profile(profile)?)
}

fn target(arguments: &Plan) -> anyhow::Result<PlanTarget> {
    if arguments.machine == "this" {
        let options =
            probe::Options { source: live(&arguments.waiting), site_packages: Vec::new() };
        let machine: Machine = probe::machine(&options);
        return setup::target_of(&machine).ok_or_else(|| {
            let hint =
                "plans are for Linux and macOS on x86_64 and 64-bit Arm; name one with --machine";
            Failure::hinted(format!("nothing is published for {}", machine.platform), hint)
        });
    }
    let machines = setup::machines();
    let found = machines.iter().find(|machine| machine.name == arguments.machine).cloned();
    found.ok_or_else(|| {
        let mut names: Vec<&str> = machines.iter().map(|machine| machine.name.as_str()).collect();
        names.push("this");
        let what = format!("there is no machine `{}`", arguments.machine);
        Failure::hinted(what, did_you_mean(&arguments.machine, &names, "machines"))
    })
}

/// What the plan has to say about a conda environment that is activated here. Without one no environment is read, so that
/// a plan stays a matter of milliseconds.
fn around_conda(arguments: &Plan) -> anyhow::Result<Option<Fact<String>>> {
    if arguments.machine != "this" || std::env::var_os("CONDA_PREFIX").is_none() {
        return Ok(None);
    }
    let source = live(&arguments.waiting);
    let options = EnvOptions { source, venv: None, cache: native_cache() };
    Ok(setup::conda::around(&probe::environments(&options)?))
}

fn known_format(format: &str) -> anyhow::Result<()> {
    let names: Vec<&str> = emit::FORMATS.iter().map(|format| format.name).collect();
    match names.contains(&format) {
        true => Ok(()),
        false => {
            let what = format!("there is no format `{format}`");
            Err(Failure::hinted(what, did_you_mean(format, &names, "formats")))
        }
    }
}

fn did_you_mean(typed: &str, names: &[&str], what: &str) -> String {
    match diagnose::nearest_name(typed, names) {
        Some(near) => format!("did you mean `{near}`? the {what} are {}", names.join(", ")),
        None => format!("the {what} are {}", names.join(", ")),
    }
}

fn write(text: &str, arguments: &Plan, output: &Output) -> anyhow::Result<()> {
    let Some(path) = &arguments.output else { return output.text(text) };
    std::fs::write(path, text).map_err(|reason| {
        let what = format!("{} cannot be written: {reason}", path.display());
        Failure::hinted(what, "name a file in a folder that is there, or leave out -o")
    })
}

/// The plan with every file and its hash, by uv.
fn locked(plan: &facts::Plan) -> anyhow::Result<facts::Plan> {
    let Some(cache) = cache_folder() else {
        let hint = "set XDG_CACHE_HOME";
        return Err(Failure::hinted("there is no folder for uv: HOME is not set", hint));
    };
    let uv = Uv::find(std::env::var_os("PATH").as_deref(), &cache.join("tools"))?;
    Ok(setup::lock::lock(plan, &uv)?)
}

/// The same plan as a locked file, and what makes it so here.
fn next(arguments: &Plan) -> Vec<String> {
    let words: Vec<String> = std::env::args().skip(1).map(|word| diagnose::quote(&word)).collect();
    let lock = if arguments.lock { "" } else { " --lock" };
    let mut next =
        vec![format!("firstlight {}{lock} --emit plan.toml -o plan.toml", words.join(" "))];
    if arguments.machine == "this" {
        next.push("firstlight apply plan.toml --venv .venv".to_owned());
    }
    next
}
