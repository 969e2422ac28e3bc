//! The commands of findings, read as what they change: rules write them in uv's words or pip's, and nothing else is run.

/// What one command changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Packages are installed.
    Install(Install),
    /// Packages are removed, by their normalised names.
    Uninstall(Vec<String>),
    /// Nothing: it looks (`pip check`, `python -c`).
    Look,
}

/// An install.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Install {
    /// What is wanted: `torch==2.9.0`.
    pub specs: Vec<String>,
    /// The index in place of the default one.
    pub index: Option<String>,
    /// Packages that are built from source.
    pub from_source: Vec<String>,
    /// Whether what is installed already is installed again.
    pub again: bool,
    /// Whether requirements are left alone.
    pub no_deps: bool,
    /// Variables that a build reads.
    pub variables: Vec<(String, String)>,
}

/// The normalised name that a requirement begins with.
pub(super) fn name_of(spec: &str) -> String {
    let end = spec.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
    facts::Dist::normalise(&spec[..end.unwrap_or(spec.len())])
}

/// What commands change, up to the first alternative (`# or ...`).
///
/// # Errors
/// Why they are not run, in a few words: a step is a person's, needs root, or is no package change.
pub fn actions(commands: &[String]) -> Result<Vec<Action>, String> {
    let mut found = Vec::new();
    for line in commands.iter().map(|line| line.trim()) {
        if line.starts_with("# or") {
            break;
        }
        if let Some(remark) = line.strip_prefix('#') {
            // A remark that ends in a colon is about the command below it; any other one is a step for a person.
            if !remark.trim_end().ends_with(':') {
                return Err(format!("a step is yours: {}", remark.trim()));
            }
            continue;
        }
        found.push(action(line)?);
    }
    match found.iter().any(|action| *action != Action::Look) {
        true => Ok(found),
        false => Err("it has no command that changes a package".to_owned()),
    }
}

fn action(line: &str) -> Result<Action, String> {
    let mut words = split(line).into_iter().peekable();
    let mut variables = Vec::new();
    while let Some((name, value)) = words.peek().and_then(|word| assignment(word)) {
        variables.push((name, value));
        words.next();
    }
    let words: Vec<String> = words.collect();
    let texts: Vec<&str> = words.iter().map(String::as_str).collect();
    match texts.first().copied() {
        Some("sudo") => return Err(format!("it needs root: {line}")),
        Some("reboot") => return Err("it needs a reboot".into()),
        Some("export" | "unset" | "." | "source") => {
            return Err(format!("it belongs into your shell: {line}"));
        }
        Some("conda" | "mamba") => {
            return Err(format!("conda's changes are yours to make: {line}"));
        }
        _ => {}
    }
    let rest = match texts.as_slice() {
        ["uv", "pip", rest @ ..] | [_, "-m", "pip", rest @ ..] => rest,
        [python, "-c", _] if python.contains("python") => return Ok(Action::Look),
        _ => return Err(format!("it is no package change: {line}")),
    };
    let not_read = |word: &str| format!("`{word}` is not read: {line}");
    match rest {
        ["check", ..] => Ok(Action::Look),
        ["uninstall", rest @ ..] => {
            let mut names = Vec::new();
            let mut rest = rest.iter();
            while let Some(word) = rest.next() {
                match *word {
                    "--yes" | "-y" => {}
                    "--python" => drop(rest.next()),
                    word if word.starts_with('-') => return Err(not_read(word)),
                    word => names.push(name_of(word)),
                }
            }
            Ok(Action::Uninstall(names))
        }
        ["install", rest @ ..] => install(rest, variables).map_err(|word| not_read(&word)),
        _ => Err(format!("it is no package change: {line}")),
    }
}

/// The inner error is a word that is not understood: what it would change is then not known either.
fn install(words: &[&str], variables: Vec<(String, String)>) -> Result<Action, String> {
    let mut install = Install { variables, ..Install::default() };
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let mut value = || words.next().map(|word| (*word).to_owned()).ok_or(word.to_owned());
        match word {
            "--python" => drop(value()?),
            "--index-url" | "--default-index" | "-i" => install.index = Some(value()?),
            "--no-binary" => install.from_source.extend(value()?.split(',').map(name_of)),
            "--reinstall-package" => {
                value()?;
                install.again = true;
            }
            "--reinstall" | "--force-reinstall" => install.again = true,
            "--no-deps" => install.no_deps = true,
            "--upgrade" | "-U" | "--no-build-isolation" | "--no-cache-dir" | "--no-cache" => {}
            word if word.starts_with('-') || word.contains("://") || word.contains('/') => {
                return Err(word.to_owned());
            }
            word => install.specs.push(word.to_owned()),
        }
    }
    Ok(Action::Install(install))
}

fn assignment(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    (!name.is_empty() && name.chars().all(plain)).then(|| (name.to_owned(), value.to_owned()))
}

/// The words of a line as a POSIX shell splits it, with single and double quotes and without expansions.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut any) = (Vec::new(), String::new(), None, false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some(_), letter) => word.push(letter),
            (None, '\'' | '"') => (quote, any) = (Some(letter), true),
            (None, '\\') => word.extend(letters.next()),
            (None, letter) if letter.is_whitespace() => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            (None, letter) => word.push(letter),
        }
    }
    if any || !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &[&str], expect: Result<&[Action], &str>) {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        match (actions(&lines), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{lines:?}"),
            (Err(why), Err(words)) => assert!(why.contains(words), "{why}"),
            (found, _) => panic!("{lines:?}: {found:?}"),
        }
    }

    #[test]
    fn commands_of_rules_are_read_and_anything_else_is_not_run() {
        let install = |specs: &[&str]| Install {
            specs: specs.iter().map(|spec| (*spec).to_owned()).collect(),
            ..Install::default()
        };
        let replace = [
            "'/a b/bin/python' -m pip uninstall --yes torch TorchVision",
            "'/a b/bin/python' -m pip install torch==2.9.0 'torchvision==0.24.*' --index-url https://i/cu128",
        ];
        let torch = Install {
            index: Some("https://i/cu128".into()),
            ..install(&["torch==2.9.0", "torchvision==0.24.*"])
        };
        check(
            &replace,
            Ok(&[
                Action::Uninstall(vec!["torch".into(), "torchvision".into()]),
                Action::Install(torch),
            ]),
        );
        let build = Install {
            from_source: vec!["flash-attn".into()],
            again: true,
            no_deps: true,
            variables: vec![("FORCE".into(), "TRUE".into())],
            ..install(&["flash-attn==2.8.3"])
        };
        check(
            &[
                "FORCE=TRUE uv pip install --python /v/bin/python --reinstall --no-deps --no-build-isolation --no-binary flash-attn flash-attn==2.8.3",
            ],
            Ok(&[Action::Install(build)]),
        );
        let first = [
            "# a build that fits:",
            "/v/bin/python -m pip install x",
            "# or bring the driver:",
            "sudo reboot",
        ];
        check(&first, Ok(&[Action::Install(install(&["x"]))]));
        let look = [
            "uv pip install --python /v/bin/python 'requests>=2'",
            "uv pip check --python /v/bin/python",
        ];
        check(&look, Ok(&[Action::Install(install(&["requests>=2"])), Action::Look]));
        check(&[replace[0], "# then install NVIDIA's wheel"], Err("a step is yours"));
        check(&["sudo apt-get install x"], Err("needs root"));
        check(&["export CUDA_HOME=/x"], Err("your shell"));
        check(&["conda install x"], Err("conda's changes"));
        check(&["rm -r /v/lib"], Err("no package change"));
        check(&["uv pip install --python /v/bin/python -r x.txt"], Err("`-r` is not read"));
        check(&["uv pip install --python /v/bin/python ./x.whl"], Err("`./x.whl` is not read"));
        check(&["uv pip check --python /v/bin/python"], Err("no command"));
        check(&["# nothing:"], Err("no command"));
    }
}
