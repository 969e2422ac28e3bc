//! The list of commands, and the examples at the end of each command's help.

use clap::Command;
use clap::builder::styling::Style;
use std::fmt::Write as _;

/// The commands by purpose. Every visible command is listed once.
const GROUPS: &[(&str, &[&str])] = &[
    ("First contact", &["check", "doctor", "gate"]),
    ("Diagnose", &["explain", "ps", "mcp"]),
    ("Plan and install", &["plan", "apply"]),
    ("Kernels", &["verify", "bench"]),
    ("Models", &["run", "chat", "serve", "fit", "model"]),
    ("Share and compare", &["compare", "remote"]),
    ("Shell", &["completions"]),
];

/// Command lines that work once the names in capitals are replaced.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "check",
        &[
            "firstlight check",
            "firstlight check --venv .venv --gpu 0,1",
            "firstlight check --report firstlight-runs/RUN --redact -o to-share",
        ],
    ),
    (
        "doctor",
        &[
            "firstlight doctor",
            "firstlight doctor --venv .venv --model MODEL",
            "firstlight doctor --sarif findings.sarif",
        ],
    ),
    (
        "explain",
        &[
            "firstlight explain 'no kernel image is available for execution on the device'",
            "python train.py 2>&1 | firstlight explain -",
            "firstlight explain cpu-only-torch",
        ],
    ),
    (
        "gate",
        &[
            "firstlight gate --certificate node.json",
            "firstlight gate --certificate node.json --public-key signing-key.pub.pem --max-age 7d",
        ],
    ),
    ("mcp", &["firstlight mcp", "firstlight mcp --allow-changes"]),
    ("ps", &["firstlight ps", "firstlight ps --stop 4711"]),
    (
        "plan",
        &[
            "firstlight plan flash-attn transformers",
            "firstlight plan flash-attn transformers --lock --emit plan.toml -o plan.toml",
            "firstlight plan --matrix --compute-capability 8.0",
        ],
    ),
    (
        "apply",
        &[
            "firstlight apply plan.toml --venv .venv --dry-run",
            "firstlight apply plan.toml --venv .venv",
        ],
    ),
    (
        "verify",
        &[
            "firstlight verify",
            "firstlight verify attention kda --all-variants",
            "firstlight verify attention --venv .venv --only torch",
        ],
    ),
    (
        "bench",
        &[
            "firstlight bench --quick",
            "firstlight bench model granite-4.0-h-micro --random --tests pp512,tg128",
            "firstlight bench fabric --gpu 0,1",
        ],
    ),
    (
        "op",
        &[
            "firstlight op attention",
            "firstlight op attention in.safetensors -o out.safetensors --set causal=true",
            "firstlight op attention in.safetensors -o exact.safetensors --reference",
        ],
    ),
    (
        "run",
        &[
            "firstlight run MODEL 'What is a GPU?'",
            "firstlight run MODEL -p 'The sun rises' -n 64 --temperature 0.7 -q > text.txt",
            "firstlight run ibm-granite/granite-4.0-h-micro --download 'What is a GPU?'",
        ],
    ),
    (
        "chat",
        &[
            "firstlight chat MODEL",
            "firstlight chat MODEL --system 'Answer briefly.' --temperature 0.7",
            "firstlight chat MODEL --json < questions.txt",
        ],
    ),
    (
        "serve",
        &[
            "firstlight serve MODEL",
            "firstlight serve MODEL --host 0.0.0.0 --port 8080 --served-model-name granite",
            "firstlight serve MODEL --max-num-seqs 32 --max-model-len 16384",
        ],
    ),
    (
        "fit",
        &[
            "firstlight fit MODEL",
            "firstlight fit MODEL --max-model-len 131072 --max-num-seqs 8",
            "firstlight fit llama-3.1-8b --machine rtx4090",
        ],
    ),
    (
        "model",
        &[
            "firstlight model quantize MODEL OUT --to fp8",
            "firstlight model convert MODEL OUT --to fla-kda",
            "firstlight model synth granite-hybrid-mini my-model",
        ],
    ),
    (
        "model synth",
        &[
            "firstlight model synth",
            "firstlight model synth granite-hybrid-mini my-model",
            "firstlight model synth granite-4.0-h-micro my-model --layers 6 --weights fp8",
        ],
    ),
    (
        "model convert",
        &[
            "firstlight model convert MODEL --to fla-kda --show-map",
            "firstlight model convert MODEL OUT --to fla-kda",
        ],
    ),
    (
        "model quantize",
        &[
            "firstlight model quantize MODEL OUT --to fp8",
            "firstlight model quantize MODEL OUT --to int4",
        ],
    ),
    ("model logits", &["firstlight model logits MODEL --ids 1,2,3 -o logits.safetensors"]),
    (
        "compare",
        &[
            "firstlight compare firstlight-runs/BEFORE firstlight-runs/AFTER",
            "firstlight compare firstlight-runs/BASE firstlight-runs/RUN --fail",
        ],
    ),
    (
        "remote",
        &[
            "firstlight remote HOST",
            "firstlight remote HOST --dry-run -- check --quick",
            "firstlight remote HOST -- check",
        ],
    ),
    (
        "completions",
        &["firstlight completions bash > ~/.local/share/bash-completion/completions/firstlight"],
    ),
    ("man", &["firstlight man -o man1"]),
];

/// Maximum width of the help: the usual width of a terminal.
const WIDTH: usize = 80;

/// The command with its groups and examples.
pub(super) fn styled(command: Command) -> Command {
    let heading = command.get_styles().get_header().to_owned();
    let mut listed = String::new();
    for (title, names) in GROUPS {
        // Writing to a String cannot fail.
        let _ = writeln!(listed, "{heading}{title}:{heading:#}");
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(listed, "  {name:<12} {about}");
        }
        listed.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}{heading}Options:{heading:#}\n{{options}}{{after-help}}"
    );
    let command = command.help_template(template).max_term_width(WIDTH);
    command.mut_subcommands(|command| with_examples(numbers(command), "", heading))
}

/// A command and its subcommands with their examples.
fn with_examples(command: Command, parent: &str, heading: Style) -> Command {
    let path = format!("{parent}{}", command.get_name());
    let examples = EXAMPLES.iter().find(|(name, _)| *name == path);
    let command = command.max_term_width(WIDTH);
    let below = format!("{path} ");
    let command = command.mut_subcommands(|sub| with_examples(sub, &below, heading));
    match examples {
        Some((_, lines)) => {
            let mut text = format!("{heading}Examples:{heading:#}");
            for line in *lines {
                let _ = write!(text, "\n  {line}");
            }
            command.after_help(text)
        }
        None => command,
    }
}

/// Accepts `-5` after an option as its value, so that the option can report what it takes.
fn numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let takes = arg.get_action().takes_values() && !arg.is_allow_hyphen_values_set();
        if takes { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;
    use std::collections::BTreeSet;

    #[test]
    fn every_command_is_in_one_group_and_has_examples() {
        let command = command();
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let shown: BTreeSet<&str> =
            shown.map(Command::get_name).filter(|name| *name != "help").collect();
        let grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let once: BTreeSet<&str> = grouped.iter().copied().collect();
        assert_eq!(once.len(), grouped.len(), "a command is in two groups of GROUPS");
        assert_eq!(once, shown, "GROUPS in cli/help.rs lists every command");
        let with_examples: BTreeSet<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        assert!(with_examples.is_superset(&shown), "EXAMPLES in cli/help.rs has every command");
        for path in &with_examples {
            let at = path.split(' ').try_fold(&command, |at, name| at.find_subcommand(name));
            assert!(at.is_some(), "{path} is not a command");
        }
        for (name, lines) in EXAMPLES {
            assert!((1..=3).contains(&lines.len()), "{name}");
        }
    }

    /// The arguments of a shell line that starts firstlight: by its name, by uvx or pipx, or by cargo in a clone. None
    /// for other lines.
    fn words(line: &str) -> Option<Vec<String>> {
        let line = line.trim().trim_start_matches("$ ");
        let start = match line.find("cargo run --release -- ") {
            Some(at) => at + "cargo run --release -- ".len(),
            None if line.starts_with("firstlight ") => "firstlight ".len(),
            // The Python package has a program of the same name.
            None if line.contains("python -m firstlight ") => return None,
            None => line.rfind(" firstlight ")? + " firstlight ".len(),
        };
        let (mut words, mut word, mut quote) = (vec!["firstlight".to_owned()], String::new(), None);
        for c in line[start..].chars().chain([' ']) {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (Some(_), c) => word.push(c),
                (None, '\'' | '"') => quote = Some(c),
                // The rest belongs to the shell, or is a comment.
                (None, '|' | '<' | '>' | '#' | ';' | '&') if word.is_empty() => break,
                (None, ' ') if !word.is_empty() => words.push(std::mem::take(&mut word)),
                (None, ' ') => {}
                (None, c) => word.push(c),
            }
        }
        Some(words)
    }

    fn parses(words: &[String]) -> Result<(), String> {
        match command().try_get_matches_from(words) {
            Err(error) if error.use_stderr() => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    #[test]
    fn commands_in_documents_parse() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let book = std::fs::read_dir(root.join("docs/book/src")).unwrap();
        let mut documents: Vec<_> = book.map(|page| page.unwrap().path()).collect();
        documents.push(root.join("README.md"));
        let mut wrong = Vec::new();
        let mut checked = 0;
        for document in
            documents.iter().filter(|path| path.extension().is_some_and(|it| it == "md"))
        {
            let mut language = "";
            let text = std::fs::read_to_string(document).unwrap();
            for line in text.lines() {
                if let Some(fence) = line.trim().strip_prefix("```") {
                    // A fence that ends a block names no language.
                    language = fence;
                    continue;
                }
                if language.is_empty() {
                    // Commands in sentences and tables, except those with a placeholder for the command.
                    let spans = line.split('`').skip(1).step_by(2);
                    for span in spans.filter(|it| !it.starts_with("firstlight COMMAND")) {
                        let Some(words) = words(span) else { continue };
                        checked += 1;
                        // A sentence may name a command without its arguments.
                        let missing = "required arguments were not provided";
                        if let Err(error) = parses(&words)
                            && !error.contains(missing)
                        {
                            wrong.push(format!("{}: {span}\n{error}", document.display()));
                        }
                    }
                }
                // In a transcript, only the text after the prompt was typed.
                let typed = language == "sh" || (language == "console" && line.starts_with("$ "));
                let Some(words) = words(line).filter(|_| typed) else { continue };
                checked += 1;
                if let Err(error) = parses(&words) {
                    wrong.push(format!("{}: {line}\n{error}", document.display()));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(checked > 40, "only {checked} commands were found in the README and the book");
        for line in EXAMPLES.iter().flat_map(|(_, lines)| *lines) {
            assert_eq!(parses(&words(line).expect(line)), Ok(()), "{line}");
        }
        // Commands that cannot be parsed are detected.
        for line in ["firstlight chek", "$ firstlight run m --nonsense", "uvx firstlight op -n"] {
            assert!(parses(&words(line).unwrap()).is_err(), "{line}");
        }
        assert_eq!(words("cargo xtask test"), None);
    }

    #[test]
    fn help_is_at_most_80_columns_wide() {
        let mut command = command();
        let top = command.render_long_help().to_string();
        let each = command.get_subcommands_mut().map(|sub| sub.render_long_help().to_string());
        for help in std::iter::once(top).chain(each) {
            // A command line to be copied is not wrapped.
            let example = |line: &str| line.trim_start().starts_with("firstlight ");
            let wide = |line: &&str| line.chars().count() > WIDTH && !example(line);
            let wide: Vec<&str> = help.lines().filter(wide).collect();
            assert!(wide.is_empty(), "{}", wide.join("\n"));
        }
    }
}
