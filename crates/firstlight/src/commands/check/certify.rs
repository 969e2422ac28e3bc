//! The certificate of a finished check.

use super::stack;
use crate::Outcome;
use crate::certificate::{self, Checked, Node};
use crate::cli::Check;
use crate::destination;
use crate::output::Output;
use facts::{DoctorReport, ParityReport, RunManifest};
use std::path::PathBuf;

/// The path of the certificate, and the key that signs it.
pub(super) struct Signer {
    file: PathBuf,
    key: PathBuf,
}

impl Signer {
    /// Checks both before minutes of work; `None` if no certificate is requested.
    pub(super) fn of(arguments: &Check) -> anyhow::Result<Option<Self>> {
        let Some(file) = &arguments.certificate else { return Ok(None) };
        destination::file(file)?;
        let key = certificate::signing_key_file(arguments.signing_key.as_deref())?;
        certificate::check_key(&key)?;
        Ok(Some(Self { file: file.clone(), key }))
    }

    /// Writes the certificate. `cut`: whether time ran out.
    pub(super) fn sign(
        &self,
        (doctor, parity, manifest): (&DoctorReport, &ParityReport, &RunManifest),
        arguments: &Check,
        (outcome, cut): (Outcome, bool),
        output: &Output,
    ) -> anyhow::Result<()> {
        let checked = Checked {
            node: Node::of(doctor),
            parity,
            manifest,
            files: &stack::files(doctor, None),
            extent: match (arguments.quick, arguments.full) {
                (true, _) => "quick",
                (_, true) => "full",
                _ => "standard",
            },
            ops: &arguments.op,
            passed: outcome != Outcome::Bad,
            complete: !cut,
        };
        certificate::write(&self.file, &self.key, &checked)?;
        if output.json {
            return Ok(());
        }
        output.text(&format!("certificate: {}", self.file.display()))
    }
}
