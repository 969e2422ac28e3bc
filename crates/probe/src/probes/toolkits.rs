//! CUDA toolkits on disk. nvcc is run only if no file of the toolkit has the version.

use crate::Source;
use crate::source::{Command, CommandError};
use facts::{CudaToolkit, Fact, Machine};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Host compilers used by Triton, torch.compile and extension builds.
const COMPILERS: [&str; 6] = ["gcc", "g++", "cc", "c++", "clang", "clang++"];

/// The compilers on PATH. A recorded machine has no programs, so its compilers are not known.
fn compilers(source: &Source) -> Option<Fact<Vec<String>>> {
    if !source.is_live() {
        return None;
    }
    let path = source.var("PATH")?;
    let named = ["CC", "CXX"].into_iter().filter_map(|name| source.var(name)).map(str::to_owned);
    let found = COMPILERS.iter().filter(|name| source.which(name).is_some());
    Some(Fact::new(
        found.map(|name| (*name).to_owned()).chain(named).collect(),
        format!("PATH={path}"),
    ))
}

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    machine.compilers = compilers(source);
    let mut seen = BTreeSet::new();
    for (root, found_by) in candidates(source) {
        let Some(real) = source.canonical(&root) else {
            machine
                .notes
                .push(format!("{found_by} names {}, which does not exist", root.display()));
            continue;
        };
        if !seen.insert(real.clone()) {
            continue;
        }
        let has_nvcc = source.is_file(real.join("bin/nvcc"));
        let version = version(source, &real, has_nvcc, &mut machine.notes);
        // An empty or runtime-only folder named cuda is not a toolkit, unless the user selects it.
        if version.is_none() && !has_nvcc && found_by == "/usr/local" {
            continue;
        }
        machine.toolkits.push(CudaToolkit {
            root: root.display().to_string(),
            version,
            has_nvcc,
            found_by,
        });
    }
}

fn candidates(source: &Source) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = source.var(variable) {
            found.push((PathBuf::from(root), variable.to_string()));
        }
    }
    for folder in source.folders_of_var("PATH") {
        let nvcc = folder.join("nvcc");
        // A link in /usr/bin points into the toolkit; Debian's package has a plain nvcc there, with the root /usr.
        let Some(real) = source.canonical(&nvcc).filter(|real| source.is_file(real)) else {
            continue;
        };
        let direct = (folder.ends_with("bin")
            && real.parent() == source.canonical(&folder).as_deref())
        .then(|| folder.parent().map(Path::to_path_buf))
        .flatten();
        let linked = || {
            real.parent()
                .filter(|bin| bin.ends_with("bin"))
                .and_then(Path::parent)
                .map(Path::to_path_buf)
        };
        if let Some(root) = direct.or_else(linked) {
            found.push((root, "PATH".to_string()));
        }
    }
    for name in source
        .list("/usr/local")
        .into_iter()
        .filter(|name| name == "cuda" || name.starts_with("cuda-"))
    {
        let root = Path::new("/usr/local").join(name);
        // A stale link of an uninstalled toolkit is not reported.
        if source.is_dir(&root) {
            found.push((root, "/usr/local".to_string()));
        }
    }
    if source.is_dir("/opt/cuda") {
        found.push((PathBuf::from("/opt/cuda"), "/opt/cuda".to_string()));
    }
    found
}

fn version(
    source: &Source,
    root: &Path,
    has_nvcc: bool,
    notes: &mut Vec<String>,
) -> Option<Fact<String>> {
    type Reader = fn(&str) -> Option<String>;
    let mut files: Vec<(PathBuf, Reader)> = vec![
        (root.join("version.json"), parse_version_json),
        (root.join("version.txt"), parse_version_txt),
        (root.join("include/cuda.h"), parse_cuda_h),
    ];
    for target in source.list(root.join("targets")) {
        files.push((root.join("targets").join(target).join("include/cuda.h"), parse_cuda_h));
    }
    for (file, parse) in files {
        if let Some(version) = source.text(&file).and_then(|text| parse(&text)) {
            return Some(Fact::new(version, file.display().to_string()));
        }
    }
    if !has_nvcc {
        return None;
    }
    let nvcc = root.join("bin/nvcc").display().to_string();
    let command = Command {
        record: "nvcc-version",
        program: &nvcc,
        args: &["--version"],
        limit: Duration::from_secs(5),
    };
    match source.run(&command) {
        Ok(text) => Some(Fact::new(parse_nvcc(&text)?, format!("{nvcc} --version"))),
        Err(CommandError::Absent) => None,
        Err(error) => {
            notes.push(format!("{nvcc} {error}: this toolkit's version is unknown"));
            None
        }
    }
}

/// version.json of CUDA 11 and later: the `cuda` entry's version.
pub(crate) fn parse_version_json(text: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(json.get("cuda")?.get("version")?.as_str()?.to_string())
}

/// version.txt of CUDA 10 and earlier: `CUDA Version 10.2.89`.
pub(crate) fn parse_version_txt(text: &str) -> Option<String> {
    let version = text.trim().strip_prefix("CUDA Version")?.split_whitespace().next()?;
    crate::text::is_dotted_number(version).then(|| version.to_string())
}

/// `#define CUDA_VERSION 12080` of cuda.h, 1000 * major + 10 * minor.
pub(crate) fn parse_cuda_h(text: &str) -> Option<String> {
    let number = text.lines().find_map(|line| {
        let mut words = line.trim().strip_prefix("#define")?.split_whitespace();
        (words.next()? == "CUDA_VERSION").then(|| words.next()?.parse::<u32>().ok())?
    })?;
    (number >= 1000).then(|| format!("{}.{}", number / 1000, number % 1000 / 10))
}

/// `Cuda compilation tools, release 13.0, V13.0.88` of `nvcc --version`: the release, since V13.0.88 is nvcc's own.
pub(crate) fn parse_nvcc(text: &str) -> Option<String> {
    let (_, after) = text.split_once("release ")?;
    let version = after.split([',', ' ', '\n']).next()?;
    crate::text::is_dotted_number(version).then(|| version.to_string())
}

#[cfg(test)]
mod tests {
    use super::{parse_cuda_h, parse_nvcc, parse_version_json, parse_version_txt};

    #[test]
    fn reads_versions_in_every_file_format() {
        let check = |got: Option<String>, expect: Option<&str>| assert_eq!(got.as_deref(), expect);
        check(
            parse_version_json(
                r#"{"cuda":{"name":"CUDA SDK","version":"12.8.1"},"cuda_nvcc":{"version":"12.8.93"}}"#,
            ),
            Some("12.8.1"),
        );
        check(parse_version_json("{}"), None);
        check(parse_version_json(""), None);
        check(parse_version_txt("CUDA Version 10.2.89\n"), Some("10.2.89"));
        check(parse_version_txt("CUDA Version x\n"), None);
        check(parse_cuda_h("#ifndef X\n#define CUDA_VERSION 12040 /* note */\n"), Some("12.4"));
        check(parse_cuda_h(" #define   CUDA_VERSION  9020\n"), Some("9.2"));
        check(parse_cuda_h("#define CUDA_VERSION_X 12040\n#define __CUDA_API_VERSION 1\n"), None);
        check(parse_cuda_h("#define CUDA_VERSION 7\n"), None);
        check(parse_nvcc(include_str!("../../fixtures/h200/commands/nvcc-version")), Some("13.0"));
        check(parse_nvcc("nvcc: release"), None);
    }
}
