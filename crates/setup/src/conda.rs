//! conda environments, which a plan does not change: conda does not know about wheels that replace its packages.

use facts::{Dist, EnvKind, Fact, PyEnv};

/// A warning if a conda environment is in use: the plan is for a separate virtual environment. It names conda's torch
/// and the extensions that pip installed next to it, if any.
///
/// `None` if no environment is conda's.
pub fn around(envs: &[PyEnv]) -> Option<Fact<String>> {
    let env = envs.iter().find(|env| env.kind == EnvKind::Conda)?;
    let by = |dist: &Dist, words: &[&str]| {
        dist.installer.as_deref().is_some_and(|word| words.contains(&word.trim()))
    };
    let named = |dist: &Dist| format!("{} {}", dist.name, dist.version);
    let torch = env.dist("torch").filter(|torch| by(torch, &["conda"]));
    // A wheel compiled against PyPI's torch needs symbols that conda's torch may not have.
    let wants_torch = |dist: &&Dist| {
        let name = |line: &String| {
            let end = line.find(|c: char| !(c.is_alphanumeric() || "-_.".contains(c)));
            Dist::normalise(&line[..end.unwrap_or(line.len())])
        };
        dist.requires.iter().any(|line| name(line) == "torch")
    };
    let mixed: Vec<String> = env
        .dists
        .iter()
        .filter(|dist| torch.is_some() && by(dist, &["pip", "uv"]))
        .filter(wants_torch)
        .map(named)
        .collect();
    let has = match (torch, mixed.is_empty()) {
        (None, _) => String::new(),
        (Some(torch), true) => format!(" with its own {}", named(torch)),
        (Some(torch), false) => format!(
            " that mixes its own {} with pip's {}, whose ABIs may differ",
            named(torch),
            mixed.join(", ")
        ),
    };
    Some(Fact::new(
        format!(
            "{} is a conda environment{has}; this plan does not change it and is for a separate virtual environment: `firstlight apply PLAN --venv .venv`",
            env.root
        ),
        format!("{}/conda-meta", env.root),
    ))
}

#[cfg(test)]
mod tests {
    use super::around;
    use facts::{Dist, EnvKind, Interpreter, PyEnv};

    fn dist(name: &str, version: &str, installer: &str, requires: &[&str]) -> Dist {
        Dist {
            name: name.into(),
            version: version.into(),
            path: format!("/opt/c/{name}"),
            requires: requires.iter().map(|line| (*line).to_owned()).collect(),
            installer: Some(installer.into()),
            ..Dist::default()
        }
    }

    fn warning(kind: EnvKind, dists: Vec<Dist>) -> Option<String> {
        let interpreter = Interpreter {
            executable: None,
            resolved: None,
            version: None,
            abi_tag: None,
            base: None,
        };
        let env = PyEnv {
            root: "/opt/c".into(),
            kind,
            found_by: "CONDA_PREFIX".into(),
            manager: None,
            interpreter,
            site_packages: Vec::new(),
            dists,
            torch: None,
            native_files: Vec::new(),
            ptxas: Vec::new(),
            companions: Vec::new(),
            in_front: Vec::new(),
            unmet_imports: Vec::new(),
            missing_names: Vec::new(),
            problems: Vec::new(),
        };
        around(&[env]).map(|fact| {
            assert_eq!(fact.source, "/opt/c/conda-meta");
            fact.value
        })
    }

    #[test]
    fn r2_07_a_plan_avoids_a_conda_environment_and_names_mixed_packages() {
        let torch = || dist("torch", "2.12.0", "conda", &[]);
        let flash = || dist("flash-attn", "2.8.3", "pip", &["einops", "torch>=2.2"]);
        let mixed = warning(EnvKind::Conda, vec![torch(), flash()]).unwrap();
        let words = "/opt/c is a conda environment that mixes its own torch 2.12.0 with pip's flash-attn 2.8.3,";
        assert!(mixed.starts_with(words), "{mixed}");
        assert!(
            mixed.ends_with("separate virtual environment: `firstlight apply PLAN --venv .venv`"),
            "{mixed}"
        );

        let einops = dist("einops", "0.8.1", "pip", &["torchvision"]);
        let own = warning(EnvKind::Conda, vec![torch(), einops]).unwrap();
        assert!(
            own.starts_with("/opt/c is a conda environment with its own torch 2.12.0;"),
            "{own}"
        );
        // pip's torch in conda's Python is not a mix of torches.
        let pip =
            warning(EnvKind::Conda, vec![dist("torch", "2.12.0", "pip", &[]), flash()]).unwrap();
        assert!(pip.starts_with("/opt/c is a conda environment; this plan"), "{pip}");
        assert_eq!(warning(EnvKind::Venv, vec![torch(), flash()]), None);
    }
}
