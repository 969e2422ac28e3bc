//! A Python exception that no other kind knows: which package raised it, which package called that one, and the causes that
//! the class of the exception leaves possible.

use super::super::cause::Cause;
use super::super::error_lines::{ErrorLine, Frame};
use super::Entity;
use crate::explain::modules::{installed, provider};
use crate::rules::Seen;

/// Longest message that is shown, in letters.
const SHOWN: usize = 400;

/// The remote code of a model repository, which transformers imports as a package.
const REMOTE_CODE: &str = "transformers_modules";

/// The root exception as an entity; `None` where no frame is of a package, so that the program's own code raised it.
pub(in crate::explain) fn of_root(
    seen: &Seen,
    root: &ErrorLine,
    chain: &[&ErrorLine],
) -> Option<Entity> {
    let place = Place::of(seen, root)?;
    let shown = shortened(&root.message);
    let name =
        if shown.is_empty() { root.class.clone() } else { format!("{}: {shown}", root.class) };
    let mut words = format!("The first error of the text is {}", root.class);
    if !shown.is_empty() {
        words.push_str(&format!(": {}", shown.trim_end_matches('.')));
    }
    words.push_str(&format!(". {}", place.words()));
    let earlier: Vec<&&ErrorLine> = chain.iter().filter(|error| error.span != root.span).collect();
    if let Some(other) = earlier.first() {
        words.push_str(&format!(
            " The same chain has {}: {}.",
            other.class,
            shortened(&other.message).trim_end_matches('.')
        ));
    }
    if root.class == "KeyError" && place.frame.file.ends_with("configuration_auto.py") {
        words.push_str(
            " The key is a model type: the installed transformers is older than the model and does not have it.",
        );
    }
    let mut entity = Entity::new(super::STATED, name).meaning(words);
    for package in [Some(&place.raised), place.caller.as_ref()].into_iter().flatten() {
        if let Some((_, dist)) = installed(seen, package) {
            entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
        }
        if package != REMOTE_CODE {
            entity = entity.package(package.clone());
        }
    }
    entity.causes = causes(seen, root, &place);
    if entity.causes.is_empty() {
        entity = entity.fix(upgrade(seen, &place));
    }
    Some(entity)
}

/// Where an exception was raised.
struct Place {
    /// The frame that raised it, or the last one of a package.
    frame: Frame,
    /// The distribution of that frame.
    raised: String,
    /// The distribution that called it, where it is another one.
    caller: Option<String>,
    /// Whether frames of the program's own code follow the package's.
    own: bool,
}

impl Place {
    fn of(seen: &Seen, error: &ErrorLine) -> Option<Self> {
        let envs = seen.context.envs;
        let named = |frame: &Frame| {
            let package = frame.package()?;
            let dist =
                if package == REMOTE_CODE { package.to_owned() } else { provider(package, envs) };
            Some((frame.clone(), dist))
        };
        let mut packages: Vec<(Frame, String)> = error.frames.iter().filter_map(named).collect();
        // torch's dispatcher passes on what the operator of another package raised.
        while packages.len() > 1 && packages.last().is_some_and(|(frame, _)| dispatches(frame)) {
            packages.pop();
        }
        let (frame, raised) = packages.last()?.clone();
        let passes_on = |dist: &str| matches!(dist, "six" | "wrapt" | "decorator");
        let others = packages.iter().rev().map(|(_, dist)| dist);
        let caller =
            others.filter(|dist| !passes_on(dist.as_str())).find(|dist| **dist != raised).cloned();
        let own = error
            .frames
            .last()
            .is_some_and(|last| last.package().is_none() && !is_python(&last.file));
        Some(Self { frame, raised, caller, own })
    }

    fn words(&self) -> String {
        let file = short(&self.frame.file);
        let at = if self.frame.line.is_empty() {
            file.to_owned()
        } else {
            format!("{file}:{}", self.frame.line)
        };
        let raised = match (self.raised.as_str(), self.own) {
            (REMOTE_CODE, _) => format!("The model's own code raised it ({at}; trust_remote_code)"),
            (raised, true) => format!("Your program's code raised it, called from {raised} ({at})"),
            (raised, false) => format!("{raised} raised it ({at})"),
        };
        match &self.caller {
            Some(caller) if !self.own => format!("{raised}, called from {caller}."),
            _ => format!("{raised}."),
        }
    }
}

/// Whether a frame is of the part of torch that calls operators and modules of others.
fn dispatches(frame: &Frame) -> bool {
    let file = frame.file.replace('\\', "/");
    [
        "torch/_ops.py",
        "torch/nn/modules/module.py",
        "torch/autograd/function.py",
        "torch/utils/_contextlib.py",
        "torch/_compile.py",
        "torch/_dynamo/eval_frame.py",
        "torch/_library/custom_ops.py",
    ]
    .iter()
    .any(|end| file.ends_with(end))
}

/// Whether a file is of Python's own library: an exception of a context manager or an executor passes through it.
fn is_python(file: &str) -> bool {
    file.contains("/lib/python3") || file.contains("\\lib\\") || file.starts_with('<')
}

/// A path from its package on.
fn short(path: &str) -> &str {
    ["site-packages/", "dist-packages/", "transformers_modules/"]
        .iter()
        .find_map(|mark| path.rfind(mark).map(|at| &path[at + mark.len()..]))
        .unwrap_or(path)
}

pub(super) fn shortened(message: &str) -> String {
    match message.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}...", &message[..at]),
        None => message.to_owned(),
    }
}

/// The causes that fit a class of exceptions, the likeliest first.
fn causes(seen: &Seen, error: &ErrorLine, place: &Place) -> Vec<Cause> {
    let (class, message) = (error.class.as_str(), error.message.as_str());
    let remote = error.frames.iter().any(|frame| frame.package() == Some(REMOTE_CODE));
    let mut all = Vec::new();
    if remote {
        all.push(remote_code(seen));
    }
    if error.frames.iter().any(|frame| frame.file.contains("unsloth_compiled_cache")) {
        all.push(
            Cause::new("The code that unsloth generated is of earlier releases of trl or transformers.")
                .check(["ls -l unsloth_compiled_cache; python -m pip list | grep -iE 'unsloth|trl|transformers'"])
                .fix(["rm -rf unsloth_compiled_cache"]),
        );
    }
    let interface = matches!(
        class,
        "AttributeError" | "TypeError" | "NameError" | "ImportError" | "ModuleNotFoundError"
    );
    let none = message.contains("'NoneType'");
    // transformers looks its model types up in a table, and old releases raise the bare key.
    if class == "KeyError" && place.frame.file.ends_with("configuration_auto.py") {
        return vec![];
    }
    match class {
        _ if none => {
            all.push(
                Cause::new("A call before it gave None where an object was expected: an optional part was not loaded, or a file or a model was not found.")
                    .check(["# the warnings above the traceback name what was not loaded or found"]),
            );
            all.extend(releases(seen, place));
        }
        _ if interface => {
            all.extend(releases(seen, place));
        }
        "KeyError" | "IndexError" => {
            all.push(
                Cause::new(format!(
                    "The checkpoint, its config or the adapter has names that this release of {} does not expect: it is newer or older than the library, or of another kind.",
                    place.raised
                ))
                .check(["python -m json.tool MODEL/config.json | grep -E 'transformers_version|architectures|model_type|quant_method'".to_owned(), show(seen, place)])
                .fix(upgrade(seen, place)),
            );
        }
        "NotImplementedError" => all.push(
            Cause::new(format!("This release of {} has no implementation for that device, data type or model.", place.raised))
                .check([show(seen, place)])
                .fix(upgrade(seen, place)),
        ),
        "FileNotFoundError" | "NotADirectoryError" | "IsADirectoryError" | "PermissionError" => all.push(
            Cause::new("The path in the message does not exist there, or is not accessible to this user: a relative path, an incomplete download, or a cache that moved.")
                .check(["ls -ld PATH; pwd; id"]),
        ),
        "JSONDecodeError" | "UnicodeDecodeError" | "SafetensorError" | "UnpicklingError" | "EOFError" | "BadZipFile" => all.push(
            Cause::new("The file that it reads is damaged, incomplete, a Git LFS pointer or of another format.")
                .check(["ls -l FILE; head -c 200 FILE"])
                .fix(["# download the file again"]),
        ),
        _ => all.push(
            Cause::new(format!(
                "{} refuses what it was given: an option, an input or a checkpoint that this release does not take; the message names it.",
                place.raised
            ))
            .check(["# the value in the message; the frames above show where it comes from".to_owned(), show(seen, place)]),
        ),
    }
    if !interface && !none {
        all.extend(releases(seen, place));
    }
    if all.is_empty() && place.raised != REMOTE_CODE {
        all.push(
            Cause::new(format!(
                "The program is written for another release of {} than the installed one.",
                place.raised
            ))
            .check([show(seen, place)])
            .fix([format!(
                "# the release of {} that the program names, or a newer program",
                place.raised
            )]),
        );
    }
    if matches!(class, "ImportError" | "ModuleNotFoundError") && place.raised != REMOTE_CODE {
        all.push(
            Cause::new(format!(
                "{}'s files are incomplete: its compiled part was not built or not installed, two releases are mixed, or a folder with its source hides it.",
                place.raised
            ))
            .check([format!("{} -m pip show -f {} | grep '\\.so'; ls", seen.installer().python(), place.raised)])
            .fix([String::from(seen.installer().again(&[&place.raised]))]),
        );
    }
    if place.raised != REMOTE_CODE {
        all.push(fault(seen, place));
    }
    all
}

fn remote_code(seen: &Seen) -> Cause {
    Cause::new("The model's own code (trust_remote_code) was written for another release of transformers than the installed one.")
        .check([
            "grep transformers_version MODEL/config.json".to_owned(),
            format!("{} -m pip show transformers | grep Version", seen.installer().python()),
        ])
        .fix(["# the transformers release of config.json, a newer revision of the model, or its native class without trust_remote_code"])
}

/// Two packages of releases that do not fit.
fn releases(seen: &Seen, place: &Place) -> Option<Cause> {
    let caller = place.caller.as_ref().filter(|caller| *caller != REMOTE_CODE)?;
    if place.raised == REMOTE_CODE {
        return None;
    }
    let installer = seen.installer();
    let both = [caller.clone(), place.raised.clone()];
    Some(
        Cause::new(format!(
            "{caller} and {} are of releases that do not fit each other.",
            place.raised
        ))
        .check([
            format!(
                "{} -m pip show {} | grep -E '^(Name|Version|Requires)'",
                installer.python(),
                both.join(" ")
            ),
            format!("{} -m pip check", installer.python()),
        ])
        .fix([String::from(installer.install(&both, None).upgraded())]),
    )
}

/// A fault of the package itself.
fn fault(seen: &Seen, place: &Place) -> Cause {
    let raised = &place.raised;
    let mut cause = Cause::new(format!("This release of {raised} has a fault at that place, which another release does not have."))
        .check([format!(
            "uv venv /tmp/newest && uv pip install --python /tmp/newest/bin/python {raised}  # then the same call with the newest release"
        )]);
    cause.check.push(format!("{} -m pip index versions {raised}", seen.installer().python()));
    cause.fix(upgrade(seen, place))
}

fn upgrade(seen: &Seen, place: &Place) -> Option<String> {
    (place.raised != REMOTE_CODE).then(|| {
        seen.installer().install(std::slice::from_ref(&place.raised), None).upgraded().into()
    })
}

fn show(seen: &Seen, place: &Place) -> String {
    let package = if place.raised == REMOTE_CODE { "transformers" } else { place.raised.as_str() };
    format!("{} -m pip show {package} | grep -E '^(Name|Version)'", seen.installer().python())
}
