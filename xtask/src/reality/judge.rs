//! Compares the findings of the doctor and of other tools with the results of imports.

use super::build::EnvironmentFolder;
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The facts about an environment.
pub(super) struct Reality {
    /// Modules whose import fails, and did not in the untouched environment: module, package, error.
    pub(super) broken: Vec<(String, String, String)>,
    /// Packages of which an error has to name one.
    pub(super) names: BTreeSet<String>,
    /// Whether the environment is untouched.
    pub(super) pristine: bool,
}

/// The verdict on the doctor's findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Broken, and an error names the right package.
    Hit,
    /// Broken, and no error names it.
    Miss,
    /// Nothing is broken, and there is no error.
    Quiet,
    /// All imports work, and an error names the edited package: a damaged file that no import opens.
    Beyond,
    /// Nothing is broken, and there is an error.
    False,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "MISS",
            Self::Quiet => "quiet",
            Self::Beyond => "beyond",
            Self::False => "FALSE",
        }
    }
}

/// The doctor's program and settings.
pub(super) struct Doctor {
    program: PathBuf,
    cache: PathBuf,
    /// Rules with a finding in an empty environment: these are about the machine.
    machine: BTreeSet<String>,
    /// PATH with uv.
    path: std::ffi::OsString,
    /// Its version and the commit of its build.
    pub(super) version: String,
}

impl Doctor {
    pub(super) fn new(
        program: &Path,
        work: &Path,
        uv: &Path,
        empty: &EnvironmentFolder,
    ) -> anyhow::Result<Self> {
        let mut doctor = Self {
            program: program.to_owned(),
            cache: work.join("doctor"),
            machine: BTreeSet::new(),
            path: uv.parent().unwrap_or(uv).as_os_str().to_owned(),
            version: crate::steps::output(Command::new(program).arg("--version"))?
                .trim()
                .trim_start_matches("firstlight ")
                .to_owned(),
        };
        let (findings, _) = doctor.findings(empty)?;
        doctor.machine = findings.iter().map(rule).collect();
        Ok(doctor)
    }

    fn command(&self, place: &EnvironmentFolder, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["doctor", "--json", "--venv"]).arg(&place.venv).args(words);
        command.env("XDG_CACHE_HOME", &self.cache).env("PATH", &self.path);
        command.env_remove("VIRTUAL_ENV").env_remove("LD_LIBRARY_PATH").env_remove("CONDA_PREFIX");
        command
            .env_remove("PYTHONPATH")
            .envs(place.variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.cache.parent().unwrap_or(&self.cache));
        command
    }

    /// The findings about an environment, and the durations in seconds of seven runs after a warm-up, in ascending order.
    pub(super) fn findings(
        &self,
        place: &EnvironmentFolder,
    ) -> anyhow::Result<(Vec<Value>, Vec<f64>)> {
        let run = || -> anyhow::Result<(Value, f64)> {
            let began = Instant::now();
            let output = self.command(place, &[]).stderr(Stdio::null()).output()?;
            let seconds = began.elapsed().as_secs_f64();
            let text = without_place(&output.stdout, &place.venv);
            Ok((serde_json::from_str(&text).context("the doctor printed no JSON")?, seconds))
        };
        run()?;
        let (mut report, first) = run()?;
        let mut seconds = vec![first];
        for _ in 0..6 {
            seconds.push(run()?.1);
        }
        seconds.sort_by(f64::total_cmp);
        let findings = report["findings"].as_array_mut().map(std::mem::take).unwrap_or_default();
        // Leaves out findings about the machine, such as a missing driver.
        let of_environment =
            |finding: &Value| !self.machine.contains(&rule(finding)) && !is_about_machine(finding);
        Ok((findings.into_iter().filter(of_environment).collect(), seconds))
    }

    /// Runs `doctor --fix --yes` and returns its outcome, reason and commands.
    pub(super) fn fix(&self, place: &EnvironmentFolder, uv_cache: &Path) -> anyhow::Result<Value> {
        let mut command = self.command(place, &["--fix", "--yes"]);
        command.env("UV_CACHE_DIR", uv_cache).env("UV_LINK_MODE", "hardlink");
        let said = command.stderr(Stdio::piped()).output()?;
        let parsed: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
        Ok(match parsed["environments"].as_array().and_then(|all| all.first()) {
            Some(mended) => json!({
                "outcome": mended["outcome"], "why": mended["why"], "commands": mended["commands"]
            }),
            None if parsed.is_null() || parsed.get("error").is_some() => {
                json!({ "outcome": "failed", "why": String::from_utf8_lossy(&said.stderr).lines().last() })
            }
            None => json!({ "outcome": "nothing to run" }),
        })
    }
}

/// Replaces the environment's folder, whose name may be that of a package, by `VENV`.
fn without_place(text: &[u8], venv: &Path) -> String {
    String::from_utf8_lossy(text).replace(&venv.display().to_string(), "VENV")
}

fn rule(finding: &Value) -> String {
    finding["rule"].as_str().unwrap_or_default().to_owned()
}

/// Whether a finding is about the machine, such as a missing driver, which no package can fix.
fn is_about_machine(finding: &Value) -> bool {
    const MACHINE: [&str; 6] = [
        "no-driver",
        "driver-silent",
        "driver-too-old",
        "container-without-gpus",
        "cuda-torch-without-driver",
        "container-memory",
    ];
    MACHINE.contains(&rule(finding).as_str())
}

/// The verdict on some findings.
pub(super) fn verdict(reality: &Reality, findings: &[Value]) -> Verdict {
    let errors: Vec<&Value> = findings.iter().filter(|it| it["severity"] == "error").collect();
    let right = errors.iter().any(|error| names_one(&error.to_string(), &reality.names));
    match (reality.broken.is_empty(), errors.is_empty(), right) {
        (false, _, true) => Verdict::Hit,
        (false, _, false) => Verdict::Miss,
        (true, true, _) => Verdict::Quiet,
        (true, false, true) if !reality.pristine => Verdict::Beyond,
        (true, false, _) => Verdict::False,
    }
}

/// Whether a text has one of the names as a word, ignoring case and with `-`, `_` and `.` equal.
fn names_one(text: &str, names: &BTreeSet<String>) -> bool {
    let plain = |text: &str| text.to_lowercase().replace(['_', '.'], "-");
    let text = plain(text);
    let is_letter = |c: char| c.is_ascii_alphanumeric();
    names.iter().map(|name| plain(name)).any(|name| {
        text.match_indices(&name).any(|(at, _)| {
            let before = text[..at].chars().next_back().is_none_or(|c| !is_letter(c) && c != '-');
            let after = text[at + name.len()..].chars().next().is_none_or(|c| !is_letter(c));
            before && after
        })
    })
}

/// Runs `pip check`, torch's collect_env and rigsolve; the result says for each whether it names the right package.
pub(super) fn others(venv: &Path, reality: &Reality, rigsolve: Option<&Path>) -> Value {
    let python = venv.join("bin/python");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", "--python"]).arg(&python).arg("check");
    let mut collect = Command::new(&python);
    collect.args(["-I", "-B", "-m", "torch.utils.collect_env"]);
    let tool = |command: &mut Command| ask(command, venv, reality);
    let mut said = json!({ "pip check": tool(&mut pip), "collect_env": tool(&mut collect) });
    // rigsolve reads the packages of the interpreter that runs it.
    let site = rigsolve.and_then(|program| {
        let lib = program.parent()?.parent()?.join("lib");
        Some(std::fs::read_dir(lib).ok()?.next()?.ok()?.path().join("site-packages"))
    });
    if let Some(site) = site {
        let mut command = Command::new(&python);
        command.args(["-B", "-m", "rigsolve", "check"]).env("PYTHONPATH", site);
        said["rigsolve"] = tool(&mut command);
    }
    said
}

fn ask(command: &mut Command, venv: &Path, reality: &Reality) -> Value {
    let said = command.stdin(Stdio::null()).output();
    let Ok(said) = said else { return json!({ "ran": false }) };
    let text = without_place(&[said.stdout, said.stderr].concat(), venv);
    let complains = !said.status.success();
    json!({
        "ran": true,
        "complains": complains,
        "names": complains && names_one(&text, &reality.names),
        "last": text.trim().lines().last().unwrap_or_default().chars().take(160).collect::<String>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_an_environment_does_not_name_a_package() {
        let said =
            without_place(b"/tmp/torch-2.8/venv/lib: no module", Path::new("/tmp/torch-2.8/venv"));
        assert!(!names_one(&said, &BTreeSet::from(["torch".to_owned()])), "{said}");
    }

    #[test]
    fn verdict_depends_on_imports_and_named_packages() {
        let check = |broken: bool, pristine: bool, errors: &[&str], expect: Verdict| {
            let broken = if broken {
                vec![("torch".into(), "torch".into(), "x".into())]
            } else {
                Vec::new()
            };
            let names = BTreeSet::from(["nvidia-nccl-cu12".to_owned()]);
            let reality = Reality { broken, names, pristine };
            let errors: Vec<Value> = errors
                .iter()
                .map(|title| json!({ "severity": "error", "rule": "r", "title": title }))
                .collect();
            assert_eq!(verdict(&reality, &errors), expect, "{errors:?}");
        };
        check(true, false, &["nvidia_nccl_cu12 2.21.5 is too old"], Verdict::Hit);
        check(true, false, &["nvidia-nccl-cu12x is odd", "my-nvidia-nccl-cu12 too"], Verdict::Miss);
        check(true, false, &[], Verdict::Miss);
        check(false, true, &[], Verdict::Quiet);
        check(false, true, &["nvidia-nccl-cu12 is damaged"], Verdict::False);
        check(false, false, &["nvidia-nccl-cu12 is damaged"], Verdict::Beyond);
        check(false, false, &["torch is damaged"], Verdict::False);
    }
}
