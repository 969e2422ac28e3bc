//! Options and commands of other programs (vLLM, llama.cpp, ollama, pip) and their equivalents here. An option with the
//! same meaning is an alias of the argument's definition; the others are answered with a hint.

use std::ffi::OsString;

/// Options with one dash and several characters, such as `-tp 2`, which clap would parse as `-t` with the value `p`.
const SHORT: &[(&str, &str)] = &[
    ("-tp", "--tp"),
    ("-np", "--max-num-seqs"),
    ("-ub", "--max-num-batched-tokens"),
    ("-sys", "--system"),
];

/// Options that this program lacks, by their names elsewhere, and what to use instead.
const OPTIONS: &[(&[&str], &str)] = &[
    (
        &["-ngl", "--n-gpu-layers", "--gpu-layers", "--num-gpu", "--cpu-offload-gb", "--n-cpu-moe"],
        "a model runs on the GPU as a whole where it fits, without this option; --backend cpu keeps it off the GPU",
    ),
    (
        &["--gpu-memory-utilization", "--gpu-memory-utilisation", "--mem-fraction-static"],
        "`firstlight serve` takes up to 90 % of the free GPU memory; --max-num-seqs and --max-model-len limit it",
    ),
    (
        &["-m", "--model", "--model-path", "-hf", "--hf-repo", "--hf-file"],
        "the model is an argument without an option: `firstlight run MODEL`; --download fetches org/name first",
    ),
    (
        &["-t", "--threads", "--threads-batch", "-tb"],
        "every core that the process may use is used: `taskset -c 0-7 firstlight ...` limits them",
    ),
    (
        &[
            "--device",
            "-dev",
            "--main-gpu",
            "-mg",
            "--gpu",
            "--gpus",
            "--tensor-split",
            "--split-mode",
        ],
        "--backend cuda or --backend cpu; --gpu 0,1 names GPUs by the numbers of nvidia-smi, where a command runs kernels",
    ),
    (
        &["--kv-cache-dtype", "-ctk", "-ctv", "--cache-type-k", "--cache-type-v"],
        "the KV cache has the type of --dtype; --mamba-ssm-cache-dtype is that of recurrent states",
    ),
    (
        &["--quantization", "--load-format", "--quant"],
        "weights run as they are stored; `firstlight model quantize MODEL OUT --to fp8` writes quantized ones",
    ),
    (&["--op", "--ops"], "ops are arguments without an option: `firstlight verify rmsnorm`"),
    (&["--jinja"], "leave it out: the model's chat template is always rendered"),
    (&["--chat-template"], "the chat template is the model folder's chat_template.jinja"),
    (&["--trust-remote-code"], "leave it out: firstlight never runs code of a checkpoint"),
    (
        &[
            "-fa",
            "--flash-attn",
            "--attention-backend",
            "--enforce-eager",
            "--enable-chunked-prefill",
        ],
        "leave it out: the fastest kernels that pass are chosen",
    ),
    (
        &["--enable-prefix-caching", "--cache-reuse", "--cache-prompt"],
        "leave it out: the prefix cache is on; --no-enable-prefix-caching switches it off",
    ),
    (&["-f", "--file"], "`firstlight run MODEL -p - < FILE` reads a prompt from a file"),
    (&["-i", "-cnv", "--interactive", "--conversation"], "`firstlight chat MODEL` begins a chat"),
    (&["--format"], "--json prints JSON; over HTTP, response_format asks for an answer in JSON"),
    (&["--pipeline-parallel-size", "--pp"], "`firstlight run --pp N` splits layers over processes"),
    (
        &["--data-parallel-size", "-dp"],
        "start one `firstlight serve` per GPU and a load balancer in front of them",
    ),
    (
        &["--batch-size", "--max-batch-size", "--max-concurrency"],
        "--max-num-seqs is the number of sequences at once, --max-num-batched-tokens that of tokens in a step",
    ),
    (
        &["--verbose", "--debug", "--log-level"],
        "the command has one level of detail; --json prints everything",
    ),
    (&["--quiet", "--silent"], "send standard output to /dev/null: the exit status has the result"),
    (&["--machine"], "`firstlight plan` and `firstlight fit` take --machine"),
    (&["--extent"], "--quick or --full"),
];

/// Commands of other programs.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["pull", "download", "get", "fetch"],
        "`firstlight run org/name --download 'TEXT'` downloads a model from the Hugging Face hub and runs it",
    ),
    (
        &["list", "ls", "models", "tags"],
        "a model is a folder, a GGUF file, or org/name in the Hugging Face cache; `firstlight model synth` lists the known shapes",
    ),
    (&["show", "info", "inspect"], "`firstlight fit MODEL` shows a model's size and memory"),
    (&["version"], "`firstlight --version`"),
    (
        &["install", "add", "sync", "lock"],
        "`firstlight plan torch --lock --emit plan.toml -o plan.toml`, then `firstlight apply plan.toml --venv .venv`",
    ),
    (&["generate", "complete", "completion", "prompt"], "`firstlight run MODEL 'TEXT'`"),
    (&["server", "start", "api"], "`firstlight serve MODEL`"),
    (
        &["test", "validate"],
        "`firstlight verify` checks kernels, `firstlight check` the whole machine",
    ),
    (
        &["benchmark", "perf"],
        "`firstlight bench` times kernels, `firstlight bench model MODEL` a model",
    ),
    (&["diagnose", "status", "env", "collect-env"], "`firstlight doctor`"),
    (&["stop", "kill"], "`firstlight ps --stop PID` ends a process that holds GPU memory"),
    (
        &["rm", "remove", "delete"],
        "a model is a folder, or a folder models--ORG--NAME of the Hugging Face cache: delete it with `rm -r`",
    ),
    (
        &["create", "quantise", "convert-hf"],
        "`firstlight model quantize` and `firstlight model convert`",
    ),
    (&["diff"], "`firstlight compare BASE RUN`"),
    (&["upgrade", "update", "self-update"], "update firstlight by the way it was installed"),
];

/// The replacement of an option; `command` has that option if it has another meaning there.
pub(super) fn option(typed: &str) -> Option<&'static str> {
    let name = typed.split('=').next().unwrap_or(typed);
    OPTIONS.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| *hint)
}

/// The replacement of a command.
pub(super) fn command(typed: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(names, _)| names.contains(&typed)).map(|(_, hint)| *hint)
}

/// Values of other programs' options, by the option, and what to use instead.
const VALUES: &[(&str, &[&str], &str)] = &[(
    "--dtype",
    &["auto", "half", "float16", "fp16", "f16"],
    "leave it out for the default type; float32 and bfloat16 are the types of computation",
)];

/// The replacement of a value of another program's option.
pub(super) fn value(option: &str, typed: &str) -> Option<&'static str> {
    let of = |(name, values, _): &&(&str, &[&str], &str)| {
        option.split(' ').next() == Some(*name) && values.contains(&typed)
    };
    VALUES.iter().find(of).map(|(.., hint)| *hint)
}

/// The commands that accept other programs' options with one dash.
const TAKES_SHORT: &[&str] = &["run", "chat", "serve", "fit", "bench", "model", "logits"];
/// Options whose value is free text, which may look like another option.
const TEXTS: &[&str] = &["-p", "--prompt", "--chat", "--system", "--system-prompt", "--stop"];

/// The command line with other programs' single-dash options replaced by their names here.
///
/// # Errors
/// An unknown option, as it was typed.
pub(super) fn translate(words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let command = words.iter().skip(1).find(|word| !word.to_string_lossy().starts_with('-'));
    let takes = command.is_some_and(|word| TAKES_SHORT.iter().any(|name| word == name));
    if !takes {
        return Ok(words);
    }
    let mut translated: Vec<OsString> = Vec::with_capacity(words.len());
    let mut verbatim = false;
    for word in words {
        let is_text = translated.last().is_some_and(|last| TEXTS.iter().any(|text| last == text));
        verbatim |= word == "--";
        let text = word.to_string_lossy().into_owned();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text.as_str(), None),
        };
        if is_text || verbatim || !text.starts_with('-') || text.starts_with("--") {
            translated.push(word);
            continue;
        }
        // `-ngl99` and `-ngl 99` are one option.
        let bare = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
        if let Some((_, own)) = SHORT.iter().find(|(short, _)| *short == bare) {
            translated.push(OsString::from(own));
            translated.extend(value.map(OsString::from));
            let digits = &name[bare.len()..];
            translated.extend((!digits.is_empty()).then(|| OsString::from(digits)));
        } else if bare.len() > 2 && option(bare).is_some() {
            return Err(bare.to_owned());
        } else {
            translated.push(word);
        }
    }
    Ok(translated)
}

/// The name of an option that the user typed, so that messages use the same name.
pub(crate) fn as_typed(name: &'static str, others: &[&'static str]) -> &'static str {
    let words: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let is_typed = |name: &&&'static str| {
        words.iter().any(|word| word == **name || word.starts_with(&format!("{name}=")))
    };
    others.iter().find(is_typed).copied().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn single_dash_options_are_translated_except_in_texts() {
        for (line, expect) in [
            ("f serve m -tp 2", Ok("f serve m --tp 2")),
            ("f serve m -tp=2 -np8", Ok("f serve m --tp 2 --max-num-seqs 8")),
            ("f run m -p -tp", Ok("f run m -p -tp")),
            ("f run m -n 8 -ngl 99", Err("-ngl")),
            ("f run m -ngl99", Err("-ngl")),
            ("f run m -n8 -p x", Ok("f run m -n8 -p x")),
            ("f compile-kernel lib -fa", Ok("f compile-kernel lib -fa")),
            ("f remote host -- run m -ngl 9", Ok("f remote host -- run m -ngl 9")),
        ] {
            let expect = expect.map(words).map_err(str::to_owned);
            assert_eq!(translate(words(line)), expect, "{line}");
        }
    }

    #[test]
    fn no_name_has_two_answers() {
        for table in [OPTIONS, COMMANDS] {
            let mut names: Vec<&str> =
                table.iter().flat_map(|(names, _)| names.iter().copied()).collect();
            names.sort_unstable();
            assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        }
    }
}
