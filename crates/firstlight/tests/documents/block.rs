//! The fenced code blocks of a Markdown page, with the test options in the HTML comment above each.

use std::fmt;

/// Languages of blocks whose commands are run.
const COMMANDS: [&str; 3] = ["sh", "console", "python"];
/// Languages of blocks that hold files, not commands.
const FILES: [&str; 6] = ["text", "json", "toml", "yaml", "nginx", "jinja"];
/// Programs whose command lines do not belong in a block that is not run.
const PROGRAMS: [&str; 11] =
    ["$", "firstlight", "cargo", "pip", "python", "python3", "uvx", "uv", "curl", "srun", "docker"];

/// The options of a comment such as `<!-- test exit: 2 -->` for the block below it.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Options {
    /// Requirements of the block, by the names of `needs::missing`.
    pub needs: Vec<String>,
    /// Exit status of each command in order, `None` for `any`; 0 for those not listed.
    pub exits: Vec<Option<i32>>,
    /// Names or regular expressions of text that may differ.
    pub varies: Vec<String>,
    /// Commands that are run first and not shown.
    pub setup: Vec<String>,
    /// A file in the repository with the output, recorded on another machine.
    pub recorded: Option<String>,
    /// The test that runs this block instead.
    pub elsewhere: Option<String>,
    /// Why no test runs it.
    pub by_hand: Option<String>,
}

/// One fenced block.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Line of the opening fence, from 1.
    pub line: usize,
    pub language: String,
    pub lines: Vec<String>,
    pub options: Options,
}

/// A command of a block, and the lines printed below it.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    pub text: String,
    /// Index of the first output line in `Block::lines`.
    pub output_at: usize,
    pub output: Vec<String>,
}

/// A mistake in the page, with its line.
#[derive(Debug, PartialEq)]
pub struct Mistake(pub usize, pub String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.0, self.1)
    }
}

impl Block {
    pub fn is_run(&self) -> bool {
        COMMANDS.contains(&self.language.as_str())
    }

    /// The commands in order. A line of `sh` is a command; in `console` it starts with `$ `. A trailing `\` continues it.
    pub fn commands(&self) -> Vec<Command> {
        let mut commands: Vec<Command> = Vec::new();
        let mut continued = false;
        for (at, line) in self.lines.iter().enumerate() {
            let typed = match self.language.as_str() {
                "console" => line.strip_prefix("$ "),
                _ => Some(line.as_str()).filter(|it| !it.is_empty() && !it.starts_with('#')),
            };
            match (continued, typed, commands.last_mut()) {
                (true, _, Some(last)) => {
                    last.text = format!("{}\n{line}", last.text);
                    last.output_at = at + 1;
                }
                (_, Some(text), _) => commands.push(Command {
                    text: text.to_owned(),
                    output_at: at + 1,
                    output: Vec::new(),
                }),
                (_, None, Some(last)) if self.language == "console" => {
                    last.output.push(line.clone())
                }
                _ => {}
            }
            let ends = commands.last().is_some_and(|last| last.text.ends_with('\\'));
            continued = ends && (continued || typed.is_some());
        }
        commands
    }
}

impl Options {
    fn read(text: &str, line: usize) -> Result<Self, Mistake> {
        let mut options = Self::default();
        for option in text.lines().map(str::trim).filter(|it| !it.is_empty()) {
            let Some((key, value)) = option.split_once(": ") else {
                return Err(Mistake(line, format!("`{option}` is not `key: value`")));
            };
            let value = value.trim();
            let words = || value.split_whitespace().map(str::to_owned);
            match key {
                "needs" => options.needs.extend(words()),
                "exit" => {
                    let status = |word: &str| match word {
                        "any" => Ok(None),
                        _ => word.parse().map(Some).map_err(|_| word.to_owned()),
                    };
                    let read: Result<_, _> = value.split_whitespace().map(status).collect();
                    options.exits =
                        read.map_err(|word| Mistake(line, format!("`{word}` is not a status")))?;
                }
                // A name for each word, or one regular expression between slashes.
                "varies" if value.starts_with('/') => options.varies.push(value.to_owned()),
                "varies" => options.varies.extend(words()),
                "setup" => options.setup.push(value.to_owned()),
                "recorded" => options.recorded = Some(value.to_owned()),
                "elsewhere" => options.elsewhere = Some(value.to_owned()),
                "by-hand" => options.by_hand = Some(value.to_owned()),
                _ => return Err(Mistake(line, format!("`{key}` is not a test option"))),
            }
        }
        Ok(options)
    }
}

/// The blocks of a page, or its mistakes: a block without a language, a command in a block that is not run, an option
/// above no block.
pub fn blocks(page: &str) -> Result<Vec<Block>, Vec<Mistake>> {
    let mut blocks = Vec::new();
    let mut mistakes = Vec::new();
    let mut options: Option<(usize, Options)> = None;
    let mut lines = page.lines().enumerate().map(|(at, line)| (at + 1, line));
    while let Some((number, line)) = lines.next() {
        if let Some(rest) = line.strip_prefix("<!-- test") {
            let mut text = rest.to_owned();
            while !text.contains("-->") {
                let Some((_, more)) = lines.next() else { break };
                text = format!("{text}\n{more}");
            }
            match Options::read(text.trim().trim_end_matches("-->"), number) {
                Ok(read) => options = Some((number, read)),
                Err(mistake) => mistakes.push(mistake),
            }
        } else if let Some(language) = line.strip_prefix("```") {
            let mut inside = Vec::new();
            let mut ended = false;
            for (_, line) in lines.by_ref() {
                ended = line == "```";
                if ended {
                    break;
                }
                inside.push(line.to_owned());
            }
            let block = Block {
                line: number,
                language: language.to_owned(),
                lines: inside,
                options: options.take().map(|(_, options)| options).unwrap_or_default(),
            };
            mistakes.extend(mistake(&block, ended).map(|text| Mistake(number, text)));
            blocks.push(block);
        } else if let Some(text) = unseen(line) {
            mistakes.push(Mistake(number, text.to_owned()));
        } else if !line.is_empty()
            && let Some((line, _)) = options.take()
        {
            mistakes.push(Mistake(line, "a test option is directly above its block".to_owned()));
        }
    }
    if mistakes.is_empty() { Ok(blocks) } else { Err(mistakes) }
}

/// The reason why a line outside of blocks has untested code.
fn unseen(line: &str) -> Option<&'static str> {
    let lower = line.to_ascii_lowercase();
    if line.contains("```") {
        Some("an indented block, or one in a quotation, is not tested")
    } else if line.trim_start_matches(['>', ' ']).starts_with("~~~") {
        Some("a block between ~~~ is not tested: use ```")
    } else if ["<pre", "<code", "<script"].iter().any(|tag| lower.contains(tag)) {
        Some("code in HTML is not tested: use ```")
    } else if (line.starts_with("    ") || line.starts_with('\t')) && is_typed(line.trim_start()) {
        Some("an indented command is not tested: use ```")
    } else {
        None
    }
}

/// Whether a line looks like a command line.
fn is_typed(line: &str) -> bool {
    line.split(' ').next().is_some_and(|word| PROGRAMS.contains(&word))
}

fn mistake(block: &Block, ended: bool) -> Option<String> {
    let language = block.language.as_str();
    if !ended || block.lines.iter().any(|line| line.trim_start().starts_with("```")) {
        return Some("the block does not end with a line of three backticks alone".to_owned());
    }
    if FILES.contains(&language) {
        let line = block.lines.iter().find(|line| is_typed(line))?;
        return Some(format!("`{line}` in a block of {language} is not run: use sh or console"));
    }
    if !block.is_run() {
        return Some(format!(
            "`{language}` is not a tested language: expected one of {}, or of {}",
            COMMANDS.join(", "),
            FILES.join(", ")
        ));
    }
    if language == "console" && !block.lines.first().is_some_and(|line| line.starts_with("$ ")) {
        return Some("a console block starts with `$ ` and a command".to_owned());
    }
    let commands = block.commands();
    if commands.is_empty() {
        return Some("no command is in this block".to_owned());
    }
    let elided = |command: &&Command| {
        let mut shown = command.output.iter().filter(|line| !line.trim().is_empty()).peekable();
        shown.peek().is_some() && shown.all(|line| line == "...")
    };
    let elided = commands.iter().find(elided)?;
    Some(format!("`{}` shows `...` alone, which equals any output", elided.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_options_commands_and_outputs() {
        let page = "text\n<!-- test\nneeds: gpu curl\nexit: 2 any\nvaries: time\nvaries: /a b/\nsetup: x y\n-->\n\
                    ```console\n$ one \\\n  more\nout\n\n$ two\n```\n\n```sh\n# remark\na\nb \\\n  c\n```\n";
        let read = blocks(page).unwrap();
        assert_eq!(read[0].options.needs, ["gpu", "curl"]);
        assert_eq!(read[0].options.exits, [Some(2), None]);
        assert_eq!(read[0].options.varies, ["time", "/a b/"]);
        assert_eq!(read[0].options.setup, ["x y"]);
        let commands = read[0].commands();
        assert_eq!(commands[0].text, "one \\\n  more");
        assert_eq!(commands[0].output, ["out", ""]);
        assert_eq!((commands[0].output_at, commands[1].output_at), (2, 5));
        let typed: Vec<String> = read[1].commands().into_iter().map(|it| it.text).collect();
        assert_eq!(typed, ["a", "b \\\n  c"]);
        assert_eq!(read[1].options, Options::default());
    }

    #[test]
    fn rejects_blocks_that_would_go_untested() {
        for (page, wanted) in [
            ("```\nfirstlight doctor\n```\n", "not a tested language"),
            ("```bash\nfirstlight doctor\n```\n", "not a tested language"),
            ("```text\npip install x\n```\n", "is not run: use sh or console"),
            ("```text\n$ ls\n```\n", "is not run: use sh or console"),
            ("```console\nfirstlight doctor\n```\n", "starts with `$ `"),
            ("- item\n\n  ```sh\n  ls\n  ```\n", "indented"),
            ("> ```sh\n> ls\n> ```\n", "in a quotation"),
            ("````sh\nls\n````\n", "does not end"),
            ("```sh ignore\nls\n```\n", "not a tested language"),
            ("~~~sh\nls\n~~~\n", "use ```"),
            ("<pre>firstlight doctor</pre>\n", "in HTML"),
            ("text\n\n    firstlight doctor\n", "an indented command"),
            ("```sh\nls\n", "does not end"),
            ("```sh\nls\n``` \n\n```sh\nls\n```\n", "does not end"),
            ("```sh\n# a remark alone\n```\n", "no command"),
            ("```console\n$ ls\n...\n```\n", "equals any output"),
            ("<!-- test needs: gpu -->\n\ntext\n", "directly above"),
            ("<!-- test nedes: gpu -->\n```sh\nls\n```\n", "not a test option"),
            ("<!-- test exit: one -->\n```sh\nls\n```\n", "not a status"),
        ] {
            let mistakes = blocks(page).unwrap_err();
            assert!(mistakes[0].1.contains(wanted), "{page}: {mistakes:?}");
        }
    }
}
