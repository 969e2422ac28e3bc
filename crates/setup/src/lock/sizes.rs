//! Sizes of files that an index does not tell: a page of links (PEP 503), as torch's indexes and release pages are, has
//! names and hashes alone, and whoever downloads gigabytes wants to know it before.

use crate::fetch::Fetch;
use facts::{Plan, PlannedFile};
use std::path::Path;
use std::process::{Command, Stdio};

/// Asks the server of each file whose size is not known. A size is not worth an error: one that is not told stays unknown,
/// as everywhere that it is shown it may be.
pub(super) fn ask(plan: &mut Plan, python: &Path) {
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
