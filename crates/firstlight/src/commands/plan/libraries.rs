//! Reads the CUDA libraries of a wheel as the doctor reads those of an environment.

use probe::{EnvOptions, Source};
use setup::WheelCode;
use std::fs;
use std::path::Path;

/// Reads the libraries below a folder, which is first moved into the directory structure of an environment.
pub(in crate::commands) fn read(libraries: &Path) -> Result<WheelCode, String> {
    let parent = libraries.parent().unwrap_or(libraries);
    let environment = tempfile::tempdir_in(parent).map_err(|error| error.to_string())?;
    let packages = environment.path().join("lib/python3.12/site-packages");
    let laid_out = fs::create_dir_all(packages.parent().unwrap_or(parent))
        .and_then(|()| fs::write(environment.path().join("pyvenv.cfg"), "version = 3.12.0\n"))
        .and_then(|()| fs::rename(libraries, &packages));
    laid_out.map_err(|error| error.to_string())?;
    let options = EnvOptions {
        source: Source::live(),
        venv: Some(environment.path().to_path_buf()),
        cache: None,
        verify_files: false,
    };
    let environments = probe::environments(&options).map_err(|error| error.to_string())?;
    let files = environments.iter().take(1).flat_map(|env| &env.native_files);
    Ok(setup::index::code_of(files.filter_map(|file| file.elf.as_ref())))
}
