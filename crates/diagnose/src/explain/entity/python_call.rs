//! Calls of compiled functions with arguments that the compiled code does not take.

use super::{Entity, Form, form};
use crate::explain::cause::Cause;
use crate::explain::modules::{frames, installed, provider};
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("{value} is not a valid {kind}, please select one of", choice),
        form("{program}: error: unrecognized arguments: {option}", option),
        form("{function}(): incompatible function arguments", read),
        form(
            "{function}() expected at most {most} argument(s) but received {given} argument(s)",
            read,
        ),
        form("{function}() Expected a value of type", read),
        form("{function}() is missing value for argument", read),
        form("Unknown keyword argument '{argument}' for operator '{function}'", read),
        form(
            "{function}.__init__() got an unexpected keyword argument '{argument}'",
            newer_argument,
        ),
        form("{function}() got an unexpected keyword argument '{argument}'", keyword),
        form("{function}() takes {most} positional arguments but {given} were given", keyword),
        form("{function}() missing {n} required positional argument", keyword),
    ]
}

/// The package of a compiled function by a part of its name, and the package whose Python code calls it. Read on
/// 2026-11-28: the names after `torch.ops.` in the wheels of vllm 0.33.0 and sgl-kernel 0.3.21; copies of
/// flash-attention's flash_api.cpp, which bind `varlen_fwd` to mha_varlen_fwd. The other rows are the packages' own
/// names.
const COMPILED: [(&str, &str, &str); 15] = [
    ("memory_efficient_attention", "xformers", "the program"),
    ("causal_conv1d", "causal-conv1d", "mamba-ssm"),
    ("selective_scan", "mamba-ssm", "mamba-ssm"),
    ("_vllm_", "vllm", "vllm"),
    ("_C_cache_ops", "vllm", "vllm"),
    ("_moe_C", "vllm", "vllm"),
    ("_C::", "vllm", "vllm"),
    ("sgl_kernel", "sgl-kernel", "sglang"),
    ("flash_attn", "flash-attn", "transformers"),
    ("varlen_fwd", "flash-attn", "flash-attn"),
    ("mha_", "flash-attn", "flash-attn"),
    ("torchvision::", "torchvision", "torchvision"),
    ("torchao::", "torchao", "torchao"),
    ("xformers", "xformers", "xformers"),
    ("bitsandbytes", "bitsandbytes", "bitsandbytes"),
];

/// Arguments that a release renamed: the ends of the classes' names, the new and the old name, and the release. Read on
/// 2026-11-30 from `__init__` and the fields in the wheels of transformers 4.40.2, 4.41.0, 4.45.2 and 4.46.0 and of trl
/// 0.11.4, 0.12.0, 0.15.2 and 0.16.0.
const RENAMED: [(&str, &str, &str, &str, &str); 4] = [
    ("TrainingArguments", "eval_strategy", "evaluation_strategy", "transformers", "4.41.0"),
    ("SFTConfig", "max_length", "max_seq_length", "trl", "0.16.0"),
    ("SFTTrainer", "processing_class", "tokenizer", "trl", "0.12.0"),
    ("Trainer", "processing_class", "tokenizer", "transformers", "4.46.0"),
];

/// A new name of an argument, which the installed release does not have yet.
fn newer_argument(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (function, argument) = (seen.word("function")?, seen.word("argument")?);
    let class = function.rsplit(['.', ':']).next().unwrap_or(function);
    let fits = |row: &&(&str, &str, &str, &str, &str)| class.ends_with(row.0) && argument == row.1;
    let (_, new, old, package, since) = RENAMED.iter().find(fits)?;
    let mut entity = Entity::new("python-argument", format!("{class}({new})"))
        .meaning(format!(
            "{package} has the argument {new} of {class} since {since}; before, its name was {old}. The installed {package} is older."
        ))
        .fix([
            String::from(seen.installer().install(&[format!("{package}>={since}")], None)),
            format!("# or, with the installed release: {old} instead of {new}"),
        ])
        .package(*package)
        .rank(4);
    // trl passes its own arguments on to the Trainer of transformers.
    if class == "Trainer" {
        let older = seen.installer().install(&["trl<0.12".to_owned()], None);
        entity = entity
            .fix([format!(
                "# or, if trl passes it on, a trl release for this transformers: {older}"
            )])
            .package("trl");
    }
    if let Some((_, dist)) = installed(seen, package) {
        entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
    }
    Some(entity)
}

fn read(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let function =
        seen.word("function")?.trim_start_matches("TypeError:").trim_start_matches("RuntimeError:");
    let name = function.rsplit('.').next().unwrap_or(function);
    let row = COMPILED
        .iter()
        .find(|(prefix, ..)| name.starts_with(prefix) || function.starts_with(prefix));
    let framed = frames(seen.text).last().map(|top| provider(top, seen.context.envs));
    let (package, caller) = match row {
        Some((_, package, caller)) => {
            ((*package).to_owned(), framed.unwrap_or((*caller).to_owned()))
        }
        None => {
            let framed = framed?;
            (framed.clone(), framed)
        }
    };
    let both: Vec<String> = if package == caller {
        vec![package.clone()]
    } else {
        vec![package.clone(), caller.clone()]
    };
    let installer = seen.installer();
    let mut entity = Entity::new("compiled-function", name)
        .meaning(format!(
            "The Python code of {caller} calls the compiled function {name} of {package} with arguments that the installed build does not take: the two are of \
             different releases."
        ))
        .causes([
            Cause::new(match both.len() {
                1 => format!("The Python files of {package}, or the program that calls it, are of another release than its compiled files."),
                _ => format!("An upgrade changed one of {} and not the other.", both.join(" and ")),
            })
                .check([format!("{} -m pip show {} | grep -E '^(Name|Version)'", installer.python(), both.join(" "))])
                .fix([format!("{} --upgrade --no-build-isolation", installer.install(&both, None))]),
            Cause::new(format!("A compiled file of an older {package} remains, or another copy of it is imported first."))
                .check([format!("{} -c 'import {top}; print({top}.__file__)'; find / -name '{top}*.so' 2>/dev/null", installer.python(), top = package.replace('-', "_"))])
                .fix([String::from(installer.reinstall(&[&package]))]),
        ])
        .rank(3);
    for name in both {
        if let Some((_, dist)) = installed(seen, &name) {
            entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
        }
        entity = entity.package(name);
    }
    Some(entity)
}

/// Calls of Python functions: between installed packages a mismatch of releases, in the user's own code a mistake of
/// the user.
fn keyword(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let tops = frames(seen.text);
    let mut packages: Vec<String> =
        tops.iter().map(|top| provider(top, seen.context.envs)).collect();
    if packages.is_empty() {
        let function = seen.word("function")?;
        let name = function.rsplit('.').next().unwrap_or(function);
        let row = COMPILED.iter().find(|(prefix, ..)| name.starts_with(prefix)).map(|row| row.1);
        let class = function.split('.').find_map(crate::explain::modules::of_class);
        packages.push(row.or(class)?.to_owned());
    }
    let last = packages.last()?;
    let who = packages.iter().rev().find(|name| *name != last);
    let caller = who.map_or("the code that calls it", String::as_str);
    let function = seen.word("function")?;
    let argument =
        seen.word("argument").map_or(String::new(), |word| format!(" without an argument {word}"));
    let installer = seen.installer();
    let mut entity = Entity::new("python-function", function)
        .meaning(format!(
            "{caller} calls {function}, which in the installed releases is{argument} not the function it expects: packages of different ages. The frames of the traceback \
             run through {}.",
            distinct(&packages).join(", ")
        ))
        .causes([
            Cause::new(format!("{last} is older or newer than {caller} expects."))
                .check([
                    format!("{} -m pip show {} | grep -E '^(Name|Version|Requires)'", installer.python(), distinct(&packages).join(" ")),
                    format!("{} -m pip check", installer.python()),
                ])
                .fix([format!("{} --upgrade", installer.install(&distinct(&packages), None))]),
            Cause::new("The program passes an argument on that these releases do not take (a renamed or removed option).")
                .check(["# the first frame of your own code, and the argument in the message"])
                .fix(["# the argument's name in the installed release, or the releases that the program names"]),
        ])
        .rank(2);
    for name in distinct(&packages) {
        if let Some((_, dist)) = installed(seen, &name) {
            entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
        }
        entity = entity.package(name);
    }
    Some(entity)
}

fn distinct(names: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    all
}

/// A value that is not among those of an option of transformers and programs that use its classes.
fn choice(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (value, kind) = (seen.word("value")?, seen.word("kind")?);
    let value = value.rsplit(':').next().unwrap_or(value);
    Some(
        Entity::new("option", format!("{kind} {value}"))
            .meaning(format!(
                "{kind} does not have the value {value} in the installed release; the message lists those that it has."
            ))
            .causes([
                Cause::new(format!("{value} came with a later release of transformers, or of the program that passes it."))
                    .check([format!("{} -m pip show transformers accelerate trl | grep -E 'Name|Version'", seen.installer().python())])
                    .fix([
                        String::from(seen.installer().install(&["transformers".to_owned()], None).upgraded()),
                        "# and a newer release of the program".to_owned(),
                    ]),
                Cause::new(format!("{value} is misspelt, was renamed, or belongs to another option."))
                    .check(["# the list in the message"])
                    .fix(["# one of the listed values"]),
            ])
            .rank(3),
    )
}

/// An option that a program of a known package does not have.
fn option(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (program, option) = (seen.word("program")?, seen.word("option")?);
    let stem = program.rsplit('/').next()?.trim_end_matches(".py");
    let package = match stem {
        "api_server" => "vllm",
        "launch_server" | "bench_serving" => "sglang",
        "torchrun" => "torch",
        "accelerate" | "vllm" | "sglang" | "deepspeed" | "lmdeploy" | "ray" | "trtllm-serve"
        | "trtllm-build" => stem,
        _ => return None,
    };
    // A word at the end of a pattern ends at a hyphen.
    let shown = seen
        .text
        .split_once("unrecognized arguments: ")
        .map_or(option, |(_, rest)| rest.split_whitespace().next().unwrap_or(option));
    let installer = seen.installer();
    let entity = Entity::new("option", format!("{stem} {shown}"))
        .meaning(format!("The installed {package} has no option {shown}."))
        .causes([
            Cause::new("It is misspelt, or came with a later release.")
                .check([
                    format!(
                        "{stem} --help | grep -- {}",
                        shown.chars().take(12).collect::<String>()
                    ),
                    format!("{} -m pip show {package} | grep Version", installer.python()),
                ])
                .fix([String::from(installer.install(&[package.to_owned()], None).upgraded())]),
            Cause::new("A later release removed or renamed it, and the command is older.")
                .check([format!("# the release notes of {package}, and `{stem} --help`")])
                .fix(["# the option's new name, or without it"]),
        ])
        .package(package)
        .rank(3);
    Some(entity)
}
