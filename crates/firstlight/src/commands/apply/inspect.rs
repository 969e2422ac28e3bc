//! Inspects what `apply` installs with the doctor's rules.

use facts::{Finding, Machine};
use probe::{EnvOptions, Report, Source};
use setup::apply::Inspect;
use std::path::{Path, PathBuf};

/// Reads an environment as the doctor does, with the machine facts of one earlier probe.
pub(super) struct Binaries {
    options: EnvOptions,
    machine: Machine,
    /// Findings about the machine without any environment, which are not the environment's fault.
    of_machine: Vec<Finding>,
}

impl Binaries {
    pub(super) fn new(source: Source, machine: Machine, cache: Option<PathBuf>) -> Self {
        let of_machine = diagnose::run(&machine, &[]);
        Self {
            options: EnvOptions { source, venv: None, cache, verify_files: false },
            machine,
            of_machine,
        }
    }
}

impl Inspect for Binaries {
    fn examine(&self, environment: &Path) -> Result<Vec<Finding>, String> {
        let Report { machine, envs } =
            probe::read_one(self.machine.clone(), &self.options, environment)
                .map_err(|error| error.to_string())?;
        let mut findings = diagnose::run(&machine, &envs);
        findings.retain(|finding| !self.of_machine.contains(finding));
        Ok(findings)
    }
}
