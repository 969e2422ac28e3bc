//! A Python exception that no other kind explains: the package that raised it, the package that called that one, and
//! the possible causes by the exception's class.

use super::super::cause::Cause;
use super::super::error_lines::{ErrorLine, Frame, Kind};
use super::Entity;
use crate::explain::modules::{installed, of_class, provider};
use crate::rules::PastedError;

/// Longest message that is shown, in characters.
const SHOWN: usize = 400;

/// The remote code of a model repository, which transformers imports as a package.
const REMOTE_CODE: &str = "transformers_modules";

/// The root exception as an entity; `None` if no frame belongs to a package, so that the user's own code raised it.
pub(in crate::explain) fn of_root(
    seen: &PastedError,
    root: &ErrorLine,
    chain: &[&ErrorLine],
    advice: Option<String>,
) -> Option<Entity> {
    if is_setup(root) {
        return Some(of_setup(seen, root));
    }
    let Some(place) = RaiseSite::of(seen, root) else {
        return without_frames(seen, root, advice.as_deref())
            .or_else(|| advised(seen, root, &advice?));
    };
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
    if let Some(advice) = &advice {
        words.push_str(&own_advice(advice));
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
    // transformers looks up model types in a table, and old releases raise the bare key.
    let model_type =
        root.class == "KeyError" && place.frame.file.ends_with("configuration_auto.py");
    if !model_type {
        entity.causes = causes(seen, root, &place.raised, place.caller.as_deref());
    }
    if entity.causes.is_empty() {
        entity = entity.fix(upgrade(seen, &place));
    }
    Some(entity)
}

/// Whether a package's setup code raised an exception, called by tools that build packages alone. Setuptools runs
/// setup.py as `<string>`, and so does `python -c` with a few lines.
fn is_setup(root: &ErrorLine) -> bool {
    let mut packages = root.frames.iter().filter_map(Frame::package);
    packages.all(|package| BUILD_TOOLS.contains(&package))
        && root.frames.last().is_some_and(|last| {
            let line: u32 = last.line.parse().unwrap_or_default();
            let name = last.file.rsplit(['/', '\\']).next();
            name == Some("setup.py") || last.file == "<string>" && line >= LONG_SCRIPT
        })
}

/// The import packages of tools that build packages.
const BUILD_TOOLS: [&str; 7] =
    ["pip", "setuptools", "_distutils_hack", "wheel", "pyproject_hooks", "build", "hatchling"];

/// A script of at least 20 lines is not from a command line.
const LONG_SCRIPT: u32 = 20;

/// An exception of a package's setup code, which asks the build's environment for its torch, compiler and toolkit.
fn of_setup(seen: &PastedError, root: &ErrorLine) -> Entity {
    let shown = shortened(&root.message);
    let built = super::build_error::built_package(seen.text);
    let of = built.as_deref().map_or_else(|| "a package".to_owned(), str::to_owned);
    let words = format!(
        "The setup code of {of} raised {}: {}, before anything was compiled.",
        root.class,
        shown.trim_end_matches('.')
    );
    let setup = built.clone().unwrap_or_else(|| "./".to_owned());
    let facts = named(vec![("python", seen.installer().python()), ("setup", setup)]);
    let known: Vec<&str> = facts.iter().map(|(name, _)| name.as_str()).collect();
    let rows = knowledge::causes::of_exception(&root.class, &root.message, &known);
    let filled = PastedError { context: seen.context, text: seen.text, words: facts.clone() };
    let wheel = built
        .as_ref()
        .map(|name| format!("firstlight plan {name}  # a combination that has a prebuilt wheel"));
    let mut entity = Entity::new(super::STATED, format!("{}: {shown}", root.class))
        .meaning(words)
        .causes(super::message::causes(&filled, rows))
        .fix(wheel);
    if let Some(package) = built {
        entity = entity.package(package);
    }
    entity
}

/// An exception without frames of a package: the library whose class its message names, and the causes of the
/// exception's class.
fn without_frames(seen: &PastedError, root: &ErrorLine, advice: Option<&str>) -> Option<Entity> {
    (root.kind == Kind::Exception && root.frames.is_empty()).then_some(())?;
    let library = library_in(&root.message)?.to_owned();
    let causes = causes(seen, root, &library, None);
    (causes.len() > 1).then_some(())?;
    let shown = shortened(&root.message);
    let words = format!(
        "The text has the error {}: {}. It is about {library}.{}",
        root.class,
        shown.trim_end_matches('.'),
        advice.map_or_else(String::new, own_advice)
    );
    let entity = Entity::new(super::STATED, format!("{}: {shown}", root.class)).meaning(words);
    Some(entity.causes(causes).package(library))
}

/// The advice of the message itself, as a sentence.
fn own_advice(advice: &str) -> String {
    format!(" Its message says what to do: \"{}\"", advice.trim())
}

/// An error that no other kind explains, of a text about GPUs, whose message says what to do.
fn advised(seen: &PastedError, root: &ErrorLine, advice: &str) -> Option<Entity> {
    let text = seen.text.to_ascii_lowercase();
    ABOUT.iter().any(|word| text.contains(word)).then_some(())?;
    let shown = shortened(&root.message);
    let name = match root.class.is_empty() {
        true => shown,
        false => format!("{}: {shown}", root.class),
    };
    let words = format!(
        "The first error of the text is {}.{} No rule knows another cause.",
        name.trim_end_matches('.'),
        own_advice(advice)
    );
    let stated = Cause::new("The message names the cause: what it asks for was not done.")
        .check(["# whether it was done in the environment that runs"]);
    let check = Cause::new(
        "It was done, and the cause is an earlier failure that the message does not know.",
    )
    .check(["# the lines before the error, and the releases of the programs that it names"]);
    Some(Entity::new(super::STATED, name).meaning(words).causes([stated, check]))
}

/// Words of texts about GPU stacks.
const ABOUT: [&str; 16] = [
    "cuda",
    "nvidia",
    "gpu",
    "torch",
    "tensorflow",
    "jax",
    "cudnn",
    "nccl",
    "triton",
    "vllm",
    "sglang",
    "huggingface",
    "transformers",
    "rocm",
    "slurm",
    "onnx",
];

/// The library of the first class that a message names. Other words do not show which library raised the error.
fn library_in(message: &str) -> Option<&'static str> {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    message.split(|c: char| !letters(c)).find_map(of_class)
}

/// The packages and the frame that raised an exception.
struct RaiseSite {
    /// The frame that raised it, or the last one of a package.
    frame: Frame,
    /// The distribution of that frame.
    raised: String,
    /// The distribution that called it, if it is another one.
    caller: Option<String>,
    /// Whether frames of the user's own code follow the package's.
    own: bool,
}

impl RaiseSite {
    fn of(seen: &PastedError, error: &ErrorLine) -> Option<Self> {
        let envs = seen.context.envs;
        let named = |frame: &Frame| {
            let package = frame.package()?;
            let dist =
                if package == REMOTE_CODE { package.to_owned() } else { provider(package, envs) };
            Some((frame.clone(), dist))
        };
        let mut packages: Vec<(Frame, String)> = error.frames.iter().filter_map(named).collect();
        // torch's dispatcher forwards exceptions from operators of other packages.
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

/// Whether a frame belongs to the part of torch that calls operators and modules of other packages.
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

/// Whether a file belongs to Python's standard library, which forwards exceptions of context managers and executors.
fn is_python(file: &str) -> bool {
    file.contains("/lib/python3") || file.contains("\\lib\\") || file.starts_with('<')
}

/// A path, starting at its package.
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

/// The facts about an exception, by their names in the table of causes.
fn facts(
    seen: &PastedError,
    error: &ErrorLine,
    raised: &str,
    caller: Option<&str>,
) -> Vec<(String, String)> {
    let mut facts: Vec<(&str, String)> = vec![("python", seen.installer().python())];
    if error.frames.iter().any(|frame| frame.package() == Some(REMOTE_CODE)) {
        facts.push(("remote", String::new()));
    }
    if error.frames.iter().any(|frame| frame.file.contains("unsloth_compiled_cache")) {
        facts.push(("generated", String::new()));
    }
    if raised == REMOTE_CODE {
        return named(facts);
    }
    facts.push(("raised", raised.to_owned()));
    let caller = caller.filter(|caller| *caller != REMOTE_CODE);
    if let Some(caller) = caller {
        facts.push(("caller", caller.to_owned()));
        facts.push(("both", format!("{caller} {raised}")));
    }
    // A caller that patches the package it calls has more partners than that package.
    let of = knowledge::causes::partners;
    let all = of(raised).iter().chain(caller.map_or(&[][..], of));
    let mut partners: Vec<&str> = Vec::new();
    for name in all.map(String::as_str).filter(|name| *name != raised) {
        if !partners.contains(&name) {
            partners.push(name);
        }
    }
    if !partners.is_empty() {
        facts.push(("partners", partners.join(", ")));
        facts.push(("pattern", format!("{raised}|{}", partners.join("|"))));
    }
    named(facts)
}

fn named(facts: Vec<(&str, String)>) -> Vec<(String, String)> {
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The causes that the table has for a class of exceptions, most likely first.
fn causes(seen: &PastedError, error: &ErrorLine, raised: &str, caller: Option<&str>) -> Vec<Cause> {
    let words = facts(seen, error, raised, caller);
    let known: Vec<&str> = words.iter().map(|(name, _)| name.as_str()).collect();
    let rows = knowledge::causes::of_exception(&error.class, &error.message, &known);
    let filled = PastedError { context: seen.context, text: seen.text, words: words.clone() };
    super::message::causes(&filled, rows)
}

fn upgrade(seen: &PastedError, place: &RaiseSite) -> Option<String> {
    (place.raised != REMOTE_CODE).then(|| {
        seen.installer().install(std::slice::from_ref(&place.raised), None).upgraded().into()
    })
}
