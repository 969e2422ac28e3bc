//! Installs zig's linker from PyPI, which links for older glibc versions and for other architectures.
//!
//! zig has the versioned symbols of every glibc since 2.17 and links with those of the requested release. The host's linker would
//! use the host's glibc, which is newer than that of many servers.

use super::binary::NEWEST_GLIBC;
use crate::cross::write_program;
use crate::steps::{is_available, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tested release.
const PACKAGE: &str = "ziglang==0.17.1";

/// Translates rustc's arguments of a C compiler driver: zig has libunwind instead of libgcc_s, and selects its linker.
///
/// The program is linked at a fixed address, because a position-independent one needs a relocation of 24 bytes for each pointer
/// in its tables, 1 MB of 30. The heap, the stack and every library still have random addresses.
const TRANSLATION: &str = r#"for word do
    shift
    case $word in
    -lgcc_s) set -- "$@" -lunwind ;;
    -pie) set -- "$@" -no-pie ;;
    -fuse-ld=* | -B* | --target=*) ;;
    *) set -- "$@" "$word" ;;
    esac
done"#;

/// Links twice, the second time with identical code folding (ICF), for which `zig cc` has no option, so the script calls
/// `zig ld.lld`. Float32 kernels for processors with and without bfloat16 are identical, as are many `drop` functions. Rust
/// guarantees no unique function addresses, and no code relies on unique addresses of equal constants. If a path has a space, the
/// result of the first link remains.
const FOLDING: &str = r#"said=$("$zig" cc -target "$target" "$@" --verbose 2>&1) || { printf '%s\n' "$said" >&2; exit 1; }
line=$(printf '%s\n' "$said" | sed -n 's/^ld\.lld //p' | tail -n 1)
case $line in
'' | *' -r '*) ;;
*) "$zig" ld.lld $line --icf=all --ignore-data-address-equality 2>/dev/null || exec "$zig" cc -target "$target" "$@" ;;
esac"#;

/// The path of a linker for `architecture` (`x86_64`, `aarch64`) with the arguments of a C compiler driver.
pub(super) fn linker(target_directory: &Path, architecture: &str) -> anyhow::Result<PathBuf> {
    let home = target_directory.join("dist-tools");
    let zig = prepare(&home)?;
    let (major, minor) = NEWEST_GLIBC;
    let path = home.join(format!("link-{architecture}"));
    let line = format!(
        "{TRANSLATION}\nexport ZIG_GLOBAL_CACHE_DIR='{cache}' ZIG_LOCAL_CACHE_DIR='{cache}'\n\
         zig='{zig}' target={architecture}-linux-gnu.{major}.{minor}\n{FOLDING}",
        cache = home.join("zig-cache").display(),
        zig = zig.display(),
    );
    write_program(&path, &line)?;
    Ok(path)
}

/// Installs zig below the target folder unless it is installed.
fn prepare(home: &Path) -> anyhow::Result<PathBuf> {
    let (site, stamp) = (home.join("site"), home.join("complete"));
    let zig = site.join("ziglang/zig");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == PACKAGE) {
        return Ok(zig);
    }
    if !is_available("python3", "--version") {
        bail!("`python3` was not found\nhint: `apt-get install python3-venv`");
    }
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    let venv = home.join("pip");
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))
        .context("hint: `apt-get install python3-venv`")?;
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    run(pip.arg("--target").arg(&site).arg(PACKAGE))?;
    fs::write(&stamp, PACKAGE)?;
    Ok(zig)
}
