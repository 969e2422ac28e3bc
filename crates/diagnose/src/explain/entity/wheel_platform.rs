//! uv's message that a release has no wheel for the platform.

use super::resolver::{here, named};
use super::{Entity, Form, form};
use crate::extension::has_source;
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form(
            "Distribution '{package} @ *' can't be installed because it doesn't have a source distribution or wheel for the current platform",
            platform,
        ),
        form(
            "Distribution '{package}*' can't be installed because it doesn't have a source distribution or wheel for the current platform",
            platform,
        ),
        form("doesn't have a source distribution or wheel for the current platform", platform),
        form("{package} has no wheels with a matching * tag", platform),
        form("no wheels are available for {package} with a matching", platform),
    ]
}

/// `2.27` of `manylinux_2_27_x86_64`, after a mark.
fn glibc_after(text: &str, mark: &str) -> Vec<(u32, u32)> {
    text.match_indices(mark)
        .filter_map(|(at, _)| {
            let mut parts = text[at + mark.len()..].split('_');
            let major = parts.next()?.parse().ok()?;
            let minor: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
            Some((major, minor.parse().ok()?))
        })
        .collect()
}

fn platform(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (name, version) = named(seen.word("package").unwrap_or("the package"));
    let text = seen.text;
    // uv's hint names the platform that it installs for, and then those of the wheels.
    let tags = glibc_after(text, "manylinux_");
    let (own, wheels) =
        tags.split_first().map_or((None, &[][..]), |(first, rest)| (Some(*first), rest));
    let told_platform = text.contains("You're on ");
    let least = wheels.iter().min().copied();
    let python = text.contains("You're using CPython")
        || text.contains("ABI tag")
        || text.contains("matching Python");
    let mut reason =
        "the release has no wheel for this Python, this processor or this C library".to_owned();
    if let (true, Some(own), Some(least)) = (told_platform, own, least) {
        if own < least {
            reason = format!(
                "the C library is too old: this system has glibc {}.{} (or the resolver was configured so), and the oldest wheel needs {}.{}",
                own.0, own.1, least.0, least.1
            );
        }
    } else if python {
        reason = "no wheel is for this Python: it is newer or older than the release's wheels"
            .to_owned();
    }
    let tag = quoted_after(text, "matching platform tag (e.g., '");
    if let Some(tag) = tag {
        reason = no_wheel_of(tag, text);
    }
    let musl = text.contains("musllinux") && told_platform;
    if musl {
        reason.push_str("; Alpine's musl has no wheels of GPU packages, which are built for glibc");
    }
    let sdist = match has_source(&name) {
        true => "",
        false => " It has no source distribution either.",
    };
    let shown = if version.is_empty() { name.clone() } else { format!("{name} {version}") };
    let resolves = match tag {
        Some(_) => {
            "Another release that has such a wheel, or another machine or image, resolves it; another Python does not"
        }
        None => {
            "A release that has such a wheel (older for an old glibc, newer for a new Python), another Python, or a newer system or container image resolves it"
        }
    };
    let mut fix = vec!["python -c 'import platform, sys; print(sys.version, platform.machine(), platform.libc_ver())'".to_owned()];
    fix.push(format!("python -m pip index versions {name}"));
    if tag.is_none() {
        fix.push("uv venv --python 3.12".to_owned());
    }
    // Several indexes have the package under one name and under a version with a label.
    let indexes = text.contains("only the following versions of") && text.contains("+c");
    let first_index = match indexes {
        true => {
            fix.insert(0, format!("uv pip install --index-strategy unsafe-best-match {name}  # or name the index of {name} in tool.uv.sources"));
            " uv takes a package from the first index that has it and looks at no later one: here an extra index (versions with `+cu...`) has it without the wheel, and PyPI may have it."
        }
        false => "",
    };
    fix.push(format!("firstlight plan {name}"));
    let entity = Entity::new("resolver", format!("no wheel of {shown}"))
        .meaning(format!(
            "{shown} cannot be installed here: {reason}.{sdist}{first_index} {resolves}; for a lock that is made for another machine, name the platform (`uv pip compile \
             --python-platform`, `tool.uv.required-environments`)."
        ))
        .fix(fix)
        .package(name)
        .rank(4);
    Some(here(entity, seen))
}

/// The words between a mark and the next quote.
fn quoted_after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark)?.1.split('\'').next()
}

/// Why a release has no wheel for a platform tag, which uv prints with the tags of the wheels.
fn no_wheel_of(tag: &str, text: &str) -> String {
    let listed = text.split_once("on the following platform").map_or("", |(_, rest)| rest);
    let listed: String = listed.chars().take(400).collect();
    let mac = tag.starts_with("macosx");
    if mac && tag.ends_with("x86_64") {
        let since = " (PyTorch's last one for them is 2.2)";
        return format!(
            "the tag {tag} is that of a Mac with an Intel processor, for which the release has no wheel{since}"
        );
    }
    let system = match tag {
        _ if mac => "macOS",
        _ if tag.starts_with("win") => "Windows",
        _ if tag.starts_with("musllinux") => "Linux with musl (Alpine)",
        _ => "Linux",
    };
    let same_system = match system {
        "macOS" => listed.contains("macosx"),
        "Windows" => listed.contains("win"),
        _ => listed.contains("linux"),
    };
    let processor = ["x86_64", "aarch64", "arm64", "amd64", "ppc64le"]
        .into_iter()
        .find(|name| tag.ends_with(name))
        .unwrap_or("this processor");
    match (listed.is_empty(), same_system, listed.contains(processor)) {
        (false, false, _) => format!("the release has no wheel for {system} (the tag {tag})"),
        (false, true, false) => {
            format!("the release has wheels for {system}, and none for {processor} (the tag {tag})")
        }
        (false, true, true) if tag.contains("linux") => {
            format!(
                "the release's wheels for {processor} need a newer C library than that of the tag {tag}"
            )
        }
        _ => format!("the release has no wheel for the platform {tag}"),
    }
}
