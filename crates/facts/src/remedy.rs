use serde::{Deserialize, Serialize};
use std::fmt;

/// One step of a remedy. Its display form is the command or remark for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum RemedyStep {
    /// Installs packages into an environment with uv or pip.
    Install {
        /// The target environment.
        target: PackageTarget,
        /// The packages.
        install: Install,
    },
    /// Removes packages from an environment with uv or pip.
    Uninstall {
        /// The target environment.
        target: PackageTarget,
        /// The packages.
        packages: Vec<String>,
    },
    /// Installs packages into an environment with conda.
    Conda {
        /// The environment; the active one if `None`.
        prefix: Option<String>,
        /// The packages in conda's notation: `cuda-version=12`.
        specs: Vec<String>,
        /// Whether installed packages are reinstalled.
        reinstall: bool,
    },
    /// A command that changes nothing.
    Inspect {
        /// The command line.
        command: String,
    },
    /// Any other command of the system, the shell or another program.
    Command {
        /// The command line.
        command: String,
    },
    /// A remark on the next step.
    Note {
        /// The text.
        text: String,
    },
    /// A step that only a person can do.
    Manual {
        /// The text.
        text: String,
    },
    /// The following steps are an alternative.
    Alternative {
        /// When or why it is chosen.
        text: String,
    },
}

/// An environment, and the program that changes its packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageTarget {
    /// Its interpreter.
    pub python: String,
    /// uv or pip.
    pub tool: PackageTool,
}

/// A program that installs packages from an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageTool {
    /// `uv pip`.
    Uv,
    /// `python -m pip`.
    Pip,
}

/// Packages to install, with options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Install {
    /// Requirements: `torch==2.9.0`.
    pub specs: Vec<String>,
    /// The address of the index, if it is not the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// Packages built from source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_source: Vec<String>,
    /// Whether installed packages are reinstalled.
    #[serde(default)]
    pub reinstall: bool,
    /// Whether the newest release is installed even if the installed one would do.
    #[serde(default)]
    pub upgrade: bool,
    /// Whether dependencies are ignored.
    #[serde(default)]
    pub no_deps: bool,
    /// Environment variables of a build.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<(String, String)>,
}

impl RemedyStep {
    /// Reinstalls installed packages.
    #[must_use]
    pub fn reinstalled(mut self) -> Self {
        match &mut self {
            Self::Install { install, .. } => install.reinstall = true,
            Self::Conda { reinstall, .. } => *reinstall = true,
            _ => {}
        }
        self
    }

    /// Installs the newest release.
    #[must_use]
    pub fn upgraded(mut self) -> Self {
        if let Self::Install { install, .. } = &mut self {
            install.upgrade = true;
        }
        self
    }

    /// Ignores dependencies.
    #[must_use]
    pub fn without_deps(mut self) -> Self {
        if let Self::Install { install, .. } = &mut self {
            install.no_deps = true;
        }
        self
    }

    /// Adds an environment variable of a build.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        if let Self::Install { install, .. } = &mut self {
            install.variables.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// The interpreter of the environment that it changes with uv or pip.
    pub fn python(&self) -> Option<&str> {
        match self {
            Self::Install { target, .. } | Self::Uninstall { target, .. } => Some(&target.python),
            _ => None,
        }
    }

    /// The step with every path and text mapped.
    #[must_use]
    pub fn map_text(self, text: &dyn Fn(String) -> String) -> Self {
        let target = |it: PackageTarget| PackageTarget { python: text(it.python), ..it };
        match self {
            Self::Install { target: at, install } => Self::Install { target: target(at), install },
            Self::Uninstall { target: at, packages } => {
                Self::Uninstall { target: target(at), packages }
            }
            Self::Conda { prefix, specs, reinstall } => {
                Self::Conda { prefix: prefix.map(text), specs, reinstall }
            }
            Self::Inspect { command } => Self::Inspect { command: text(command) },
            Self::Command { command } => Self::Command { command: text(command) },
            Self::Note { text: words } => Self::Note { text: text(words) },
            Self::Manual { text: words } => Self::Manual { text: text(words) },
            Self::Alternative { text: words } => Self::Alternative { text: text(words) },
        }
    }
}

impl From<&str> for RemedyStep {
    /// Parses a line of a rule: `#` starts a remark; `# or` starts an alternative; a remark that ends in a colon refers
    /// to the next step, any other is for a person to do. Everything else is a command that only a person runs.
    fn from(line: &str) -> Self {
        let Some(remark) = line.strip_prefix('#').map(str::trim) else {
            return Self::Command { command: line.to_owned() };
        };
        let text = remark.to_owned();
        match (remark.starts_with("or "), remark.ends_with(':')) {
            (true, _) => Self::Alternative { text },
            (false, true) => Self::Note { text },
            (false, false) => Self::Manual { text },
        }
    }
}

impl From<String> for RemedyStep {
    fn from(line: String) -> Self {
        Self::from(line.as_str())
    }
}

impl From<RemedyStep> for String {
    fn from(step: RemedyStep) -> Self {
        step.to_string()
    }
}

impl fmt::Display for RemedyStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Install { target, install } => write!(f, "{}", install.line(target)),
            Self::Uninstall { target, packages } => {
                let yes = match target.tool {
                    PackageTool::Uv => "",
                    PackageTool::Pip => " --yes",
                };
                write!(f, "{}{yes} {}", target.command("uninstall"), packages.join(" "))
            }
            Self::Conda { prefix, specs, reinstall } => {
                f.write_str("conda install")?;
                if let Some(prefix) = prefix {
                    write!(f, " --prefix {}", quote(prefix))?;
                }
                f.write_str(" -c conda-forge")?;
                for spec in specs {
                    write!(f, " {}", quote(spec))?;
                }
                f.write_str(if *reinstall { " --force-reinstall" } else { "" })
            }
            Self::Inspect { command } | Self::Command { command } => f.write_str(command),
            Self::Note { text } | Self::Manual { text } | Self::Alternative { text } => {
                write!(f, "# {text}")
            }
        }
    }
}

impl PackageTarget {
    /// A command up to its arguments: `uv pip install --python P`.
    pub fn command(&self, verb: &str) -> String {
        match self.tool {
            PackageTool::Uv => format!("uv pip {verb} --python {}", quote(&self.python)),
            PackageTool::Pip => format!("{} -m pip {verb}", quote(&self.python)),
        }
    }
}

impl Install {
    /// The command line for the target's tool.
    fn line(&self, target: &PackageTarget) -> String {
        let uv = target.tool == PackageTool::Uv;
        let variables =
            self.variables.iter().map(|(name, value)| format!("{name}={}", quote(value)));
        let mut words: Vec<String> = variables.collect();
        words.push(target.command("install"));
        if self.reinstall {
            words.push(if uv { "--reinstall" } else { "--force-reinstall" }.to_owned());
        }
        words.extend(self.upgrade.then(|| "--upgrade".to_owned()));
        if self.no_deps {
            words.push("--no-deps".to_owned());
        }
        if !self.from_source.is_empty() {
            words.extend((!uv).then(|| "--no-cache-dir".to_owned()));
            words.push("--no-build-isolation".to_owned());
            match uv {
                true => words.extend(self.from_source.iter().map(|it| format!("--no-binary {it}"))),
                false => words.push(format!("--no-binary {}", self.from_source.join(","))),
            }
        }
        words.extend(self.specs.iter().map(|spec| quote(spec)));
        words.extend(self.index.as_ref().map(|index| format!("--index-url {index}")));
        words.join(" ")
    }
}

/// One word of a POSIX shell command, quoted if necessary.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=+,@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_special_characters_are_quoted() {
        for (word, expect) in [
            ("torch==2.9.0", "torch==2.9.0"),
            ("torch==2.9.*", "'torch==2.9.*'"),
            ("torchvision>=0.29", "'torchvision>=0.29'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quote(word), expect);
        }
    }

    #[test]
    fn install_step_is_formatted_for_its_tool() {
        let install = Install {
            specs: vec!["flash-attn==2.8.3".into(), "einops>=0.8".into()],
            from_source: vec!["flash-attn".into(), "einops".into()],
            reinstall: true,
            no_deps: true,
            variables: vec![("TORCH_CUDA_ARCH_LIST".into(), "8.6;9.0".into())],
            ..Install::default()
        };
        let line = |tool| {
            let target = PackageTarget { python: "/a b/bin/python".into(), tool };
            RemedyStep::Install { target, install: install.clone() }.to_string()
        };
        assert_eq!(
            line(PackageTool::Uv),
            "TORCH_CUDA_ARCH_LIST='8.6;9.0' uv pip install --python '/a b/bin/python' --reinstall --no-deps --no-build-isolation \
             --no-binary flash-attn --no-binary einops flash-attn==2.8.3 'einops>=0.8'"
        );
        assert_eq!(
            line(PackageTool::Pip),
            "TORCH_CUDA_ARCH_LIST='8.6;9.0' '/a b/bin/python' -m pip install --force-reinstall --no-deps --no-cache-dir \
             --no-build-isolation --no-binary flash-attn,einops flash-attn==2.8.3 'einops>=0.8'"
        );
    }

    #[test]
    fn rule_line_is_parsed_as_remark_or_command() {
        let text = |text: &str| text.to_owned();
        for (line, expect) in [
            (
                "# or bring the driver:",
                RemedyStep::Alternative { text: text("or bring the driver:") },
            ),
            ("# a build that fits:", RemedyStep::Note { text: text("a build that fits:") }),
            ("# power it off", RemedyStep::Manual { text: text("power it off") }),
            ("sudo reboot", RemedyStep::Command { command: text("sudo reboot") }),
        ] {
            let step = RemedyStep::from(line);
            assert_eq!((step.to_string().as_str(), &step), (line, &expect));
        }
    }
}
