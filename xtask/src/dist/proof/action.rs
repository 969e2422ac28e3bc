//! Runs the steps of the GitHub Action with bash, as a runner does: it evaluates expressions and reads GITHUB_OUTPUT and GITHUB_PATH.

use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use yaml_serde::Value;

/// Runs every shell step with the built wheel. Findings about this machine are not a failure, and nothing is uploaded.
pub(super) fn run(action: &Path, wheel: &Path, folder: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(action).with_context(|| action.display().to_string())?;
    let wheel = wheel.canonicalize()?.display().to_string();
    let inputs = [("wheel", wheel.as_str()), ("upload", "false"), ("fail-on-findings", "false")];
    let mut runner = Runner::new(&text, &inputs, &[], folder)?;
    runner.steps()?;
    let sarif = folder.join("firstlight.sarif");
    let document: serde_json::Value = serde_json::from_str(
        &fs::read_to_string(&sarif).with_context(|| sarif.display().to_string())?,
    )?;
    let results =
        document["runs"][0]["results"].as_array().context("no results in the SARIF file")?;
    let status = runner.outputs.get("steps.run.outputs.status").context("no output `status`")?;
    if !matches!(status.as_str(), "0" | "1") {
        bail!("the step ended with {status}");
    }
    println!("action.yml: ended with {status}, {} results in its SARIF file", results.len());
    Ok(())
}

/// A runner of one composite action.
struct Runner<'a> {
    action: Value,
    /// Values by expression: `inputs.wheel`, `github.action_ref`.
    outputs: BTreeMap<String, String>,
    path: String,
    folder: &'a Path,
}

/// Values of the `github` context that the action reads: those of `uses: ./`, a checkout in the job's folder.
const LOCAL: [(&str, &str); 4] = [
    ("github.action_path", "."),
    ("github.action_ref", ""),
    ("github.action_repository", ""),
    ("github.server_url", "https://github.com"),
];

impl<'a> Runner<'a> {
    fn new(
        text: &str,
        inputs: &[(&str, &str)],
        context: &[(&str, &str)],
        folder: &'a Path,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        let action: Value = yaml_serde::from_str(text).context("action.yml")?;
        let mut outputs = BTreeMap::new();
        outputs.insert("runner.temp".to_owned(), folder.display().to_string());
        for (name, value) in LOCAL.iter().chain(context) {
            outputs.insert((*name).to_owned(), (*value).to_owned());
        }
        for (name, input) in action["inputs"].as_mapping().context("no inputs")? {
            let name = name.as_str().context("an input without a name")?;
            let default = input["default"].as_str().unwrap_or_default();
            let value = inputs.iter().find(|(input, _)| *input == name);
            let value = value.map_or(default, |(_, value)| value);
            outputs.insert(format!("inputs.{name}"), value.to_owned());
        }
        for (name, _) in inputs {
            if !outputs.contains_key(&format!("inputs.{name}")) {
                bail!("action.yml has no input `{name}`");
            }
        }
        let path = std::env::var("PATH").unwrap_or_default();
        Ok(Self { action, outputs, path, folder })
    }

    fn steps(&mut self) -> anyhow::Result<()> {
        let steps = self.action["runs"]["steps"].as_sequence().context("no steps")?.clone();
        for step in &steps {
            let name = step["name"].as_str().context("a step without a name")?;
            // Skips the upload, which uses another action.
            if step["run"].is_string() {
                self.step(step).with_context(|| format!("step `{name}`"))?;
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Value) -> anyhow::Result<()> {
        let script = step["run"].as_str().context("no script")?;
        // An expression inside a script allows code injection by an input.
        if script.contains("${{") {
            bail!("the script has an expression; wanted it in `env`");
        }
        let file = |name: &str| self.folder.join(name);
        let (output, path) = (file("output"), file("path"));
        for file in [&output, &path] {
            fs::write(file, "")?;
        }
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]);
        command.current_dir(self.folder).env("PATH", &self.path).env("NO_COLOR", "1");
        command.env("GITHUB_OUTPUT", &output).env("GITHUB_PATH", &path);
        for (name, value) in step["env"].as_mapping().into_iter().flatten() {
            let name = name.as_str().context("a variable without a name")?;
            command
                .env(name, self.expanded(value.as_str().context("a value that is not a string")?)?);
        }
        let ended = command.output()?;
        if !ended.status.success() {
            // Workflow commands such as `::error::` are on standard output.
            let printed = [ended.stdout, ended.stderr].concat();
            bail!("{}: {}", ended.status, String::from_utf8_lossy(&printed).trim());
        }
        if let Some(id) = step["id"].as_str() {
            for line in fs::read_to_string(&output)?.lines() {
                let (name, value) = line.split_once('=').context("an output without a value")?;
                self.outputs.insert(format!("steps.{id}.outputs.{name}"), value.to_owned());
            }
        }
        for line in fs::read_to_string(&path)?.lines() {
            self.path = format!("{line}:{}", self.path);
        }
        Ok(())
    }

    /// A text with each `${{ name }}` replaced by its value.
    fn expanded(&self, text: &str) -> anyhow::Result<String> {
        let mut parts = text.split("${{");
        let mut result = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once("}}").context("an expression without an end")?;
            let value = self.outputs.get(name.trim());
            result += value.with_context(|| format!("`{}` has no value", name.trim()))?;
            result += rest;
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests;
