//! `requirements.txt` with hashes, for pip and uv.
//!
//! pip searches all given indexes for every package and takes the highest version; the format cannot bind a package to
//! an index. So the file gives pip only the default index, and packages from elsewhere are listed by the address of
//! their file.

use super::Format;
use crate::emit::{EmitError, has_hashes};
use crate::wheel::WheelName;
use facts::{BuildRecipe, InstallPlan, PackageOrigin, PlannedFile, PlannedPackage};
use std::fmt::Write as _;

pub(super) const FORMAT: Format = Format {
    name: "requirements.txt",
    about: "`pip install --no-deps -r requirements.txt` installs it, and refuses a file of another hash.",
    write,
};

fn write(plan: &InstallPlan) -> Result<String, EmitError> {
    let default = plan.indexes.first();
    let mut text = String::new();
    if let Some(index) = default {
        let option = if index.flat { "--no-index\n--find-links" } else { "--index-url" };
        let _ = writeln!(text, "{option} {}", index.url);
    }
    text += "--require-hashes\n--only-binary :all:\n\n";
    let mut builds = Vec::new();
    for package in &plan.packages {
        if let PackageOrigin::Build(recipe) = &package.origin {
            builds.push((package, recipe));
            continue;
        }
        if !has_hashes(package) {
            return Err(EmitError::Unlocked { format: FORMAT.name, package: package.name.clone() });
        }
        let from_default = default.is_some_and(|index| index.name == package.index);
        let files = if from_default {
            let _ = write!(text, "{}=={}", package.name, package.version);
            package.files.iter().collect()
        } else {
            let file = the_file(package);
            let url =
                file.and_then(|file| file.url.as_deref()).ok_or_else(|| EmitError::Unfit {
                    format: FORMAT.name,
                    reason: format!(
                        "`{}` comes from {} and has no URL",
                        package.name, package.index
                    ),
                    hint: "use pyproject.toml, which pins a package to an index".to_owned(),
                })?;
            let _ = write!(text, "{} @ {url}", package.name);
            Vec::from_iter(file)
        };
        if let Some(marker) = &package.marker {
            let _ = write!(text, " ; {marker}");
        }
        for sha256 in files.iter().filter_map(|file| file.sha256.as_ref()) {
            let _ = write!(text, " \\\n    --hash=sha256:{sha256}");
        }
        text.push('\n');
    }
    write_builds(&mut text, &builds);
    Ok(text)
}

/// The file that pip would choose among several: the one with the highest build number.
fn the_file(package: &PlannedPackage) -> Option<&PlannedFile> {
    let number = |file: &PlannedFile| -> Option<u32> {
        let build = WheelName::parse(&file.name).ok()?.build?;
        build.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
    };
    package.files.iter().max_by_key(|file| number(file))
}

/// Commands for built packages: pip reads neither their switches nor their order from a file.
fn write_builds(text: &mut String, builds: &[(&PlannedPackage, &BuildRecipe)]) {
    if builds.is_empty() {
        return;
    }
    text.push_str("\n# Then, in this order, what is compiled against the torch above:\n");
    for (package, recipe) in builds {
        text.push_str("#   ");
        for (name, value) in &recipe.env {
            let _ = write!(text, "{name}={value} ");
        }
        let _ = writeln!(
            text,
            "pip install --no-deps --no-build-isolation --no-binary {} \"{}\"",
            package.name, recipe.requirement
        );
    }
}
