//! Runs NVRTC in separate processes: it compiles one kernel at a time per process, and a machine has many cores.

use super::{DeviceError, KernelSource, Nvrtc};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The program, and its arguments before NVRTC's path and the compiler's options.
static PROGRAM: OnceLock<(PathBuf, &'static [&'static str])> = OnceLock::new();

/// Compiles each kernel in a process of this program from now on; the program has to call [`compile_for_another`].
pub fn compile_by(program: PathBuf, arguments: &'static [&'static str]) {
    // The first setting is kept.
    let _ = PROGRAM.set((program, arguments));
}

/// Implements such a program: compiles the source from its input, and writes the binary or the log. The program should
/// exit with status 0 if this returns `true`, and with 1 if the source does not compile.
///
/// # Errors
/// Of reading and writing.
pub fn compile_for_another(
    nvrtc: &Path,
    options: &[String],
    mut source: impl Read,
    mut binary: impl Write,
    mut log: impl Write,
) -> std::io::Result<bool> {
    let mut text = String::new();
    source.read_to_string(&mut text)?;
    let compiled = match Nvrtc::load(nvrtc) {
        Some(nvrtc) => nvrtc.compile_text(&text, options),
        None => Err(format!("{} cannot be loaded", nvrtc.display())),
    };
    match compiled {
        Ok((cubin, _)) => binary.write_all(&cubin).map(|()| true),
        Err(said) => log.write_all(said.as_bytes()).map(|()| false),
    }
}

/// Compiles a source, in another process if a program is set.
pub(super) fn compile(nvrtc: &Nvrtc, source: &KernelSource) -> Result<Vec<u8>, DeviceError> {
    let asked = PROGRAM.get().and_then(|(program, arguments)| {
        ask(Command::new(program).args(*arguments), nvrtc.path(), source)
    });
    match asked {
        Some(Ok(binary)) => Ok(binary),
        Some(Err(log)) => Err(source.does_not_compile(log)),
        // A process that cannot be started, or was killed, is not an error of the source.
        None => nvrtc.compile(source).map(|(binary, _)| binary),
    }
}

/// The binary or the compiler's log; `None` if the process failed.
fn ask(
    program: &mut Command,
    nvrtc: &Path,
    source: &KernelSource,
) -> Option<Result<Vec<u8>, String>> {
    let pipes = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.arg(nvrtc).args(source.options()).spawn().ok()?;
    // It answers after reading everything. If it does not read, it has not compiled either.
    let told = child.stdin.take().map(|mut to| to.write_all(source.text().as_bytes()));
    let output = child.wait_with_output().ok()?;
    match (told, output.status.code()) {
        (Some(Ok(())), Some(0)) => Some(Ok(output.stdout)),
        (_, Some(1)) => Some(Err(String::from_utf8_lossy(&output.stderr).into_owned())),
        _ => None,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::cuda::{ComputeCapability, GpuArch, SourcePart};

    #[test]
    fn a_process_gives_a_binary_or_a_log_or_nothing() {
        let arch = GpuArch::of(ComputeCapability::new(9, 0));
        let source =
            KernelSource::new("f", &[SourcePart::Text("int a;"), SourcePart::Text("int b;")], arch)
                .define("D", 64);
        let check = |script: &str, expect: Option<Result<&str, &str>>| {
            let mut program = Command::new("sh");
            let asked = ask(program.args(["-c", script, "sh"]), Path::new("libnvrtc"), &source);
            let expect = expect.map(|expect| {
                expect.map(|binary| binary.as_bytes().to_vec()).map_err(str::to_owned)
            });
            assert_eq!(asked, expect, "{script}");
        };
        let said =
            "libnvrtc --gpu-architecture=sm_90a --std=c++17 -default-device -DD=64 int a;\nint b;";
        check("printf '%s ' \"$@\"; cat", Some(Ok(said)));
        check("cat >/dev/null; echo 'f.cu(1): error' >&2; exit 1", Some(Err("f.cu(1): error\n")));
        check("cat >/dev/null; kill -9 $$", None);
        check("exit 7", None);
        let mut missing = Command::new("/not/there");
        assert_eq!(ask(&mut missing, Path::new("libnvrtc"), &source), None);
    }
}
