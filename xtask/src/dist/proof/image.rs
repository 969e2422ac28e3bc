//! Executes the Dockerfile's instructions in a folder, which tests files and entry point without a container engine.

use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the image's file system and runs its entry point.
///
/// `FROM` provides only the host's C library, less than any base image.
pub(super) fn run(file: &Path, context: &Path, program: &Path, root: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let processor = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        _ => "arm64",
    };
    let image = Image::build(&text, context, root, processor)?;
    copy_libraries(program, root)?;
    for words in [image.start.as_slice(), &[image.start[0].clone(), "--version".to_owned()]] {
        let output = image.command(root, words).output().context("chroot")?;
        // Exit status 1: findings.
        if !matches!(output.status.code(), Some(0 | 1)) || output.stdout.is_empty() {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!("`{}` ended with {}: {}", words.join(" "), output.status, message.trim());
        }
    }
    println!(
        "Dockerfile: `{}` runs where there is a C library and nothing else",
        image.start.join(" ")
    );
    Ok(())
}

/// The image that the instructions define.
#[derive(Debug, Default)]
struct Image {
    variables: BTreeMap<String, String>,
    folder: String,
    /// The arguments of ENTRYPOINT, then those of CMD.
    start: Vec<String>,
}

impl Image {
    fn build(text: &str, context: &Path, root: &Path, processor: &str) -> anyhow::Result<Self> {
        let mut image = Self { folder: "/".to_owned(), ..Self::default() };
        image.variables.insert("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned());
        let (mut entry, mut command) = (Vec::new(), Vec::new());
        for (number, line) in instructions(text) {
            let (name, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let wrong = || format!("Dockerfile:{number}: {line}");
            match name {
                "FROM" | "LABEL" => {}
                "ARG" if rest == "TARGETARCH" => {
                    image.variables.insert(rest.to_owned(), processor.to_owned());
                }
                "ENV" => {
                    for pair in rest.split_whitespace() {
                        let (name, value) = pair.split_once('=').with_context(wrong)?;
                        image.variables.insert(name.to_owned(), value.to_owned());
                    }
                }
                "COPY" => image.copy(rest, context, root).with_context(wrong)?,
                "WORKDIR" => {
                    image.folder = rest.to_owned();
                    fs::create_dir_all(within(root, rest))?;
                }
                "ENTRYPOINT" => entry = words(rest).with_context(wrong)?,
                "CMD" => command = words(rest).with_context(wrong)?,
                _ => bail!("{}: this instruction is not known here", wrong()),
            }
        }
        image.start = [entry, command].concat();
        if image.start.is_empty() {
            bail!("the Dockerfile starts nothing");
        }
        Ok(image)
    }

    fn copy(&self, arguments: &str, context: &Path, root: &Path) -> anyhow::Result<()> {
        let mut mode = None;
        let mut places = Vec::new();
        for word in arguments.split_whitespace() {
            match word.strip_prefix("--chmod=") {
                Some(octal) => mode = Some(u32::from_str_radix(octal, 8)?),
                None => places.push(self.expanded(word)),
            }
        }
        let [from, to] = places.as_slice() else { bail!("wanted a file and its place") };
        let (from, to) = (context.join(from), within(root, to));
        fs::create_dir_all(to.parent().context("no folder")?)?;
        fs::copy(&from, &to).with_context(|| from.display().to_string())?;
        if let Some(mode) = mode {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    fn expanded(&self, text: &str) -> String {
        let pairs = self.variables.iter();
        pairs.fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("${{{name}}}"), value)
        })
    }

    /// A command that runs a program in the image: with chroot as root, otherwise in a user namespace.
    fn command(&self, root: &Path, words: &[String]) -> Command {
        let is_root =
            crate::steps::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
        let mut command = match is_root {
            true => Command::new("chroot"),
            false => {
                let mut command = Command::new("unshare");
                command.args(["--map-root-user", "chroot"]);
                command
            }
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.arg(root).arg(self.found(root, &words[0])).args(&words[1..]);
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", "/")
            .envs(self.variables.iter().filter(|(name, _)| *name != "PATH"));
        command
    }

    /// The path of a program, searched in the image's PATH.
    fn found(&self, root: &Path, name: &str) -> String {
        let folders = self.variables["PATH"].split(':');
        let mut places = folders.map(|folder| format!("{folder}/{name}"));
        places.find(|place| within(root, place).is_file()).unwrap_or_else(|| name.to_owned())
    }
}

/// A path of the image below its root folder.
fn within(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Each instruction as one line, with the number of its first line.
fn instructions(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let part = line.trim_end_matches('\\').trim();
        match found.last_mut().filter(|_| continues) {
            Some((_, before)) => *before = format!("{before} {part}"),
            None => found.push((index + 1, part.to_owned())),
        }
        continues = line.ends_with('\\');
    }
    found
}

/// Parses the exec form, a JSON list: in the shell form the program would not receive the signals that stop a container.
fn words(list: &str) -> anyhow::Result<Vec<String>> {
    serde_json::from_str(list).context("wanted a JSON list of words")
}

/// Copies the dynamic loader and the program's libraries to their paths below the root.
fn copy_libraries(program: &Path, root: &Path) -> anyhow::Result<()> {
    let listed = crate::steps::output(Command::new("ldd").arg(program))?;
    for path in listed.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = within(root, path);
        fs::create_dir_all(to.parent().context("no folder")?)?;
        fs::copy(path, &to).with_context(|| path.to_owned())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_build_a_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let (context, root) = (folder.path().join("context"), folder.path().join("root"));
        fs::create_dir_all(context.join("image/amd64")).unwrap();
        fs::write(context.join("image/amd64/firstlight"), "ELF").unwrap();
        let text = "# comment\nFROM debian:12-slim\nARG TARGETARCH\nENV A=1 \\\n    B=2\nCOPY --chmod=0755 image/${TARGETARCH}/firstlight \
                    /usr/local/bin/firstlight\nWORKDIR /runs\nENTRYPOINT [\"firstlight\"]\nCMD [\"doctor\"]\n";
        let image = Image::build(text, &context, &root, "amd64").unwrap();
        assert_eq!(image.start, ["firstlight", "doctor"]);
        assert_eq!((image.variables["A"].as_str(), image.variables["B"].as_str()), ("1", "2"));
        assert_eq!(image.folder, "/runs");
        assert_eq!(image.found(&root, "firstlight"), "/usr/local/bin/firstlight");
        for (from, to, expect) in [
            ("image/${TARGETARCH}", "nowhere", "Dockerfile:6: COPY"),
            ("[\"doctor\"]", "doctor", "wanted a JSON list"),
            ("WORKDIR", "RUN", "not known here"),
        ] {
            let error =
                Image::build(&text.replace(from, to), &context, &root, "amd64").unwrap_err();
            assert!(format!("{error:#}").contains(expect), "{error:#}");
        }
    }
}
