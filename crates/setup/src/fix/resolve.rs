//! Resolves a remedy to exact versions by dry runs of each install, so that the displayed commands are those that run.

use super::action::name_of;
use super::packages::Packages;
use super::remedy::{InstallSet, Remedy};
use facts::{CompactCollect, CompactSort};
use facts::{Finding, Install, PyEnv};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a dry run: it may download a source distribution to get its metadata.
const PATIENCE: Duration = Duration::from_secs(300);

/// Why no versions are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolveError {
    /// No index answered.
    Unreachable(String),
    /// An index answered, and the requirements are missing or in conflict.
    Impossible(String),
}

impl ResolveError {
    /// The reason in one sentence.
    pub fn words(&self) -> String {
        match self {
            Self::Unreachable(said) => format!("not resolved, because no index answered: {said}"),
            Self::Impossible(said) => format!("it cannot be resolved: {said}"),
        }
    }
}

/// The installer: uv, or the environment's pip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// The environment's interpreter.
    pub python: PathBuf,
    /// uv's program, if uv manages the environment.
    pub uv: Option<PathBuf>,
}

/// One command that changes the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageChange {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables that a build reads.
    pub variables: Vec<(String, String)>,
    /// The command as a user would type it, before quoting.
    pub words: Vec<String>,
}

/// A remedy that can be carried out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedRemedy {
    /// The findings that it fixes.
    pub findings: Vec<usize>,
    /// The other findings, each with the reason.
    pub left: Vec<(usize, String)>,
    /// The commands, in order.
    pub commands: Vec<PackageChange>,
    /// Packages that are removed without a replacement.
    pub removed: BTreeSet<String>,
    /// Packages that are removed, replaced or new.
    pub touched: BTreeSet<String>,
}

impl ResolvedRemedy {
    /// Resolves the requirements of all findings about an environment together. Findings that cannot be resolved are
    /// left out with their reason, and the others are resolved again.
    pub fn of(env: &PyEnv, findings: &[Finding], packages: &Packages, tool: &Tool) -> Self {
        let mut not: BTreeMap<usize, String> = BTreeMap::new();
        // Each iteration leaves out at least one more finding.
        for _ in 0..=findings.len() {
            let remedy = Remedy::of(env, findings, packages, &not);
            if remedy.is_empty() {
                return Self { left: remedy.left, ..Self::default() };
            }
            match tool.resolve(&remedy, packages) {
                Ok(resolved) => return resolved,
                Err((culprits, why)) => {
                    let culprits = match culprits.is_empty() {
                        true => remedy
                            .sets
                            .iter()
                            .flat_map(|set| set.findings.clone())
                            .chain(remedy.remove.values().copied())
                            .collect(),
                        false => culprits,
                    };
                    not.extend(culprits.into_iter().map(|index| (index, why.clone())));
                }
            }
        }
        Self::default()
    }

    /// Whether there are no commands.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}

type Failed = (Vec<usize>, String);

impl Tool {
    fn resolve(&self, remedy: &Remedy, packages: &Packages) -> Result<ResolvedRemedy, Failed> {
        let mut new: BTreeMap<String, String> = BTreeMap::new();
        let mut sets: Vec<(InstallSet, BTreeMap<String, String>)> = Vec::new();
        for set in &remedy.sets {
            let versions = self.versions(set, packages)?;
            if versions.is_empty() {
                let what = set.install.specs.join(" ");
                return Err((set.findings.clone(), format!("{what} is already installed")));
            }
            new.extend(versions.clone());
            sets.push((set.clone(), versions));
        }
        let removed: BTreeSet<String> =
            remedy.remove.keys().filter(|name| !new.contains_key(*name)).cloned().compact_set();
        let mut going = removed.clone();
        going.extend(new.keys().filter(|name| packages.version(name).is_some()).cloned());
        // An uninstall removes the files in RECORD, whichever package wrote them last. A package that is reinstalled in
        // the same version restores all of them; a package with common files, installed after it, would remove them
        // once more.
        let same = |name: &String| new.get(name).map(String::as_str) == packages.version(name);
        let leaving: BTreeSet<String> =
            going.iter().filter(|name| !same(name)).cloned().compact_set();
        let mut sharing_files = packages.sharing_files(&leaving);
        sharing_files.retain(|name| !new.contains_key(name));
        let mut commands = Vec::new();
        if !removed.is_empty() {
            commands.push(self.uninstall(&removed));
        }
        let mut findings: Vec<usize> = remedy.remove.values().copied().collect();
        for (set, versions) in &sets {
            commands.push(self.install(&set.install, versions, &set.again, false));
            findings.extend(&set.findings);
        }
        if !sharing_files.is_empty() {
            let pins: BTreeMap<String, String> = sharing_files
                .iter()
                .filter_map(|name| Some((name.clone(), packages.version(name)?.to_owned())))
                .compact_map();
            let install = Install {
                specs: pins.iter().map(|(name, version)| format!("{name}=={version}")).collect(),
                no_deps: true,
                ..Install::default()
            };
            let set = InstallSet { findings: Vec::new(), install, again: sharing_files.clone() };
            let found = self.dry_run(&set, packages).map_err(|why| {
                let names = sharing_files.iter().cloned().collect::<Vec<_>>().join(", ");
                (Vec::new(), format!("it would remove files of {names}, of which {}", why.words()))
            })?;
            commands.push(self.install(&set.install, &found, &set.again, false));
            going.extend(sharing_files);
        }
        findings.compact_sort();
        findings.dedup();
        going.extend(new.into_keys());
        Ok(ResolvedRemedy {
            findings,
            left: remedy.left.clone(),
            commands,
            removed,
            touched: going,
        })
    }

    /// The versions of an install, checked against the requirements of the remaining packages.
    fn versions(
        &self,
        set: &InstallSet,
        packages: &Packages,
    ) -> Result<BTreeMap<String, String>, Failed> {
        let failed = |why: ResolveError| (set.findings.clone(), why.words());
        let mut set = set.clone();
        let found = self.dry_run(&set, packages).map_err(failed)?;
        let broken = packages.broken_by(&found);
        if broken.is_empty() {
            return Ok(found);
        }
        set.install.specs.extend(broken.clone());
        let findings = set.findings.clone();
        let found = self.dry_run(&set, packages).map_err(|why| (findings.clone(), why.words()))?;
        match packages.broken_by(&found).as_slice() {
            [] => Ok(found),
            still => Err((findings, format!("other packages here require {}", still.join(", ")))),
        }
    }

    /// The result of an install, as version by name, without changing anything.
    fn dry_run(
        &self,
        set: &InstallSet,
        packages: &Packages,
    ) -> Result<BTreeMap<String, String>, ResolveError> {
        let mut change = self.install(&set.install, &BTreeMap::new(), &set.again, true);
        change.arguments.push("--dry-run".to_owned());
        let (good, said) = run(&change)?;
        if !good {
            return Err(refusal(&said));
        }
        let mut found = match self.uv {
            Some(_) => planned_by_uv(&said),
            None => planned_by_pip(&said),
        };
        // pip omits packages that already have the right version.
        for name in &set.again {
            if let (false, Some(version)) = (found.contains_key(name), packages.version(name)) {
                found.insert(name.clone(), version.to_owned());
            }
        }
        Ok(found)
    }

    fn uninstall(&self, names: &BTreeSet<String>) -> PackageChange {
        let mut arguments = self.verb("uninstall");
        if self.uv.is_none() {
            arguments.push("--yes".to_owned());
        }
        arguments.extend(names.iter().cloned());
        self.change(arguments, &[])
    }

    /// The install command for exactly these versions; before resolution, for the requirements.
    fn install(
        &self,
        install: &Install,
        versions: &BTreeMap<String, String>,
        again: &BTreeSet<String>,
        dry: bool,
    ) -> PackageChange {
        let mut arguments = self.verb("install");
        if let Some(index) = &install.index {
            arguments.extend(["--index-url".to_owned(), index.clone()]);
        }
        // With every version known, no resolution is needed.
        if !dry || install.no_deps {
            arguments.push("--no-deps".to_owned());
        }
        for name in &install.from_source {
            arguments.extend(["--no-binary".to_owned(), name.clone()]);
        }
        if !install.from_source.is_empty() {
            arguments.push("--no-build-isolation".to_owned());
        }
        match self.uv {
            Some(_) => {
                for name in again {
                    arguments.extend(["--reinstall-package".to_owned(), name.clone()]);
                }
            }
            None if dry => {}
            None => arguments.push("--force-reinstall".to_owned()),
        }
        match dry {
            true => arguments.extend(install.specs.iter().cloned()),
            false => {
                arguments
                    .extend(versions.iter().map(|(name, version)| format!("{name}=={version}")));
            }
        }
        self.change(arguments, &install.variables)
    }

    fn verb(&self, verb: &str) -> Vec<String> {
        let python = self.python.display().to_string();
        match self.uv {
            Some(_) => ["pip", verb, "--python", &python].map(str::to_owned).to_vec(),
            None => ["-m", "pip", verb].map(str::to_owned).to_vec(),
        }
    }

    fn change(&self, arguments: Vec<String>, variables: &[(String, String)]) -> PackageChange {
        let python = || self.python.clone();
        let program = self.uv.clone().unwrap_or_else(python);
        let shown = self.uv.as_ref().map_or(self.python.display().to_string(), |_| "uv".to_owned());
        let words = std::iter::once(shown).chain(arguments.iter().cloned()).collect();
        PackageChange { program, arguments, variables: variables.to_vec(), words }
    }
}

impl PackageChange {
    /// The command in the user's environment: indexes, proxies and caches are those of the shell.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.variables.iter().cloned());
        command.env("NO_COLOR", "1").env("PIP_NO_INPUT", "1").env("UV_NO_PROGRESS", "1");
        command.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PIP_ROOT_USER_ACTION", "ignore");
        command
    }
}

/// Runs a command with a time limit. Returns whether it succeeded, and its output.
fn run(change: &PackageChange) -> Result<(bool, String), ResolveError> {
    let failed = |error: std::io::Error| {
        ResolveError::Impossible(format!("{}: {error}", change.program.display()))
    };
    let said = tempfile::tempfile().map_err(failed)?;
    let mut command = change.command();
    command.stdin(Stdio::null());
    command.stdout(said.try_clone().map_err(failed)?).stderr(said.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            let seconds = PATIENCE.as_secs();
            return Err(ResolveError::Unreachable(format!(
                "a dry run did not end within {seconds} s"
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    use std::io::{Read, Seek};
    let (mut said, mut text) = (said, Vec::new());
    said.rewind().and_then(|()| said.read_to_end(&mut text)).map_err(failed)?;
    Ok((status.success(), String::from_utf8_lossy(&text).into_owned()))
}

/// Parses lines such as ` + torch==2.8.0`.
fn planned_by_uv(said: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let (name, version) = line.trim().strip_prefix("+ ")?.split_once("==")?;
        let version = version.split_whitespace().next()?;
        Some((name_of(name), version.to_owned()))
    };
    said.lines().filter_map(line).compact_map()
}

/// `Would install torch-2.8.0 sympy-1.14.0`.
fn planned_by_pip(said: &str) -> BTreeMap<String, String> {
    let listed = said.lines().filter_map(|line| line.trim().strip_prefix("Would install "));
    let words = listed.flat_map(str::split_whitespace);
    words
        .filter_map(|word| word.rsplit_once('-'))
        .map(|(name, version)| (name_of(name), version.to_owned()))
        .compact_map()
}

/// Why a dry run failed, from its output.
fn refusal(said: &str) -> ResolveError {
    const ABSENT: [&str; 12] = [
        "Failed to fetch",
        "error sending request",
        "dns error",
        "Failed to establish a new connection",
        "Temporary failure in name resolution",
        "Name or service not known",
        "Network is unreachable",
        "Connection refused",
        "ConnectTimeoutError",
        "timed out",
        "Network connectivity is disabled",
        "ProxyError",
    ];
    let lines: Vec<&str> = said
        .lines()
        .map(|line| line.trim().trim_start_matches(['×', '╰', '─', '▶', ' ', '│', '├']).trim())
        .filter(|line| !line.is_empty() && !line.starts_with("Using Python"))
        .collect();
    let found = ABSENT.iter().find_map(|mark| lines.iter().find(|line| line.contains(mark)));
    match found {
        Some(line) => ResolveError::Unreachable((*line).to_owned()),
        // uv prints the reason as a tree of lines, pip as its last error.
        None => {
            let errors: Vec<&str> =
                lines.iter().copied().filter(|line| line.starts_with("ERROR:")).collect();
            let words = match errors.last() {
                Some(error) => (*error).to_owned(),
                None => lines.join(" "),
            };
            ResolveError::Impossible(words)
        }
    }
}

/// The interpreter of an environment, as written in commands.
pub(super) fn python(env: &PyEnv) -> String {
    match &env.interpreter.executable {
        Some(path) => path.clone(),
        None => Path::new(&env.root).join("bin/python").display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dry_runs_of_uv_and_pip_are_parsed() {
        let uv = "Using Python 3.11.7 environment at: t\nResolved 2 packages in 781ms\nWould install 2 packages\n \
                  - torch==2.8.0\n + Torch==2.11.0\n + nvidia-nccl-cu13==2.28.9 (from file:///x.whl)\n";
        let found = planned_by_uv(uv);
        let expect = [("nvidia-nccl-cu13", "2.28.9"), ("torch", "2.11.0")];
        assert_eq!(found.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>(), expect);
        let pip = "Collecting six\nWould install six-1.16.0 typing_extensions-4.16.0\n";
        let found = planned_by_pip(pip);
        let expect = [("six", "1.16.0"), ("typing-extensions", "4.16.0")];
        assert_eq!(found.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn an_unreachable_index_differs_from_a_refusal() {
        let absent = "error: Request failed after 3 retries in 5.1s\n  cause: Failed to fetch: `https://index/torch/`\n  \
                      cause: dns error\n";
        assert!(
            matches!(refusal(absent), ResolveError::Unreachable(said) if said.contains("Failed to fetch"))
        );
        let no = "  × No solution found when resolving dependencies:\n  ╰─▶ Because there is no version of a==9 and you \
                  require a==9, we can conclude that your requirements are unsatisfiable.\n";
        assert!(
            matches!(refusal(no), ResolveError::Impossible(said) if said.starts_with("No solution found"))
        );
    }
}
