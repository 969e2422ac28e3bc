//! The compiler in processes of its own: NVRTC compiles one kernel at a time in a process, and a machine has many cores.

use super::{CudaError, KernelSource, Nvrtc};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The program, and what it is called with before NVRTC's path and the compiler's options.
static PROGRAM: OnceLock<(PathBuf, &'static [&'static str])> = OnceLock::new();

/// Compiles each kernel by a process of this program from now on; it is to call [`compile_for_another`].
pub fn compile_by(program: PathBuf, arguments: &'static [&'static str]) {
    // Who said it first is right.
    let _ = PROGRAM.set((program, arguments));
}

/// What such a program does: compiles the source that it reads, and writes the binary or the log. It is to end with status 0
/// where this gives `true`, and with 1 where it does not compile.
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

/// Compiles a source, in another process where there is a program for it.
pub(super) fn compile(nvrtc: &Nvrtc, source: &KernelSource) -> Result<Vec<u8>, CudaError> {
    let asked = PROGRAM.get().and_then(|(program, arguments)| {
        ask(Command::new(program).args(*arguments), nvrtc.path(), source)
    });
    match asked {
        Some(Ok(binary)) => Ok(binary),
        Some(Err(log)) => Err(source.does_not_compile(log)),
        // One that cannot be started, or was killed, says nothing of the source.
        None => nvrtc.compile(source).map(|(binary, _)| binary),
    }
}

/// The binary or the compiler's log; `None` where the process came to neither.
fn ask(
    program: &mut Command,
    nvrtc: &Path,
    source: &KernelSource,
) -> Option<Result<Vec<u8>, String>> {
    let pipes = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.arg(nvrtc).args(source.options()).spawn().ok()?;
    // It answers once it has read everything. One that does not read has not compiled either.
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
    use crate::cuda::{ComputeCapability, GpuArch, Part};

    #[test]
    fn a_process_gives_a_binary_or_a_log_or_nothing() {
        let arch = GpuArch::of(ComputeCapability::new(9, 0));
        let source = KernelSource::new("f", &[Part::Text("int a;"), Part::Text("int b;")], arch)
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
