//! Requests sizes of files whose index has none: a page of links (PEP 503), as torch's indexes and release pages have,
//! lists only names and hashes, but users want to know the size of a download in advance.

use crate::fetch::Fetch;
use facts::{InstallPlan, PlannedFile};
use std::path::Path;
use std::process::{Command, Stdio};

/// Asks the server of each file whose size is unknown. Failures are ignored: sizes may be unknown everywhere they are
/// shown.
pub(super) fn ask(plan: &mut InstallPlan, python: &Path) {
    let files = plan.packages.iter_mut().flat_map(|package| &mut package.files);
    let asked = |file: &&mut PlannedFile| {
        file.bytes.is_none() && file.url.as_ref().is_some_and(|url| url.starts_with("http"))
    };
    let files: Vec<&mut PlannedFile> = files.filter(asked).collect();
    let urls: Vec<String> = files.iter().filter_map(|file| file.url.clone()).collect();
    if urls.is_empty() {
        return;
    }
    let Ok(folder) = tempfile::tempdir() else { return };
    let mut command = Command::new(python);
    command.args(["-I", "-B"]).stdin(Stdio::null());
    let told = folder.path().join("fetch.json");
    let answers = Fetch::sizes(command, &told, &urls).unwrap_or_default();
    for (file, answer) in files.into_iter().zip(answers) {
        file.bytes = answer.ok().flatten();
    }
}
