//! Certificates of a checked node: an in-toto statement of what `check` verified, in a signed DSSE envelope.
//!
//! The file is a Sigstore bundle (v0.3) with a local key, so that other tools can verify it too. The statement names every file that the
//! check depended on with its SHA-256 (the program, the driver's and other loaded libraries, the compiled files of the Python
//! environments), the GPUs and the driver. A node is as it was when it was checked if all of these are the same.

mod envelope;
mod key;
mod statement;

use crate::failure::Failure;
use crate::run_folder::write_atomically;
use anyhow::Context;
use std::path::Path;

pub(crate) use key::{public_key_file, signing_key_file};
pub(crate) use statement::{Checked, Node, refusals};

/// Signs a statement with the key in a file, which is created if it does not exist, and writes the bundle.
pub(crate) fn write(path: &Path, key_file: &Path, checked: &Checked<'_>) -> anyhow::Result<()> {
    let key = key::load_or_create(key_file)?;
    let statement = statement::of(checked);
    let bundle = envelope::sign(statement.to_string().as_bytes(), &key);
    let text = serde_json::to_string_pretty(&bundle)? + "\n";
    write_atomically(path, text.as_bytes())
}

/// Checks that a key can be read or created, before minutes of work.
pub(crate) fn check_key(key_file: &Path) -> anyhow::Result<()> {
    key::load_or_create(key_file).map(|_| ())
}

/// The statement in a bundle.
///
/// # Errors
/// Its signature is not by this key.
pub(crate) fn read(
    path: &Path,
    public_key: &Path,
) -> anyhow::Result<Result<serde_json::Value, String>> {
    let key = key::load_public(public_key)?;
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let bundle = serde_json::from_str(&text).map_err(|problem| {
        Failure::hinted(
            format!("{} is not a certificate: {problem}", path.display()),
            "name a file that `firstlight check --certificate FILE` wrote",
        )
    })?;
    Ok(envelope::open(&bundle, &key))
}
