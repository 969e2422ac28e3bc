//! A linker for an older glibc than this machine's, and for other processors: zig's, from the Python registry.
//!
//! zig has the symbols of every glibc since 2.17 with their versions, so that what it links names the versions of the release that was
//! asked for. Debian's own linker would take those of this machine's library, and a program that needs glibc 2.36 starts on few servers.

use super::binary::NEWEST_GLIBC;
use crate::cross::write_program;
use crate::steps::{is_available, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release that was tried.
const PACKAGE: &str = "ziglang==0.17.1";

/// Translates what rustc gives a C compiler driver: zig has libunwind instead of libgcc_s, and chooses its linker itself.
///
/// The program is linked at a fixed address. A position-independent one needs 24 bytes for each pointer in its tables, 1 MB of 30. The heap, the
/// stack and every library still have random addresses.
const TRANSLATION: &str = r#"for word do
    shift
    case $word in
    -lgcc_s) set -- "$@" -lunwind ;;
    -pie) set -- "$@" -no-pie ;;
    -fuse-ld=* | -B* | --target=*) ;;
    *) set -- "$@" "$word" ;;
    esac
done"#;

/// Links, and links again with functions of the same code folded into one, which zig's linker does when it is called by its own name: `zig cc`
/// has no word for that. Kernels of numbers in float32 are the same for processors with and without bfloat16, and many a `drop` is another's.
/// Rust promises no address of a function; constants of the same bytes are
/// folded too, whose addresses no code compares but as equal contents. A path with a space in it keeps the first program.
const FOLDING: &str = r#"said=$("$zig" cc -target "$target" "$@" --verbose 2>&1) || { printf '%s\n' "$said" >&2; exit 1; }
line=$(printf '%s\n' "$said" | sed -n 's/^ld\.lld //p' | tail -n 1)
case $line in
'' | *' -r '*) ;;
*) "$zig" ld.lld $line --icf=all --ignore-data-address-equality 2>/dev/null || exec "$zig" cc -target "$target" "$@" ;;
esac"#;

/// A program that links for `architecture` (`x86_64`, `aarch64`) as a C compiler driver does.
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

/// Unpacks zig below the target folder where that has not been done yet.
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
