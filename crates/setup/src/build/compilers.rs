//! Recording wrappers for compilers: each runs its compiler, records the exit status and the output file, and keeps a
//! copy of what was linked.

use super::BuildError;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One run of a compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompilerRun {
    /// The compiler's name as the build called it: `c++`, `nvcc`.
    pub tool: String,
    /// Its exit status.
    pub status: i32,
    /// The argument of `-o`; empty without one.
    pub output: String,
    /// A copy of the linked file; `None` for a run that only compiled.
    pub linked: Option<PathBuf>,
}

/// The wrappers of one build.
#[derive(Debug)]
pub(super) struct Compilers {
    /// The folder with the wrappers.
    folder: PathBuf,
    /// The original PATH.
    path: OsString,
    /// Variables that name a compiler, with the wrapper's path.
    variables: Vec<(&'static str, PathBuf)>,
    notes: PathBuf,
}

/// Compiler names that builds use, without target prefix and version suffix.
const NAMES: &[&str] = &["cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc", "hipcc"];

/// Whether a program's name is that of a compiler: `g++`, `x86_64-linux-gnu-gcc-12`.
fn is_compiler(name: &str) -> bool {
    let version = |c: char| c.is_ascii_digit() || c == '.';
    let stem = match name.rsplit_once('-') {
        Some((stem, suffix)) if !suffix.is_empty() && suffix.chars().all(version) => stem,
        _ => name,
    };
    // `-` separates the target from the compiler; none of the names above contains one.
    NAMES.contains(&stem.rsplit('-').next().unwrap_or(stem))
}

impl Compilers {
    /// Writes a wrapper for every compiler on PATH, for the toolkit's nvcc, and for those that CC and CXX name.
    pub(super) fn new(
        path: &OsStr,
        cuda_home: Option<&Path>,
        notes: &Path,
    ) -> Result<Self, BuildError> {
        let folder = notes.join("bin");
        let kept = notes.join("linked");
        for folder in [&folder, &kept] {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
        for place in std::env::split_paths(path).filter(|place| place.is_absolute()) {
            for entry in fs::read_dir(place).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if is_compiler(&name) && entry.path().is_file() {
                    found.entry(name).or_insert_with(|| entry.path());
                }
            }
        }
        let mut this =
            Self { folder, path: path.to_owned(), variables: Vec::new(), notes: notes.to_owned() };
        for (name, program) in &found {
            this.recording_compiler(name, name, program)?;
        }
        if let Some(nvcc) = cuda_home.map(|home| home.join("bin/nvcc")) {
            // torch's extension builder and CMake use these before they look below CUDA_HOME.
            let recording_compiler = this.recording_compiler("nvcc", "nvcc", &nvcc)?;
            this.variables
                .extend(["PYTORCH_NVCC", "CUDACXX"].map(|name| (name, recording_compiler.clone())));
        }
        for variable in ["CC", "CXX"] {
            let named = std::env::var_os(variable).map(PathBuf::from);
            if let Some(program) = named.filter(|program| program.is_absolute()) {
                let tool = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let recording_compiler =
                    this.recording_compiler(&format!("{variable}-{tool}"), &tool, &program)?;
                this.variables.push((variable, recording_compiler));
            }
        }
        Ok(this)
    }

    /// Makes a command and its children use the wrappers; programs in the environment's `bin`, such as ninja, come
    /// next.
    pub(super) fn attend(&self, command: &mut Command, bin: &Path) {
        let own = [self.folder.clone(), bin.to_owned()];
        let folders = own.into_iter().chain(std::env::split_paths(&self.path));
        if let Ok(path) = std::env::join_paths(folders) {
            command.env("PATH", path);
        }
        command.envs(self.variables.iter().map(|(name, program)| (name, program)));
    }

    fn recording_compiler(
        &self,
        name: &str,
        tool: &str,
        program: &Path,
    ) -> Result<PathBuf, BuildError> {
        let path = self.folder.join(name);
        let text = SCRIPT
            .replace("@tool@", tool)
            .replace("@program@", &quoted(program))
            .replace("@notes@", &quoted(&self.notes.join("runs")))
            .replace("@kept@", &quoted(&self.notes.join("linked")));
        fs::write(&path, text).and_then(|()| executable(&path)).map_err(at(&path))?;
        Ok(path)
    }

    /// The recorded runs, in the order in which they ended.
    pub(super) fn runs(&self) -> Result<Vec<CompilerRun>, BuildError> {
        let path = self.notes.join("runs");
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(at(&path)(error)),
        };
        let run = |line: &str| {
            let mut fields = line.split('\t');
            let mut field = || fields.next();
            let (status, tool, output, kept) =
                (field()?.parse().ok()?, field()?, field()?, field()?);
            let linked = (!kept.is_empty()).then(|| PathBuf::from(kept));
            Some(CompilerRun { tool: tool.to_owned(), status, output: output.to_owned(), linked })
        };
        Ok(text.lines().filter_map(run).collect())
    }
}

/// Linked files are copied: a hard link would follow later writes to the same file, for example of a prebuilt library.
const SCRIPT: &str = r#"#!/bin/sh
# Runs the compiler that it wraps and logs the run: firstlight's proof that a package was compiled here.
output= only= before=
for word in "$@"; do
    [ "$before" = -o ] && output=$word
    case $word in
        -o?*) output=${word#-o} ;;
        --output-file=*) output=${word#--output-file=} ;;
        -c | -E | -S | -M | -MM | -dc | -dw | --compile | --device-c | --preprocess | -ptx | -cubin | -fatbin) only=1 ;;
    esac
    before=$word
done
@program@ "$@"
status=$?
kept=
if [ $status = 0 ] && [ -z "$only" ] && [ -n "$output" ] && [ -f "$output" ]; then
    kept=@kept@/$$-${output##*/}
    cp "$output" "$kept" || kept=
fi
printf '%s\t%s\t%s\t%s\n' "$status" '@tool@' "$output" "$kept" >>@notes@
exit $status
"#;

/// A path as one shell word.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(unix)]
fn executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn executable(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> BuildError + use<> {
    let folder = path.to_owned();
    move |source| BuildError::Folder { folder: folder.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_are_known_by_their_names() {
        for name in ["cc", "g++", "gcc-12", "clang++-18", "x86_64-linux-gnu-g++-13", "nvcc"] {
            assert!(is_compiler(name), "{name}");
        }
        for name in
            ["gcc-ar", "gccgo", "cccc", "c++filt", "g++-mapper-server", "ld", "clang-format"]
        {
            assert!(!is_compiler(name), "{name}");
        }
    }

    /// Uses the real compiler of this machine.
    #[test]
    fn compiler_runs_are_logged_and_linked_libraries_copied() {
        let folder = tempfile::tempdir().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        // A folder with a space and a quote in its name.
        let notes = folder.path().join("no'tes of");
        let compilers = Compilers::new(&path, None, &notes).unwrap();
        assert_eq!(compilers.runs().unwrap(), []);
        fs::write(folder.path().join("a.c"), "int f(void) { return 1; }\n").unwrap();
        fs::write(folder.path().join("b.c"), "no C\n").unwrap();
        let run = |arguments: &[&str]| {
            let mut command = Command::new(compilers.folder.join("cc"));
            command.current_dir(folder.path()).args(arguments).output().unwrap().status.code()
        };
        assert_eq!(run(&["-c", "a.c", "-o", "a.o"]), Some(0));
        assert_eq!(run(&["-shared", "a.o", "-oliba.so"]), Some(0));
        assert_eq!(run(&["-c", "b.c", "-o", "b.o"]), Some(1));
        let runs = compilers.runs().unwrap();
        let seen: Vec<_> =
            runs.iter().map(|run| (run.tool.as_str(), run.status, run.output.as_str())).collect();
        assert_eq!(seen, [("cc", 0, "a.o"), ("cc", 0, "liba.so"), ("cc", 1, "b.o")]);
        assert_eq!((&runs[0].linked, &runs[2].linked), (&None, &None));
        let kept = fs::read(runs[1].linked.as_ref().unwrap()).unwrap();
        assert_eq!(kept, fs::read(folder.path().join("liba.so")).unwrap());
    }
}
