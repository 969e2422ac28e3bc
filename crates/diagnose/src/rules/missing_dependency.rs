use super::{Context, Need, Rule, Text};
use crate::data::undeclared::{self, UNDECLARED};
use crate::dist_requirements::{DistRequirement, applicable_requirements};
use crate::remedy::Installer;
use crate::torch_build::{by_conda, live_dist};
use facts::{Confidence, Dist, EnvKind, Finding, Machine, PyEnv, Severity, UnmetImport};

pub(super) const RULE: Rule = Rule {
    id: "missing-dependency",
    title: "a package that another one requires is not installed",
    about: "\
A package's METADATA names what it requires, and one of these is not installed: it was removed because nothing seemed to
use it, an install was made with --no-deps, or a later command replaced part of the environment.

It shows as
  ModuleNotFoundError: No module named 'filelock'
when the package that requires it is imported, or later, when the part that needs it is used.

Detected by reading the requirements of every installed package, with their markers evaluated for this machine and
Python. The finding is an error if the package's import statements, followed from its first file, import the missing
package.

Install the missing package in the required version.",
    links: &["https://packaging.python.org/en/latest/specifications/dependency-specifiers/"],
    texts: &[
        Text::new("requires {wanted}, which is not installed", "torch 2.8.0 requires filelock, which is not installed."),
        Text::new("The '{wanted}' distribution was not found and is required by", "importlib.metadata.PackageNotFoundError: No package metadata was found for The 'accelerate>=1.0' distribution was not found and is required by this application."),
        Text::new("No package metadata was found for {wanted}", "importlib.metadata.PackageNotFoundError: No package metadata was found for transformer_engine"),
    ],
    remedy: |seen| {
        let wanted = seen.word("wanted").unwrap_or("PACKAGE").to_owned();
        vec![seen.installer().install(&[wanted], None).into()]
    },
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Distributions and their import names, where the two differ.
const MODULES: [(&str, &str); 34] = [
    ("absl-py", "absl"),
    ("antlr4-python3-runtime", "antlr4"),
    ("apache-tvm-ffi", "tvm_ffi"),
    ("attrs", "attr"),
    ("beautifulsoup4", "bs4"),
    ("cuda-bindings", "cuda.bindings"),
    ("faiss-cpu", "faiss"),
    ("gitpython", "git"),
    ("google-pasta", "pasta"),
    ("grpcio", "grpc"),
    ("hydra-core", "hydra"),
    ("lm-format-enforcer", "lmformatenforcer"),
    ("msgpack-python", "msgpack"),
    ("nvidia-cutlass-dsl", "cutlass"),
    ("nvidia-ml-py", "pynvml"),
    ("onnxruntime-gpu", "onnxruntime"),
    ("opencv-contrib-python", "cv2"),
    ("opencv-python", "cv2"),
    ("opencv-python-headless", "cv2"),
    ("pillow", "PIL"),
    ("protobuf", "google.protobuf"),
    ("py-cpuinfo", "cpuinfo"),
    ("pycryptodome", "Crypto"),
    ("pyjwt", "jwt"),
    ("python-dateutil", "dateutil"),
    ("python-dotenv", "dotenv"),
    ("python-multipart", "multipart"),
    ("pyyaml", "yaml"),
    ("pyzmq", "zmq"),
    ("ruamel-yaml", "ruamel.yaml"),
    ("scikit-image", "skimage"),
    ("scikit-learn", "sklearn"),
    ("setuptools", "pkg_resources"),
    ("z3-solver", "z3"),
];

/// The distribution of a module, if its name differs from the module's.
pub(crate) fn module_of(module: &str) -> Option<&'static str> {
    MODULES.iter().find(|(_, name)| *name == module).map(|(package, _)| *package)
}

/// A requirement that is not installed, and the modules it would provide.
#[derive(Debug)]
pub struct UnmetRequirement {
    /// The index of the environment in the list.
    pub env: usize,
    /// The distribution that requires it.
    pub dist: String,
    /// The name of the requirement, normalised as in PEP 503.
    pub requirement: String,
    /// Its import names.
    pub modules: Vec<String>,
}

/// Every requirement that is not installed, for a caller that checks whether an import statement for it runs.
pub fn unmet(machine: &Machine, envs: &[PyEnv]) -> Vec<UnmetRequirement> {
    let of = |(index, env)| {
        missing(machine, env).into_iter().map(move |want| {
            let requirement = want.wanted.name.clone();
            let known = MODULES.iter().find(|(package, _)| *package == requirement);
            let own = requirement.replace('-', "_");
            let modules = known.map_or(own, |(_, module)| (*module).to_owned());
            UnmetRequirement {
                env: index,
                dist: want.dist.name.clone(),
                requirement,
                modules: vec![modules],
            }
        })
    };
    envs.iter().enumerate().flat_map(of).collect()
}

fn missing<'a>(machine: &Machine, env: &'a PyEnv) -> Vec<DistRequirement<'a>> {
    let mut all = applicable_requirements(machine, env);
    // conda and system package managers use other package names than METADATA.
    all.retain(|want| {
        let by_pip = matches!(want.dist.installer.as_deref().map(str::trim), Some("pip" | "uv"));
        by_pip && !by_conda(want.dist) && live_dist(env, &want.wanted.name).is_none()
    });
    if env.kind != EnvKind::Venv {
        all.retain(|want| env.unmet_imports.iter().any(|import| is_of(import, want)));
    }
    all
}

fn is_of(import: &UnmetImport, want: &DistRequirement<'_>) -> bool {
    import.requirement == want.wanted.name && import.dist == want.dist.name
}

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().flat_map(|env| judge(context.machine, env)).collect()
}

/// Imports that a third package triggers: the package with the requirement, the requirement, and the triggering package.
/// torch 2.1 and later import sympy in torch/fx/experimental/symbolic_shapes.py. `import torch` does not load that file, but
/// torchvision's import does (torchvision/_meta_registrations.py).
const RUN_BY: [(&str, &str, &str); 1] = [("torch", "sympy", "torchvision")];

/// The installed package whose import triggers the import of a missing requirement.
fn run_by<'a>(env: &'a PyEnv, want: &DistRequirement<'_>) -> Option<&'a Dist> {
    let is_it = |(owner, needs, _): &&(&str, &str, &str)| {
        Dist::normalise(&want.dist.name) == *owner && want.wanted.name == *needs
    };
    RUN_BY.iter().find(is_it).and_then(|(_, _, runner)| live_dist(env, runner))
}

fn judge(machine: &Machine, env: &PyEnv) -> Vec<Finding> {
    let missing = missing(machine, env);
    let import =
        |want: &DistRequirement<'_>| env.unmet_imports.iter().find(|import| is_of(import, want));
    let (run, may): (Vec<&DistRequirement<'_>>, Vec<&DistRequirement<'_>>) =
        missing.iter().partition(|want| import(want).is_some() || run_by(env, want).is_some());
    let found = [
        finding(env, Severity::Error, &run, &import),
        finding(env, Severity::Warning, &may, &import),
    ];
    found.into_iter().flatten().chain(undeclared(env)).collect()
}

/// A package that imports another one without requiring it in METADATA, so that no installer installs it.
fn undeclared(env: &PyEnv) -> Option<Finding> {
    let (dist, row) = UNDECLARED.iter().find_map(|row| {
        let dist = live_dist(env, row.package).filter(|dist| !by_conda(dist))?;
        live_dist(env, row.needs).is_none().then_some((dist, row))
    })?;
    let title = format!(
        "{} {} in {} needs {}, which is not installed and which it does not require",
        dist.name, dist.version, env.root, row.needs
    );
    let finding = RULE
        .finding(Severity::Error, Confidence::Certain, title)
        .evidence(format!("{} {}", dist.name, dist.version), format!("{}/METADATA", dist.path))
        .evidence("its import runs this line", row.line)
        .evidence(
            format!("{} names no requirement for it", row.package),
            undeclared::SOURCE.to_string(),
        )
        .cause("The package is a component of another package, which it imports.")
        .fix([Installer::of(env).install(&[format!("{}=={}", row.needs, dist.version)], None)])
        .finish();
    Some(finding)
}

fn finding<'a>(
    env: &PyEnv,
    severity: Severity,
    wants: &[&DistRequirement<'_>],
    import: &dyn Fn(&DistRequirement<'_>) -> Option<&'a UnmetImport>,
) -> Option<Finding> {
    let first = wants.first()?;
    let more = match wants.len() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let title = format!(
        "{} {} in {} requires {}, which is not installed{more}",
        first.dist.name, first.dist.version, env.root, first.wanted.name
    );
    let confidence =
        if severity == Severity::Error { Confidence::Certain } else { Confidence::Likely };
    let mut draft = RULE.finding(severity, confidence, title);
    let mut specs: Vec<String> = Vec::new();
    for want in wants.iter().take(12) {
        draft = draft.evidence(
            format!(
                "{} {}: Requires-Dist: {}",
                want.dist.name, want.dist.version, want.wanted.line
            ),
            format!("{}/METADATA", want.dist.path),
        );
        if let Some(import) = import(want) {
            draft = draft.evidence(
                format!("an import of {} runs this line", want.dist.name),
                import.at.clone(),
            );
        } else if let Some(runner) = run_by(env, want) {
            draft = draft.evidence(
                format!("the import of {} runs code that needs it", runner.name),
                runner.path.clone(),
            );
        }
    }
    for want in wants {
        let spec = format!("{}{}", want.wanted.name, want.wanted.constraint());
        if !specs.contains(&spec) {
            specs.push(spec);
        }
    }
    let cause = match severity {
        Severity::Error => "The import statement runs whenever the package is imported, and fails.",
        _ => "A required package is missing; the features that need it fail when they are used.",
    };
    Some(draft.cause(cause).fix([Installer::of(env).install(&specs, None)]).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, EnvBuilder, env, machines};
    use facts::{Confidence::*, PyEnv, Severity::*, UnmetImport};

    pub(super) fn cases() -> Vec<Case> {
        let torch = || {
            env("/v")
                .uv()
                .torch("2.8.0+cu128", Some("12.8"))
                .installer("torch", "uv")
                .requires("torch", "filelock>=3.10")
                .requires("torch", "setuptools; python_version >= \"3.13\"")
                .requires("torch", "optree>=0.13.0; extra == \"optree\"")
        };
        let imported = |env: EnvBuilder| -> PyEnv {
            let mut env = env.build();
            env.unmet_imports.push(UnmetImport {
                dist: "torch".into(),
                requirement: "filelock".into(),
                at: "/v/lib/python3.12/site-packages/torch/serialization.py:12".into(),
            });
            env
        };
        vec![
            Case::new("a dependency was uninstalled", machines::a10(), vec![imported(torch())]).finds(
                Error,
                Certain,
                &[
                    "torch 2.8.0 in /v requires filelock, which is not installed",
                    "Requires-Dist: filelock>=3.10",
                    "an import of torch runs this line [/v/lib/python3.12/site-packages/torch/serialization.py:12]",
                    "uv pip install --python /v/bin/python 'filelock>=3.10'",
                ],
            ),
            Case::new("torch's sympy, which torchvision's import runs", machines::a10(), vec![
                torch().dist("filelock", "3.20").requires("torch", "sympy>=1.13.3").dist("torchvision", "0.23.0").build(),
            ])
            .finds(Error, Certain, &["requires sympy, which is not installed", "the import of torchvision runs code that needs it"]),
            Case::new("torch's sympy, which no import runs", machines::a10(), vec![
                torch().dist("filelock", "3.20").requires("torch", "sympy>=1.13.3").build(),
            ])
            .finds(Warning, Likely, &["requires sympy, which is not installed"]),
            Case::new("one that no import needs", machines::a10(), vec![torch().build()])
                .finds(Warning, Likely, &["requires filelock, which is not installed"]),
            Case::new("all are installed", machines::a10(), vec![torch().dist("FileLock", "3.20").build()]),
            Case::new("a component without its main package, and one with it", machines::a10(), vec![
                env("/v").dist("transformer_engine_cu12", "2.6.0.post1").build(),
                env("/w").dist("transformer_engine_cu12", "2.6.0").dist("transformer-engine", "2.6.0").build(),
            ])
            .finds(
                Error,
                Certain,
                &[
                    "transformer_engine_cu12 2.6.0.post1 in /v needs transformer-engine, which is not installed",
                    "pip install transformer-engine==2.6.0.post1",
                ],
            ),
            Case::new("conda uses other names", machines::a10(), vec![
                torch().installer("torch", "conda").build(),
            ]),
        ]
    }
}
